"""What the hash of a configuration promises: one for one computation, in every process, and another for another."""

import json
from dataclasses import replace

import pytest

from specdec_core.config.fingerprint import fingerprint
from specdec_core.config.resolve import resolve

CONFIG = {"method": "alpha", "num_speculative_tokens": 2}


def test_a_fingerprint_knows_no_order_of_keys_and_members_but_one_of_lists():
    there, back = {0, 8}, {8, 0}  # sets that hold the same and list it in different orders
    assert list(there) != list(back)
    data = {"b": [1, 2], "a": {"y": there, "x": None}}
    assert fingerprint(data) == fingerprint({"a": {"x": None, "y": frozenset(back)}, "b": (1, 2)})
    assert fingerprint(data) != fingerprint({**data, "b": [2, 1]})
    assert fingerprint({"a": 1}) != fingerprint({"a": True})
    with pytest.raises(ValueError, match="object"):
        fingerprint({"a": object()})


def test_the_hash_is_the_same_in_another_process_and_for_another_order_of_keys(site, resolve_config, method):
    fields = "names: frozenset[str] = Field(default=frozenset('abcdefgh'), description='n')"
    source = method(more_fields=fields)
    site.proposer("alpha", source)
    here = resolve_config({"method": "alpha", "num_speculative_tokens": 2, "lookup_max": 3}).compute_hash()
    assert here == resolve_config({"lookup_max": 3, "num-speculative-tokens": 2, "method": "alpha"}).compute_hash()
    code = """
import sys
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.config.resolve import resolve
from specdec_core.sources import TargetInfo
target = TargetInfo(model="t", hf_config={}, vocab_size=32, hidden_size=8, num_layers=2, max_model_len=64)
config = {"method": "alpha", "num_speculative_tokens": 2, "lookup_max": 3}
print(resolve(config, target, Registry(Catalog.discover([sys.argv[1]]))).compute_hash())
"""
    for seed in ("1", "2"):
        done = site.run("-c", code, str(site.folder), PYTHONHASHSEED=seed)
        assert done.stdout.strip() == here, done.stderr


def test_the_hash_changes_with_what_shapes_a_forward_and_with_nothing_else(site, resolve_config, method, tmp_path):
    traits = "weights='own', extra_slots=config.num_speculative_tokens - 1"
    for name in ("alpha", "beta"):
        site.proposer(name, method(traits=traits))
    site.dist("more", {"specdec.verifiers.v1": {"other": "fake_verifiers"}})
    folders = []
    for number, config in enumerate([{"a": 1}, {"a": 1}, {"a": 2}]):
        folders.append(tmp_path / f"draft{number}")
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text(json.dumps(config))
    base = {**CONFIG, "model": str(folders[0])}

    def hashed(**changes):
        return resolve_config({**base, **changes}).compute_hash()

    plain = hashed()
    same = [
        {"model": str(folders[1])},
        {"rejection_sample_method": "other"},
        {"disable_by_batch_size": 4},
        {"max_step_tokens": 9},
        {"num_speculative_tokens_per_batch_size": [[1, 4, 1]]},
        {"enforce_eager": True},
        {"max_model_len": 64},
    ]
    assert {hashed(**changes) for changes in same} == {plain}
    other = [
        {"method": "beta"},
        {"model": str(folders[2])},
        {"num_speculative_tokens": 3},
        {"max_model_len": 63},
        {"lookup_max": 4},
        {"draft_sample_method": "greedy"},
    ]
    assert len({plain, *(hashed(**changes) for changes in other)}) == 1 + len(other)


def test_the_hash_changes_with_the_methods_version_and_traits_with_kernels_and_with_what_the_host_acts_on(
    site, resolve_config, target, method
):
    site.proposer("alpha", method())
    site.dist("more", {"specdec.kernels.v1": {"op.reference": "not_there"}})
    resolved = resolve_config(CONFIG)
    newer = replace(resolved, record=replace(resolved.record, version="2.0"))
    shaped = replace(resolved, traits=replace(resolved.traits, rows="last"))
    with_kernels = resolve_config({**CONFIG, "kernels": ["more"]})
    acted_on = resolve({**CONFIG, "enforce_eager": True}, target, site.registry(), host_keys=("enforce_eager",))
    assert len({each.compute_hash() for each in (resolved, newer, shaped, with_kernels, acted_on)}) == 5
