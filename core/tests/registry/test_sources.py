"""What is read of checkpoints and targets: plain JSON and headers, tolerant of names, clear about what is missing."""

import json
import os
import struct
import subprocess
import sys

import pytest

from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import DraftSource, TargetInfo

LLAMA = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64}


class Touch:
    """An object that makes a file while it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.makedirs, (self.path,)


def write_safetensors(file, shapes):
    header = {"__metadata__": {"format": "pt"}}
    header |= {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {"vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_positions": 64},
        {"vocab_size": 100, "d_model": 16, "n_layers": 2, "max_seq_len": 64},
        {"vocab_size": 7, "text_config": LLAMA},
        {"thinker_config": {"text_config": LLAMA, "hidden_size": 3}},
        {"vocab_size": 100, "text_config": {k: v for k, v in LLAMA.items() if k != "vocab_size"}},
    ],
)
def test_a_target_is_read_whatever_its_family_calls_things(config):
    info = TargetInfo.from_config("m", config, None)
    assert (info.vocab_size, info.hidden_size, info.num_layers, info.max_model_len) == (100, 16, 2, 64)
    assert dict(info.hf_config) == config


def test_the_hosts_limit_replaces_the_configs():
    assert TargetInfo.from_config("m", LLAMA, 32).max_model_len == 32
    assert TargetInfo.from_config("m", {k: v for k, v in LLAMA.items() if "position" not in k}, 32).max_model_len == 32


def test_everything_that_a_targets_config_lacks_is_named():
    with pytest.raises(TargetError) as caught:
        TargetInfo.from_config("m", {"vocab_size": 1, "hidden_size": "wide"}, None)
    assert all(word in str(caught.value) for word in ("hidden size", "num_hidden_layers", "n_positions", "m "))


def test_a_folder_without_a_config_is_no_target(tmp_path):
    for write in (lambda: None, lambda: write_safetensors(tmp_path / "model.safetensors", {"a": [1]})):
        write()
        with pytest.raises(TargetError, match=r"config\.json"):
            TargetInfo.from_folder(tmp_path)
    with pytest.raises(TargetError, match="no folder or file"):
        TargetInfo.from_folder(tmp_path / "nowhere")


def test_nothing_is_read_before_it_is_asked_for():
    source = DraftSource("/no/such/folder")
    assert (source.model, repr(source)) == ("/no/such/folder", "DraftSource('/no/such/folder')")


def test_names_and_shapes_come_from_headers(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    write_safetensors(tmp_path / "model.safetensors", {"fc.weight": [4, 8], "norm.weight": [4]})
    source = DraftSource(tmp_path)
    assert source.tensor_names == {"fc.weight", "norm.weight"}
    assert source.tensor_shapes["fc.weight"] == (4, 8)
    assert source.architectures == ("X",)


def test_a_sharded_checkpoint_is_read_through_its_index(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model-1.safetensors", {"a": [1]})
    write_safetensors(tmp_path / "model-2.safetensors", {"b": [2, 3]})
    names = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    source = DraftSource(tmp_path)
    assert source.tensor_names == {"a", "b", "c"}
    assert dict(source.tensor_shapes) == {"a": (1,), "b": (2, 3)}


def test_one_file_without_a_config_is_a_source(tmp_path):
    write_safetensors(tmp_path / "head.safetensors", {"a": [1]})
    source = DraftSource(tmp_path / "head.safetensors")
    assert (dict(source.hf_config), source.tensor_names) == ({}, {"a"})


@pytest.mark.parametrize("content", [b"", b"12345678", struct.pack("<Q", 5) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_file_that_is_cut_short_is_named(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a whole safetensors file"):
        _ = DraftSource(tmp_path).tensor_names


def test_an_empty_folder_is_no_source(tmp_path):
    with pytest.raises(ConfigError, match=r"neither config\.json nor weights"):
        _ = DraftSource(tmp_path).hf_config


def test_torch_files_give_their_names_without_running_code(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"0.weight": torch.zeros(3, 2), "step": 4}, tmp_path / "lm_head.pt")
    torch.save({}, tmp_path / "training_args.bin")
    source = DraftSource(tmp_path)
    assert dict(source.tensor_shapes) == {"0.weight": (3, 2)}
    torch.save({"0.weight": torch.zeros(3, 2), "code": Touch(tmp_path / "touched")}, tmp_path / "lm_head.pt")
    with pytest.raises(ConfigError, match=r"lm_head\.pt is no file of plain tensors"):
        _ = DraftSource(tmp_path).tensor_names
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("file", ["model.safetensors", "model.bin"])
def test_small_whole_numbers_are_read_from_either_kind_of_file_and_weights_are_not(tmp_path, dtype, file):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    numbers = torch.tensor([[1, 0], [0, 1]]).to(getattr(torch, dtype))
    tensors = {"a": torch.ones(3), "map": numbers, "z": torch.ones(2, dtype=torch.bfloat16)}
    if file.endswith(".bin"):
        torch.save(tensors, tmp_path / file)
    else:
        save_file(tensors, tmp_path / file)
    source = DraftSource(tmp_path)
    assert source.integers("map") == [1, 0, 0, 1]
    assert dict(source.tensor_dtypes) == {"a": "float32", "map": dtype, "z": "bfloat16"}
    with pytest.raises(ConfigError, match="z is bfloat16, and whole numbers were expected"):
        source.integers("z")


def test_a_map_that_is_cut_short_is_an_error_that_names_file_and_tensor(tmp_path):
    header = json.dumps({"map": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(ConfigError, match=r"is not a whole safetensors file \(2 of 3 values of map are there\)"):
        DraftSource(tmp_path).integers("map")


def test_a_patch_changes_a_copy(tmp_path):
    (tmp_path / "config.json").write_text('{"a": {"b": 1}, "c": 2}')
    source = DraftSource(tmp_path)
    patched = source.patched({"c": 3}).patched({"d": 4})
    assert dict(patched.hf_config) == {"a": {"b": 1}, "c": 3, "d": 4}
    assert dict(source.hf_config) == {"a": {"b": 1}, "c": 2}
    with pytest.raises(TypeError):
        source.hf_config["c"] = 5


def test_a_hub_id_is_fetched_only_if_there_is_no_such_path(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    fetched = []

    def download(name, allow_patterns):
        fetched.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").write_text('{"local": 1}')
    source = DraftSource("owner/name")
    assert dict(source.hf_config) == {}
    assert fetched == [("owner/name", ["*.json"])]
    assert source.path == tmp_path
    assert fetched[1:] == [("owner/name", None)]
    monkeypatch.chdir(tmp_path)
    assert dict(DraftSource("owner/name").hf_config) == {"local": 1}
    assert len(fetched) == 2


def test_a_hub_that_cannot_be_reached_is_one_clear_error(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def offline(name, allow_patterns):
        raise OSError("offline\nwith details")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(ConfigError, match=r"'owner/name' is no local folder and could not .* \(OSError: offline\)"):
        _ = DraftSource("owner/name").path


def test_reading_json_and_headers_needs_no_torch(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(tmp_path / "model.safetensors", {"a": [1]})
    script = (
        "import sys; from specdec_core.sources import DraftSource; s = DraftSource(sys.argv[1]); "
        "s.hf_config, s.tensor_shapes; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0
