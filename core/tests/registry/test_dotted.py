"""Configurations as command lines really give them: dotted options, quotes that a shell took, other engines' keys."""

from __future__ import annotations

import json

import pytest

from specdec_core.cli.dotted import fold
from specdec_core.config.foreign_keys import FOREIGN
from specdec_core.config.key_table import KEYS
from specdec_core.config.parse import load_mapping
from specdec_core.errors import ConfigError


def folded(*arguments):
    """The arguments besides the configuration, and the configuration."""
    *rest, option, text = fold(arguments)
    assert option == "--speculative-config"
    return rest, json.loads(text)


def test_dotted_options_are_keys_with_json_values_or_texts():
    rest, config = folded(
        "explain", "m", "-sc.method", "mtp", "--speculative-config.num_speculative_tokens=3", "--json",
        "--speculative_config.a.b-c", "[1, 2]", "-sc.a.d", "null", "-sc.name", "1.5b", "-sc.flag=true", "-sc.at", "x=y",
    )  # fmt: skip
    assert rest == ["explain", "m", "--json"]
    assert config == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "a": {"b-c": [1, 2], "d": None},
        "name": "1.5b",
        "flag": True,
        "at": "x=y",
    }


def test_dotted_options_are_added_to_the_option_itself(tmp_path):
    file = tmp_path / "spec.json"
    file.write_text('{"method": "a", "inner": {"x": 1}}')
    _, config = folded("-sc", f"@{file}", "-sc.inner.y", "2")
    assert config == {"method": "a", "inner": {"x": 1, "y": 2}}


def test_arguments_without_a_dotted_option_stay_as_they_are():
    for arguments in (
        ["generate", "./m.gguf", "-sc", "{}"],
        ["x", "--", "-sc.a", "b"],
        ["--speculative-configs.a", "b"],
    ):
        assert fold(arguments) == arguments
    assert fold(["-sc.a", "b", "--", "-sc.c"]) == ["--speculative-config", '{"a": "b"}', "--", "-sc.c"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-sc.method"], "-sc.method needs a value"),
        (["-sc.method", "a", "-sc.method", "b"], "-sc.method is given twice"),
        (["-sc.a..b", "1"], "a key is missing between the dots"),
        (["-sc.a", "1", "-sc.a.b", "2"], "'a' has the value 1 already"),
        (["-sc", '{"method": "a"}', "-sc.method", "b"], "--speculative-config.method is given, and"),
        (["-sc", "{}", "-sc", "{}", "-sc.a", "b"], "given 2 times"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, said):
    with pytest.raises(ConfigError) as caught:
        fold(arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{method:ngram,num_speculative_tokens:4}", "its double quotes did not arrive"),
        ("{method: ngram}", "its double quotes did not arrive"),
        ("{method:", "its double quotes did not arrive"),
        ("{", "only its beginning arrived"),
        ("'{method:", "it begins with a single quote, which cmd does not take off"),
    ],
)
def test_what_a_shell_did_to_the_quotes_is_said(text, said):
    with pytest.raises(ConfigError) as caught:
        load_mapping(text)
    assert said in str(caught.value)
    assert "'{\\\"key\\\": 1}'" in str(caught.value) and "-sc.KEY VALUE" in str(caught.value)


def test_json_with_quotes_is_not_blamed_on_a_shell():
    with pytest.raises(ConfigError) as caught:
        load_mapping('{"method": ngram}')
    assert "quote" not in str(caught.value)


def test_a_key_of_another_engine_is_none_of_ours():
    assert not set(FOREIGN) & set(KEYS)


@pytest.mark.parametrize("key", FOREIGN)
def test_a_key_of_another_engine_names_a_key_that_there_is(key):
    plugins = {"tree_top_k", "match", "max_cached_tokens", "load_cache", "eagle_aux_hidden_state_layer_ids"}
    known = FOREIGN[key]
    assert known.new in {*KEYS, *plugins, ""}
    assert known.new or known.note
