"""What `plugins doctor` tells besides failures: slow and heavy imports, changed globals, kernels of no use."""

import json

import pytest

MAKES = """
from specdec_core import hookimpl

@hookimpl
def specdec_make_proposer(ctx): ...
"""
CHANGES = {
    "signal handlers": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    "warnings filters": "import warnings\nwarnings.simplefilter('ignore')\n",
    "sys.path": "import sys\nsys.path.append('elsewhere')\n",
    "sys.excepthook": "import sys\nsys.excepthook = print\n",
    "environment": "import os\nos.environ['SOME'] = 'thing'\n",
    "running threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n",
    "builtins.print (replaced)": "import builtins\ndef mine(*args, **keys): ...\nbuiltins.print = mine\n",
    "torch's default dtype (torch.float64)": "import torch\ntorch.set_default_dtype(torch.float64)\n",
    "torch.nn.functional.relu (replaced)": "import torch\ndef relu(x): ...\ntorch.nn.functional.relu = relu\n",
}


def examine(site, *names):
    done = site.specdec("plugins", "doctor", *names, "--json")
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_a_light_plugin_has_nothing_said_of_it(site):
    site.proposer("good", MAKES)
    found = examine(site, "good")["good"]
    assert (found["state"], found["notes"]) == ("ok", [])
    assert found["import_seconds"] < 5


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_a_plugin_that_changes_what_belongs_to_everybody_is_named_with_it(site, what):
    site.proposer("bad", CHANGES[what] + MAKES)
    found = examine(site, "bad")["bad"]
    assert found["state"] == "ok"
    (said,) = [note for note in found["notes"] if note.startswith("importing it changes")]
    assert said == f"importing it changes {what}"


@pytest.mark.slow
def test_heavy_imports_are_named(site):
    site.proposer("heavy", "import torch\n" + MAKES)
    (note,) = examine(site, "heavy")["heavy"]["notes"]
    assert note.startswith("importing it imports torch")
    assert "importing it imports torch" in site.specdec("plugins", "doctor", "heavy").stdout


def test_a_kernel_that_no_device_chooses_is_told(site):
    source = "def odd(): ...\ndef fine(): ...\nfine.supports = bool\ndef reference(): ...\n"
    points = {f"op.{name}": f"ops_doc:{name}" for name in ("odd", "fine", "reference")}
    site.dist("ops-doc", {"specdec.kernels.v1": points}, {"ops_doc.py": source})
    found = examine(site, *points)
    assert "supports(device)" in found["op.odd"]["notes"][0]
    assert found["op.fine"]["notes"] == found["op.reference"]["notes"] == []
