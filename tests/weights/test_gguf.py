"""GGUF: every type, names, the row order of q and k, metadata, and damaged files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LoadError
from octavo.kernels.numpy.ops import NumpyOps
from octavo.layers.rotary import Rotary
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.gguf import GGUFCheckpoint
from octavo.weights.gguf_header import read_header
from octavo.weights.loader import open_checkpoint, weights_dtype
from tests.weights.gguf_files import HEAD_DIM, VOCABULARY, random_tensor, random_tensors, values, write_gguf

OPS = NumpyOps()
FLOAT32 = np.dtype(np.float32)
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def hugging_face_rows(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """llama.cpp keeps dimension i of a head's first half in row 2i and of its second half in row 2i + 1."""
    rows = []
    for head in range(len(array) // HEAD_DIM):
        for half in (0, 1):
            rows += [head * HEAD_DIM + 2 * i + half for i in range(HEAD_DIM // 2)]
    return array[rows]


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_is_read_under_hugging_face_names_and_in_its_row_order(tmp_path: Path, type_name: str) -> None:
    stored = random_tensors(type_name)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", stored))
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
        "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
        "model.norm.weight": "output_norm.weight",
    }
    assert set(checkpoint.shapes()) == set(names)
    for name, source in names.items():
        expected = values(stored[source])
        if "q_proj" in name or "k_proj" in name:
            expected = hugging_face_rows(expected)
        assert checkpoint.shapes()[name] == expected.shape
        assert checkpoint.nbytes(name) == stored[source][0].nbytes
        for dtype in (FLOAT32, BFLOAT16):
            found = checkpoint.read(name, dtype, OPS)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected.astype(dtype))


def test_what_is_stored_in_the_wanted_dtype_is_a_view_on_the_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors("BF16")))
    view = checkpoint.read("model.layers.0.mlp.up_proj.weight", BFLOAT16, OPS)
    assert not view.flags.writeable
    assert not view.flags.owndata
    assert view.flags.aligned
    permuted = checkpoint.read("model.layers.0.self_attn.q_proj.weight", BFLOAT16, OPS)
    assert permuted.flags.writeable


def test_a_model_is_built_from_it(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors("Q6_K")))
    config = read_model_config(checkpoint)
    assert weights_dtype("auto", config.dtype) == BFLOAT16
    assert weights_dtype("float32", config.dtype) == FLOAT32
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 2, HEAD_DIM, VOCABULARY)
    assert config.norm_epsilon == 1e-5
    assert config.eos_token_ids == (4,)
    assert config.tie_word_embeddings
    build_model(config, Weights(checkpoint, BFLOAT16, OPS), OPS)


def test_an_output_tensor_means_that_the_head_is_not_tied(tmp_path: Path) -> None:
    tensors = random_tensors() | {"output.weight": random_tensor((VOCABULARY, 256), "F32", 77)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors))
    assert not read_model_config(checkpoint).tie_word_embeddings
    np.testing.assert_array_equal(checkpoint.read("lm_head.weight", FLOAT32, OPS), tensors["output.weight"][0])


def test_biases_are_permuted_like_their_weights_and_announced_in_the_configuration(tmp_path: Path) -> None:
    rows = {"q": 256, "k": 128, "v": 128, "output": 256}
    biases = {f"blk.0.attn_{name}.bias": random_tensor((size,), "F32", size) for name, size in rows.items()}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors() | biases))
    assert checkpoint.hf_config["attention_bias"]
    assert not checkpoint.hf_config["mlp_bias"]
    for name in ("q", "k"):
        expected = hugging_face_rows(biases[f"blk.0.attn_{name}.bias"][0])
        np.testing.assert_array_equal(checkpoint.read(f"model.layers.0.self_attn.{name}_proj.bias", FLOAT32, OPS), expected)
    build_model(read_model_config(checkpoint), Weights(checkpoint, FLOAT32, OPS), OPS)


