"""A resolved configuration is data: it comes back from JSON equal, and loaded plugins are in the registry."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specdec_core.config.resolve import resolve
from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, ImportStageError
from specdec_core.markers import hookimpl

CONFIG = {"method": "alpha", "num_speculative_tokens": 3}


class Mine:
    @hookimpl
    def specdec_make_proposer(self): ...


@pytest.fixture
def resolved(site, method, resolve_config):
    site.proposer("alpha", method(traits="aux_layers=(1, 2), rows='all'"))
    return resolve_config({**CONFIG, "max_step_tokens": 64, "num_speculative_tokens_per_batch_size": [[1, 4, 2]]})


def test_another_process_reads_what_one_wrote(site, resolved):
    again = ResolvedConfig.from_json(json.loads(json.dumps(resolved.as_json())), site.registry())
    assert again == resolved
    assert hash(again) == hash(resolved)
    assert (again.config, again.options, again.traits) == (resolved.config, resolved.options, resolved.traits)
    assert again.record == resolved.record
    assert again.verifier_record == resolved.verifier_record


def test_equality_is_of_everything(resolved):
    other = replace(resolved, max_model_len=resolved.max_model_len - 1)
    assert other != resolved
    assert len({other, resolved, replace(resolved)}) == 2
    assert resolved != resolved.as_json()


def test_options_that_the_installed_plugin_does_not_read_are_refused(site, resolved):
    data = resolved.as_json()
    data["options"]["of_a_newer_version"] = 1
    with pytest.raises(ConfigError, match="of_a_newer_version"):
        ResolvedConfig.from_json(data, site.registry())


def test_loaded_plugins_are_in_the_registry_and_not_in_the_data(site, target):
    site.verifiers("coupled")
    plugin = Mine()
    registry = site.registry(mine=plugin)
    resolved = resolve({**CONFIG, "method": "mine"}, target, registry)
    assert registry.plugin(resolved.record).plugin is plugin
    assert resolved.record.local is None
    with pytest.raises(ImportStageError, match="another session"):
        site.registry().plugin(resolved.record)
