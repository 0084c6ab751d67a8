"""What the command line promises, over real entry points; in a fresh process where imports and warnings count."""

import json

import pytest

from specdec_core.cli import main as cli

PROPOSER = """
from pydantic import Field
from specdec_core import hookimpl
from specdec_core.config.speculative import MethodOptions
from specdec_core.traits import MethodTraits

class Options(MethodOptions):
    lookup_max: int = Field(default=5, ge=1, description="Longest lookup.")
    lookup_min: int = Field(description="Shortest lookup.")

@hookimpl
def specdec_method_options(method):
    return Options

@hookimpl
def specdec_method_traits(ctx):
    return MethodTraits(max_tokens=4)

@hookimpl
def specdec_make_proposer(ctx): ...
"""
DETECTS = (
    PROPOSER.replace('    lookup_min: int = Field(description="Shortest lookup.")\n', "")
    + """
from specdec_core.sources import Detection

@hookimpl
def specdec_detect_method(draft):
    if draft.hf_config.get("kind") == "alpha":
        return Detection(method="alpha", strength="certain", evidence=("kind alpha",))
"""
)
LLAMA = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)


def one_line(done, *words):
    """The command failed with one line on standard error that has these words."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line


def test_a_listing_names_everything_and_imports_nothing(site):
    site.proposer("alpha", "raise SystemExit('imported')")
    site.proposer("beta", "raise SystemExit('imported')", requires=("specdec-core>=99",))
    done = site.specdec("plugins", "list", "--json")
    listed = {each["name"]: each for each in json.loads(done.stdout) if each["name"] in ("alpha", "beta")}
    assert {"name", "kind", "distribution", "version", "status"} <= set(listed["alpha"])
    assert (listed["alpha"]["status"], listed["alpha"]["kind"]) == ("ok", "proposer")
    assert (listed["beta"]["status"], "specdec-core>=99" in listed["beta"]["reason"]) == ("core mismatch", True)
    text = site.specdec("plugins", "list").stdout
    assert "specdec-plugin-alpha" in text
    assert "core mismatch: it needs specdec-core>=99" in text


def test_a_listing_shows_methods_verifiers_and_drafts_and_all_the_rest_when_asked(site):
    site.proposer("alpha", "raise SystemExit('imported')")
    site.verifiers("coupled")
    site.dist(
        "extras",
        {
            "specdec.kernels.v1": {"op.reference": "extras_ops:f", "op.numba": "extras_ops:f"},
            "specdec.aliases.v1": {"old_alpha": "extras:alpha"},
            "specdec.extensions.v1": {"watch": "extras:watch"},
            "specdec.commands.v1": {"hello": "not a module:"},
            "specdec.drafts.v1": {"small": "extras_draft"},
        },
        {},
    )
    named = {"alpha": "proposer", "coupled": "verifier", "small": "draft"}
    hidden = {"op.reference": "kernel", "op.numba": "kernel", "old_alpha": "alias", "watch": "extension"}
    hidden["hello"] = "command"

    def listed(*options):
        done = site.specdec("plugins", "list", "--json", *options)
        ours = {*named, *hidden}
        return {each["name"]: each["kind"] for each in json.loads(done.stdout) if each["name"] in ours}

    assert listed() == named
    assert listed("--all") == {**named, **hidden}
    *table, last = site.specdec("plugins", "list").stdout.splitlines()
    assert last.startswith("not listed: ") and last.endswith("; --all lists them, too")
    assert all(word in last for word in ("kernels", "alias", "extension", "(1 unusable)"))
    assert {line.split()[1] for line in table} == {"kind", "proposer", "verifier", "draft"}
    text = site.specdec("plugins", "list", "--all").stdout
    assert "op.numba" in text and "old_alpha" in text and "not listed" not in text


@pytest.mark.parametrize("option", [[], ["--json"], ["--all"], ["--all", "--json"]])
def test_a_listing_is_light(site, option):
    site.proposer("alpha", "raise SystemExit('imported')", requires=("specdec-core>=0.1",))
    script = (
        "import sys; from specdec_core.cli.main import main; code = main(['plugins', 'list', *sys.argv[1:]]); "
        "heavy = {'torch', 'pydantic', 'typer', 'rich', 'pluggy', 'numpy', 'yaml', 'specdec_plugin_alpha'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = site.run("-c", script, *option)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "alpha" in done.stdout


def test_show_tells_options_traits_hooks_and_entry_points(site):
    site.proposer("alpha", PROPOSER)
    (data,) = json.loads(site.specdec("plugins", "show", "alpha", "--json").stdout)
    assert [(each["name"], each["default"]) for each in data["options"]] == [
        ("lookup_max", 5),
        ("lookup_min", "required"),
    ]
    assert "specdec_make_proposer" in data["hooks"]
    assert data["entry_points"] == ["proposer alpha = specdec_plugin_alpha.plugin"]
    assert "depend on draft and target" in data["traits"]  # a required option has no default
    site.proposer("beta", DETECTS)
    text = site.specdec("plugins", "show", "specdec-plugin-beta:beta").stdout
    assert "Longest lookup." in text
    assert "max_tokens=4" in text


def test_show_tells_which_checks_of_the_kit_a_plugin_is_not_meant_to_pass(site):
    site.proposer("alpha", PROPOSER)
    assert "conformance kit" not in site.specdec("plugins", "show", "alpha").stdout
    told = """
