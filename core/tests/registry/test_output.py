"""What a plugin prints, in Python or below it, never stands in output that programs read."""

import json

import pytest

CONFIG = '{"method": "noisy", "num_speculative_tokens": 2}'
NOISY = """
import os
import sys
from specdec_core import hookimpl
print("import of a plugin")

@hookimpl
def specdec_make_proposer(ctx): ...

@hookimpl
def specdec_method_options(method):
    print("options")
    sys.__stdout__.write("straight to the stream")
    sys.__stdout__.flush()
    os.write(1, b"straight to the descriptor")
"""


@pytest.fixture
def noisy(site):
    site.proposer("noisy", NOISY)
    site.verifiers("coupled")
    return site


@pytest.mark.parametrize(
    "command",
    [
        ("plugins", "list", "--json"),
        ("plugins", "show", "noisy", "--json"),
        ("plugins", "doctor", "noisy", "--json"),
        (
            "explain",
            "--json",
            "--model",
            "{model}",
            "--speculative-config",
            '{"method": "noisy", "num_speculative_tokens": 2}',
        ),
    ],
)
def test_standard_output_is_json_and_nothing_else(noisy, tmp_path, command):
    config = {"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = noisy.fresh_specdec(*[str(tmp_path) if part == "{model}" else part for part in command])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    if command[1] in ("show", "--json"):
        for said in ("import of a plugin", "options", "straight to the stream", "straight to the descriptor"):
            assert said in done.stderr


def test_in_a_process_that_goes_on_standard_output_is_as_it_was(noisy):
    script = "from specdec_core.cli.main import main\nmain(['plugins', 'show', 'noisy', '--json'])\nprint('after')\n"
    done = noisy.run("-c", script)
    assert done.stdout.endswith("after\n"), done.stderr
    assert json.loads(done.stdout.removesuffix("after\n"))
