"""Safetensors directories: views on the mapped file, shards, and what is said about directories that are no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import LoadError
from octavo.kernels.numpy.ops import NumpyOps
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from octavo.weights.safetensors import INDEX_NAME
from tests.models.tiny import tiny_checkpoint, tiny_config
from tests.tools.write_safetensors import write_safetensors

OPS = NumpyOps()
FLOAT32 = np.dtype(np.float32)
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
Tensors = dict[str, np.ndarray[Any, Any]]


def write_model(folder: Path, shards: int = 1, **changes: Any) -> Tensors:
    """A tiny Llama by the safetensors library, sharded with an index if asked."""
    config = tiny_config(**changes)
    tensors: Tensors = tiny_checkpoint(config).tensors
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
        return tensors
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        safetensors.numpy.save_file(part, folder / file)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return tensors


def change_index(folder: Path, **changes: str | None) -> None:
    """Set entries of the index's weight_map; None removes one."""
    index = json.loads((folder / INDEX_NAME).read_text())
    weight_map = index["weight_map"] | changes
    index["weight_map"] = {name: file for name, file in weight_map.items() if file is not None}
    (folder / INDEX_NAME).write_text(json.dumps(index))


def build(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    build_model(read_model_config(checkpoint), Weights(checkpoint, FLOAT32, OPS), OPS)


@pytest.mark.parametrize("shards", [1, 3])
def test_one_file_and_shards_hold_the_same(tmp_path: Path, shards: int) -> None:
    tensors = write_model(tmp_path, shards)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shapes() == {name: tensor.shape for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name, FLOAT32, OPS), tensor)
        assert checkpoint.nbytes(name) == tensor.nbytes
    build(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_stored_dtype_is_a_view_on_the_mapped_file(tmp_path: Path, dtype: str) -> None:
    write_model(tmp_path)
    values = np.arange(-60, 60, dtype=np.float32).reshape(6, 20) / 7
    wanted = {"float32": FLOAT32, "float16": np.dtype(np.float16), "bfloat16": BFLOAT16}
    write_safetensors(tmp_path / "model.safetensors", dtype, {"a": (6, 20)}, iter([values.astype(wanted[dtype])]))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.dtype == dtype
    view = checkpoint.read("a", wanted[dtype], OPS)
    assert not view.flags.owndata
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, values.astype(wanted[dtype]))
    with (tmp_path / "model.safetensors").open("r+b") as stream:  # a view sees what is written to the file
        stream.seek(-view.nbytes, 2)
        stream.write(bytes(view.nbytes))
    assert not view.any()


def test_other_dtypes_are_converted(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    found = open_checkpoint(tmp_path).read(name, BFLOAT16, OPS)
    assert found.dtype == BFLOAT16
    np.testing.assert_array_equal(found, tensors[name].astype(BFLOAT16))


def test_a_file_with_an_odd_header_length_still_gives_aligned_arrays(tmp_path: Path) -> None:
    write_model(tmp_path)
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode()
    header += b" " * ((len(header) + 1) % 2)  # the data then start at an odd byte
    data = np.array([1, 2, 3], np.float32)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data.tobytes())
    found = open_checkpoint(tmp_path).read("a", FLOAT32, OPS)
    assert found.flags.aligned
    np.testing.assert_array_equal(found, data)


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    build(tmp_path)


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    write_model(tmp_path)
    safetensors.numpy.save_file(
        {"empty": np.zeros((0, 4), np.float32), "one": np.array(2.5, np.float32)}, tmp_path / "model.safetensors"
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shapes() == {"empty": (0, 4), "one": ()}
    assert checkpoint.read("empty", FLOAT32, OPS).size == 0
    assert checkpoint.read("one", FLOAT32, OPS) == 2.5


def test_types_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=r"tensor 'model.norm.weight' is stored as I8; supported: F32, F16, BF16"):
        build(tmp_path)


# -- strictness ---------------------------------------------------------------------------------------------------------

LAST_SHARD = "model-00003-of-00003.safetensors"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, 3)
    (tmp_path / LAST_SHARD).unlink()
    with pytest.raises(LoadError, match=f"lacks the shard {LAST_SHARD}.*download may be incomplete"):
        open_checkpoint(tmp_path)


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, 3)
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(LoadError, match=f"holds model-00001-of-00003.safetensors, .* but no {INDEX_NAME}"):
        open_checkpoint(tmp_path)


def test_an_index_entry_too_few_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, 3)
    change_index(tmp_path, **{"model.norm.weight": None})
    with pytest.raises(LoadError, match=r"does not say that tensor 'model.norm.weight' is in model-0000\d-of-00003"):
        open_checkpoint(tmp_path)