@hookimpl
def specdec_expected_failures(method):
    return {"test_something_is_drafted": f"{method} drafts nothing by design"}
"""
    site.proposer("beta", PROPOSER + told)
    text = site.specdec("plugins", "show", "beta").stdout
    assert "test_something_is_drafted beta drafts nothing by design" in " ".join(text.split())
    (data,) = json.loads(site.specdec("plugins", "show", "beta", "--json").stdout)
    assert data["expected_failures"] == {"test_something_is_drafted": "beta drafts nothing by design"}


def test_show_says_what_is_wrong_with_a_plugin_and_with_a_name(site, tmp_path):
    site.proposer("bad", "raise RuntimeError('no licence')")
    done = site.specdec("plugins", "show", "bad")
    one_line(done, "no licence", "specdec-plugin-bad 1.0")
    assert "specdec-plugin-bad" in done.stdout
    one_line(site.specdec("plugins", "show", "bda"), "did you mean 'bad'?")
    mine = tmp_path / "mine.py"
    mine.write_text("from specdec_core import hookimpl\n@hookimpl\ndef specdec_make_verifier(method): ...\n")
    done = site.specdec("plugins", "show", "mine", "--plugin", f"mine={mine}")
    assert "specdec_make_verifier" in done.stdout, done.stderr


def test_doctor_tells_the_stage_each_plugin_reached_and_fails_if_one_did(site):
    site.proposer("good", PROPOSER)
    site.proposer("bad", "print('noise {}'); raise SystemExit('gone')")
    site.proposer("dead", "import os; os._exit(9)")
    site.proposer("hookless", "")
    site.proposer("silent", PROPOSER.replace(', description="Longest lookup."', ""))
    site.proposer("newer", PROPOSER, requires=("specdec-core>=99",))
    names = ["good", "bad", "dead", "hookless", "silent", "newer"]
    done = site.specdec("plugins", "doctor", *names, "--json")
    assert done.returncode == 1, done.stderr
    found = {each["name"]: (each["state"], each["stage"]) for each in json.loads(done.stdout)}
    assert found == {
        "good": ("ok", "options"),
        "bad": ("failed", "import"),
        "dead": ("failed", "import"),
        "hookless": ("failed", "register"),
        "silent": ("failed", "options"),
        "newer": ("failed", "version"),
    }
    problems = {each["name"]: each["problem"] for each in json.loads(done.stdout)}
    assert "gone" in problems["bad"]
    assert "code 9" in problems["dead"]
    assert "lookup_max" in problems["silent"]


@pytest.mark.slow
def test_doctor_gives_up_on_a_plugin_that_hangs(site):
    site.proposer("slow", "import time; time.sleep(100)")
    done = site.specdec("plugins", "doctor", "slow", "--timeout", "2")
    assert done.returncode == 1
    assert "did not finish within 2 seconds" in done.stdout


def test_doctor_is_content_with_good_plugins_and_with_kernels_whose_library_is_missing(site):
    site.proposer("good", PROPOSER)
    kernels = {"op.reference": "good_ops:f", "op.fast": "good_ops_fast:f", "op.own": "good_ops_own:f"}
    modules = {"good_ops.py": "def f(): ...", "good_ops_fast.py": "import library_that_is_missing"}
    points = {"specdec.kernels.v1": kernels, "specdec.aliases.v1": {"goood": "x:good", "lost": "x:nothing"}}
    site.dist("good-ops", points, modules)
    done = site.specdec("plugins", "doctor", "good", "op.reference", "op.fast", "goood")
    assert done.returncode == 0, done.stdout
    assert "not available" in done.stdout
    assert "has the module 'library_that_is_missing'" in done.stdout
    done = site.specdec("plugins", "doctor", "op.own", "lost", "--json")
    assert (done.returncode, [each["state"] for each in json.loads(done.stdout)]) == (1, ["failed", "failed"])


def test_doctor_tells_of_conflicts(site):
    site.proposer("alpha", PROPOSER)
    site.proposer("alpha", PROPOSER, dist="rival")
    done = site.specdec("plugins", "doctor", "alpha")
    assert done.returncode == 1
    assert done.stdout.count("claims the same name") == 2
    assert "Say rival:alpha" in done.stdout


def test_explain_tells_what_was_decided_and_why(site, model):
    site.proposer("alpha", DETECTS)
    site.verifiers("coupled")
    config = '{"method": "alpha", "num_speculative_tokens": 3, "lookup_max": 2, "max_model_len": 9}'
    arguments = ("explain", "--model", model, "--speculative-config", config)
    data = json.loads(site.specdec(*arguments, "--json").stdout)
    assert (data["method"], data["num_speculative_tokens"], data["verifier"]["name"]) == (
        "alpha",
        3,
        "coupled",
    )
    assert data["target"] == model
    assert {each["key"] for each in data["decisions"]} >= {
        "method",
        "num_speculative_tokens",
        "lookup_max",
        "max_model_len",
    }
    assert all(each["reason"] for each in data["decisions"])
    text = site.specdec(*arguments).stdout
    assert "specdec-plugin-alpha 1.0" in text
    assert "named by the configuration" in text


def test_explain_shows_the_evidence_of_a_detection(site, model, tmp_path):
    site.proposer("alpha", DETECTS)
    site.verifiers("coupled")
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text('{"kind": "alpha"}')
    config = json.dumps({"model": str(tmp_path / "draft"), "num_speculative_tokens": 3})
    done = site.specdec("explain", "--model", model, "--speculative-config", config)
    one_line(done, "no draft checkpoint")
    site.proposer("beta", DETECTS.replace('"alpha"', '"beta"').replace("max_tokens=4", "weights='own'"))
    (tmp_path / "draft" / "config.json").write_text('{"kind": "beta"}')
    done = site.specdec("explain", "--model", model, "--speculative-config", config)
    assert "certain: kind alpha" in done.stdout, done.stderr


def test_explain_takes_an_unpackaged_plugin(site, model, tmp_path):
    site.verifiers("coupled")
    mine = tmp_path / "mine.py"
    mine.write_text("from specdec_core import hookimpl\n@hookimpl\ndef specdec_make_proposer(ctx): ...\n")
    config = '{"method": "mine", "num_speculative_tokens": 3}'
    arguments = ("explain", "--model", model, "--speculative-config", config)
    done = site.specdec(*arguments, "--plugin", f"mine={mine}", "--json")
    assert json.loads(done.stdout)["distribution"] == "(local)"
    assert site.specdec(*arguments, "--plugin", "mine").returncode == 2
    one_line(site.specdec(*arguments, "--plugin", f"mine={tmp_path / 'no.py'}"), "there is no file")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"method": }', ("line 1 column 12",)),
        ('{"method": "nope"}', ("'nope'", "Installed proposers: ")),
        ('{"method": "alpha", "num_speculative_tokens": 9, "zoo": 1}', ("at most 4", "zoo: unknown key")),
        ("@nowhere.yaml", ("nowhere.yaml",)),
    ],
)
def test_an_error_is_one_line_and_exit_code_two(site, model, config, words):
    site.proposer("alpha", DETECTS)
    site.verifiers("coupled")
    one_line(site.specdec("explain", "--model", model, "--speculative-config", config), *words)


def test_debug_shows_the_traceback(site, model):
    for arguments in (("--debug", "explain"), ("explain", "--debug")):
        done = site.specdec(*arguments, "--model", model, "--speculative-config", "{")
        assert done.returncode == 1
        assert "Traceback" in done.stderr


def test_a_model_folder_without_a_config_is_one_line(site, tmp_path):
    done = site.specdec("explain", "--model", str(tmp_path), "--speculative-config", "{}")
    one_line(done, "config.json")


def test_warnings_are_one_line_each(site, model):
    site.proposer("alpha", DETECTS)
    site.verifiers("coupled")
    site.proposer("beta", DETECTS.replace("lookup_max", "depth"))
    config = '{"method": "alpha", "num_speculative_tokens": 3, "depth": 1}'
    done = site.specdec("explain", "--model", model, "--speculative-config", config)
    assert done.returncode == 0
    assert done.stderr == "warning: depth is an option of the method beta, not of alpha: it is ignored\n"


COMMAND = """
import sys
HELP = "Says hello to people."
loaded = "typer" in sys.modules

