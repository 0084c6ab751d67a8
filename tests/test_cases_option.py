"""`--cases` keeps some cases of every parametrised test and all tests of one case."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(9))
def test_many(number): pass

@pytest.mark.parametrize("number", range(2))
def test_two(number): pass

def test_one(): pass
"""


@pytest.mark.parametrize(
    ("most", "kept"),
    [(1, ["many[0]", "two[0]", "one"]), (3, ["many[0]", "many[3]", "many[6]", "two[0]", "two[1]", "one"])],
)
def test_cases_are_spread_and_no_test_is_left_out(pytester, most, kept):
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makepyfile(test_them=TESTS)
    result = pytester.inline_run("-p", "no:cacheprovider", f"--cases={most}")
    ran = [report.nodeid.partition("::test_")[2] for report in result.getreports("pytest_runtest_logreport")]
    assert list(dict.fromkeys(ran)) == kept
