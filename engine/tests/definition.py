"""What sampling parameters mean, spelled out one id at a time in float64 for a target that is a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specdec_core.noise import Purpose, exponential
from specdec_engine import SamplingParams

EOS = 2


def logits_after(table: Any, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """The logits after prompt and output as they are when a token is chosen, -inf for what cannot be."""
    y = [math.log(p) for p in table[(list(prompt) + list(output))[-1]]]
    size = len(y)
    for token, bias in (params.logit_bias or {}).items():
        y[token] += min(100.0, max(-100.0, bias))
    for token in range(size):
        if token in output or token in prompt:
            r = params.repetition_penalty
            y[token] = y[token] / r if y[token] > 0 else y[token] * r
        y[token] -= params.frequency_penalty * list(output).count(token)
        y[token] -= params.presence_penalty * (token in output)
    forbidden = set()
    if params.allowed_token_ids is not None:
        forbidden |= set(range(size)) - set(params.allowed_token_ids)
    if len(output) < params.min_tokens:
        forbidden |= {*(() if params.ignore_eos else (EOS,)), *(params.stop_token_ids or ())}
    for word in params.bad_words or ():
        before = list(word[:-1])
        if list(output[len(output) - len(before) :]) == before and len(before) <= len(output):
            forbidden.add(word[-1])
    y = [-math.inf if token in forbidden else value for token, value in enumerate(y)]
    if params.temperature == 0:
        return y
    return truncated([value / params.temperature for value in y], params)


def truncated(y: list[float], params: SamplingParams) -> list[float]:
    """Logits without what min_p, top_k and top_p take, in this order."""
    left = sorted((v for v in range(len(y)) if y[v] > -math.inf), key=lambda v: (-y[v], v))
    best = max(y)
    left = [v for v in left if math.exp(y[v] - best) >= params.min_p]
    if params.top_k > 0:
        left = [v for v in left if y[v] >= y[left[min(params.top_k, len(left)) - 1]]]
    total, mass, kept = sum(math.exp(y[v] - best) for v in left), 0.0, set()
    for v in left:
        if kept and params.top_p < 1 and mass >= params.top_p * total:
            break
        kept.add(v)
        mass += math.exp(y[v] - best)
    return [value if v in kept else -math.inf for v, value in enumerate(y)]


def distribution_after(table: Any, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Any:
    """The distribution of the next token, [V]."""
    y = np.array(logits_after(table, params, prompt, output))
    weights = np.exp(y - y.max())
    return weights / weights.sum()


def spelled_out(
    table: Any,
    params: SamplingParams,
    prompt: Sequence[int],
    *,
    key: int,
    edit: Callable[[list[int], list[int], list[float]], list[float]] | None = None,
) -> list[int]:
    """The tokens of a request: argmax, or the race with the noise of each place. `edit` is a processor on lists."""
    output: list[int] = []
    assert params.max_tokens is not None
    while len(output) < params.max_tokens:
        if edit is None:
            y = logits_after(table, params, prompt, output)
        else:
            assert params.top_k == 0 and params.top_p == 1 and params.min_p == 0
            t = 1.0 if params.temperature == 0 else params.temperature
            unscaled = [t * value for value in logits_after(table, params, prompt, output)]
            y = [value / t for value in edit(list(prompt), output, unscaled)]
        best, chosen = -math.inf, -1
        for token, value in enumerate(y):
            if value == -math.inf:
                continue
            score = value
            if params.temperature > 0:
                score -= math.log(exponential(key, len(prompt) + len(output), 0, Purpose.TARGET, token))
            if score > best:
                best, chosen = score, token
        output.append(chosen)
        ended = chosen == EOS and not params.ignore_eos
        if len(output) >= params.min_tokens and (ended or chosen in (params.stop_token_ids or ())):
            break
    return output
