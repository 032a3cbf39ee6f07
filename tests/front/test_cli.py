"""`octavo`, `octavo chat` and `octavo complete` against a server whose answers are prepared."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo import __version__
from octavo.cli.main import main
from tests.front.loopback import Loopback, chat_pieces, events, loopback

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback() as server:
        yield server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line, with `stdin` as a pipe or (`typed`) lines on a terminal: exit code, output, errors."""

    def run(*arguments: str, stdin: str = "", typed: list[str | type[BaseException]] | None = None) -> tuple[int, str, str]:
        source = io.StringIO(stdin)
        source.isatty = lambda: typed is not None  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", source)
        lines = iter([*(typed or []), EOFError])

        def read(prompt: str) -> str:
            line = next(lines)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", read)
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    assert [word for word in ("serve", "chat", "complete", __version__) if word not in out] == []


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "unknown command srve; did you mean serve?"),
        (["xyz"], "unknown command xyz; there are serve, chat, complete, bench, plan"),
        (["serve", "--prot", "1"], "unknown option --prot; did you mean --port?"),
        (["serve", "--block-size", "8"], "--block-size must be a multiple of 16, got 8"),
        (["plan", "--memory", "lots"], "--memory takes a size such as 24GiB, got lots"),
        (["plan", "--memory", "0"], "--memory takes a size such as 24GiB, got 0"),
        (
            ["plan", "--host", "x", "./m"],
            "model './m' is neither an existing path nor a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        (["chat", "--max-token", "1"], "unknown option --max-token; did you mean --max-tokens?"),
        (["chat", "--prompt", "x", "--top-p", "lots"], "--top-p takes a number, got lots"),
        (["chat", "--prompt", "x", "--url", "ftp://a"], "--url must be like http://127.0.0.1:8000, got ftp://a"),
        (
            ["complete", "--prompt", "x", "--url", "http://a", "--dtype", "half"],
            "--dtype is the server's to choose; leave it out with --url",
        ),
    ],
)
def test_errors_are_one_line(run: Run, arguments: list[str], message: str) -> None:
    assert run(*arguments) == (1, "", f"octavo: error: {message}\n")


def test_nobody_there(run: Run) -> None:
    with loopback() as gone:
        url = gone.url
    code, out, err = run("chat", "--url", url, "--prompt", "x")
    assert (code, out) == (1, "")
    assert err == f"octavo: error: cannot reach {url}: [Errno 111] Connection refused\n"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_chat_once(run: Run, server: Loopback, suffix: str) -> None:
    server.answers[CHAT] = (200, chat_pieces("Bon", "jour 🙂", "!"))
    assert run("chat", "--url", server.url + suffix, "--prompt", "Hi", "--system", "Be French") == (0, "Bonjour 🙂!\n", "")
    (path, _, _), (chat_path, _, body) = server.requests
    assert (path, chat_path) == ("/v1/models", CHAT)
    messages = [{"role": "system", "content": "Be French"}, {"role": "user", "content": "Hi"}]
    assert body == {"model": "first", "stream": True, "messages": messages}


@pytest.mark.parametrize(
    ("piped", "sent"), [("one", "one"), ("one\n", "one"), ("one\n\n", "one\n"), (" one \ntwo\n", " one \ntwo")]
)
def test_piped_text_is_sent_without_its_last_line_end(run: Run, server: Loopback, piped: str, sent: str) -> None:
    server.answers[CHAT] = (200, chat_pieces("yes"))
    server.answers[COMPLETIONS] = (200, events({"choices": [{"text": "yes"}]}))
    for command in ("chat", "complete"):
        assert run(command, "mine", "--url", server.url, stdin=piped) == (0, "yes\n", "")
    (_, _, chat), (_, _, completion) = server.requests
    assert chat["messages"] == [{"role": "user", "content": sent}]
    assert completion["prompt"] == sent


def test_parameters_key_and_model_reach_the_server(run: Run, server: Loopback) -> None:
    server.answers[COMPLETIONS] = (200, events({"choices": [{"text": " two"}]}, {"choices": [{"text": " three"}]}))
    flags = [
        "--temperature",
        "0",
        "--max-tokens",
        "1k",
        "--top-k",
        "5",
        "--stop",
        "a",
        "b",
        "--seed",
        "7",
        "--api-key",
        "secret",
    ]
    assert run("complete", "mine", "--url", server.url, *flags, stdin="one")[:2] == (0, " two three\n")
    ((path, headers, body),) = server.requests
    assert (path, headers["Authorization"]) == (COMPLETIONS, "Bearer secret")
    assert body == {
        "model": "mine",
        "stream": True,
        "prompt": "one",
        "temperature": 0.0,
        "max_tokens": 1000,
        "top_k": 5,
        "stop": ["a", "b"],
        "seed": 7,
    }


def test_complete_has_a_limit_of_its_own(run: Run, server: Loopback) -> None:
    server.answers[COMPLETIONS] = (200, events())
    run("complete", "--url", server.url, "--prompt", "one")
    assert server.requests[-1][2]["max_tokens"] == 128


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, b'{"error": {"message": "No such model.", "code": 404}}'), "the server answered 404: No such model."),
        ((401, b'{"error": "Unauthorized"}'), "the server answered 401: Unauthorized"),
        ((502, b"<html>bad gateway</html>"), "the server answered 502: <html>bad gateway</html>"),
        ((503, b""), "the server answered 503: Service Unavailable"),
        ((200, events({"error": {"message": "The engine is gone."}})), "The engine is gone."),
    ],
)
def test_what_the_server_refuses(run: Run, server: Loopback, answer: tuple[int, bytes], message: str) -> None:
    server.answers[CHAT] = answer
    code, out, err = run("chat", "--url", server.url, "--prompt", "x")
    assert (code, out.strip(), err) == (1, "", f"octavo: error: {message}\n")


def test_conversation_remembers(run: Run, server: Loopback) -> None:
    server.answers[CHAT] = (200, chat_pieces("Yes"))
    code, out, _ = run("chat", "--url", server.url, typed=["one", "", "two"])
    assert (code, out) == (0, "Yes\nYes\n\n")
    said = [message["content"] for message in server.requests[-1][2]["messages"]]
    assert said == ["one", "Yes", "two"]


def test_an_error_does_not_end_the_conversation(run: Run, server: Loopback) -> None:
    server.answers[CHAT] = (400, b'{"error": {"message": "too long"}}')
    code, _, err = run("chat", "--url", server.url, typed=["one", "two"])
    assert code == 0
    assert err.count("the server answered 400: too long\n") == 2
    assert [message["content"] for message in server.requests[-1][2]["messages"]] == ["two"]


def test_interrupting_ends_the_answer_and_not_the_program(
    run: Run, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[CHAT] = (200, chat_pieces("a", "b", "c"))
    shown: list[str] = []

    def show(*values: Any, **keywords: Any) -> None:
        if values == ("b",) and "b" not in shown:
            shown.append("b")
            raise KeyboardInterrupt
        shown.extend(values)

    monkeypatch.setattr("octavo.cli.answers.print", show, raising=False)
    code, _, _ = run("chat", "--url", server.url, typed=["one", KeyboardInterrupt, "two"])
    assert code == 0
    said = [message["content"] for message in server.requests[-1][2]["messages"]]
    assert said == ["one", "a", "two"]
    assert "".join(shown[-4:]).strip() == "abc"


def test_interrupting_a_single_answer_ends_with_130(run: Run, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers[CHAT] = (200, chat_pieces("a"))

    def interrupted(pieces: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cli.chat.print_answer", interrupted)
    assert run("chat", "--url", server.url, "--prompt", "x")[0] == 130
