"""Data on disk: what is written is read, whole or not at all, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_core.errors import RequestError
from specdec_train.data import Collected, Data, Manifest, Writer, is_held_out
from specdec_train.data import writing as writing_module

MANIFEST = Manifest(
    target="tiny",
    target_config={"hidden_size": 4},
    hidden_size=4,
    aux_layers=(1, 3),
    dtype="bfloat16",
    seed=5,
    tasks=("open", "math"),
    settings={"max_tokens": 7},
)


def request(seed: int, length: int = 9, prompt: int = 4) -> Collected:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 2**31 - 1, (length,), generator=generator).tolist()
    last, aux = torch.randn(length, 4, generator=generator), torch.randn(length, 8, generator=generator)
    return Collected(ids, prompt, seed % 2, last, aux)


def test_what_was_written_is_read_again_with_each_row_at_its_id(tmp_path: Path) -> None:
    written = [request(seed, length=5 + seed % 7, prompt=1 + seed % 4) for seed in range(60)]
    writer = Writer(tmp_path / "data", MANIFEST)
    for start in (0, 25, 25):
        writer.write(written[start : start + (25 if start == 0 else 0 if writer.number == 1 else 35)])
    data = Data(tmp_path / "data")
    data.verify()
    assert data.manifest.requests == 60 and data.manifest.ids == sum(len(each.ids) for each in written)
    assert replace(data.manifest, shards=()) == MANIFEST
    found = {tuple(each.ids.tolist()): each for held_out in (False, True) for each in data.requests(held_out)}
    assert len(found) == 60
    for each in written:
        read = found[tuple(each.ids)]
        assert (read.prompt, read.task, len(read)) == (each.prompt, MANIFEST.tasks[each.task], len(each.ids))
        assert read.ids.dtype == torch.int64 and read.last.dtype == torch.bfloat16
        assert torch.equal(read.last, each.last.bfloat16()) and torch.equal(read.aux, each.aux.bfloat16())
    both = data.requests(), data.requests(held_out=True)
    assert all(both) and not any(each.held_out for each in both[0]) and all(each.held_out for each in both[1])


def test_one_in_sixteen_is_held_out_by_its_prompt_alone() -> None:
    prompts = [[seed, 17, 3] for seed in range(4000)]
    chosen = [is_held_out(prompt) for prompt in prompts]
    assert 180 < sum(chosen) < 320
    # A fixed choice: changing it would put what one release trained on into the next one's measurements.
    assert [i for i, held_out in enumerate(chosen[:100]) if held_out] == [39, 56, 66, 69, 75, 96]


@pytest.mark.parametrize("step", ["save_file", "hash_of", "fsync"])
def test_a_shard_that_was_broken_off_is_not_there_and_is_written_again(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = Writer(tmp_path / "whole", MANIFEST), Writer(tmp_path / "broken", MANIFEST)
    for writer in (whole, broken):
        writer.write([request(1)])

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else writing_module, step, stop)
        with pytest.raises(KeyboardInterrupt):
            broken.write([request(2)])
    assert len(Data(tmp_path / "broken").requests()) == len(Data(tmp_path / "whole").requests())
    for writer in (whole, Writer(tmp_path / "broken", MANIFEST)):
        writer.write([request(2)])
    names = ("manifest.json", "shard-00000.safetensors", "shard-00001.safetensors")
    assert all((tmp_path / "whole" / n).read_bytes() == (tmp_path / "broken" / n).read_bytes() for n in names)


def test_a_folder_of_other_settings_or_of_other_things_is_refused_by_name(tmp_path: Path) -> None:
    Writer(tmp_path / "data", MANIFEST).write([request(1)])
    other = replace(MANIFEST, seed=6, settings={"max_tokens": 8})
    with pytest.raises(RequestError, match="max_tokens 7 and not 8, seed 5 and not 6"):
        Writer(tmp_path / "data", other)
    with pytest.raises(RequestError, match="has files in it and no manifest"):
        Writer(tmp_path, MANIFEST)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="is a file"):
        Writer(tmp_path / "file", MANIFEST)
    Writer(tmp_path / "empty", MANIFEST)
    assert Writer(tmp_path / "empty", other).manifest == other == Manifest.read(tmp_path / "empty")
    with pytest.raises(RequestError, match="expected"):
        Writer(tmp_path / "data", MANIFEST).write([replace(request(1), last=torch.zeros(9, 5))])


def test_what_is_missing_or_spoilt_is_one_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no manifest"):
        Data(tmp_path)
    folder = tmp_path / "data"
    Writer(folder, MANIFEST).write([request(1), request(2)])
    manifest, shard = folder / "manifest.json", folder / "shard-00000.safetensors"
    text, data = manifest.read_text(), bytearray(shard.read_bytes())
    for key, value, words in (("format", 9, "format 9"), ("shards", None, "whole manifest")):
        manifest.write_text(json.dumps({**json.loads(text), key: value}))
        with pytest.raises(RequestError, match=words):
            Data(folder)
    entries = json.loads(text)
    entries["shards"][0]["ids"] += 1
    manifest.write_text(json.dumps(entries))
    with pytest.raises(RequestError, match=r"shard-00000.*18 ids.*19"):
        Data(folder)
    manifest.write_text(text)
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(RequestError, match="its sha256 differs"):
        Data(folder).verify()
    shard.write_bytes(data[:50])
    with pytest.raises(RequestError, match=r"shard-00000\.safetensors cannot be read"):
        Data(folder)
