"""Tokenizers from directories and GGUF metadata: ids, special tokens, errors. Case numbers are those of the bug reports
that each test guards against."""

from __future__ import annotations

import heapq
import json
import logging
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from octavo.errors import LoadError, ValidationError
from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.golden.derive_text import FILE
from tests.text import small

GOLDEN = json.loads(FILE.read_text("utf-8"))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.lists(
    st.sampled_from(
        ["the ", " harbour", "<tool>", "</s>", "\u6771\u4eac", "\U0001f642", "\n\n", "  ", "Gr\u00fc\u00dfe", "4 20"]
    )
).map("".join)


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.mark.parametrize("row", GOLDEN["texts"], ids=lambda row: ascii(row["text"])[:30])
def test_c160_c161_smollm2_ids_are_those_of_hugging_face(smol: Tokenizer, row: dict) -> None:
    assert smol.encode(row["text"]) == row["ids"]
    assert smol.decode(row["ids"], skip_special_tokens=False) == row["text"]


def test_smollm2_as_vllm_answers_it(smol: Tokenizer) -> None:
    assert smol.encode("Hello world") == [19556, 905]
    assert [smol.token_text(id) for id in (19556, 905)] == ["Hello", "\u0120world"]
    assert smol.token_bytes(905) == b" world"
    assert smol.decode([19556, 905]) == "Hello world"


def test_smollm2_special_tokens(smol: Tokenizer) -> None:
    assert smol.vocab_size == 49152
    assert (smol.bos_token_id, smol.eos_token_id, smol.eos_token_ids) == (1, 2, (2,))
    assert smol.special_tokens["eos_token"] == "<|im_end|>"
    assert smol.special_ids == frozenset(range(17))
    assert "<|im_start|>" in smol.chat_templates["default"]
    assert smol.max_chars_per_token == 81


def test_ids_that_stand_for_nothing(smol: Tokenizer) -> None:
    assert smol.decode([19556, 49152, 10**9, -1, 905]) == "Hello world"
    assert smol.token_bytes(49152) == b""
    assert smol.token_text(-1) == ""


@given(text=ANY_TEXT)
def test_text_survives_the_round_trip(text: str) -> None:
    tokenizer = small.byte_level()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_c130_a_lone_surrogate_is_refused(smol: Tokenizer) -> None:
    with pytest.raises(ValidationError, match="lone surrogate at character 2"):
        smol.encode("ab\ud800c")
    assert smol.decode(smol.encode("a\u0000\ufeffb")) == "a\u0000\ufeffb"


def test_other_threads_run_while_a_long_text_is_tokenized(smol: Tokenizer) -> None:
    """Otherwise one long prompt would halt every stream of the server."""
    thread = threading.Thread(target=smol.encode, args=("x y " * 50_000,))
    thread.start()
    turns = 0
    while thread.is_alive():
        thread.join(0.001)
        turns += 1
    assert turns > 20


def test_added_tokens_are_spelled_as_they_are() -> None:
    """Their characters may be none of the byte alphabet (DeepSeek's are not)."""
    backend = tokenizers.Tokenizer.from_str(small.byte_level()._backend.to_str())
    backend.add_tokens([AddedToken("<\uff5ctool\u2581calls\uff5c>", normalized=False)])
    tokenizer = Tokenizer(backend, {})
    text = "the<\uff5ctool\u2581calls\uff5c>\u6771"
    assert tokenizer.decode(tokenizer.encode(text)) == text == backend.decode(tokenizer.encode(text))
    assert tokenizer.token_bytes(404) == "<\uff5ctool\u2581calls\uff5c>".encode()


# -- GGUF, SentencePiece


