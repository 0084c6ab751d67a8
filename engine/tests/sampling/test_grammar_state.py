"""Forms become matchers: what is legal after which ids, against brute force; and which forms are refused, and why."""

from __future__ import annotations

import itertools
import logging
import sys
from typing import Any

import numpy as np
import pytest
from words import spaced_tokenizer, tiny_tokenizer

from specdec_core.errors import RequestError
from specdec_engine import SamplingParams
from specdec_engine.sampling.grammars import Grammars
from specdec_engine.sampling_params import StructuredOutputsParams

EOS = 1
TOKENIZER = tiny_tokenizer()
SIZE = len(TOKENIZER) + 5  # as models have it, wider than the tokenizer
TEXTS = [TOKENIZER.decode([i]) if i > 3 else "" for i in range(len(TOKENIZER))] + [""] * 5
GRAMMARS = Grammars(TOKENIZER, SIZE, frozenset([EOS]))


def asked(**form: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**form))


def start(grammars: Grammars = GRAMMARS, **form: Any) -> Any:
    return grammars.start(asked(**form))


def ids(text: str) -> np.ndarray:
    return np.array(TOKENIZER.encode(text, add_special_tokens=False), np.int32)


def allowed(state: Any, *paths: Any) -> list[set[int]]:
    """The ids that are legal after each path."""
    masks = state.masks([np.array(path, np.int32) for path in paths])
    flags = np.unpackbits(masks.view(np.uint8), axis=1, count=SIZE, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in flags]


def words_of(state: Any, *path: int) -> set[str]:
    """The texts of the ids that are legal after a path, the end of the text as `.`."""
    return {"." if token == EOS else TEXTS[token] for token in allowed(state, path)[0]}


class Choices:
    """What is legal when one of some texts has to be said, found by looking at each."""

    def __init__(self, choices: list[str]) -> None:
        self.choices = choices

    def after(self, path: list[int]) -> set[int]:
        if EOS in path:
            return {EOS}
        said = "".join(TEXTS[i] for i in path)
        inner = {i for i, text in enumerate(TEXTS) if text and any(c.startswith(said + text) for c in self.choices)}
        return inner | ({EOS} if said in self.choices else set())


def test_masks_are_what_brute_force_finds_after_any_moves_forth_and_back() -> None:
    rng = np.random.default_rng(0)
    said = 0
    for _ in range(40):
        choices = ["".join(rng.choice(["the ", "cat", "c", "at", "h", " sat"], rng.integers(1, 5))) for _ in range(4)]
        expected, state, path = Choices(choices), start(choice=choices), []
        for _ in range(12):
            legal = expected.after(path)
            assert allowed(state, ()) == [legal]
            token = int(rng.choice(sorted(legal)) if rng.random() < 0.7 else rng.integers(0, SIZE))
            ok = token in legal and EOS not in path
            assert state.legal(np.array([token], np.int32)) == ok
            assert state.accept(token) == ok, "an illegal id changes nothing"
            path += [token] * ok
            back = int(rng.integers(0, len(path) + 1)) if rng.random() < 0.3 else 0
            state.rollback(back)
            path = path[: len(path) - back]
            said = max(said, len(path))
    assert said > 5


def test_masks_of_a_tree_are_those_of_its_paths_and_leave_the_state_alone() -> None:
    rng = np.random.default_rng(1)
    choices = ["the cat sat", "the hat", "that"]
    state, expected = start(choice=choices), Choices(choices)
    paths: list[list[int]] = [[]]
    for _ in range(60):
        path = paths[int(rng.integers(len(paths)))]
        if EOS not in path:
            paths.append([*path, int(rng.choice(sorted(expected.after(path))))])
    order = rng.permutation(len(paths)).tolist()
    assert allowed(state, *(paths[i] for i in order)) == [expected.after(paths[i]) for i in order]
    assert allowed(state, ()) == [expected.after([])]
    illegal = [*ids("cat").tolist()]
    assert allowed(state, illegal, ()) == [set(range(SIZE)), expected.after([])], "a path that is never taken"


def test_how_many_drafts_are_legal_counts_up_to_the_first_that_is_not() -> None:
    state = start(regex="(cat|hat)( sat)?")
    assert state.legal(ids("cat sat")) == len(ids("cat sat"))
    assert state.legal(np.array([*ids("cat"), EOS, *ids("cat")], np.int32)) == len(ids("cat")) + 1
    assert state.legal(np.array([EOS], np.int32)) == 0
    assert state.legal(np.array([0, SIZE - 1], np.int32)) == 0, "special ids and ids without text"
    assert words_of(state) == {"c", "ca", "cat", "h", "ha", "hat"} & set(TEXTS)


def test_after_the_end_nothing_is_fed() -> None:
    state = start(regex="a+")
    state.commit([*ids("aa").tolist(), EOS])
    assert not state.accept(int(ids("a")[0]))
    assert not state.accept(EOS)
    assert words_of(state) == {"."}


