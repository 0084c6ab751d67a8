"""A draft that a distribution brings is found by its name, behind a local path, and named by nobody's guess."""

import json

import pytest

from specdec_core.errors import ConfigError, ConflictError, MetadataStageError, UnknownNameError

DRAFTS = "specdec.drafts.v1"
CARD = {"target": "tiny", "method": "alpha", "num_speculative_tokens": 3}
DETECTS = """
from specdec_core.sources import Detection

@hookimpl
def specdec_detect_method(draft):
    if draft.hf_config.get("kind") == "alpha":
        return Detection(method="alpha", strength="certain", evidence=("kind alpha",))
"""


@pytest.fixture
def ship(site):
    """Install a distribution that brings a draft; its package must never be imported."""

    def run(name="small", dist="acme-drafts", card=CARD, value=None, files=("config.json", "model.safetensors")):
        package = dist.replace("-", "_")
        modules = {f"{package}/__init__.py": "raise SystemExit('imported')"}
        if "config.json" in files:
            modules[f"{package}/config.json"] = json.dumps({"kind": "alpha"})
        if "model.safetensors" in files:
            modules[f"{package}/model.safetensors"] = ""
        if card is not None:
            modules[f"{package}/draft.json"] = card if isinstance(card, str) else json.dumps(card)
        site.dist(dist, {DRAFTS: {name: value or package}}, modules)
        return site.folder / package

    return run


@pytest.fixture
def alpha(site, method):
    site.proposer("alpha", method(traits="weights='own'", more=DETECTS))


def reasons(resolved, key):
    return [(decision.value, decision.reason) for decision in resolved.decisions if decision.key == key]


def test_a_name_leads_to_the_folder_the_method_and_k(alpha, ship, resolve_config):
    folder = ship()
    resolved = resolve_config({"model": "small"})
    assert (resolved.method, resolved.draft.model, resolved.num_speculative_tokens) == ("alpha", str(folder), 3)
    assert reasons(resolved, "model") == [(str(folder), "the draft 'small' of acme-drafts 1.0")]
    assert reasons(resolved, "num_speculative_tokens") == [(3, "draft.json of the checkpoint")]
    named = resolve_config({"method": "alpha", "model": "small", "num_speculative_tokens": 5})
    assert (named.draft.model, named.num_speculative_tokens) == (str(folder), 5)


def test_a_local_path_of_that_name_comes_first_and_explain_has_it(alpha, ship, resolve_config, tmp_path, monkeypatch):
    ship()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps({"kind": "alpha"}))
    resolved = resolve_config({"model": "small", "num_speculative_tokens": 2})
    ((value, reason),) = reasons(resolved, "model")
    assert value == "small"
    assert reason == "given; the draft checkpoint; a local path comes before the draft of that name in acme-drafts"


def test_a_local_path_that_is_no_checkpoint_is_refused_with_why_it_was_read(
    alpha, ship, resolve_config, tmp_path, monkeypatch
):
    ship()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    with pytest.raises(ConfigError, match=r"neither config\.json nor weights.*comes before the draft of that name"):
        resolve_config({"model": "small", "num_speculative_tokens": 2})


def test_k_of_the_method_comes_before_that_of_the_draft(site, method, ship, resolve_config):
    own = "Default(key='num_speculative_tokens', value=4, reason='the method has it')"
    site.proposer("alpha", method(traits="weights='own'", defaults=own, more=DETECTS))
    ship()
    assert resolve_config({"model": "small"}).num_speculative_tokens == 4


def test_a_name_of_two_distributions_is_refused_with_both_and_resolved_by_one(alpha, ship, resolve_config, site):
    ship()
    folder = ship(dist="other-drafts")
    with pytest.raises(ConflictError, match=r"(?s)acme-drafts 1\.0.*other-drafts 1\.0"):
        resolve_config({"model": "small"})
    assert resolve_config({"model": "other-drafts:small"}).draft.model == str(folder)
    listed = {r["distribution"]: r for r in json.loads(site.specdec("plugins", "list", "--json").stdout)}
    assert (listed["acme-drafts"]["status"], listed["acme-drafts"]["target"]) == ("conflict", "tiny")


def test_a_method_of_the_same_name_is_the_method(alpha, ship, resolve_config):
    ship(name="alpha")
    with pytest.raises(ConfigError, match="alpha needs a draft checkpoint, and none was given"):
        resolve_config({"model": "alpha", "num_speculative_tokens": 2})


def test_a_draft_that_the_project_publishes_leads_to_its_distribution(alpha, resolve_config):
    with pytest.raises(UnknownNameError, match="pip install specdec-draft-smollm2-135m-eagle3"):
        resolve_config({"model": "smollm2-135m-eagle3"})


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"files": ("config.json",)}, r"has no weights \(\.safetensors"),
        ({"files": ("model.safetensors",)}, "has no config.json"),
        ({"card": None}, "has no draft.json"),
        ({"value": "nowhere_at_all"}, "there is no package 'nowhere_at_all'"),
        ({"value": "acme_drafts:weights"}, "names an attribute, expected the package"),
    ],
)
def test_a_draft_without_its_files_is_refused_and_listed_as_invalid(alpha, ship, resolve_config, site, more, problem):
    ship(**more)
    with pytest.raises(MetadataStageError, match=problem):
        resolve_config({"model": "small"})
    (listed,) = (r for r in json.loads(site.specdec("plugins", "list", "--json").stdout) if r["name"] == "small")
    assert listed["status"] == "invalid" and listed["reason"]
    shown = site.specdec("plugins", "doctor", "small")
    assert shown.returncode == 1 and "failed" in shown.stdout


@pytest.mark.parametrize(
    ("card", "problem"),
    [
        ("{", "cannot be read"),
        ("[]", "holds list, expected an object"),
        ({**CARD, "targt": "x"}, r"unknown keys \['targt'\]"),
        ({"target": "x"}, "no usable method"),
        ({**CARD, "num_speculative_tokens": 0}, "no usable num_speculative_tokens"),
    ],
)
def test_a_card_that_cannot_be_used_is_refused_with_its_file(alpha, ship, resolve_config, site, card, problem):
    ship(card=card)
    with pytest.raises(ConfigError, match=rf"draft\.json.*{problem}"):
        resolve_config({"model": "small"})
    assert "invalid: " in site.specdec("plugins", "list").stdout


def test_a_listing_tells_target_and_method_and_imports_nothing(ship, site):
    ship()
    done = site.fresh_specdec("plugins", "list")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("small "))
    assert line.split()[1:3] == ["draft", "acme-drafts"] and line.endswith("ok: alpha for tiny")


def test_show_and_doctor_tell_where_a_draft_is(ship, site):
    folder = ship(card={**CARD, "about": "A small one."})
    (shown,) = json.loads(site.specdec("plugins", "show", "small", "--json").stdout)
    assert (shown["folder"], shown["target"], shown["about"]) == (str(folder), "tiny", "A small one.")
    assert shown["entry_points"] == ["draft small = acme_drafts"]
    text = site.specdec("plugins", "show", "small").stdout
    assert str(folder) in text and "A small one." in text
    assert site.specdec("plugins", "doctor", "small").returncode == 0


def test_explain_names_the_draft(alpha, ship, site, tmp_path):
    site.verifiers("coupled", "standard")
    ship()
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(sizes))
    done = site.fresh_specdec("explain", str(model), "--speculative-config", '{"model": "small"}')
    assert "the draft 'small' of acme-drafts 1.0" in done.stdout, done.stderr