def reference_merge(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: the best-scored token that two neighbours form is made first, the leftmost of equals."""
    symbols: list[str | None] = list(text)
    following = [*range(1, len(symbols)), None]
    previous: list[int | None] = [None, *range(len(symbols) - 1)]
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int | None, right: int | None) -> None:
        if left is not None and right is not None:
            token = f"{symbols[left]}{symbols[right]}"
            if token in scores:
                heapq.heappush(queue, (-scores[token], left, right, token))

    for i in range(len(symbols) - 1):
        offer(i, i + 1)
    while queue:
        _, left, right, token = heapq.heappop(queue)
        if symbols[left] is None or symbols[right] is None or f"{symbols[left]}{symbols[right]}" != token:
            continue
        symbols[left], symbols[right] = token, None
        following[left] = following[right]
        if following[left] is not None:
            previous[following[left]] = left
        offer(previous[left], left)
        offer(left, following[left])
    return [symbol for symbol in symbols if symbol is not None]


@given(text=st.text(st.sampled_from("the harbouwsqin g\u00fc\u00df\u6771\u4eac"), max_size=30))
def test_c161_scores_without_merges_give_sentencepieces_tokens(text: str) -> None:
    tokenizer = small.sentencepiece()
    ordinary = {token: -float(id) for id, (token, kind) in enumerate(small.sentencepiece_tokens()) if kind == 1}
    expected: list[bytes | str] = []
    for piece in reference_merge("\u2581" + text.replace(" ", "\u2581"), ordinary) if text else []:
        expected += [piece] if piece in ordinary else [f"<0x{byte:02X}>" for byte in piece.encode()]
    assert [tokenizer.token_text(id) for id in tokenizer.encode(text, add_special_tokens=False)] == expected


@given(text=ANY_TEXT)
def test_gguf_and_tokenizer_json_agree(text: str) -> None:
    gguf = small.sentencepiece()
    hugging_face = small.llama2_backend()
    ids = hugging_face.encode(text).ids
    assert gguf.encode(text) == [1, *ids]
    assert gguf.encode(text, add_special_tokens=False) == ids


def test_stored_merges_are_preferred_to_scores() -> None:
    merges = ["t h", "\u2581 th", "th e", "\u2581th e"]
    metadata = small.sentencepiece_metadata(**{"tokenizer.ggml.merges": merges})
    metadata["tokenizer.ggml.scores"] = None
    tokenizer = tokenizer_from_gguf(metadata)
    ids = tokenizer.encode("the harbour", False)
    assert [tokenizer.token_text(id) for id in ids] == ["\u2581the", "\u2581", *"harbour"]


def test_c79_c160_special_tokens_are_one_id_and_bos_is_added_once() -> None:
    tokenizer = small.sentencepiece()
    assert tokenizer.encode("<s>the")[:2] == tokenizer.encode("the")[:2]
    assert tokenizer.encode("<s>the").count(1) == 1
    assert tokenizer.encode("<s>the", add_special_tokens=False).count(1) == 1
    assert tokenizer.encode("the", add_special_tokens=False).count(1) == 0
    tool = tokenizer.encode("<tool>", False)
    assert [tokenizer.token_text(id) for id in tool] == ["<tool>"]
    assert tool[0] not in tokenizer.special_ids


def test_add_bos_and_add_eos_and_no_space_prefix() -> None:
    keys = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = tokenizer_from_gguf(small.sentencepiece_metadata(**keys, **{"tokenizer.ggml.add_space_prefix": False}))
    ids = tokenizer.encode("he")
    assert [tokenizer.token_text(id) for id in ids] == ["he", "</s>"]
    assert tokenizer.decode(ids) == "he"
    assert tokenizer.decode(tokenizer.encode(" he")) == " he"


def test_eot_and_eom_end_an_answer_too() -> None:
    tokenizer = tokenizer_from_gguf(
        small.sentencepiece_metadata(**{"tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eom_token_id": 301})
    )
    assert tokenizer.eos_token_ids == (2, 300, 301)


def test_named_chat_templates_of_a_gguf() -> None:
    keys = {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_template.tool_use": "B",
        "tokenizer.chat_templates": ["tool_use"],
    }
    assert tokenizer_from_gguf(small.sentencepiece_metadata(**keys)).chat_templates == {"default": "A", "tool_use": "B"}


def test_gemma_spells_runs_of_spaces_and_keeps_their_order() -> None:
    metadata = small.sentencepiece_metadata(**{"general.architecture": "gemma2"})
    metadata["tokenizer.ggml.tokens"][-1] = "   "
    metadata["tokenizer.ggml.scores"] = [0.0] * len(metadata["tokenizer.ggml.tokens"])
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.decode(tokenizer.encode("the   the")) == "the   the"
    assert tokenizer.token_text(len(metadata["tokenizer.ggml.tokens"]) - 1) == "\u2581\u2581\u2581"
    assert tokenizer.encode(" the", False) == [metadata["tokenizer.ggml.tokens"].index("\u2581the")]


# -- GGUF, byte-level


def byte_level_metadata(**more: object) -> dict:
    state = json.loads(small.byte_level()._backend.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    vocabulary = {**state["model"]["vocab"], **{token["content"]: id for id, token in added.items()}}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            1 if id not in added else 3 if added[id]["special"] else 4 for id in range(len(tokens))
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": vocabulary["<|end|>"],
        **more,
    }


@given(text=ANY_TEXT)
def test_byte_level_gguf_gives_the_ids_of_tokenizer_json(text: str) -> None:
    assert tokenizer_from_gguf(byte_level_metadata()).encode(text) == small.byte_level().encode(text)


def test_c161_unknown_pre_tokenizer_warns_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_from_gguf(byte_level_metadata(**{"tokenizer.ggml.pre": "martian"}))
    assert "'martian'" in caplog.text
    assert tokenizer.encode("the 20") == small.byte_level().encode("the 20")


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("smollm", "a 120 b", ["a", "\u0120", "1", "2", "0", "\u0120b"]),
        ("gpt-2", "a 120 b's", ["a", "\u0120120", "\u0120b", "'s"]),
        ("llama-bpe", "a 1200 B'S", ["a", "\u0120", "120", "0", "\u0120B", "'S"]),
        ("qwen2", "a 120 (b)\n\n", ["a", "\u0120", "1", "2", "0", "\u0120(", "b", ")\u010a\u010a"]),
        ("tekken", "HELLOWorld/\n", ["HELLOWorld", "/\u010a"]),
        ("gpt-4o", "helloWorld's 1200", ["hello", "World's", "\u0120", "120", "0"]),
        ("falcon", "a+b 1234", ["a", "+", "b", "\u0120", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", "\u0120", "123", "4"]),
        ("deepseek-v3", "a 1234\u6771\u4eacx", ["a", "\u0120", "123", "4", "\u00e6\u013f\u00b1\u00e4\u00ba\u00ac", "x"]),
        ("deepseek-coder", "ab 12", ["ab", "\u0120", "1", "2"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(name: str, text: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in PRE_TOKENIZATIONS[name].build().pre_tokenize_str(text)] == pieces


def test_every_pre_tokenizer_can_be_built() -> None:
    for name, rules in PRE_TOKENIZATIONS.items():
        pieces = "".join(piece for piece, _ in rules.build().pre_tokenize_str("Ab'll 12\n\n \u00e9(\u6771)"))
        assert pieces == "Ab'll\u012012\u010a\u010a\u0120\u00c3\u00a9(\u00e6\u013f\u00b1)", name


def test_llama3_takes_whole_words_and_qwen2_composes_characters() -> None:
    llama3 = tokenizer_from_gguf(
        byte_level_metadata(**{"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 0})
    )
    assert llama3.encode("the")[0] == 0
    qwen2 = tokenizer_from_gguf(byte_level_metadata(**{"tokenizer.ggml.pre": "qwen2"}))
    assert qwen2.encode("u\u0308") == qwen2.encode("\u00fc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "holds no vocabulary"),
        ({"tokenizer.ggml.merges": ["x yz"]}, "merges do not fit its vocabulary"),
    ],
)
def test_a_gguf_that_cannot_be_read_says_why(change: dict, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        tokenizer_from_gguf({**byte_level_metadata(), **change})


def test_a_gguf_without_merges_or_scores_says_so() -> None:
    for metadata, key in ((byte_level_metadata(), "merges"), (small.sentencepiece_metadata(), "scores")):
        del metadata[f"tokenizer.ggml.{key}"]
        with pytest.raises(LoadError, match=key):
            tokenizer_from_gguf(metadata)


# -- directories


def test_directory_with_every_file(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(small.byte_level()._backend.to_str())
    backend.enable_truncation(3)
    backend.enable_padding(length=7)
    small.write_directory(
        tmp_path,
        backend,
        bos_token={"__type": "AddedToken", "content": "<think>"},
        eos_token="<|end|>",
        pad_token=None,
        extra_special_tokens={"image_token": "<tool>"},
        add_bos_token=True,
        chat_template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
        added_tokens_decoder={"404": {"content": "<new>", "special": True}, "401": {"content": "<think>", "special": False}},
    )
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "the"}')
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    tokenizer = load_tokenizer(tmp_path)
    start = tokenizer.bos_token_id
    assert start is not None
    named = {"bos_token": "<think>", "eos_token": "<|end|>", "unk_token": "the", "image_token": "<tool>"}
    assert tokenizer.special_tokens == named
    assert tokenizer.encode("the harbour was quiet")[0] == start
    assert len(tokenizer.encode("the harbour was quiet that morning")) > 3
    assert tokenizer.encode("<new>", False) == [404]
    assert {404, start, tokenizer.eos_token_id} <= tokenizer.special_ids
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T", "rag": "R"}
    (tmp_path / "chat_template.jinja").write_text("J")
    assert load_tokenizer(tmp_path).chat_templates["default"] == "J"


def test_added_tokens_json_of_old_checkpoints(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(small.byte_level()._backend.to_str())
    small.write_directory(tmp_path, backend)
    (tmp_path / "added_tokens.json").write_text('{"<old>": 404, "<older>": 405}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<older><old>") == [405, 404]
    assert tokenizer.vocab_size == 406


def test_named_tokens_never_make_new_ids(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(small.byte_level()._backend.to_str())
    tokenizer = small.loaded(tmp_path, backend, pad_token="[PAD]", bos_token="[BOS]", add_bos_token=True)
    assert tokenizer.vocab_size == 404
    assert tokenizer.bos_token_id is None
    assert tokenizer.encode("the") == small.byte_level().encode("the")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"a": "b"}}', "added_tokens_decoder must map"),
        ("tokenizer_config.json", '{"added_tokens_decoder": 5}', "added_tokens_decoder must map"),
        ("tokenizer_config.json", '{"chat_template": ["x"]}', "a list of chat templates must hold"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", '{"bos_token": "\\uD800"}', "tokenizer_config.json cannot be read"),
    ],
)
def test_a_directory_that_cannot_be_read_says_why(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    small.write_directory(tmp_path, small.byte_level()._backend)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(LoadError, match=message):
        load_tokenizer(tmp_path)


def test_a_template_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    small.write_directory(tmp_path, small.byte_level()._backend)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"chat_template\.jinja is not UTF-8"):
        load_tokenizer(tmp_path)


def test_a_decoder_that_generates_no_text_is_refused_by_name(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    tokenizer = small.loaded(tmp_path, backend)
    assert tokenizer.encode("the") == [1]
    with pytest.raises(LoadError, match="WordPiece"):
        tokenizer.decode([1])


def test_c92_ids_with_holes_count_to_the_largest(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 5}, merges=[]))
    backend.add_tokens([AddedToken("<x>")])
    tokenizer = small.loaded(tmp_path, backend)
    assert tokenizer.vocab_size == 6
    assert [tokenizer.token_text(id) for id in range(7)] == ["a", "b", "", "<x>", "", "c", ""]
