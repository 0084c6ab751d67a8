"""The pytest plugin: one class and two fixtures, a paragraph for a check that fails, and nothing heavy at load."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

AUTHOR = """
import pytest

from specdec_core import hookimpl
from specdec_core.draft import Draft
from specdec_core.traits import MethodTraits
from specdec_testing.method import MethodContract
from specdec_testing.stubs import Stub, stub_plugin


class Mine(Stub):
    def row(self, batch, i):
        return [{token}] * int(batch.max_draft[i])


class TestMine(MethodContract):
    families, ks, max_tokens = ("llama",), (2,), 4

    @pytest.fixture
    def method(self):
        return "mine"

    @pytest.fixture
    def options(self):
        return {{}}

    @pytest.fixture
    def plugins(self):
        return {{"mine": stub_plugin(lambda target: Mine(), traits=MethodTraits())}}


def test_of_the_authors_own():
    assert 1 == 2
"""
CHECK = "test_drafts_are_in_contract_over_ragged_batches"


def run(pytester, token, *arguments):
    pytester.makepyfile(test_mine=AUTHOR.format(token=token))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore", *arguments)


@pytest.mark.slow
def test_one_class_and_two_fixtures_are_all_that_an_author_writes(pytester):
    result = run(pytester, "int(batch.request(i).tokens[-1])", "-k", "TestMine and (ragged or greedy_text)")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])


@pytest.mark.slow
def test_a_check_that_fails_says_what_was_expected_and_seen_and_where_to_read(pytester):
    result = run(pytester, "9999", "-k", f"{CHECK} or authors_own")
    text = " ".join(result.stdout.str().split())
    assert (
        f"test_mine.py::TestMine::{CHECK} failed. Expected: Over lives with chunks, joins, ends, acceptances and "
        "limits of all kinds, every draft is in contract. Seen: row "
    ) in text
    assert "[9999] are outside 0 .. 127" in text
    assert "docs/step.md of the specdec repository explains it. (-vv shows the traceback.)" in text
    assert "driver.run" not in text  # no line of the kit's source
    assert "def test_of_the_authors_own" in text  # other tests read as ever


@pytest.mark.slow
def test_the_traceback_is_there_for_those_who_ask(pytester):
    result = run(pytester, "9999", "-k", CHECK, "-vv")
    text = result.stdout.str()
    assert "driver.run" in text and "docs/step.md" in text


@pytest.mark.slow
def test_without_the_fixture_options_the_author_is_told(pytester):
    source = AUTHOR.format(token=7).replace("def options", "def other")
    pytester.makepyfile(test_mine=source)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore", "-k", CHECK)
    assert "TestMine must define a fixture `options`" in result.stdout.str()


def test_the_plugin_is_found_and_loads_nothing_heavy():
    code = """
import sys
from importlib.metadata import entry_points

(point,) = [point for point in entry_points(group="pytest11") if point.value.startswith("specdec_testing")]
before = set(sys.modules)
point.load()
heavy = {"torch", "numpy", "numba", "transformers", "scipy", "pydantic", "specdec_core", "specdec_nn"}
print(sorted(heavy & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["MethodContract", "ProposerContract", "IdentityContract", "HostContract"])
def test_every_check_has_a_sentence_and_every_contract_a_page(name, request):
    from specdec_testing import contract, host, identity, method

    owner = next(vars(module)[name] for module in (method, contract, identity, host) if name in vars(module))
    pages = {base.page for base in owner.__mro__ if getattr(base, "promised", None)}
    assert pages and all((request.config.rootpath / page).exists() for page in pages)
    for base in owner.__mro__:
        for test in getattr(base, "promised", {}).values():
            assert test.__doc__
