"""Evaluates the part of PromQL that documentation and dashboard use, over two scrapes; knows no other function."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
TOKEN = re.compile(r"\s*([A-Za-z_:][\w:]*(?:\{[^}]*\})?|\d+(?:\.\d+)?|\[\d+[smh]\]|[()/+,])")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
MATCHES: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "!~": lambda value, pattern: re.fullmatch(pattern, value) is None,
}
OPERATORS: dict[str, Callable[[float, float], float]] = {"+": operator.add, "/": operator.truediv}


def parse(scrape: str) -> dict[str, Vector]:
    """Series by the name that the scrape shows."""
    series: dict[str, Vector] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return series


class Query:
    """One query over a scrape at the start and one at the end of `seconds`; KeyError for a name that is not there."""

    def __init__(self, text: str, before: str, after: str, seconds: float) -> None:
        self.before, self.after, self.seconds = parse(before), parse(after), seconds
        self.tokens = TOKEN.findall(text)
        assert "".join(self.tokens) == text.replace(" ", ""), f"not understood: {text}"

    def value(self) -> Vector | float:
        """The result: a number, or a vector by labels."""
        result = self.sum()
        assert not self.tokens, f"left over: {self.tokens}"
        return result

    def take(self, *expected: str) -> str:
        token = self.tokens.pop(0)
        assert not expected or token in expected, f"{token!r} instead of {expected}"
        return token

    def ahead(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def sum(self) -> Vector | float:
        left = self.ratio()
        while self.ahead() == "+":
            left = combine(self.take(), left, self.ratio())
        return left

    def ratio(self) -> Vector | float:
        left = self.term()
        while self.ahead() == "/":
            left = combine(self.take(), left, self.term())
        return left

    def term(self) -> Vector | float:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.take(")")
            return inner
        if token[0].isdigit():
            return float(token)
        if token == "sum":
            return self.aggregate()
        if token == "rate":
            self.take("(")
            selector = self.take()
            assert self.take().startswith("["), "rate needs a range"
            self.take(")")
            earlier = select(selector, self.before)
            later = select(selector, self.after)
            return {labels: (v - earlier.get(labels, 0.0)) / self.seconds for labels, v in later.items()}
        assert self.ahead()[:1] != "[", f"{token} with a range is no argument of an operator"
        return select(token, self.after)

    def aggregate(self) -> Vector:
        kept: set[str] = set()
        if self.ahead() == "by":
            self.take("by")
            self.take("(")
            while (token := self.take()) != ")":
                kept.add(token)
        self.take("(")
        vector = self.sum()
        self.take(")")
        assert isinstance(vector, dict)
        total: Vector = {}
        for labels, value in vector.items():
            assert kept <= dict(labels).keys(), f"no label {kept - dict(labels).keys()}"
            group = frozenset(pair for pair in labels if pair[0] in kept)
            total[group] = total.get(group, 0.0) + value
        return total


def select(selector: str, series: dict[str, Vector]) -> Vector:
    """Return the series of `name{label="value", ...}`; AssertionError for a label that the name does not have."""
    name, _, matchers = selector.removesuffix("}").partition("{")
    found = series[name]
    wanted = MATCHER.findall(matchers)
    assert ",".join('{}{}"{}"'.format(*each) for each in wanted) == matchers.replace(" ", ""), (
        f"not understood: {selector}"
    )
    for label, sign, value in wanted:
        assert all(label in dict(labels) for labels in found), f"{name} has no label {label!r}"
        found = {labels: v for labels, v in found.items() if MATCHES[sign](dict(labels)[label], value)}
    return found


def combine(sign: str, left: Vector | float, right: Vector | float) -> Vector | float:
    """Vectors are matched by equal labels, as PromQL does; here a series without a partner is an error."""
    apply = OPERATORS[sign]
    if isinstance(left, float) and isinstance(right, float):
        return apply(left, right)
    if isinstance(left, float):
        return {labels: apply(left, value) for labels, value in right.items()}  # type: ignore[union-attr]
    if isinstance(right, float):
        return {labels: apply(value, right) for labels, value in left.items()}
    assert left.keys() == right.keys(), f"labels do not match: {sorted(left)} and {sorted(right)}"
    return {labels: apply(left[labels], right[labels]) for labels in left}