def test_llama3_rope_factors_give_the_same_table_as_its_parameters(tmp_path: Path) -> None:
    """llama.cpp stores `rope_freqs` computed as in its conversion of Llama 3.1."""
    theta, factor, low, high, context = 500000.0, 8.0, 1.0, 4.0, 256
    factors = []
    for i in range(HEAD_DIM // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / HEAD_DIM)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    tensors = random_tensors() | {"rope_freqs.weight": (np.array(factors, np.float32), "F32")}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors, {"llama.rope.freq_base": theta}))
    assert "rope_freqs.weight" not in str(checkpoint.shapes())
    from_factors = read_model_config(checkpoint)
    names = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": context}
    checkpoint.hf_config["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **names}
    from_parameters = read_model_config(checkpoint)
    assert from_factors.rope["rope_type"] == "factors"
    table = Rotary(from_factors).table(256)
    np.testing.assert_allclose(table, Rotary(from_parameters).table(256), atol=3e-5)
    assert np.abs(table - Rotary(read_model_config(open_plain(tmp_path, theta))).table(256)).max() > 0.1


def open_plain(folder: Path, theta: float) -> GGUFCheckpoint:
    return GGUFCheckpoint(write_gguf(folder / "plain.gguf", random_tensors(), {"llama.rope.freq_base": theta}))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scaling.type": "none"}, {"rope_type": "default"}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0},
        ),
        ({"llama.rope.dimension_count": 32}, {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ({"llama.rope.dimension_count": 64}, {"rope_type": "default"}),
    ],
)
def test_rope_scaling(tmp_path: Path, metadata: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read_model_config(open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors(), metadata)))
    assert config.rope == expected | {"rope_theta": 10000.0}


def test_head_dim_and_defaults(tmp_path: Path) -> None:
    without = {"llama.attention.head_count_kv": None, "llama.rope.freq_base": None, "tokenizer.ggml.eos_token_id": None}
    stored = random_tensors() | {f"blk.0.attn_{name}.weight": random_tensor((256, 256), "F32") for name in "kv"}
    config = read_model_config(open_checkpoint(write_gguf(tmp_path / "m.gguf", stored, without)))
    assert (config.num_kv_heads, config.rope["rope_theta"], config.eos_token_ids) == (4, 10000.0, ())
    explicit = open_checkpoint(write_gguf(tmp_path / "n.gguf", random_tensors(), {"llama.attention.key_length": 64}))
    assert explicit.hf_config["head_dim"] == 64


def test_every_id_that_ends_a_turn_and_the_sampling_defaults(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 4}
    metadata |= {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.1}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", random_tensors(), metadata))
    sampling = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}
    assert checkpoint.generation_config == {"eos_token_id": [4, 3], **sampling}
    config = read_model_config(checkpoint)
    assert config.eos_token_ids == (4, 3)