def test_before_the_start_everything_is_legal_and_the_form_begins_in_the_same_path() -> None:
    marker = TOKENIZER.convert_tokens_to_ids("<model>")
    a, b = ids("ab").tolist()
    for start_after, seen in ((marker, [marker]), ("<model>", [marker]), ("ab", [a, b])):
        state = start(choice=["cat"], start_after=start_after)
        everything, inside = set(range(SIZE)), allowed(start(choice=["cat"]), ())[0]
        assert allowed(state, (), (a,), (a, *seen), (EOS,)) == [everything, everything, inside, everything]
        assert state.legal(np.array([EOS, a, *seen, *ids("cat"), EOS], np.int32)) == 3 + len(seen) + len(ids("cat"))
        assert state.legal(np.array([*seen, b], np.int32)) == len(seen)
        state.commit([a, *seen])
        assert allowed(state, ()) == [inside]
    state = start(choice=["cat"], start_after="ab")
    assert allowed(state, (a, a, b), (a, b, b), (b, a)) == [inside, everything, everything]
    assert state.legal(np.array([a, b, *seen], np.int32)) == 2


def test_a_form_that_cannot_go_on_ends_the_text_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """After a, the rule asks for itself without end, and no id goes on."""
    a, b, c = (int(ids(letter)[0]) for letter in "abc")
    dead = start(grammar='root ::= "c" | "a" tail\ntail ::= tail "b"')
    for _ in range(2):
        assert allowed(dead, (a,), ()) == [{EOS}, {a, c}], "a draft that leads nowhere spoils nothing"
    assert dead.legal(np.array([a, b], np.int32)) == 1
    assert dead.legal(np.array([a, EOS], np.int32)) == 2
    assert caplog.records == []
    dead.commit([a, EOS])
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "no id could go on with the form" in caplog.text


def test_an_id_against_the_form_ends_the_text_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    state = start(choice=["cat"])
    state.commit([int(ids("h")[0])])
    assert words_of(state) == {"."}
    assert "which the form forbids" in caplog.text
    state.commit([EOS])
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"choice": ['say "hi"', "back\\slash", "two\nlines", "é😀", "{x}*(y)|[z]"]}, None),
        ({"regex": r"^\d{2}[a-c]?$"}, ["12", "99b"]),
        ({"grammar": 'root ::= item ("," item)*\nitem ::= [a-c]+'}, ["a", "ab,c,b"]),
        ({"grammar": 'start: item ("," item)*\nitem: /[a-c]+/'}, ["a", "ab,c,b"]),
        ({"json": '{"enum": [1, "one"]}'}, ["1", '"one"']),
        ({"json": {"type": "array", "items": {"type": "integer"}}}, ["[]", "[1, 2]", "[ 1,2 ]"]),
        ({"json": True}, ["null", "[1]"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}']),
    ],
)
def test_every_kind_of_form_takes_its_texts_and_ends_there(form: Any, texts: Any) -> None:
    if form.get("json") is True:
        form = {"json": "true"}
    for text in form["choice"] if texts is None else texts:
        path = ids(text)
        state = start(**form)
        assert state.legal(path) == len(path), text
        assert EOS in allowed(state, path)[0], text
        state.commit([*path.tolist(), EOS])


def spells(text: str, **form: Any) -> bool:
    """Whether a text may be said as a whole."""
    state = start(**form)
    path = ids(text)
    return state.legal(path) == len(path) and EOS in allowed(state, path)[0]


def test_options_of_json_are_honoured() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert spells('{"a": 1}', json=schema)
    assert spells('{\n "a":1 }', json=schema)
    assert not spells('{"a": 1}', json=schema, disable_any_whitespace=True)
    assert spells('{"a":1}', json=schema, disable_any_whitespace=True)
    assert spells('{"a":  1}', json=schema, whitespace_pattern=" {0,2}")
    assert not spells('{"a":   1}', json=schema, whitespace_pattern=" {0,2}")
    assert spells('{"a": 1, "b": 2}', json=schema)
    assert not spells('{"a": 1, "b": 2}', json=schema, disable_additional_properties=True)


