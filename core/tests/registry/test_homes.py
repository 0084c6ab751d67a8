"""Advice names only distributions that the project publishes, or that are installed; a near miss is told as one."""

import json
import sys
from pathlib import Path

import pytest

from specdec_core.errors import ConfigError, UnknownNameError
from specdec_core.registry.homes import TABLE, nearest_name

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[3]
KINDS = {
    "specdec.proposers.v1": "proposer",
    "specdec.verifiers.v1": "verifier",
    "specdec.commands.v1": "command",
    "specdec.extensions.v1": "extension",
    "specdec.drafts.v1": "draft",
}


def test_the_table_holds_the_names_of_every_distribution_of_the_project():
    table = json.loads((ROOT / "core/src/specdec_core" / TABLE).read_text())
    found = {kind: {} for kind in KINDS.values()}
    for file in (
        *ROOT.glob("plugins/*/pyproject.toml"),
        ROOT / "engine/pyproject.toml",
        ROOT / "train/pyproject.toml",
        *ROOT.glob("integrations/*/pyproject.toml"),
        *ROOT.glob("drafts/*/pyproject.toml"),
    ):
        project = tomllib.loads(file.read_text())["project"]
        points = project.get("entry-points", {})
        for group, kind in KINDS.items():
            old = points.get("specdec.aliases.v1", {}) if kind not in ("command", "draft") else {}
            if points.get(group):
                found[kind][project["name"]] = sorted((*points[group], *old))
    assert {kind: {home: sorted(names) for home, names in homes.items()} for kind, homes in table.items()} == found


def unknown(site, name, kind="proposer"):
    with pytest.raises(UnknownNameError) as raised:
        site.catalog().find(kind, name)
    return str(raised.value)


@pytest.mark.parametrize("name", ["quicksilver", "strangers", "[other]", "acme:thing"])
def test_an_unknown_name_gets_no_advice_to_install_anything(site, name):
    site.proposer("alpha")
    assert "pip install" not in unknown(site, name) and "did you mean" not in unknown(site, name)
    assert "pip install" not in unknown(site, name, "verifier")
    assert "pip install" not in unknown(site, name, "extension")


@pytest.mark.parametrize(
    ("name", "meant", "home"),
    [
        ("eagle3", None, "specdec-plugin-eagle"),
        ("deepseek_mtp", None, "specdec-plugin-mtp"),
        ("ngarm", "ngram", "specdec-plugin-ngram"),
        ("[ngram]", "ngram", "specdec-plugin-ngram"),
        ("NGRAM", "ngram", "specdec-plugin-ngram"),
        ("draft-model", "draft_model", "specdec-plugin-draft-model"),
    ],
)
def test_a_published_name_leads_to_the_distribution_that_has_it(site, name, meant, home):
    said = unknown(site, name)
    assert f"The distribution {home} has {meant or name!r}: pip install {home}" in said
    assert (f"did you mean {meant!r}?" in said) == (meant is not None)


def test_a_near_miss_of_what_is_installed_needs_nothing_installed(site):
    site.proposer("ngram", dist="specdec-plugin-ngram")
    for name in ("NGRAM", "ngarm", "N-gram"):
        said = unknown(site, name)
        assert "did you mean 'ngram'?" in said and "pip install" not in said


def test_a_name_that_a_third_party_declares_as_an_old_one_is_known_to_be_near(site):
    site.dist("acme", {"specdec.aliases.v1": {"acme_drafts": "acme.plugin:acme_two"}})
    assert "did you mean 'acme_drafts'?" in unknown(site, "acme-draft")


def test_an_installed_distribution_without_the_name_is_to_be_upgraded(site):
    site.proposer("eagle", dist="specdec-plugin-eagle")
    said = unknown(site, "eagle3")
    assert "installed specdec-plugin-eagle 1.0 does not have 'eagle3'" in said and "install --upgrade" in said


def test_a_misspelt_key_of_the_method_is_told(site, resolve_config):
    site.proposer("alpha")
    with pytest.raises(ConfigError, match=r"neither method nor model but 'metod' \(did you mean 'method'\?\)"):
        resolve_config({"metod": "alpha", "num_speculative_tokens": 2})


def test_only_near_names_are_near():
    assert nearest_name("ngarm", ["ngram", "suffix"]) == "ngram"
    assert nearest_name("transformer", ["ngram", "suffix"]) is None
