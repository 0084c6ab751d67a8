"""What a method without a checkpoint in its configuration gets: its own default, read and named like a given one."""

import json
from dataclasses import replace

import pytest

from specdec_core.config.checkpoint import locate
from specdec_core.config.resolve import resolve
from specdec_core.errors import CheckStageError, ConfigError, ConfigWarning

CONFIG = {"method": "alpha", "num_speculative_tokens": 2}
IN_TARGET = """
@hookimpl
def specdec_default_model(method, target):
    return target.model and Default(key="model", value=target.model, reason="it is where the target is")

@hookimpl
def specdec_override_hf_config(hf_config):
    return {"read": hf_config["size"]}
"""


@pytest.fixture
def folder(tmp_path):
    def make(name, **config):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return str(tmp_path / name)

    return make


@pytest.fixture
def resolved(site, target, method):
    """Resolve for a target, with a method that finds its weights there."""
    site.verifiers("coupled", "standard")

    def run(of, more=IN_TARGET, **keys):
        site.proposer("alpha", method(traits="weights='target'", more=more))
        return resolve({**CONFIG, **keys}, replace(target, model=of), site.registry())

    return run


def reasons_of(resolved, key):
    return [(decision.value, decision.reason) for decision in resolved.decisions if decision.key == key]


def test_the_default_is_the_checkpoint_of_every_later_question(resolved, folder):
    model = folder("target", size=3)
    found = resolved(model)
    assert found.draft.model == model
    assert dict(found.draft.hf_config) == {"size": 3, "read": 3}
    assert dict(found.draft.original.hf_config) == {"size": 3}
    assert reasons_of(found, "model") == [(model, "it is where the target is")]


def test_a_model_that_is_given_is_taken_and_said_to_be_given(resolved, folder):
    given = folder("given", size=4)
    found = resolved(folder("target", size=3), model=given)
    assert found.draft.model == given
    assert reasons_of(found, "model") == [(given, "given; the draft checkpoint")]


def test_the_name_of_the_method_as_model_is_no_checkpoint_so_the_default_holds(resolved, folder):
    model = folder("target", size=3)
    assert resolved(model, model="[alpha]").draft.model == model


def test_without_a_default_there_is_no_checkpoint(resolved):
    assert resolved(None).draft is None


@pytest.mark.parametrize(("given", "read"), [({}, "v1"), ({"revision": "v2"}, "v2")])
def test_the_targets_checkpoint_is_read_at_its_revision_unless_another_is_given(
    site, target, method, folder, monkeypatch, given, read
):
    here, asked = folder("target", size=3), set()

    def at(model, patterns=None, revision=None):
        asked.add((model, revision))
        return locate(here)

    monkeypatch.setattr("specdec_core.config.checkpoint.locate", at)
    site.verifiers("coupled", "standard")
    site.proposer("alpha", method(traits="weights='target'", more=IN_TARGET))
    found = resolve({**CONFIG, **given}, replace(target, model="owner/name", revision="v1"), site.registry())
    assert found.draft.revision == read
    assert asked == {("owner/name", read)}


def test_a_revision_of_a_local_default_is_ignored_with_a_warning(site, target, method, folder):
    site.verifiers("coupled", "standard")
    site.proposer("alpha", method(traits="weights='target'", more=IN_TARGET))
    here = replace(target, model=folder("target", size=3))
    with pytest.warns(ConfigWarning, match="revision is ignored: model .* is a local path"):
        found = resolve({**CONFIG, "revision": "v1"}, here, site.registry())
    assert found.draft.revision is None


def test_a_default_that_cannot_be_read_is_refused_with_its_reason_and_what_to_do(resolved, tmp_path):
    message = r"alpha cannot read .*/none' \(it is where the target is\): .*; name its checkpoint as model"
    with pytest.raises(ConfigError, match=message):
        resolved(str(tmp_path / "none"))


@pytest.mark.parametrize("answer", ["'a path'", "Default(key='revision', value='x', reason='r')"])
def test_an_answer_that_is_no_default_of_model_is_the_plugins_fault(resolved, answer):
    more = f"@hookimpl\ndef specdec_default_model():\n    return {answer}\n"
    with pytest.raises(CheckStageError, match=r"specdec_default_model gave .* no Default of model"):
        resolved("t", more=more)