def test_objects_are_closed_wherever_they_name_keys() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer"}}}
    keys = {"properties": inner, "list": {"type": "array", "items": inner}, "free": {"type": "object"}}
    schema = {"$defs": {"i": inner}, "properties": {**keys, "ref": {"$ref": "#/$defs/i"}}, "type": "object"}
    for good in ('{"properties": {"x": 1}}', '{"list": [{"x": 1}]}', '{"free": {"y": 1}}', '{"ref": {"x": 1}}'):
        assert spells(good, json=schema, disable_additional_properties=True), good
    for bad in ('{"properties": {"y": 1}}', '{"list": [{"y": 1}]}', '{"y": 1}', '{"ref": {"y": 1}}'):
        assert spells(bad, json=schema), bad
        assert not spells(bad, json=schema, disable_additional_properties=True), bad


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"regex": "a("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-ahead"),
        ({"regex": r"[^\x00-\x{10ffff}]"}, "no text that this tokenizer can write"),
        ({"grammar": "root ::= thing"}, "thing"),
        ({"grammar": 'a ::= "b"'}, "root"),
        ({"grammar": 'root ::= root "a"'}, "no text that this tokenizer can write"),
        ({"json": '{"type": '}, "Expecting value"),
        ({"json": {"type": "nonsense"}}, "nonsense"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": {"minimum": 3, "maximum": 2, "type": "integer"}}, "minimum"),
        ({"json": {"a": {1, 2}}}, "set"),
        ({"json": {"allOf": [{}]}, "disable_additional_properties": True}, "allOf"),
        ({"json_object": True, "whitespace_pattern": "["}, "unclosed"),
        ({"choice": ["a"], "start_after": SIZE}, "start_after"),
    ],
)
def test_a_form_that_cannot_be_honoured_is_refused_with_the_reason(form: Any, reason: str) -> None:
    kind = next(iter(form))
    with pytest.raises(RequestError, match=rf"(?s)structured_outputs\.{kind} cannot be used: .*{reason}"):
        start(**form)


def test_an_engine_without_a_tokenizer_or_with_one_that_cannot_be_read_says_so() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        start(Grammars(None, SIZE, frozenset([EOS])), choice=["a"])
    for other in (spaced_tokenizer(), object()):
        with pytest.raises(RequestError, match="llguidance cannot read the tokenizer"):
            start(Grammars(other, SIZE, frozenset([EOS])), choice=["a"])


def test_without_the_library_a_form_is_refused_and_all_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llguidance", "llguidance.hf"):
        monkeypatch.setitem(sys.modules, name, None)
    grammars = Grammars(TOKENIZER, SIZE, frozenset([EOS]))
    assert grammars.start(SamplingParams()) is None
    with pytest.raises(RequestError, match=r"pip install 'specdec-engine\[structured\]'"):
        start(grammars, choice=["a"])


def test_the_text_ends_with_an_end_of_sequence_or_a_special_stop_id() -> None:
    pad, a = 0, int(ids("a")[0])
    form = StructuredOutputsParams(regex="a+")
    cases: list[tuple[dict[str, Any], frozenset[int], set[int]]] = [
        ({}, frozenset([EOS]), {EOS}),
        ({"stop_token_ids": [pad]}, frozenset([EOS]), {EOS, pad}),
        ({"stop_token_ids": [pad], "ignore_eos": True}, frozenset([EOS]), {pad}),
        ({"stop_token_ids": [pad]}, frozenset(), {pad}),
        ({"stop_token_ids": [a]}, frozenset([EOS]), {EOS}),
    ]
    for params, eos, ends in cases:
        state = Grammars(TOKENIZER, SIZE, eos).start(SamplingParams(structured_outputs=form, **params))
        assert allowed(state, (a,))[0] - {a, *map(int, ids("aa"))} == ends
    for params, eos in (({"ignore_eos": True}, frozenset([EOS])), ({"stop_token_ids": [a]}, frozenset())):
        with pytest.raises(RequestError, match="no id could end the text"):
            Grammars(TOKENIZER, SIZE, eos).start(SamplingParams(structured_outputs=form, **params))


def test_one_form_is_compiled_once_and_each_sample_stands_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    import llguidance

    compiled = []
    real = llguidance.LLMatcher

    class Counting:
        def __new__(cls, *args: Any, **more: Any) -> Any:
            compiled.append(args)
            return real(*args, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(llguidance, "LLMatcher", Counting)
    grammars = Grammars(TOKENIZER, SIZE, frozenset([EOS]))
    first, second = (start(grammars, regex="ab") for _ in range(2))
    assert len(compiled) == 1
    start(grammars, regex="ba")
    assert len(compiled) == 2
    first.commit(ids("a").tolist())
    assert words_of(first) == {"b"}
    assert words_of(second) == {"a"}


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, "exactly one of json, regex, choice, grammar, json_object; given: none"),
        ({"regex": "a", "json_object": True}, "given: regex, json_object"),
        ({"choice": ["a", ""]}, "choice=.* is not a list of texts"),
        ({"choice": ["a"], "start_after": ""}, "start_after=''"),
        ({"choice": ["a"], "start_after": -1}, "start_after=-1"),
        ({"choice": ["a"], "disable_any_whitespace": True}, "disable_any_whitespace=True is not an option of choice"),
        ({"json_object": True, "whitespace_pattern": 3}, "whitespace_pattern=3"),
        ({"json_object": True, "whitespace_pattern": "a", "disable_any_whitespace": True}, "leave one out"),
    ],
)
def test_what_contradicts_itself_is_refused_when_it_is_made(form: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        StructuredOutputsParams(**form)


def test_every_pair_of_forms_is_one_too_many() -> None:
    forms = {"json": "{}", "regex": "a", "choice": ["a"], "grammar": 'root ::= "a"', "json_object": True}
    for a, b in itertools.combinations(forms, 2):
        with pytest.raises(RequestError, match="exactly one"):
            StructuredOutputsParams(**{a: forms[a], b: forms[b]})
