"""What derived values promise: k by n_predict, where drafts end, devices, slots, schedules and revisions."""

import json

import pytest

from specdec_core.config.resolve import resolve
from specdec_core.errors import ConfigError, ConfigWarning, TraitsStageError
from specdec_core.sources import TargetInfo
from specdec_core.traits import MethodTraits

CONFIG = {"method": "alpha", "num_speculative_tokens": 2}


def reasons(resolved):
    return {decision.key: decision.reason for decision in resolved.decisions}


def wide(size):
    return TargetInfo(
        model="t", hf_config={}, vocab_size=32, hidden_size=8, num_layers=2, max_model_len=64, tensor_parallel_size=size
    )


# k


def test_a_k_up_to_n_predict_is_right_and_above_it_is_refused_where_modules_cannot_be_used_again(
    site, resolve_config, problems_of, method
):
    site.proposer("alpha", method(traits="n_predict=3, max_tokens=3"))
    for k in (1, 2, 3):
        assert resolve_config({"method": "alpha", "num_speculative_tokens": k}).num_speculative_tokens == k
    problem = problems_of({"method": "alpha", "num_speculative_tokens": 4})["num_speculative_tokens"]
    assert "4 given, and alpha drafts at most 3 (its n_predict) here (give at most 3)" in problem


def test_a_k_above_n_predict_must_be_a_multiple_and_uses_modules_again_with_a_warning(
    site, resolve_config, problems_of, method
):
    site.proposer("alpha", method(traits="n_predict=2"))
    for k in (1, 2):
        assert resolve_config({"method": "alpha", "num_speculative_tokens": k}).num_speculative_tokens == k
    problem = problems_of({"method": "alpha", "num_speculative_tokens": 5})["num_speculative_tokens"]
    assert "above its n_predict of 2 alpha takes only multiples of 2 (give 4 or 6)" in problem
    with pytest.warns(ConfigWarning, match="6 is above the n_predict of alpha, 2: its modules are used 3 times"):
        resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 6})
    assert resolved.num_speculative_tokens == 6
    assert "used 3 times" in reasons(resolved)["num_speculative_tokens"]


def test_multiples_end_where_max_tokens_says(site, problems_of, method):
    site.proposer("alpha", method(traits="n_predict=2, max_tokens=4"))
    problem = problems_of({"method": "alpha", "num_speculative_tokens": 6})["num_speculative_tokens"]
    assert "at most 4 here" in problem
    assert "n_predict" not in problem


# Where drafts end


@pytest.mark.parametrize(
    ("traits", "given", "length", "whose"),
    [
        ("", None, 64, "the target's limit"),
        ("max_position=48", None, 48, "the drafter's limit"),
        ("max_position=100", None, 64, "the target's limit"),
        ("max_position=48", 48, 48, "given"),
        ("", 8, 8, "given"),
    ],
)
def test_drafts_end_where_the_user_says_or_at_the_smaller_limit(
    site, resolve_config, method, traits, given, length, whose
):
    site.proposer("alpha", method(traits=traits))
    resolved = resolve_config({**CONFIG, "max_model_len": given})
    assert resolved.max_model_len == length
    assert reasons(resolved)["max_model_len"].startswith(whose)


def test_a_length_above_the_drafters_or_the_targets_is_refused_with_all_that_it_exceeds(site, problems_of, method):
    site.proposer("alpha", method(traits="max_position=48"))
    problem = problems_of({**CONFIG, "max_model_len": 49})["max_model_len"]
    assert "49 given, and the drafter's is 48 (give at most 48)" in problem
    problem = problems_of({**CONFIG, "max_model_len": 65})["max_model_len"]
    assert "65 given, and the target's is 64 and the drafter's is 48 (give at most 48)" in problem


def test_a_method_can_read_the_limit_of_its_checkpoint(site, resolve_config, method, tmp_path):
    site.proposer("alpha", method(traits="weights='own', max_position=draft.max_model_len"))
    for number, (config, length) in enumerate([({"text_config": {"n_positions": 16}}, 16), ({}, 64)]):
        folder = tmp_path / f"draft{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        assert resolve_config({**CONFIG, "model": str(folder)}).max_model_len == length


# Devices


def test_a_drafter_is_on_one_device_or_on_as_many_as_the_target(site, resolve_config, method):
    site.proposer("alpha", method(traits="weights='target'"))
    site.proposer(
        "one",
        method(
            traits="weights='target'",
            defaults="Default(key='draft_tensor_parallel_size', value=1, reason='it is tiny')",
        ),
    )

    def devices(size, **config):
        return resolve({**CONFIG, **config}, wide(size), site.registry()).draft_tensor_parallel_size

    assert [
        devices(4),
        devices(1),
        devices(4, method="one"),
        devices(4, method="one", **{"draft-tensor-parallel-size": 4}),
    ] == [4, 1, 1, 4]
    assert [devices(4, draft_tensor_parallel_size=size) for size in (1, 4)] == [1, 4]
    with pytest.raises(ConfigError, match=r"2 given, and the target's is 4 \(give 1 or 4\)"):
        devices(4, draft_tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="4 given, and the target's is 1"):
        devices(1, draft_tensor_parallel_size=4)


# Slots