def test_an_index_entry_too_many_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, 3)
    change_index(tmp_path, **{"model.extra.weight": LAST_SHARD})
    with pytest.raises(LoadError, match=f"{LAST_SHARD} lacks tensor model.extra.weight"):
        open_checkpoint(tmp_path)


def test_an_index_entry_in_the_wrong_shard_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, 3)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    name = next(name for name, file in index["weight_map"].items() if file == LAST_SHARD)
    change_index(tmp_path, **{name: "model-00001-of-00003.safetensors"})
    with pytest.raises(LoadError, match=f"does not say that tensor '{name}' is in {LAST_SHARD}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_an_index_must_not_point_elsewhere(tmp_path: Path, file: str) -> None:
    write_model(tmp_path, 2)
    change_index(tmp_path, **{"model.norm.weight": file})
    with pytest.raises(LoadError, match="not a plain file name"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, content: str) -> None:
    write_model(tmp_path, 2)
    (tmp_path / INDEX_NAME).write_text(content)
    with pytest.raises(LoadError, match="has no weight_map"):
        open_checkpoint(tmp_path)


def test_missing_unused_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    changes: list[tuple[Tensors, str]] = [
        ({key: value for key, value in tensors.items() if key != name}, f"has no tensor {name}, which"),
        (tensors | {"model.layers.7.extra": tensors[name]}, "does not use tensor model.layers.7.extra$"),
        (
            tensors | {name: tensors[name].T.copy()},
            rf"tensor {name} has shape \[64, 112\], but the configuration needs \[112, 64\]",
        ),
    ]
    for changed, words in changes:
        safetensors.numpy.save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(LoadError, match=words):
            build(tmp_path)


def test_rotary_buffers_are_tolerated(tmp_path: Path) -> None:
    tensors = write_model(tmp_path)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    build(tmp_path)


# -- directories that are no model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "not a model directory.*it is empty"),
        ({"a.txt": "x", "b.txt": "y"}, "not a model directory.*no config.json.*a.txt, b.txt"),
        ({"adapter_config.json": '{"base_model_name_or_path": "org/base"}'}, "LoRA adapter.*base model org/base"),
        ({"x.gguf": "", "y.gguf": ""}, "no config.json but x.gguf, y.gguf; give the path"),
        ({"config.json": "{}"}, "holds no model.safetensors"),
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "pytorch_model.bin is a pickle.*convert"),
        ({"config.json": "{}", "m.gguf": "x", "a.bin": "x"}, "to serve m.gguf, give the path of that file"),
        ({"config.json": "{oops"}, "config.json cannot be read as JSON"),
        ({"config.json": "[1]"}, "config.json must hold a JSON object, but holds a list"),
        ({"config.json": "[" * 100_000}, "config.json cannot be read as JSON"),
        ({"config.json": "{}", "model.safetensors": ""}, "not a safetensors file, or truncated .0 bytes"),
        ({"config.json": "{}", "model.safetensors": "version https://git-lfs.github.com/spec/v1\noid"}, "git lfs pull"),
        ({"config.json": "{}", "model.safetensors": "\x02" + "\0" * 7 + "[]"}, "header is no JSON object"),
        ({"config.json": "{}", "model.safetensors": "\x02" + "\0" * 7 + "{,"}, "header is no JSON"),
        ({"config.json": "{}", "model.safetensors": "\x09" + "\0" * 7 + '{"a": {}}'}, "entry for tensor 'a' is not valid"),
    ],
)
def test_c154_what_is_no_model_is_said_in_one_line(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(LoadError, match=words) as info:
        open_checkpoint(tmp_path)
    assert "\n" not in str(info.value)


def test_a_path_that_is_neither_directory_nor_gguf(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"neither a model directory nor a .gguf file"):
        open_checkpoint(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, "not valid"),
        ({"dtype": [], "shape": [1], "data_offsets": [0, 4]}, "not valid"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"is F32 \[2\], but has 4 bytes"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}, "but has -4 bytes"),
        ({"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}, "is truncated: tensor 'a' ends at byte"),
    ],
)
def test_header_entries_are_checked(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(LoadError, match=words):
        open_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safetensors")
    write_model(folder, num_hidden_layers=1)
    return folder


@given(data=st.data())
def test_a_damaged_file_gives_one_line_or_opens(small_model: Path, data: st.DataObject) -> None:
    file = small_model / "model.safetensors"
    if not (small_model / "intact").exists():
        file.rename(small_model / "intact")
    content = bytearray((small_model / "intact").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    file.write_bytes(content)
    assert "\n" not in complaint(small_model)


def complaint(folder: Path) -> str:
    """Read everything; the LoadError's text, or nothing."""
    try:
        build(folder)
    except LoadError as error:
        return str(error)
    return ""
