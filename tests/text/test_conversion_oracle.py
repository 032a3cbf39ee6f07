"""Converted tokenizers live against the libraries that the files belong to: sentencepiece, tiktoken and mistral-common."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from octavo.text.pre_tokenizers import PRE_TOKENIZATIONS
from octavo.text.tokenizer import load_tokenizer
from tests.text.small import TEXT
from tests.text.test_text_oracle import WORDS
from tests.text.vocabularies import ranks, ranks_file, write

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]


def texts(count: int) -> list[str]:
    rng = random.Random(8)
    words = [*WORDS, *(word for line in TEXT for word in line.split()), *["  ", " ", "\n", "<turn>"] * 4]
    words = [word for word in words if "00" not in word]  # unigram models may cut it in two ways of equal score
    words = [word for word in words if "\u0000" not in word and "<|" not in word]  # cut by bindings; special
    return ["".join(rng.choices(words, k=rng.randrange(1, 12))) for _ in range(count)]


def same(directory: Path, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str] | None, count: int) -> None:
    tokenizer = load_tokenizer(directory)
    for text in texts(count):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == encode(text), text
        if decode is not None:
            assert tokenizer.decode(ids) == decode(ids), text


VARIANTS: list[dict[str, Any]] = [
    {},
    {"normalization_rule_name": "identity"},
    {"remove_extra_whitespaces": False},
    {"add_dummy_prefix": False},
    {"user_defined_symbols": ["<turn>", "\u2581\u2581"]},
    {"user_defined_symbols": ["<turn>", "\n"], "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_trained_models(tmp_path: Path, kind: str, byte_fallback: bool, changes: dict[str, Any]) -> None:
    import sentencepiece

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 4), model_writer=model, vocab_size=360 if byte_fallback else 110, model_type=kind,
        byte_fallback=byte_fallback, hard_vocab_limit=False, minloglevel=2, **changes,
    )  # fmt: skip
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    write(tmp_path, "tokenizer.model", model.getvalue())
    same(tmp_path, reference.encode, reference.decode if byte_fallback else None, 300)


@pytest.mark.parametrize(("kind", "rules"), [("ChatGLM4Tokenizer", "glm4"), ("QWenTokenizer", "qwen2")])
def test_tiktoken(tmp_path: Path, kind: str, rules: str) -> None:
    import unicodedata

    import tiktoken

    pattern = PRE_TOKENIZATIONS[rules].splits[0]
    reference = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})
    form: Any = "NFC" if PRE_TOKENIZATIONS[rules].nfc else None
    write(tmp_path, "tokenizer.model", ranks_file(ranks()), tokenizer_class=kind)
    same(
        tmp_path, lambda text: reference.encode(unicodedata.normalize(form, text) if form else text), reference.decode, 1000
    )


def of_mistral(pattern: str) -> list[Path]:
    import mistral_common

    return sorted((Path(mistral_common.__file__).parent / "data").glob(pattern))


def tekken(directory: Path, file: Path) -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    shutil.copy(file, directory / "tekken.json")
    reference = Tekkenizer.from_file(file)
    same(directory, lambda text: reference.encode(text, bos=False, eos=False), reference.decode, 1000)


def mistral_sentencepiece(directory: Path, file: Path) -> None:
    import sentencepiece

    shutil.copy(file, directory / "tokenizer.model")
    reference = sentencepiece.SentencePieceProcessor(str(file))
    same(directory, reference.encode, reference.decode, 1000)


def test_mistrals_newest_files(tmp_path: Path) -> None:
    tekken(tmp_path, of_mistral("tekken_*.json")[-1])
    (tmp_path / "tekken.json").unlink()
    mistral_sentencepiece(tmp_path, of_mistral("*.model.v3")[-1])


@pytest.mark.nightly
def test_all_of_mistrals_files(tmp_path: Path) -> None:
    for file in of_mistral("*.model.v*"):
        mistral_sentencepiece(tmp_path, file)
    for file in of_mistral("tekken_*.json"):
        tekken(tmp_path, file)