def command(args):
    print("hello", *args, loaded)
    return len(args)
"""


def test_a_command_of_another_distribution_is_imported_only_when_it_is_called_or_for_help(site):
    site.dist("hello", {"specdec.commands.v1": {"hello": "hello_cli", "bad": "bad_cli"}}, {"hello_cli.py": COMMAND})
    (site.folder / "bad_cli.py").write_text("raise RuntimeError('not asked')")
    done = site.fresh_specdec("hello", "--help", "--debug")
    assert (done.stdout, done.returncode) == ("hello --help --debug False\n", 2)
    help_text = site.specdec("--help").stdout
    assert "Says hello to people." in help_text
    assert "cannot be used" in help_text
    assert "not asked" not in site.specdec("plugins", "--help").stdout
    one_line(site.specdec("bad"), "not asked", "command 'bad'")


def test_help_names_every_command_and_no_arguments_is_help(site):
    for arguments in ((), ("--help",)):
        done = site.specdec(*arguments)
        assert done.returncode == 0
        assert all(word in done.stdout for word in ("plugins", "explain", "--debug"))
    done = site.specdec("plugins", "--help")
    assert all(word in done.stdout for word in ("list", "show", "doctor"))
    assert site.fresh_specdec("--version").stdout.startswith("specdec-core ")


def test_an_unknown_command_is_a_usage_error(site):
    done = site.specdec("nope")
    assert (done.returncode, "nope" in done.stderr) == (2, True)


def test_a_configuration_may_be_given_key_by_key(site, model):
    site.proposer("alpha", PROPOSER)
    keys = ("-sc.method", "alpha", "--speculative-config.num_speculative_tokens", "3", "-sc.lookup_min=2")
    done = site.specdec("explain", model, *keys, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["method"], data["num_speculative_tokens"]) == ("alpha", 3)


def test_keys_of_another_engine_are_answered_with_ours(site, model):
    site.proposer("alpha", PROPOSER)
    without = '{"speculative-algorithm": "ALPHA", "speculative_num_steps": 3}'
    one_line(site.specdec("explain", model, "-sc", without), "key of SGLang", "'method'", "'num_speculative_tokens'")
    beside = '{"method": "alpha", "max_draft_len": 3}'
    one_line(
        site.specdec("explain", model, "-sc", beside),
        "max_draft_len: a key of TensorRT-LLM",
        "'num_speculative_tokens'",
    )


def test_the_target_is_named_once(site, model):
    for arguments in ((), (model, "--model", model)):
        done = site.specdec("explain", *arguments, "-sc.method", "alpha")
        assert done.returncode == 2 and "name the target once" in done.stderr


def test_a_command_that_is_not_installed_is_named_with_its_distribution(monkeypatch, capsys):
    monkeypatch.setattr(cli.Catalog, "discover", classmethod(lambda kind: kind()))
    for name, said in {
        "generate": "comes with specdec-engine, which is not installed: pip install specdec-engine",
        "tune": "comes with specdec-engine, which is not installed: pip install specdec-engine",
        "plugins doctor --pair": "the command 'pair' comes with specdec-engine, which is not installed",
        "explan": "there is no command 'explan'; did you mean 'explain'?",
    }.items():
        assert cli.main([*name.split(), "model"]) == 2
        assert said in capsys.readouterr().err
