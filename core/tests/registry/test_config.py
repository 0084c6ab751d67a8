"""What reading a speculative configuration promises: every form is read, and every wrong key is named at once."""

import json

import pytest
from pydantic import Field, ValidationError

from specdec_core.config.options import validate
from specdec_core.config.speculative import MethodOptions, SpeculativeConfig
from specdec_core.errors import ConfigError

GIVEN = {"method": "x", "num-speculative-tokens": 3, "own_key": [1], "max_model_len": 8}


def read_all(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(GIVEN))
    (tmp_path / "c.yaml").write_text("method: x\nnum-speculative-tokens: 3\nown_key: [1]\nmax_model_len: 8\n")
    yield GIVEN
    yield json.dumps(GIVEN)
    yield f" {json.dumps(GIVEN)}\n"
    yield f"@{tmp_path / 'c.json'}"
    yield f"@{tmp_path / 'c.yaml'}"
    yield tmp_path / "c.json"
    yield SpeculativeConfig.parse(GIVEN)
    yield SpeculativeConfig(method="x", num_speculative_tokens=3, own_key=[1], max_model_len=8)


def test_every_form_gives_the_same_configuration(tmp_path):
    for form in read_all(tmp_path):
        config = SpeculativeConfig.parse(form)
        assert (config.method, config.num_speculative_tokens, config.max_model_len) == ("x", 3, 8)
        assert config.other_keys == {"own_key": [1]}
        assert SpeculativeConfig.parse(config.as_json()) == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        SpeculativeConfig(method="x").method = "y"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"method": "x",\n "k": }', "line 2 column 7"),
        ("lookup", '{"method": "lookup"}'),
        ("", "line 1 column 1"),
        ("[1]", "must hold an object with keys, got list"),
        ('{"a": 1, "a": 2}', "key 'a' twice"),
        ('{"max-model-len": 1, "max_model_len": 2}', "key 'max_model_len' twice"),
        ("@nowhere.json", "nowhere.json"),
        ("@c.toml", "neither .json nor .yaml"),
        ("@bad.json", "line 1 column 2"),
        ("@bad.yaml", "line 3 column 1"),
        (3, "got int"),
        (None, "got NoneType"),
        ({1: 2}, "keys of speculative_config must be strings"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("")
    (tmp_path / "bad.json").write_text("{method}")
    (tmp_path / "bad.yaml").write_text("a: 1\nb: [1\n")
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", 3),
        ("method", ""),
        ("model", ["a"]),
        ("num_speculative_tokens", 0),
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens", "4"),
        ("num_speculative_tokens", True),
        ("num_speculative_tokens", 2.5),
        ("max_model_len", 0),
        ("draft_sample_method", "wild"),
        ("disable_by_batch_size", 1),
        ("max_step_tokens", 0),
        ("kernels", "one"),
        ("kernels", [1]),
        ("observers", 1),
        ("num_speculative_tokens_per_batch_size", "1-4"),
        ("num_speculative_tokens_per_batch_size", []),
        ("num_speculative_tokens_per_batch_size", [[1, 4]]),
        ("num_speculative_tokens_per_batch_size", [[2, 4, 1]]),
        ("num_speculative_tokens_per_batch_size", [[1, 4, 1], [4, 5, 0]]),
        ("num_speculative_tokens_per_batch_size", [[3, 1, 1]]),
        ("num_speculative_tokens_per_batch_size", [[1, 4, -1]]),
        ("num_speculative_tokens_per_batch_size", [[1, 4, True]]),
        ("num_speculative_tokens_per_batch_size", {}),
        ("num_speculative_tokens_per_batch_size", {"1-4": 2, "4-8": 1}),
        ("num_speculative_tokens_per_batch_size", {"2-4": 2}),
        ("num_speculative_tokens_per_batch_size", {"4-1": 2}),
        ("num_speculative_tokens_per_batch_size", {"1-4": -1}),
        ("num_speculative_tokens_per_batch_size", {"1-4": True}),
        ("num_speculative_tokens_per_batch_size", {"1-": 2}),
        ("num_speculative_tokens_per_batch_size", {"<=4": 2}),
        ("revision", ""),
        ("draft_tensor_parallel_size", 0),
    ],
)
def test_a_wrong_value_is_refused_under_its_key(key, value):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.parse({key: value})
    (problem,) = caught.value.problems
    assert problem.key.split(".")[0] == key
    assert repr(value) in str(problem) or (isinstance(value, list) and repr(value[0]) in str(problem))


def test_all_wrong_keys_are_told_at_once():
    wrong = {"num_speculative_tokens": 0, "max_model_len": "8", "disable_by_batch_size": 1, "method": "fine"}
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.parse(wrong)
    assert {problem.key for problem in caught.value.problems} == set(wrong) - {"method"}
    config, problems = SpeculativeConfig.read(wrong)
    assert config.method == "fine"
    assert len(problems) == 3


def test_ranges_of_batch_sizes_are_sorted_and_zero_means_off():
    ranges = [[5, 512, 0], [1, 4, 2]]
    config = SpeculativeConfig.parse({"num_speculative_tokens_per_batch_size": ranges})
    assert config.num_speculative_tokens_per_batch_size == ((1, 4, 2), (5, 512, 0))


@pytest.mark.parametrize(
    "schedule",
    [
        {"5-512": 0, "1-4": 2},
        [[1, 4, 2], [5, 512, 0]],
        [(1, 4, 2), (5, 512, 0)],
    ],
)
def test_a_schedule_is_read_in_both_of_vllms_forms(tmp_path, schedule):
    key, expected = "num_speculative_tokens_per_batch_size", ((1, 4, 2), (5, 512, 0))
    (tmp_path / "c.json").write_text(json.dumps({key: schedule}))
    for given in ({key: schedule}, json.dumps({key: schedule}), f"@{tmp_path / 'c.json'}"):
        config = SpeculativeConfig.parse(given)
        assert config.num_speculative_tokens_per_batch_size == expected
        assert SpeculativeConfig.parse(config.as_json()) == config


def test_a_single_batch_size_is_a_range_too_also_as_yaml_reads_it(tmp_path):
    (tmp_path / "c.yaml").write_text("num_speculative_tokens_per_batch_size:\n  1: 3\n  2-8: 1\n  9: 0\n")
    config = SpeculativeConfig.parse(f"@{tmp_path / 'c.yaml'}")
    assert config.num_speculative_tokens_per_batch_size == ((1, 1, 3), (2, 8, 1), (9, 9, 0))
    assert SpeculativeConfig(num_speculative_tokens_per_batch_size={1: 3, "2-8": 1, 9: 0}) == config


class Options(MethodOptions):
    count: int = Field(default=1, description="c")
    share: float = Field(default=1.0, description="s")
    pair: tuple[int, int] = Field(default=(0, 0), description="p")


def test_options_do_not_turn_one_scalar_into_another_but_take_json_as_it_is():
    options, problems = validate(Options, {"share": 1, "pair": [1, 2]})
    assert (options, problems) == (Options(share=1.0, pair=(1, 2)), [])
    for wrong in ({"count": "1"}, {"count": True}, {"count": 1.5}, {"share": "1"}, {"pair": [1, 2, 3]}, {"zoo": 1}):
        options, problems = validate(Options, wrong)
        assert options is None
        assert [problem.key.split(".")[0] for problem in problems] == list(wrong)
