"""What the catalog promises: records from metadata alone, conflicts that order never decides, and helpful refusals."""

import pickle
import sys

import pytest

from specdec_core.errors import (
    ConflictError,
    DeprecatedNameWarning,
    MetadataStageError,
    SpecdecWarning,
    UnknownNameError,
    VersionStageError,
)
from specdec_core.registry.catalog import Catalog

PROPOSERS = "specdec.proposers.v1"


def test_discovery_imports_no_plugin(site):
    site.proposer("alpha", "raise SystemExit('imported')")
    (found,) = site.catalog().records
    assert (found.kind, found.name, found.distribution, found.version, found.status) == (
        "proposer", "alpha", "specdec-plugin-alpha", "1.0", "ok",
    )  # fmt: skip
    assert not any(name.startswith("specdec_plugin_alpha") for name in sys.modules)


def test_two_distributions_that_claim_one_name_conflict_in_any_order(record):
    one, two = record("proposer", "x", "a.p:p", "dist-a"), record("proposer", "x", "b.p:p", "dist-b")
    messages = set()
    for order in ([one, two], [two, one]):
        catalog = Catalog.of(order)
        assert [each.status for each in catalog.records] == ["conflict", "conflict"]
        with pytest.raises(ConflictError, match=r"dist-a 1 .* and dist-b 1 ") as caught:
            catalog.find("proposer", "x")
        messages.add(str(caught.value))
        assert {each.distribution for each in caught.value.records} == {"dist-a", "dist-b"}
        assert catalog.find("proposer", "dist_B:x").value == "b.p:p"
        assert catalog.find("proposer", "dist-a:x").status == "ok"
    assert len(messages) == 1


def test_the_same_name_and_value_found_twice_is_one_plugin(record):
    catalog = Catalog.of([record("proposer", "x", "a:p", "dist-a"), record("proposer", "x", "a:p", "dist-b")])
    assert len(catalog.records) == 1
    assert catalog.find("proposer", "x").status == "ok"


def test_one_name_may_stand_for_things_of_different_kinds(record):
    catalog = Catalog.of([record("proposer", "x", "a:p"), record("verifier", "x", "b:p", "dist-b")])
    assert catalog.find("proposer", "x").value == "a:p"
    assert catalog.find("verifier", "x").value == "b:p"


def test_a_name_that_is_not_installed_is_answered_with_what_is(site):
    site.proposer("lookup")
    site.proposer("other")
    with pytest.raises(UnknownNameError) as caught:
        site.catalog().find("proposer", "lokup")
    error = caught.value
    assert (error.kind, error.name, error.installed) == ("proposer", "lokup", ("lookup", "other"))
    assert "did you mean 'lookup'" in str(error)
    assert "other (specdec-plugin-other 1.0)" in str(error)
    assert "pip install" not in str(error)


def test_a_distribution_that_does_not_offer_the_name_is_unknown_too(site):
    site.proposer("lookup")
    with pytest.raises(UnknownNameError, match="nobody:lookup"):
        site.catalog().find("proposer", "nobody:lookup")


@pytest.mark.parametrize(
    ("requirement", "status"),
    [
        ("specdec-core>=0.0.1", "ok"),
        ("specdec_core[torch]>=0.0.1,<9", "ok"),
        ("Specdec.Core (<9)", "ok"),
        ("specdec-core", "ok"),
        ("specdec-core>=99", "core mismatch"),
        ("specdec_core[torch]<0.0.1", "core mismatch"),
        ("specdec-core>=99; python_version < '3'", "ok"),
        ("specdec-core>=99; extra == 'more'", "ok"),
        ("specdec-core>=99; python_version > '3'", "core mismatch"),
        ("specdec-core-extras>=99", "ok"),
        ("specdec-core>=>1", "invalid"),
        ("specdec-core>=0; no marker", "invalid"),
    ],
)
def test_the_requirement_on_the_core_is_read_again(site, requirement, status):
    site.proposer("alpha", requires=("numpy>=1", requirement))
    (found,) = site.catalog().records
    assert found.status == status
    if status == "core mismatch":
        with pytest.raises(VersionStageError, match="specdec-core") as caught:
            site.catalog().find("proposer", "alpha")
        assert caught.value.record.distribution == "specdec-plugin-alpha"


@pytest.mark.parametrize("other", [0, 2])
def test_a_plugin_that_offers_several_hook_apis_is_loaded_by_the_one_that_the_core_speaks(site, other):
    site.dist("both", {PROPOSERS: {"both": "both:ours"}, f"specdec.proposers.v{other}": {"both": "both:other"}})
    catalog = site.catalog()
    assert [(each.name, each.value, each.status) for each in catalog.records] == [("both", "both:ours", "ok")]
    assert catalog.find("proposer", "both").value == "both:ours"


