"""Each plugin that breaks one promise fails exactly the check that is about it; good ones fail none."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import broken_methods
import broken_others
import pytest

from specdec_testing.controller import ControllerContract
from specdec_testing.identity import IdentityContract
from specdec_testing.kernel import KernelContract
from specdec_testing.method import MethodContract
from specdec_testing.verifier import VerifierContract

HERE = Path(__file__).parent
SUITE = """
import numpy as np
import pytest
import broken_methods
import broken_others

from specdec_testing.controller import ControllerContract
from specdec_testing.kernel import KernelContract
from specdec_testing.method import MethodContract
from specdec_testing.verifier import VerifierContract


def fixture(value):
    return pytest.fixture(lambda self: value)


def add(kind, name, base, **members):
    globals()[f"Test{kind}{name}"] = type(f"Test{kind}{name}", (base,), {"__module__": __name__, **members})


SMALL = {"families": ("llama",), "ks": (2,), "max_tokens": 4}
METHODS = {name: plugin for name, (_, plugin) in broken_methods.BROKEN.items()}
for name, plugin in {**METHODS, **broken_methods.GOOD}.items():
    values = {"method": "mine", "options": {}, "plugins": {"mine": plugin}}
    add("Method", name, MethodContract, **SMALL, **{key: fixture(value) for key, value in values.items()})
for name, (_, plugin) in broken_others.VERIFIERS.items():
    add("Verifier", name, VerifierContract, verifier=fixture("mine"), plugins=fixture({"mine": plugin}))
for name, (_, plugin) in broken_others.CONTROLLERS.items():
    add("Controller", name, ControllerContract, controller=fixture("mine"), plugins=fixture({"mine": plugin}))
CASES = [(np.linspace(-1, 1, size), 3.0) for size in (1, 4)]
for name, (_, backends) in broken_others.KERNELS.items():
    given = {"op": fixture("mine"), "cases": fixture(CASES), "backends": fixture(backends)}
    add("Kernel", name, KernelContract, tolerance=1e-3, **given)
"""
TABLES = {
    "Method": {**broken_methods.BROKEN, **dict.fromkeys(broken_methods.GOOD, (None, None))},
    "Verifier": broken_others.VERIFIERS,
    "Controller": broken_others.CONTROLLERS,
    "Kernel": broken_others.KERNELS,
}
WANTED = {f"{kind}{name}": check for kind, table in TABLES.items() for name, (check, _) in table.items()}
# A package of its own each: what an unpackaged plugin cannot break.
PACKAGED = {
    "test_plugin_module_imports_nothing_heavy": ("specdec-plugin-packed", "specdec_plugin_packed", "import torch\n"),
    "test_entry_point_is_present_and_named_by_the_rule": ("specdec-plugin-packed", "packed", ""),
    "test_expected_failures_are_declared": ("specdec-plugin-packed", "specdec_plugin_packed", ""),
}
PLUGIN = """
from specdec_core import hookimpl


@hookimpl
def specdec_make_proposer():
    from specdec_testing.stubs import {stub}

    return {made}
"""
PACKAGED_SUITE = """
import pytest

from specdec_testing.method import MethodContract


class TestPacked(MethodContract):
    families, ks, max_tokens = ("llama",), (2,), 4

    @pytest.fixture
    def method(self):
        return "packed"

    @pytest.fixture
    def options(self):
        return {}
"""
UNDECLARED = """
    @pytest.mark.xfail(reason="it keeps no promise", strict=True)
    def test_a_batch_drafts_what_its_rows_draft_alone(self):
        raise AssertionError
"""


def outcomes(suite, folder, *paths):
    """Run a suite in a process of its own; return the checks that failed, and those that passed, by class."""
    (folder / "test_suite.py").write_text(suite)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    path = os.pathsep.join(map(str, [HERE, *paths]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command += ["-W", "ignore", "--rootdir", str(folder), str(folder / "test_suite.py")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-4000:]
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failed, passed = found.setdefault(case.get("classname").rpartition(".Test")[2], ([], []))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name"))
        elif case.find("skipped") is None:
            passed.append(case.get("name"))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return outcomes(SUITE, tmp_path_factory.mktemp("broken"))


@pytest.mark.slow
@pytest.mark.parametrize("name", WANTED)
def test_a_broken_plugin_fails_the_check_of_its_fault_and_no_other(name, found):
    failed, passed = found[name]
    assert failed == ([] if WANTED[name] is None else [WANTED[name]])
    assert WANTED[name] is not None or len(passed) > 4


@pytest.mark.slow
@pytest.mark.parametrize("check", PACKAGED)
def test_a_package_that_breaks_a_rule_fails_the_check_of_it_and_no_other(check, tmp_path):
    distribution, package, head = PACKAGED[check]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    plugin = PLUGIN.format(stub="Garbage", made="Garbage(128)")
    (tmp_path / package / "plugin.py").write_text(head + plugin)
    info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[specdec.proposers.v1]\npacked = {package}.plugin\n")
    suite = PACKAGED_SUITE + (UNDECLARED if "declared" in check else "")
    assert outcomes(suite, tmp_path, tmp_path)["Packed"][0] == [check]


def test_every_promise_has_a_plugin_that_breaks_it():
    kits = (MethodContract, VerifierContract, ControllerContract, KernelContract)
    promised = {name for kit in kits for base in kit.__mro__ for name in getattr(base, "promised", {})}
    broken = {check for check in WANTED.values() if check} | set(PACKAGED)
    # Whatever the drafts are, the verifier decides: a method can only change the text by reaching into the target.
    same_fault = set(IdentityContract.__mro__[1].promised) - {"test_greedy_text_is_the_plain_text"}
    assert promised - same_fault == broken
    assert len(broken_methods.BROKEN) >= 12
