"""GGUF vocabularies of public models with the ids that their Hugging Face tokenizers give (nightly: a download)."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.weights.gguf_header import read_header
from tests.text.public import llama_cpp_models

pytestmark = pytest.mark.nightly

SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = ["command-r", "deepseek-coder", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2"]
# Of qwen35 the last texts are composed characters, which its Hugging Face tokenizer normalises and llama.cpp does not.
COUNTS = {"qwen35": 46, "refact": None, "starcoder": None}


@pytest.mark.parametrize("name", [*NAMES, *COUNTS])
def test_c161_ids_are_those_of_hugging_face(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    file = llama_cpp_models(tmp_path_factory) / f"ggml-vocab-{name}.gguf"
    tokenizer = tokenizer_from_gguf(read_header(file).metadata)
    texts = Path(f"{file}.inp").read_bytes().decode().split(SEPARATOR)
    expected = [[int(id) for id in line.split()] for line in Path(f"{file}.out").read_text().splitlines()]
    assert len(texts) > 40
    for text, ids in list(zip(texts, expected, strict=False))[: COUNTS.get(name)]:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        if name not in ("llama-spm", "phi-3"):
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