@pytest.mark.parametrize(
    ("majors", "named", "status", "step"),
    [
        ((2,), 2, "needs newer core", "pip install --upgrade specdec-core"),
        ((0,), 0, "needs newer plugin", "pip install --upgrade other"),
        ((2, 3), 2, "needs newer core", "pip install --upgrade specdec-core"),
    ],
)
def test_a_plugin_of_another_hook_api_is_refused_with_both_majors_and_what_to_upgrade(
    site, record, majors, named, status, step
):
    site.dist("other", {f"specdec.proposers.v{major}": {"other": f"other:v{major}"} for major in majors})
    catalog = site.catalog()
    (found,) = catalog.records
    assert found.status == status
    for refuse in (lambda: catalog.find("proposer", "other"), lambda: site.registry().load(found)):
        with pytest.raises(VersionStageError) as caught:
            refuse()
        assert f"hook API {named} (the group specdec.proposers.v{named})" in caught.value.problem
        assert "specdec-core 0.1.0 speaks 1" in caught.value.problem
        assert caught.value.next_step.endswith(step)


def test_metadata_that_cannot_be_read_harms_no_other_distribution(site):
    site.proposer("alpha")
    site.proposer("broken")
    (site.folder / "specdec_plugin_broken-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    site.dist("odd-value", {PROPOSERS: {"odd": "not a value!"}})
    site.dist("stranger", {"specdec.nonsense.v1": {"a": "b"}, "specdec.proposers": {"c": "d"}})
    states = {each.name: each.status for each in site.catalog().records}
    assert states == {"alpha": "ok", "broken": "invalid", "odd": "invalid"}
    with pytest.raises(MetadataStageError, match="not a value!"):
        site.catalog().find("proposer", "odd")


def test_of_one_distribution_on_two_paths_the_nearer_counts(site, tmp_path):
    site.proposer("alpha")
    behind = tmp_path / "behind"
    behind.mkdir()
    type(site)(behind).dist("Specdec_Plugin.alpha", {PROPOSERS: {"alpha": "other", "more": "other"}}, version="2.0")
    near, far = (Catalog.discover(path).records for path in ([site.folder, behind], [behind, site.folder]))
    assert [(each.name, each.version, each.status) for each in near] == [("alpha", "1.0", "ok")]
    assert [(each.name, each.version, each.status) for each in far] == [("alpha", "2.0", "ok"), ("more", "2.0", "ok")]


def test_an_old_name_leads_to_the_new_one_from_metadata_alone_with_one_warning(site):
    points = {PROPOSERS: {"new": "gone.plugin:plugin"}, "specdec.aliases.v1": {"old": "gone.plugin:new"}}
    site.dist("gone", points)  # there is no such module, so nothing can have been imported
    catalog = site.catalog()
    with pytest.warns(DeprecatedNameWarning, match="'old' is deprecated; use 'new'") as caught:
        assert catalog.find("proposer", "old").name == "new"
        assert catalog.find("proposer", "old").name == "new"
    assert len(caught) == 1


def test_an_alias_to_nothing_says_so(site):
    site.dist("gone", {"specdec.aliases.v1": {"old": "gone.plugin:new"}})
    with pytest.raises(UnknownNameError, match="'new'"):
        site.catalog().find("proposer", "old")


def test_an_alias_is_of_the_kind_of_what_it_leads_to(site):
    site.verifiers("tight")
    aliases = {"strict": "fake_verifiers:tight", "older": "x.plugin:alpha", "lost": "x.plugin:nothing"}
    site.dist("aliases", {"specdec.aliases.v1": aliases})
    site.proposer("alpha")
    catalog = site.catalog()
    known = {
        kind: [n for n in ("alpha", "tight", *aliases) if catalog.knows(kind, n)] for kind in ("proposer", "verifier")
    }
    assert known == {"proposer": ["alpha", "older"], "verifier": ["tight", "strict"]}


def test_an_unpackaged_plugin_is_found_as_every_kind_of_plugin_and_nothing_else(record):
    catalog = Catalog.of([]).with_local({"mine": "./mine.py"})
    for kind in ("proposer", "verifier", "extension"):
        found = catalog.find(kind, "mine")
        assert (found.kind, found.distribution, found.version, found.value) == (kind, "(local)", "-", "./mine.py")
    with pytest.raises(UnknownNameError):
        catalog.find("command", "mine")


def test_an_unpackaged_plugin_wins_over_an_installed_one_with_one_warning(site):
    site.proposer("alpha")
    catalog = site.catalog().with_local({"alpha": object()})
    with pytest.warns(SpecdecWarning, match=r"instead of that of specdec-plugin-alpha 1\.0") as caught:
        assert catalog.find("proposer", "alpha").distribution == "(local)"
        catalog.find("proposer", "alpha")
    assert len(caught) == 1
    assert catalog.find("proposer", "specdec-plugin-alpha:alpha").distribution == "specdec-plugin-alpha"


def test_a_catalog_travels_to_other_processes(site):
    site.proposer("alpha")
    copy = pickle.loads(pickle.dumps(site.catalog().with_local({"mine": "./mine.py"})))
    assert copy.find("proposer", "alpha") == site.catalog().find("proposer", "alpha")
    assert copy.find("verifier", "mine").local == "./mine.py"
