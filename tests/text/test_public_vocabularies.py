"""GGUF vocabularies of public models with the ids that their Hugging Face tokenizers give (nightly: a download), read from
the GGUF files, and written in the other formats and converted from these."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.pieces import byte_alphabet
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.gguf_header import read_header
from tests.text.public import llama_cpp_models
from tests.text.vocabularies import AS_IT_IS, BPE, ranks_file, sentencepiece_file, write

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
