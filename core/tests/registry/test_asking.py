"""Asking all plugins harms nothing: none is imported here, one that hangs or dies is named once, and others answer."""

import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from specdec_core.config.resolve import resolve, swap_target
from specdec_core.errors import ConfigError, PluginWarning
from specdec_core.registry import asking
from specdec_core.sources import DraftSource

DETECTS = """
import sys
from specdec_core import hookimpl
from specdec_core.sources import Detection, TargetSwap
from specdec_core.traits import MethodTraits
assert "pytest" in sys.modules or "torch" not in sys.modules, "in the child"

@hookimpl
def specdec_detect_method(draft):
    if draft.hf_config["made_by"] == "{name}":
        return Detection(method="{name}", strength="certain", evidence=("made_by {name}",))

@hookimpl
def specdec_swap_target(source):
    if draft_of := source.hf_config.get("draft_of"):
        return TargetSwap(model=draft_of, speculative_config={{"method": "{name}"}}, reason="it says so")

@hookimpl
def specdec_method_traits(ctx):
    return MethodTraits(weights="own")

@hookimpl
def specdec_make_proposer(ctx): ...
"""
HANGS = "import time, pathlib\npathlib.Path({marker!r}).open('a').write('x')\ntime.sleep(100)"
WAITS = """
import pathlib, time
pathlib.Path({begun!r}).touch()
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
"""
ASKS = """
from specdec_core.registry import asking
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry
from specdec_core.sources import DraftSource
asking.LIMIT = 3.0
records = Catalog.discover([{site!r}]).of_kind("proposer")
for answer in asking.ask("detect", records, Registry(Catalog.of([])), DraftSource({checkpoint!r})):
    print(answer.said and answer.said["method"], answer.problem or "no problem")
"""
DIES = "import os; os._exit(7)"
PATCHES = "import json\njson.dumps = None\n"


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/config.json").write_text(json.dumps({"made_by": "alpha"}))
    return str(tmp_path / "c")


@pytest.fixture
def resolve_config(site, target, monkeypatch):
    monkeypatch.setattr(asking, "LIMIT", 4.0)
    site.verifiers("coupled")
    return lambda **config: resolve({"num_speculative_tokens": 2, **config}, target, site.registry())


def imported(*names):
    return [name for name in sys.modules if name.startswith(tuple(f"specdec_plugin_{each}" for each in names))]


def test_only_the_chosen_method_is_imported_by_detection(site, resolve_config, checkpoint):
    for name in ("alpha", "beta", "gamma"):
        site.proposer(name, DETECTS.format(name=name))
    assert resolve_config(model=checkpoint).method == "alpha"
    assert imported("alpha") and not imported("beta", "gamma")


def test_a_stray_key_imports_nothing_else(site, resolve_config, checkpoint):
    for name in ("alpha", "beta"):
        site.proposer(name, DETECTS.format(name=name))
    with pytest.raises(ConfigError, match="zoo: unknown key"):
        resolve_config(method="alpha", model=checkpoint, zoo=1)
    assert not imported("beta")


def test_a_plugin_that_patches_another_library_breaks_nothing(site, resolve_config, checkpoint):
    site.proposer("alpha", DETECTS.format(name="alpha"))
    site.proposer("zpatches", PATCHES + DETECTS.format(name="zpatches"))
    dumps = json.dumps
    assert resolve_config(model=checkpoint).method == "alpha"
    assert json.dumps is dumps


def test_a_swapped_target_is_found_without_an_import(site, resolve_config, tmp_path):
    site.proposer("alpha", DETECTS.format(name="alpha"))
    (tmp_path / "config.json").write_text(json.dumps({"draft_of": "org/big"}))
    swap = swap_target(DraftSource(tmp_path), site.registry())
    assert (swap.model, swap.speculative_config, swap.reason) == ("org/big", {"method": "alpha"}, "it says so")
    assert not imported("alpha")


@pytest.mark.slow
def test_one_that_hangs_and_one_that_dies_are_named_and_cost_their_limit_once(
    site, resolve_config, checkpoint, tmp_path
):
    marker = tmp_path / "tried"
    site.proposer("a_dies", DIES)
    site.proposer("a_hangs", HANGS.format(marker=str(marker)))
    site.proposer("alpha", DETECTS.format(name="alpha"))
    with pytest.warns(PluginWarning) as caught:
        assert resolve_config(model=checkpoint).method == "alpha"
    said = sorted(str(each.message) for each in caught)
    assert len(said) == 2
    assert "specdec-plugin-a_dies 1.0" in said[0] and "ended the process that asked it, with code 7" in said[0]
    assert "specdec-plugin-a_hangs 1.0" in said[1] and "did not answer within 4 seconds" in said[1]
    with pytest.warns(PluginWarning), pytest.raises(ConfigError, match="zoo: unknown key"):
        resolve_config(model=checkpoint, zoo=1)
    assert marker.read_text() == "x"


def test_an_answer_is_asked_for_once_as_long_as_the_checkpoint_stays(site, resolve_config, checkpoint, monkeypatch):
    site.proposer("alpha", DETECTS.format(name="alpha"))
    assert resolve_config(model=checkpoint).method == "alpha"
    started = []
    popen = asking.subprocess.Popen
    monkeypatch.setattr(asking.subprocess, "Popen", lambda *a, **k: started.append(a) or popen(*a, **k))
    assert resolve_config(model=checkpoint).method == "alpha"
    assert not started
    (asking.Path(checkpoint) / "config.json").write_text(json.dumps({"made_by": "nobody at all"}))
    with pytest.raises(ConfigError, match="no installed method recognises"):
        resolve_config(model=checkpoint)
    assert len(started) == 1


@pytest.mark.parametrize("program", ["", "/no/such/python"])
def test_without_a_child_process_plugins_are_asked_here(site, resolve_config, checkpoint, monkeypatch, caplog, program):
    site.proposer("alpha", DETECTS.format(name="alpha"))
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(asking, "_logged", set())
    with caplog.at_level(logging.WARNING):
        assert resolve_config(model=checkpoint).method == "alpha"
        with pytest.raises(ConfigError, match="zoo: unknown key"):
            resolve_config(model=checkpoint, zoo=1)
    assert sum("they are asked in this one" in record.message for record in caplog.records) == 1


@pytest.mark.slow
def test_a_machine_that_stands_still_costs_no_plugin_its_answer(site, checkpoint, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    site.proposer("alpha", WAITS.format(begun=str(begun), go=str(go)) + DETECTS.format(name="alpha"))
    asks = subprocess.Popen(
        [sys.executable, "-c", ASKS.format(site=str(site.folder), checkpoint=checkpoint)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        start_new_session=True,
    )
    while not begun.exists():
        time.sleep(0.01)
    os.killpg(asks.pid, signal.SIGSTOP)
    time.sleep(3.5)
    go.touch()
    os.killpg(asks.pid, signal.SIGCONT)
    assert asks.communicate()[0].decode().strip() == "alpha no problem"
