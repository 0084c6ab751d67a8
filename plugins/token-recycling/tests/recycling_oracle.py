"""Token recycling in plain Python, from arXiv 2408.08696 and docs/token_recycling.md alone; float64, no arrays."""

from __future__ import annotations

import math

import numpy as np


class Oracle:
    """For each id the candidates that the target last showed after it, [(id, log-probability)], best first."""

    def __init__(self, vocabulary: int, n: int, pairs: int) -> None:
        self.vocabulary, self.n, self.pairs = vocabulary, n, pairs
        self.rows: dict[int, list[tuple[int, float]]] = {}
        self.places: dict[int, tuple[tuple[int, int], list[tuple[int, float]]]] = {}
        self.worth: dict[tuple[bool, int], tuple[float, float]] = {}  # (of a pair, class): expected, right

    def known(self, first, token):
        """What is kept of two ids: whether of both or of the second alone, and the candidates."""
        if self.pairs and first >= 0:
            pair, row = self.places.get((first * 1_000_003 + token) % self.pairs, (None, None))
            if pair == (first, token):
                return True, row
        return False, self.rows.get(token, [])

    def after(self, first, token):
        """The same with log-probabilities that count for what such ones turned out to be."""
        of_pair, row = self.known(first, token)
        found = []
        for child, logprob in row:
            expected, right = self.worth.get((of_pair, twentieth(logprob)), (0.0, 0.0))
            found.append((child, min(0.0, logprob + math.log((right + 4) / (expected + 4)))))
        return found

    def compare(self, before, tokens, parents, accepted, newest):
        """Compare all candidates of the text's rows with the ids that came after these."""
        text = [i for i in range(len(tokens)) if accepted[i]]
        for i in text:
            came = [tokens[j] for j in text if parents[j] == i] or [newest]
            of_pair, row = self.known(before if parents[i] < 0 else tokens[parents[i]], tokens[i])
            for child, logprob in row:
                key = of_pair, twentieth(logprob)
                expected, right = self.worth.get(key, (0.0, 0.0))
                self.worth[key] = 0.999 * expected + math.exp(logprob), 0.999 * right + (child == came[-1])

    def learn(self, before, tokens, parents, accepted, top_ids, top_logprobs):
        """Take in the rows of one request: all in order, then those of the text again, so that they win."""
        order = [*range(len(tokens)), *(i for i in range(len(tokens)) if accepted[i])]
        for i in order:
            if not 0 <= tokens[i] < self.vocabulary:
                continue
            row = []
            for token, logprob in zip(top_ids[i], top_logprobs[i], strict=True):
                if not 0 <= token < self.vocabulary or not math.isfinite(logprob):
                    break
                row.append((int(token), float(logprob)))
            if row:
                self.rows[int(tokens[i])] = row[: self.n]
                first = before if parents[i] < 0 else tokens[parents[i]]
                if self.pairs and 0 <= first < self.vocabulary:
                    place = (first * 1_000_003 + tokens[i]) % self.pairs
                    self.places[place] = (int(first), int(tokens[i])), row[: self.n]

    def static(self, last, paths, most):
        """Unfold paths of ranks, each behind its beginning, up to `most` nodes; what is unknown is left out."""
        found = {(): (last[1], -1, 0.0, self.after(*last))}
        nodes = []
        for path in paths:
            if len(nodes) == most:
                break
            if path[:-1] not in found:
                continue
            token, place, score, row = found[path[:-1]]
            if path[-1] < len(row):
                child, logprob = row[path[-1]]
                found[path] = (child, len(nodes), score + logprob, self.after(token, child))
                nodes.append((child, place, math.exp(score + logprob)))
        return nodes

    def dynamic(self, last, most, least=0.0):
        """The likeliest node comes next; of equals the one of the parent that was made first."""
        nodes: list[tuple[int, int, float]] = []
        made = [(last[1], 0.0, self.after(*last))]
        used: set[tuple[int, int]] = set()
        while len(nodes) < most:
            best = None
            for place, (_, score, row) in enumerate(made):
                for rank, (child, logprob) in enumerate(row):
                    if (place, rank) not in used and (best is None or score + logprob > best[0]):
                        best = (score + logprob, place, rank, child)
            if best is None or math.exp(best[0]) < least:
                break
            score, place, rank, child = best
            used.add((place, rank))
            nodes.append((child, place - 1, math.exp(score)))
            made.append((child, score, self.after(made[place][0], child)))
        return nodes


def twentieth(logprob):
    """In which twentieth of 0..1 a probability lies."""
    return min(19, int(20 * math.exp(logprob)))


def step(rng, vocabulary, n, size):
    """Rows of one step: some ids twice, some candidates outside the vocabulary or missing."""
    tokens = rng.integers(0, vocabulary + 1, size).astype(np.int32)
    parents = np.array([-1, *(rng.integers(0, i) for i in range(1, size))], np.int32)
    accepted = rng.random(size) < 0.5
    accepted[0] = True
    top = np.stack([rng.permutation(vocabulary + 2)[:n] for _ in range(size)]).astype(np.int32)
    logprobs = np.sort(np.log(rng.dirichlet(np.ones(n + 1), size)[:, :n]), axis=1)[:, ::-1].astype(np.float32)
    top[rng.random((size, n)) < 0.05] = -1
    logprobs[rng.random((size, n)) < 0.02] = -np.inf
    return tokens, parents, accepted, top, np.ascontiguousarray(logprobs)