def test_metadata_of_every_value_type_is_what_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    adders = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
    for name in adders:
        getattr(writer, f"add_{name}")(f"x.{name}", 7 if "int" in name else 0.5)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "Grüße € 🙂\0end")
    writer.add_array("x.strings", ["", "a", "ü" * 300])
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.25, 1.5])
    writer.add_array("x.bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
    assert read_header(path).metadata == expected
    assert len(expected) == len(adders) + 7


@pytest.mark.parametrize(
    ("tensors", "metadata", "architecture", "words"),
    [
        ({}, {}, "rwkv9", "GGUF architecture 'rwkv9'.*supported: llama"),
        ({"blk.0.ffn_gate_exps.weight": "F32"}, {}, "llama", "tensor 'blk.0.ffn_gate_exps.weight' is not known"),
        (
            {"token_embd.weight": "IQ4_NL"},
            {},
            "llama",
            "tensor 'token_embd.weight' is IQ4_NL, which is not supported; supported: F32",
        ),
        ({}, {"split.count": 3}, "llama", "split GGUF file.*--merge"),
        (
            {},
            {"llama.attention.head_count": 7},
            "llama",
            "rows of tensor 'blk.0.attn_q.weight' do not fit num_attention_heads = 7",
        ),
        ({}, {"llama.attention.head_count_kv": [2]}, "llama", "'blk.0.attn_k.weight' do not fit num_key_value_heads"),
        ({"rope_freqs.weight": "F16"}, {}, "llama", "rope_freqs.weight is F16 instead of F32"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, str], metadata: dict[str, Any], architecture: str, words: str
) -> None:
    changed = {name: random_tensor((64, 256), type_name) for name, type_name in tensors.items()}
    path = write_gguf(tmp_path / "m.gguf", random_tensors() | changed, metadata, architecture)
    with pytest.raises(LoadError, match=words) as info:
        open_checkpoint(path)
    assert "\n" not in str(info.value)


def test_tensors_that_overlap_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", random_tensors())
    content = bytearray(path.read_bytes())
    down, up = (content.index(name) + len(name) + 4 + 16 + 4 for name in (b"blk.0.ffn_down.weight", b"blk.0.ffn_up.weight"))
    content[down : down + 8] = content[up : up + 8]  # its offset: behind the name, two dimensions and the type
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"damaged: tensors 'blk\.0\.ffn_\w+\.weight' and 'blk\.0\.ffn_\w+\.weight' overlap"):
        open_checkpoint(path)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "feed_forward_length"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", random_tensors(), {f"llama.{key}": None})
    with pytest.raises(LoadError, match=r"configuration has no (num_hidden_layers|hidden_size|intermediate_size)"):
        read_model_config(open_checkpoint(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"GGU", "is not a GGUF file"),
        (b"PK\x03\x04 something else", "is not a GGUF file"),
        (b"GGUF\x03", "truncated"),
        (b"GGUF" + bytes([1, 0, 0, 0]) + bytes(16), "version 1"),
        (b"GGUF" + bytes([0, 0, 0, 3]) + bytes(16), "big-endian"),
        (b"GGUF" + bytes([3, 0, 0, 0]) + bytes(8) + bytes([255] * 8) + bytes(600), "damaged: metadata key ''"),
        (b"GGUF" + bytes([3, 0, 0, 0]) + bytes([255] * 8) + bytes(8) + bytes(600), "tensor '' has 0 dimensions"),
    ],
)
def test_what_is_no_gguf_file_is_said_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=words):
        open_checkpoint(path)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", random_tensors("Q4_0"))


@given(data=st.data())
def test_a_damaged_file_gives_one_line_or_opens(small_file: Path, data: st.DataObject) -> None:
    """Cut anywhere, bytes of the header overwritten, or eight of them at once (lengths, counts and offsets)."""
    content = bytearray(small_file.read_bytes())
    header = 2200
    assert len(content) > header
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, header))
        content[start : start + 8] = data.draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    damaged = small_file.with_name("damaged.gguf")
    damaged.write_bytes(content)
    assert "\n" not in complaint(damaged)


def complaint(path: Path) -> str:
    """Read everything; the LoadError's text, or nothing."""
    try:
        checkpoint = open_checkpoint(path)
        read_model_config(checkpoint)
        for name in checkpoint.shapes():
            checkpoint.read(name, FLOAT32, OPS)
    except LoadError as error:
        return str(error)
    return ""


def test_the_packaged_model_is_read_as_the_library_reads_it(smollm2: Path) -> None:
    """The first and last strings, the special ids and the template, without the library's slow reader."""
    metadata = read_header(smollm2).metadata
    assert len(metadata["tokenizer.ggml.tokens"]) == 49152
    assert metadata["tokenizer.ggml.tokens"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert metadata["tokenizer.ggml.merges"][:3] == ["Ġ t", "Ġ a", "i n"]
    assert metadata["tokenizer.chat_template"].startswith("{% for message in messages %}")
    config = read_model_config(open_checkpoint(smollm2))
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.vocab_size) == (30, 9, 3, 49152)
    assert (config.eos_token_ids, config.dtype) == ((2,), "bfloat16")
