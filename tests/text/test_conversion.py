"""Tokenizers from other files than tokenizer.json, each beside what its file means, written a second time."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LoadError
from octavo.text.detokenizer import Detokenizer
from octavo.text.pieces import byte_alphabet
from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.small import TEXT, byte_level
from tests.text.vocabularies import (
    AS_IT_IS,
    BPE,
    CONTROL,
    UNIGRAM,
    USER_DEFINED,
    bpe_ids,
    pieces,
    rank_ids,
    ranks,
    ranks_file,
    sentencepiece_file,
    tekken_json,
    unigram_ids,
    write,
)

TEXTS = st.lists(
    st.sampled_from(
        [*" \n", *(word for line in TEXT for word in line.split()), "  ", "x\u0301", "\U0001f469\u200d", "42", "I'm"]
    )
    | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\u2581"), max_size=4)
).map("".join)
PLAIN = [piece for piece in pieces() if piece[2] != USER_DEFINED]


def loaded(name: str, data: bytes | dict[str, Any], **config: Any) -> Tokenizer:
    return load_tokenizer(write(Path(mkdtemp()), name, data, **config))


@cache
def sentencepiece(kind: str) -> Tokenizer:
    return loaded("tokenizer.model", sentencepiece_file(PLAIN, BPE if kind == "bpe" else UNIGRAM, AS_IT_IS))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=TEXTS)
def test_sentencepiece_ids_and_back(kind: str, text: str) -> None:
    tokenizer = sentencepiece(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == (bpe_ids if kind == "bpe" else unigram_ids)(text, PLAIN)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [1, *ids]


@given(text=TEXTS, cut=st.integers(0, 40))
def test_converted_text_comes_in_pieces(text: str, cut: int) -> None:
    for tokenizer in (sentencepiece("bpe"), tiktoken("QWenTokenizer")):
        ids = tokenizer.encode(text, add_special_tokens=False)
        cut = min(cut, len(ids))
        detokenizer = Detokenizer(tokenizer, ids[:cut])
        rest = [detokenizer.push(token_id) for token_id in ids[cut:]] + [detokenizer.finish()]
        whole = tokenizer.decode(ids)
        assert whole.endswith("".join(rest).lstrip("\ufffd"))
        assert cut or "".join(rest) == whole


def test_what_a_sentencepiece_file_says_about_spaces() -> None:
    def ids(text: str, normalizer: dict[int, Any]) -> list[int]:
        return loaded("tokenizer.model", sentencepiece_file(PLAIN, BPE, normalizer)).encode(text, add_special_tokens=False)

    assert ids(" the  air ", {}) == bpe_ids("the air", PLAIN)
    assert ids("the  air", AS_IT_IS) == bpe_ids("the  air", PLAIN)
    (first, *rest) = bpe_ids("air", PLAIN)
    assert PLAIN[first][0].startswith("\u2581")
    without = ids("air", {3: False, 4: False})
    assert without != [first, *rest]
    assert "".join(PLAIN[id][0] for id in without) == "air"


def test_special_tokens_and_those_that_stand_for_themselves() -> None:
    tokens = [*PLAIN, ("\u2581\u2581\u2581", 0.0, USER_DEFINED), ("<turn>", 0.0, USER_DEFINED), ("<c>", 0.0, CONTROL)]
    spaces, turn, control = range(len(PLAIN), len(PLAIN) + 3)
    added = {str(control + 3): {"content": "<far>", "special": True}, str(turn): {"content": "<turn>", "special": True}}
    for trainer in (BPE, BPE | {41: -1}):
        file = sentencepiece_file(tokens, trainer, AS_IT_IS | {3: False})
        tokenizer = loaded("tokenizer.model", file, added_tokens_decoder=added)
        the = tokenizer.encode("the", add_special_tokens=False)
        begin = [1] if trainer is BPE else []
        assert tokenizer.encode("the<turn>   <c><far>") == [*begin, *the, turn, spaces, control, control + 3]
        assert tokenizer.special_ids >= {1, 2, turn, control, control + 3}
        assert tokenizer.decode([*the, spaces, turn, control + 3]) == "the   "
        assert tokenizer.vocab_size == control + 4
        assert tokenizer.eos_token_id == 2


def test_a_part_behind_a_special_token_begins_as_the_text_does_unless_legacy_is_false() -> None:
    file = sentencepiece_file(PLAIN, BPE, AS_IT_IS)
    for legacy in (True, False):
        tokenizer = loaded("tokenizer.model", file, legacy=legacy)
        inner = (
            bpe_ids("air", PLAIN)
            if legacy
            else loaded("tokenizer.model", sentencepiece_file(PLAIN, BPE, {3: False, 4: False})).encode(
                "air", add_special_tokens=False
            )
        )
        assert tokenizer.encode("the</s>air") == [1, *bpe_ids("the", PLAIN), 2, *inner]


def test_chatglm_has_tokens_that_no_file_names() -> None:
    file = sentencepiece_file(PLAIN, BPE, AS_IT_IS)
    tokenizer = loaded("tokenizer.model", file, tokenizer_class="ChatGLMTokenizer")
    count = len(PLAIN)
    assert tokenizer.encode("the<|user|>") == [count + 1, count + 3, *bpe_ids("the", PLAIN), count + 6]
    assert tokenizer.decode([count + 3, *bpe_ids("the", PLAIN), count + 7]) == "the"


@cache
def tiktoken(kind: str) -> Tokenizer:
    name = "qwen.tiktoken" if kind == "QWenTokenizer" else "tokenizer.model"
    return loaded(name, ranks_file(ranks()), tokenizer_class=kind)


RULES = {"QWenTokenizer": "qwen2", "ChatGLM4Tokenizer": "glm4"}


@pytest.mark.parametrize("kind", RULES)
@given(text=TEXTS)
def test_tiktoken_ids_and_back(kind: str, text: str) -> None:
    tokenizer, alphabet = tiktoken(kind), byte_alphabet()
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    words = PRE_TOKENIZATIONS[RULES[kind]].build().pre_tokenize_str(whole)
    assert ids == [id for word, _ in words for id in rank_ids(bytes(alphabet[character] for character in word), ranks())]
    if kind != "QWenTokenizer":  # which composes characters
        assert whole == text


def test_the_tokens_that_stand_behind_ranks() -> None:
    first = len(ranks())
    qwen, glm = tiktoken("QWenTokenizer"), tiktoken("ChatGLM4Tokenizer")
    assert qwen.encode("<|im_start|><|endoftext|><|extra_204|>") == [first + 1, first, first + 207]
    assert qwen.eos_token_id == first
    assert glm.encode("<|user|>") == [first + 2, first + 4, first + 7]
    added = {
        str(first + 9): {"content": "<|eot_id|>", "special": True},
        str(first + 2): {"content": "<new>", "special": True},
    }
    folder = write(Path(mkdtemp()), "tokenizer.model", ranks_file(ranks()), added_tokens_decoder=added)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    llama = load_tokenizer(folder)
    assert llama.encode("<|eot_id|><new><|start_header_id|>") == [first, first + 9, first + 2, first + 6]
    assert llama.vocab_size == first + 257 - 1
    assert llama.decode([first, *llama.encode("so it was", False), first + 9]) == "so it was"


def test_tekken() -> None:
    rules = PRE_TOKENIZATIONS["tekken"]
    listed = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(["<unk>", "<s>", "</s>", "[A]"])
    ]
    used = dict(list(ranks().items())[:-10])
    for special in (None, listed):
        tokenizer = loaded("tekken.json", tekken_json(rules.splits[0], special_tokens=special))
        for text in (*TEXT, "I'm GoneAway 1234\n\n  x"):
            alphabet, words = byte_alphabet(), rules.build().pre_tokenize_str(text)
            expected = [24 + id for word, _ in words for id in rank_ids(bytes(alphabet[each] for each in word), used)]
            assert tokenizer.encode(text) == [1, *expected]
            assert tokenizer.decode(expected) == text
        assert tokenizer.encode("[INST]</s><SPECIAL_23>", False)[-2:] == [2, 23]
        assert tokenizer.encode("[A]", False) == ([3] if special else tokenizer.encode("[A]", False))
        assert tokenizer.vocab_size == 24 + len(used)
    assert loaded("tekken.json", tekken_json(rules.splits[0])).encode("[INST]", False) == [3]


def gpt2_files(folder: Path, merges: str | None, **config: Any) -> Path:
    state = json.loads(byte_level()._backend.to_str())["model"]
    write(folder, "vocab.json", {**state["vocab"], "<|endoftext|>": 500}, **config)
    if merges is None:
        merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in state["merges"])
    (folder / "merges.txt").write_text(merges)
    return folder


def test_a_vocabulary_with_merges_as_gpt2_and_opt_have_it(tmp_path: Path) -> None:
    added = {"501": {"content": "<pad>", "special": True}}
    tokenizer = load_tokenizer(gpt2_files(tmp_path / "own", None, added_tokens_decoder=added, add_bos_token=True))
    for text in (*TEXT, "I'm  GoneAway 1234\n\n  x"):
        ids = byte_level().encode(text)
        assert tokenizer.encode(text) == [500, *ids]
        assert tokenizer.decode([500, *ids, 501]) == text
    assert tokenizer.encode("<|endoftext|><pad>", False) == [500, 501]
    assert tokenizer.eos_token_id == 500
    refused = {"a b c\n": "hold two tokens a line", "a \u4e00\n": "merges do not fit its vocabulary"}
    for merges, message in refused.items():
        with pytest.raises(LoadError, match=message):
            load_tokenizer(gpt2_files(tmp_path / "bad", merges))
    (tmp_path / "bad" / "merges.txt").unlink()
    with pytest.raises(LoadError, match=r"no merges.txt beside it"):
        load_tokenizer(tmp_path / "bad")


def test_tokenizer_json_goes_before_the_others(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer.model", b"nothing")
    tiktoken("QWenTokenizer")._backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("the air") == tiktoken("QWenTokenizer").encode("the air")


GOOD = sentencepiece_file(PLAIN, BPE)
REFUSED: dict[str, tuple[str, Any, str]] = {
    "words": ("tokenizer.model", sentencepiece_file(PLAIN, {3: 3}), "a model of words is not supported"),
    "suffix": ("tokenizer.model", sentencepiece_file(PLAIN, BPE | {24: True}), "puts spaces behind words"),
    "unknown": ("tokenizer.model", sentencepiece_file(PLAIN, BPE | {40: 99999}), "unknown token 99999 is none of its"),
    "charsmap": (
        "tokenizer.model",
        sentencepiece_file(pieces(), BPE, {2: b"\0\4\0\0"}),
        "its table of characters is damaged",
    ),
    "cut off": ("tokenizer.model", GOOD[:-3], "a field ends behind the message"),
    "no end": ("tokenizer.model", b"\xff\xff", "a number does not end"),
    "empty": ("tokenizer.model", b"", "it has no pieces"),
    "text": ("tokenizer.model", b"not a model", "cannot be converted"),
    "not text": ("tokenizer.model", sentencepiece_file([], {}) + b"\x0a\x03\x0a\x01\xff", "can't decode byte 0xff"),
    "line": ("qwen.tiktoken", ranks_file(ranks()) + b"oops\n", "line 401 is not a token"),
    "bytes": ("qwen.tiktoken", ranks_file({b"a": 0}), "lack the byte 0x00"),
    "family": ("tokenizer.model", ranks_file(ranks()), "a tokenizer of class None, and how that cuts texts is not known"),
    "no tekken": ("tekken.json", {"vocab": []}, "no tekken vocabulary"),
    "pattern": ("tekken.json", tekken_json("((("), "no tekken vocabulary (ValueError: pattern:"),
    "no pattern": (
        "tekken.json",
        {**tekken_json("x"), "config": tekken_json("x")["config"] | {"pattern": 0}},
        "must be strings",
    ),
    "too many": (
        "tekken.json",
        {**tekken_json("x"), "config": tekken_json("x")["config"] | {"default_num_special_tokens": 2**40}},
        "1099511627776 special tokens of 414",
    ),
    "large rank": ("qwen.tiktoken", ranks_file({**ranks(), b"a": 2**40}), "cannot have the id 1099511627776"),
    "base64": ("tekken.json", tekken_json("x", vocab=[{"rank": 0, "token_bytes": "?"}]), "rank 0 holds no base64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_c154_what_cannot_be_converted_is_one_line(case: str) -> None:
    name, data, message = REFUSED[case]
    with pytest.raises(LoadError) as error:
        loaded(name, data)
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert "--tokenizer" in error.value.message


@pytest.mark.parametrize("id", [-1, 2**31, 2**70])
def test_an_id_that_no_token_can_have(tmp_path: Path, id: int) -> None:
    write(tmp_path, "vocab.json", {"a": 0, "b": id})
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(LoadError, match=f"token 'b' cannot have the id {id}"):
        load_tokenizer(tmp_path)


def test_added_tokens_over_pieces_that_merges_need() -> None:
    declared = {str(id): {"content": f"<new {id}>"} for id in range(len(PLAIN) // 2, len(PLAIN))}
    with pytest.raises(LoadError, match="its pieces do not fit the tokens that were added"):
        loaded("tokenizer.model", sentencepiece_file(PLAIN, BPE), added_tokens_decoder=declared)


def test_a_unigram_model_has_no_free_ids() -> None:
    added = {str(len(PLAIN) + 1): {"content": "<far>"}}
    with pytest.raises(LoadError, match="do not make a row of ids"):
        loaded("tokenizer.model", sentencepiece_file(PLAIN, UNIGRAM), added_tokens_decoder=added)
    near = {str(len(PLAIN)): {"content": "<near>"}}
    tokenizer = loaded("tokenizer.model", sentencepiece_file(PLAIN, UNIGRAM), added_tokens_decoder=near)
    assert tokenizer.encode("<near>", False) == [len(PLAIN)]
