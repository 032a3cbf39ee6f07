"""GGUF vocabularies of public models with the ids that their Hugging Face tokenizers give (nightly: a download), read from
the GGUF files, and written in the other formats and converted from these."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.pieces import byte_alphabet
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.gguf_header import read_header
from tests.text.public import llama_cpp_models, npm_tokenizer
from tests.text.small import TEXT
from tests.text.vocabularies import (
    AS_IT_IS,
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Pieces,
    ranks_file,
    sentencepiece_file,
    write,
)

pytestmark = pytest.mark.nightly

SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = ["command-r", "deepseek-coder", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2"]
# Of qwen35 the last texts are composed characters, which its Hugging Face tokenizer normalises and llama.cpp does not.
COUNTS = {"qwen35": 46, "refact": None, "starcoder": None}


@pytest.mark.parametrize("name", [*NAMES, *COUNTS])
def test_c161_ids_are_those_of_hugging_face(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    file = llama_cpp_models(tmp_path_factory) / f"ggml-vocab-{name}.gguf"
    compare(tokenizer_from_gguf(read_header(file).metadata), file, COUNTS.get(name), name not in ("llama-spm", "phi-3"))


def compare(tokenizer: Tokenizer, file: Path, count: int | None, comes_back: bool) -> None:
    texts = Path(f"{file}.inp").read_bytes().decode().split(SEPARATOR)
    expected = [[int(id) for id in line.split()] for line in Path(f"{file}.out").read_text().splitlines()]
    assert len(texts) > 40
    for text, ids in list(zip(texts, expected, strict=False))[:count]:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        if comes_back:
            assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(("name", "kind"), [("qwen2", "QWenTokenizer"), ("llama-bpe", "llama")])
def test_tiktoken_files_give_the_same_ids(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str, kind: str
) -> None:
    file = llama_cpp_models(tmp_path_factory) / f"ggml-vocab-{name}.gguf"
    metadata, alphabet = read_header(file).metadata, byte_alphabet()
    types = metadata["tokenizer.ggml.token_type"]
    tokens = {id: text for id, text in enumerate(metadata["tokenizer.ggml.tokens"]) if types[id] == 1}
    ranks = {bytes(alphabet[character] for character in text): id for id, text in tokens.items()}
    write(tmp_path, "tokenizer.model", ranks_file(ranks), tokenizer_class=kind)
    compare(load_tokenizer(tmp_path), file, None, True)


@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_sentencepiece_files_give_the_same_ids(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str) -> None:
    file = llama_cpp_models(tmp_path_factory) / f"ggml-vocab-{name}.gguf"
    metadata = read_header(file).metadata
    keys = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    write(tmp_path, "tokenizer.model", sentencepiece_file(list(zip(*keys, strict=True)), BPE, AS_IT_IS))
    compare(load_tokenizer(tmp_path), file, None, False)


def written_again(folder: Path, target: Path, kind: str | None) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer of a folder with tokenizer.json, and that of the same vocabulary in another format: ranks for a
    `kind` of tokenizer, or SentencePiece."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    config = {**json.loads((folder / "tokenizer_config.json").read_text("utf-8")), "tokenizer_class": kind}
    vocabulary: dict[str, int] = content["model"]["vocab"]
    if kind is not None:
        alphabet = byte_alphabet()
        data = ranks_file({bytes(alphabet[each] for each in text): id for text, id in vocabulary.items()})
    else:
        added = {token["content"] for token in content["added_tokens"]}
        kinds = {"<unk>": UNKNOWN, **dict.fromkeys(("<pad>", "<bos>", "<eos>"), CONTROL)}
        pieces: Pieces = []
        for text, id in sorted(vocabulary.items(), key=lambda item: item[1]):
            is_byte = len(text) == 6 and text.startswith("<0x")
            piece_type = kinds.get(text, USER_DEFINED if text in added else BYTE if is_byte else NORMAL)
            pieces.append((text, -float(id) if piece_type == NORMAL else 0.0, piece_type))
        ids = {40: vocabulary["<unk>"], 41: vocabulary["<bos>"], 42: vocabulary["<eos>"], 43: vocabulary["<pad>"]}
        data = sentencepiece_file(pieces, BPE | ids, AS_IT_IS | {3: False})
    return load_tokenizer(folder), load_tokenizer(write(target, "tokenizer.model", data, **config))


@pytest.mark.parametrize(("name", "kind"), [("llama3_1", "llama"), ("qwen3", "QWenTokenizer"), ("gemma3", None)])
def test_other_formats_of_a_vocabulary_give_the_ids_of_its_tokenizer_json(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str, kind: str | None
) -> None:
    expected, converted = written_again(npm_tokenizer(tmp_path_factory, name), tmp_path, kind)
    special = ["<|eot_id|>", "<|im_end|>", "<start_of_turn>", "<think>", "<b>", "\t", "\n\n", "   "]
    rng = random.Random(9)
    words = [
        *special,
        *(word for line in TEXT for word in line.split()),
        " ",
        "e\u0301",
        "I'm",
        "CamelCase",
        "12345",
        "\r\n",
    ]
    for _ in range(1000):
        text = "".join(rng.choices(words, k=rng.randrange(1, 12)))
        ids = expected.encode(text)
        assert converted.encode(text) == ids, text
        assert converted.decode(ids) == expected.decode(ids)
