"""What the server's own options change: keys, origins, HTTPS, the path behind a proxy, and the probes."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.engine.request import EngineStatus
from octavo.entrypoints.openai.api_server import run
from octavo.errors import ConfigError
from octavo.server.app import serve
from octavo.server.auth import with_keys_of_file
from tests.server.running import RunningServer, running

OPEN = ("/health", "/livez", "/readyz", "/ping", "/version")
GUARDED = ("/load", "/v1/models", "/openapi.json")


def status(server: RunningServer, path: str, key: str | None = None) -> int:
    return server.http.get(path, headers={"authorization": f"Bearer {key}"} if key else {}).status_code


def test_every_key_opens_what_is_guarded(intake: Intake, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n\nsecond\n  third \n")
    config = with_keys_of_file(EngineConfig(api_key="first", api_key_file=str(file)))
    with running(intake, config=config) as server:
        for path in (*OPEN, "/metrics"):
            assert status(server, path) == 200
        for path in GUARDED:
            assert [status(server, path, key) for key in (None, "wrong", "# of the team")] == [401, 401, 401]
            assert [status(server, path, key) for key in ("first", "second", "third")] == [200, 200, 200]


def test_metrics_can_be_guarded_too(intake: Intake) -> None:
    with running(intake, config=EngineConfig(api_key="first", guard_metrics=True)) as server:
        assert (status(server, "/metrics"), status(server, "/metrics", "first"), status(server, "/health")) == (
            401,
            200,
            200,
        )


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), ("# none\n\n", "holds no key")])
def test_a_key_file_without_keys_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    assert serve(EngineConfig(api_key_file=str(file), port=0)) == 1
    error = capsys.readouterr().err
    assert "--api-key-file" in error
    assert message in error


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_a_proxy_may_take_its_path_off_or_leave_it_on(intake: Intake, prefix: str) -> None:
    with running(intake, config=EngineConfig(root_path="/llm", api_key="first")) as server:
        assert status(server, f"{prefix}/health") == 200
        assert [status(server, f"{prefix}/v1/models", key) for key in (None, "first")] == [401, 200]
        assert status(server, f"{prefix}/llm/health", "first") == (404 if prefix else 200)


def test_c166_pages_of_other_origins_may_ask(intake: Intake) -> None:
    question = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with running(intake, config=EngineConfig(api_key="first")) as server:
        assert server.http.options("/v1/models", headers=question).headers["access-control-allow-origin"] == "*"
    config = EngineConfig(allowed_origins=("https://a.example",), allow_credentials=True)
    with running(intake, config=config) as server:
        allowed = server.http.get("/v1/models", headers={"origin": "https://a.example"}).headers
        assert allowed["access-control-allow-origin"] == "https://a.example"
        assert allowed["access-control-allow-credentials"] == "true"
        other = server.http.get("/v1/models", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers
    with running(intake, config=EngineConfig(allowed_origins=())) as server:
        assert "access-control-allow-origin" not in server.http.get("/v1/models", headers=question).headers


def test_https(intake: Intake, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    with running(intake, config=EngineConfig(ssl_certfile=str(tmp_path / "server.pem"))) as server:
        trusted = ssl.create_default_context()
        authority.configure_trust(trusted)
        address = server.address.replace("http:", "https:")
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": [1], "max_tokens": 2}, verify=trusted)
        assert answer.json()["usage"]["completion_tokens"] == 2
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.address}/health")


def test_a_wrong_certificate_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.pem").write_text("no certificate")
    for options in ({"ssl_certfile": "server.pem"}, {"ssl_certfile": "missing.pem", "ssl_keyfile": "server.pem"}):
        paths = {name: str(tmp_path / file) for name, file in options.items()}
        assert serve(EngineConfig(port=0, **paths)) == 1
        assert "--ssl-certfile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_keyfile": "x"}, "--ssl-keyfile has no meaning without --ssl-certfile"),
        ({"ssl_certfile": "x", "ssl_cert_reqs": 2}, "--ssl-cert-reqs above 0 needs --ssl-ca-certs"),
        ({"root_path": "llm"}, "--root-path must begin with /"),
        ({"root_path": "/llm/"}, "--root-path must begin with /"),
        ({"allowed_origins": ["example.org"]}, "--allowed-origins takes"),
        ({"max_tool_retries": 3}, "retry in the client"),
        ({"max_model_length": 3}, "did you mean max_model_len"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**options)


def test_probes_tell_living_from_ready(intake: Intake) -> None:
    with running(intake) as server:
        probes = ("/livez", "/readyz", "/health")
        assert [status(server, path) for path in probes] == [200, 200, 200]
        model, server.state.model = server.state.model, None
        assert [status(server, path) for path in probes] == [200, 503, 503]
        server.state.model = model
        server.client._status = EngineStatus("dead", message="it fell")
        assert [status(server, path) for path in probes] == [503, 503, 503]


def test_the_load_is_the_requests_that_run(intake: Intake) -> None:
    with running(intake) as server:
        assert server.http.get("/load").json() == {"server_load": 0}
        server.gate.open.clear()
        asked = [server.submit("/v1/completions", {"prompt": [1], "max_tokens": 2}) for _ in range(3)]
        server.until(lambda: server.metrics.num_unfinished == 3)
        assert server.http.get("/load").json() == {"server_load": 3}
        server.gate.open.set()
        assert [answer.result().status_code for answer in asked] == [200, 200, 200]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_request_brings_a_template_only_where_that_is_allowed(intake: Intake, trusted: bool) -> None:
    with running(intake) as server:
        server.state.model.trusts_request_templates = trusted
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages[0].content }} alone"}
        answer = server.post("/tokenize", body)
        if trusted:
            assert intake.tokenizer.decode(answer.json()["tokens"]) == "x alone"
        else:
            assert answer.status_code == 400
            assert "--trust-request-chat-template" in answer.json()["error"]["message"]


def test_the_tokenizer_is_shown_where_that_is_allowed(intake: Intake) -> None:
    with running(intake) as server:
        refused = server.http.get("/tokenizer_info")
        assert refused.status_code == 404
        assert "--enable-tokenizer-info-endpoint" in refused.json()["error"]["message"]
    with running(intake, config=EngineConfig(enable_tokenizer_info_endpoint=True)) as server:
        shown = server.http.get("/tokenizer_info").json()
    assert shown["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in shown["chat_template"]
    assert (shown["model_max_length"], shown["vocab_size"]) == (512, 49_152)
