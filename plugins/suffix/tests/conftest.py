"""What the tests of suffix decoding share: the rule of docs/suffix.md without a tree, both backends, repeated ids."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_core.draft import BatchView
from specdec_core.noise import Noise
from specdec_plugin_suffix.forest import Rules
from specdec_plugin_suffix.kernels import reference

ONE = np.float32(1)


class Model:
    """Texts, and what happened to them, in order: every count and every order is found anew from that."""

    def __init__(self, depth):
        self.depth = depth
        self.texts, self.starts, self.events = {}, {}, []
        self._found = {}

    def begin(self, name):
        self.texts[name], self.starts[name] = [], 0

    def append(self, name, tokens):
        for token in tokens:
            self.events.append((name, len(self.texts[name]), None))
            self.texts[name].append(token)
        self._found.clear()

    def remove(self, name, count=None):
        length = len(self.texts[name])
        end = length if count is None else min(length, self.starts[name] + count)
        self.events += [(name, first, length) for first in range(self.starts[name], end)]
        self.starts[name] = end
        self._found.clear()

    def count(self, string):
        """How many suffixes begin with a string."""
        size = len(string)
        places = ((text, first) for name, text in self.texts.items() for first in range(self.starts[name], len(text)))
        return sum(tuple(text[first : first + size]) == string for text, first in places)

    def followers(self, string):
        """The ids that follow a string, [[id, count]] in order."""
        if string not in self._found:
            self._found[string] = self._replay(string)
        return self._found[string]

    def _replay(self, string):
        order, starts, size = [], dict.fromkeys(self.texts, 0), len(string)
        for name, index, length in self.events if size < self.depth else ():
            text = self.texts[name]
            if length is None:
                first = index - size
                if first >= starts[name] and tuple(text[first:index]) == string:
                    gain(order, text[index])
            else:
                starts[name] = index + 1
                if index + size < length and tuple(text[index : index + size]) == string:
                    lose(order, text[index + size])
        return order

    def paths(self):
        """Every string that was said, with its count."""
        strings = set()
        for name, text in self.texts.items():
            for first in range(self.starts[name], len(text)):
                strings |= {tuple(text[first:end]) for end in range(first + 1, min(len(text), first + self.depth) + 1)}
        return {string: self.count(string) for string in strings}

    def best(self, context, rules, most):
        """Ids, parents, probabilities, score, length of the match."""
        context = context[-self.depth :]
        best = ([], [], [], np.float32(0), 0)
        for m in range(1, len(context) + rules.match_whole):
            string = tuple(context[len(context) - m :])
            if not self.count(string):
                break
            cap = max(
                0, min(most, int(float(np.float32(m) * np.float32(rules.max_factor) + np.float32(rules.offset)) + 1e-6))
            )
            draft = (self.tree if rules.tree else self.path)(string, cap, rules)
            score = sum(draft[2], np.float32(0))
            if draft[0] and score >= best[3]:
                best = (*draft, score, m)
        return best

    def path(self, string, cap, rules):
        tokens, probabilities, probability = [], [], ONE
        while len(tokens) < cap and self.followers(string):
            token, count = self.followers(string)[0]
            probability = probability * (np.float32(count) / np.float32(self.count(string)))
            if probability < np.float32(rules.min_probability) or token >= rules.vocabulary:
                break
            tokens.append(token)
            probabilities.append(probability)
            string = (*string, token)
        return tokens, list(range(-1, len(tokens) - 1)), probabilities

    def tree(self, string, cap, rules):
        tokens, parents, probabilities, heap = [], [], [], []
        push(heap, (ONE, string, True, -1))
        while len(tokens) < cap and heap:
            probability, string, drafted, parent = pop(heap)
            followers, total = self.followers(string), self.count(string)
            if drafted and followers and followers[0][1] == total:
                string, drafted = (*string, followers[0][0]), False
            if not drafted and string[-1] < rules.vocabulary:
                tokens.append(string[-1])
                parents.append(parent)
                probabilities.append(probability)
                push(heap, (probability, string, True, len(tokens) - 1))
            elif drafted:
                for token, count in followers:
                    branch = probability * np.float32(count) / np.float32(total)
                    if branch >= np.float32(rules.min_probability):
                        push(heap, (branch, (*string, token), False, parent))
        return tokens, parents, probabilities


def gain(order, token):
    at = next((i for i, (other, _) in enumerate(order) if other == token), None)
    if at is None:
        order.append([token, 1])
        return
    count = order[at][1]
    first = at == 0 or order[at - 1][1] != count
    passed = (lambda other: other > count + 1) if first else (lambda other: other > count)
    del order[at]
    order.insert(sum(passed(other) for _, other in order), [token, count + 1])


def lose(order, token):
    at = next(i for i, (other, _) in enumerate(order) if other == token)
    count = order.pop(at)[1] - 1
    if count:
        order.insert(sum(other > count for _, other in order), [token, count])


def push(heap, entry):
    heap.append(entry)
    resolve(heap, len(heap) - 1)


def pop(heap):
    """Take the likeliest: the hole sinks to a leaf, by way of the likelier child, the right one of equals."""
    top, last, hole = heap[0], heap[-1], 0
    heap.pop()
    while 2 * hole + 1 < len(heap):
        child = 2 * hole + 1
        if child + 1 < len(heap) and heap[child + 1][0] >= heap[child][0]:
            child += 1
        heap[hole], hole = heap[child], child
    if heap:
        heap[hole] = last
        resolve(heap, hole)
    return top


def resolve(heap, at):
    while at and heap[(at - 1) // 2][0] < heap[at][0]:
        above = (at - 1) // 2
        heap[at], heap[above], at = heap[above], heap[at], above


class Twin:
    """One forest and one model side by side, with requests over both; every draft is compared."""

    def __init__(self, make, depth):
        self.forest, self.model, self.depth = make(depth), Model(depth), depth
        self.root = self.forest.plant()
        self.requests = {}

    def start(self, name, prompt, rules, shared=True):
        seq = self.forest.begin(self.root) if shared else 0
        request = self.forest.request(np.asarray(prompt, np.int32), rules)
        request.attach(self.root, seq)
        if shared:
            self.model.begin(name)
        own = Model(self.depth)
        own.begin(name)
        own.append(name, prompt)
        self.requests[name] = SimpleNamespace(request=request, rules=rules, seq=seq, own=own)

    def step(self, name, tokens, most):
        """Extend and draft; returns ids, parents, probabilities, score and match of forest and model."""
        r = self.requests[name]
        out = np.full(3 * max(most, 1), -7, np.int32)
        n = r.request.step(np.asarray(tokens, np.int32), 0, 0, most, out, 0, max(most, 1))
        if r.seq:
            self.model.append(name, tokens)
        r.own.append(name, tokens)
        context = r.own.texts[name]
        wanted, other = (model.best(context, r.rules, most) for model in (r.own, self.model))
        if other[3] > wanted[3]:
            wanted = other
        ids, parents, probabilities = (out[i * max(most, 1) :][:n] for i in range(3))
        got = (ids.tolist(), parents.tolist(), probabilities.view(np.float32).tolist())
        if n:
            got += (np.float32(r.request.score), r.request.matched)
        else:
            got += (np.float32(0), 0)
        return got, wanted

    def remove(self, name, count=None):
        r = self.requests[name]
        left = self.forest.remove(r.seq, 2**31 - 1 if count is None else count)
        self.model.remove(name, count)
        if not left:
            self.forest.end(r.seq)
            r.request.detach()
            r.seq = 0
        return left


def _text(rng, size, alphabet, phrases):
    ids = []
    while len(ids) < size:
        ids += rng.choice(phrases) if rng.random() < 0.5 else [rng.randrange(alphabet)]
    return ids[:size]


def _batch(requests, limits, known=None):
    n = len(requests)
    return BatchView(
        requests=list(requests),
        run_len=np.asarray([len(r.tokens) - 1 for r in requests], np.int32),
        newest_known=np.ones(n, np.bool_) if known is None else np.asarray(known, np.bool_),
        max_draft=np.asarray(limits, np.int32),
        noise=Noise(np.zeros(n, np.uint64), np.zeros(n, np.int32), np.zeros(n, np.int32)),
    )


def _rows(draft):
    ends = np.cumsum([0, *draft.lengths]).tolist()
    assert len(draft.tokens) == ends[-1]
    return [draft.tokens[start:end].tolist() for start, end in itertools.pairwise(ends)]


def _make(name):
    if name == "reference":
        return reference.Forest
    return pytest.importorskip("specdec_plugin_suffix.kernels.numba").Forest


@pytest.fixture(params=["reference", "numba"])
def forest(request):
    """Each backend in turn."""
    return _make(request.param)


@pytest.fixture
def compiled():
    """The compiled backend."""
    return _make("numba")


@pytest.fixture
def twin_of():
    """A maker of a forest and a model side by side."""
    return Twin


@pytest.fixture
def model_of():
    """The model."""
    return Model


@pytest.fixture
def text_of():
    """A maker of ids that repeat themselves: (rng, size, alphabet, phrases) -> ids."""
    return _text


@pytest.fixture
def phrases_of():
    """A maker of phrases: (rng, alphabet) -> list of lists of ids."""

    def phrases(rng: random.Random, alphabet: int):
        return [[rng.randrange(alphabet) for _ in range(rng.randint(2, 12))] for _ in range(rng.randint(1, 6))]

    return phrases


@pytest.fixture
def rules_of():
    """A maker of random rules."""

    def rules(rng: random.Random):
        return Rules(
            max_factor=rng.choice([0.0, 0.5, 1.0, 1.0, 2.0, 4.0, 1 / 3, 1.1]),
            offset=rng.choice([0.0, 0.0, 0.0, 1.0, 0.5, -1.0]),
            min_probability=rng.choice([0.0, 0.1, 0.1, 0.3, 1.0]),
            tree=rng.random() < 0.5,
            match_whole=rng.random() < 0.3,
            vocabulary=rng.choice([2**31, 2**31, 3]),
        )

    return rules


@pytest.fixture
def batch_of():
    """A maker of batches: (requests, limits, newest_known)."""
    return _batch


@pytest.fixture
def rows_of():
    """A reader of drafts."""
    return _rows
