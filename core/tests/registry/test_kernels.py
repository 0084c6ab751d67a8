"""What the choice of kernels promises: the best one that can be had here, and the definition when it is asked for."""

import logging

import pytest

from specdec_core.errors import ConfigError, ConflictError, ImportStageError, UnknownNameError
from specdec_core.registry.kernels import Kernels

KERNELS = "specdec.kernels.v1"
MODULE = "def reference(): return 'reference'\ndef numba(): return 'numba'\ndef triton(): return 'triton'\n"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("SPECDEC_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def kernels(site):
    points = {f"op.{backend}": f"ops_one:{backend}" for backend in ("reference", "numba", "triton")}
    site.dist("ops-one", {KERNELS: {**points, "lone.reference": "ops_one:reference"}}, {"ops_one.py": MODULE})
    return Kernels(site.catalog(), ["ops_one"])


def test_the_backend_follows_from_the_device(kernels):
    devices = {"cpu": "numba", "cpu:0": "numba", "cuda": "triton", "cuda:1": "triton", "mps": "reference"}
    for device, backend in devices.items():
        assert kernels.get("op", device)() == kernels.backend("op", device) == backend
        assert kernels.backend("lone", device) == "reference"


def test_the_environment_forces_a_backend_at_any_time(kernels, monkeypatch):
    assert kernels.get("op", "cpu")() == "numba"
    monkeypatch.setenv("SPECDEC_KERNELS", "reference")
    assert kernels.get("op", "cpu")() == kernels.get("op", "cuda")() == "reference"
    monkeypatch.setenv("SPECDEC_KERNELS", "numba, reference")
    assert kernels.get("op", "cuda")() == "numba"


def test_triton_runs_on_a_cpu_only_in_its_interpreter(kernels, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.backend("op", "cpu") == "numba"
    monkeypatch.setenv("SPECDEC_KERNELS", "triton")
    assert kernels.backend("op", "cpu") == "triton"
    assert kernels.backend("lone", "cpu") == "reference"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        kernels.get("op", "cpu")


def test_a_wrong_environment_is_not_swallowed(kernels, monkeypatch):
    monkeypatch.setenv("SPECDEC_KERNELS", "refrence")
    with pytest.raises(ConfigError, match=r"'refrence'.*numba, reference, triton"):
        kernels.get("op", "cpu")


def test_a_backend_that_cannot_be_imported_gives_way_and_says_so_once(site, caplog):
    site.dist("ops-two", {KERNELS: {"op.numba": "ops_two_numba:f", "op.reference": "ops_two:reference"}})
    (site.folder / "ops_two.py").write_text(MODULE)
    (site.folder / "ops_two_numba.py").write_text("import library_that_is_missing")
    kernels = Kernels(site.catalog(), ["ops-two"])
    with caplog.at_level(logging.WARNING):
        assert kernels.get("op", "cpu")() == "reference"
        kernels.add("another")
        assert kernels.get("op", "cpu:0")() == "reference"
    (entry,) = caplog.records
    assert "library_that_is_missing" in entry.getMessage()


def test_an_op_of_which_nothing_can_be_imported_raises_why(site):
    site.dist("ops-three", {KERNELS: {"op.reference": "ops_three:f"}}, {"ops_three.py": "1 / 0"})
    with pytest.raises(ImportStageError, match="ZeroDivisionError"):
        Kernels(site.catalog(), ["ops-three"]).get("op")


def test_an_unknown_op_lists_those_there_are(kernels):
    with pytest.raises(UnknownNameError, match="there are: lone, op") as caught:
        kernels.get("oop")
    assert caught.value.installed == ("lone", "op")


def test_only_chosen_distributions_are_looked_among(site, kernels):
    site.dist("ops-more", {KERNELS: {"other.reference": "ops_one:reference"}})
    plain = Kernels(site.catalog())
    assert plain.ops == {}
    plain.add("Ops.More")
    assert plain.ops == {"other": ("reference",)}


def test_two_claims_of_one_op_and_backend_conflict_only_if_both_are_chosen(site, kernels):
    site.dist("ops-rival", {KERNELS: {"op.numba": "ops_one:reference"}})
    catalog = site.catalog()
    assert Kernels(catalog, ["ops-one"]).get("op", "cpu")() == "numba"
    assert Kernels(catalog, ["ops-rival"]).get("op", "cpu")() == "reference"
    both = Kernels(catalog, ["ops-one", "ops-rival"])
    with pytest.raises(ConflictError, match=r"ops-one .* and ops-rival"):
        both.get("op", "cpu")
    assert both.get("op", "cuda")() == "triton"


def test_a_registry_offers_the_kernels_of_what_it_loaded(site):
    modules = {"alpha_dist/__init__.py": "", "alpha_dist/plugin.py": "from specdec_core import hookimpl\n"}
    modules["alpha_dist/plugin.py"] += "@hookimpl\ndef specdec_make_proposer(ctx): ...\n"
    modules["alpha_dist/ops.py"] = MODULE
    points = {
        "specdec.proposers.v1": {"alpha": "alpha_dist.plugin"},
        KERNELS: {"op.reference": "alpha_dist.ops:reference"},
    }
    site.dist("alpha-dist", points, modules)
    registry = site.registry()
    with pytest.raises(UnknownNameError):
        registry.kernels.get("op")
    registry.find("proposer", "alpha")
    assert registry.kernels.get("op")() == "reference"


OTHER = """
def plain(): return "plain"
def cpp(): return "cpp"
cpp.supports = lambda device: device == "cpu"
def xpu(): return "xpu"
xpu.supports = lambda device: device == "xpu"
def low(): return "low"
low.supports, low.priority = (lambda device: True), 10
def bad(): return "bad"
bad.supports = lambda device: 1 / 0
"""


def others(site, *backends):
    points = {f"op.{backend}": f"ops_other:{backend}" for backend in backends}
    site.dist("ops-other", {KERNELS: points}, {"ops_other.py": OTHER})
    return Kernels(site.catalog(), ["ops-one", "ops-other"])


def test_a_backend_of_another_name_is_chosen_where_it_runs(site, kernels):
    found = others(site, "cpp", "xpu", "low")
    expected = {"cpu": "cpp", "cuda": "triton", "xpu:1": "xpu", "mps": "low"}
    assert {device: found.get("op", device)() for device in expected} == expected


def test_a_backend_that_names_no_device_is_chosen_by_the_environment_alone(site, kernels, monkeypatch):
    found = others(site, "plain")
    assert found.backend("op", "cpu") == "numba"
    monkeypatch.setenv("SPECDEC_KERNELS", "plain")
    assert found.backend("op", "cpu") == "plain"


def test_the_environment_comes_before_priorities(site, kernels, monkeypatch):
    found = others(site, "cpp")
    monkeypatch.setenv("SPECDEC_KERNELS", "numba")
    assert found.backend("op", "cpu") == "numba"


def test_a_backend_that_fails_when_asked_gives_way_and_is_logged_once(site, kernels, caplog):
    found = others(site, "bad")
    with caplog.at_level(logging.WARNING):
        assert (found.backend("op", "cpu"), found.backend("op", "cuda")) == ("numba", "triton")
    assert len(caplog.records) == 1 and "division by zero" in caplog.text