@pytest.mark.parametrize(
    ("traits", "slots"),
    [
        ({}, (0, 0)),  # lookup
        ({"weights": "own", "rows": "last", "hidden": True}, (0, 0)),  # heads
        ({"weights": "own", "rows": "all", "hidden": True}, (4, 0)),  # a cache beside the target's
        ({"weights": "target", "rows": "all", "hidden": True}, (4, 0)),
        ({"weights": "own", "rows": "all", "extra_slots": 3}, (4, 3)),  # mask tokens
        ({"weights": "own", "rows": "all", "extra_slots": 4, "num_lookahead_slots": 5}, (5, 4)),  # blocks
        ({"weights": "own", "extra_slots": 1}, (4, 1)),  # a whole model
        ({"weights": "own", "num_lookahead_slots": 0}, (0, 0)),
    ],
)
def test_slots_follow_from_the_traits_as_vllm_reserves_them(site, resolve_config, method, traits, slots, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    site.proposer("alpha", method(traits=", ".join(f"{key}={value!r}" for key, value in traits.items())))
    draft = {"model": str(tmp_path)} if traits.get("weights") == "own" else {}
    resolved = resolve_config({"method": "alpha", "num_speculative_tokens": 4, **draft})
    assert (resolved.num_lookahead_slots, resolved.extra_slots) == slots
    assert "num_lookahead_slots" in reasons(resolved)
    assert ("extra_slots" in reasons(resolved)) == (slots[1] > 0)


@pytest.mark.parametrize(
    "numbers", [{"n_predict": 0}, {"extra_slots": -1}, {"num_lookahead_slots": -1}, {"n_predict": 1.5}]
)
def test_numbers_that_cannot_be_meant_are_the_methods_fault(site, resolve_config, method, numbers):
    ((name, value),) = numbers.items()
    with pytest.raises(ValueError, match=f"MethodTraits.{name}"):
        MethodTraits(**numbers)
    site.proposer("alpha", method(traits=f"{name}={value}"))
    with pytest.raises(TraitsStageError, match=name):
        resolve_config(CONFIG)


# Schedules and revisions


def test_a_schedule_above_k_says_that_it_is_cut(site, resolve_config, method):
    site.proposer("alpha", method())
    for k, said in ((2, "K above 2 counts as 2"), (8, "cuts each step's drafts to it")):
        config = {"method": "alpha", "num_speculative_tokens": k}
        resolved = resolve_config({**config, "num_speculative_tokens_per_batch_size": {"1-4": 8, "5-512": 0}})
        assert reasons(resolved)["num_speculative_tokens_per_batch_size"].endswith(said)
        assert resolved.config.num_speculative_tokens_per_batch_size == ((1, 4, 8), (5, 512, 0))


def test_the_revision_of_a_hub_id_is_fetched_and_there_is_none_of_a_folder(
    site, resolve_config, method, tmp_path, monkeypatch
):
    hub = pytest.importorskip("huggingface_hub")
    fetched = []

    def download(name, **how):
        fetched.append((name, how))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    (tmp_path / "config.json").write_text('{"kind": "alpha"}')
    override = """
@hookimpl
def specdec_override_hf_config(method):
    return {"more": 1}
"""
    site.proposer("alpha", method(traits="weights='own'", more=override))
    resolved = resolve_config({**CONFIG, "model": "owner/name", "revision": "v2"})
    assert resolved.draft.path == tmp_path
    assert [how["revision"] for _, how in fetched] == ["v2"] * len(fetched)
    assert len(fetched) >= 2
    assert (resolved.draft.revision, resolved.as_json()["revision"]) == ("v2", "v2")
    assert reasons(resolved)["model"] == "given; the draft checkpoint"
    assert reasons(resolved)["revision"].startswith("given")
    with pytest.warns(ConfigWarning, match="revision is ignored: model .* is a local path"):
        resolved = resolve_config({**CONFIG, "model": str(tmp_path), "revision": "v2"})
    assert resolved.draft.revision is None
    site.proposer("beta", method())
    with pytest.warns(ConfigWarning, match="revision is ignored: there is no draft checkpoint"):
        resolve_config({**CONFIG, "method": "beta", "revision": "v2"})


def test_a_revision_that_is_not_there_is_named(site, problems_of, method, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def download(name, **how):
        raise OSError(f"no {how['revision']}")

    monkeypatch.setattr(hub, "snapshot_download", download)
    site.proposer("alpha", method(traits="weights='own'"))
    found = problems_of({**CONFIG, "model": "owner/name", "revision": "v9"})
    assert "'owner/name' at revision 'v9' is no local folder and could not be downloaded" in found["model"]


def test_everything_that_was_derived_is_in_the_json(site, resolve_config, method):
    site.proposer("alpha", method(traits="weights='target', rows='all', extra_slots=1"))
    resolved = resolve_config(CONFIG)
    data = json.loads(json.dumps(resolved.as_json()))
    names = (
        "num_speculative_tokens",
        "max_model_len",
        "draft_tensor_parallel_size",
        "num_lookahead_slots",
        "extra_slots",
    )
    assert [data[name] for name in names] == [2, 64, 1, 2, 1]
    assert data["hash"] == resolved.compute_hash()
    assert {"model", *names} <= {decision["key"] for decision in data["decisions"]}
    assert reasons(resolved)["model"] == "the drafter is inside the target's checkpoint"
