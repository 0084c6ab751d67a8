"""Settles the numbers that follow from several parts: k, the drafter's length and devices, slots, limits of a batch."""

from __future__ import annotations

from typing import Final

from specdec_core.config.resolution import Settling
from specdec_core.errors import ConfigWarning
from specdec_core.sources import DraftSource
from specdec_core.traits import MethodTraits

K: Final = "num_speculative_tokens"
SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
LIMITS: Final = ("disable_by_batch_size", "max_step_tokens")


def check_k(settling: Settling, method: str, traits: MethodTraits) -> None:
    """Check k against what the method's modules can make: one rule and one wording for all methods.

    Up to n_predict any k is right. Above it k must be a multiple, and the user is warned that modules are used again;
    a method that cannot use them again says so with `max_tokens`. For a tree given beforehand k is its nodes.
    """
    k, n, most = settling.config.num_speculative_tokens, traits.n_predict, traits.max_tokens
    if k is None:
        return
    if traits.tree_nodes is not None and k != traits.tree_nodes:
        message = f"{k} given, and the tree of {method} has {traits.tree_nodes} nodes"
        settling.problem(K, message, f"leave it out, or give {traits.tree_nodes}")
    elif most is not None and k > most:
        whose = " (its n_predict)" if n == most else ""
        settling.problem(K, f"{k} given, and {method} drafts at most {most}{whose} here", f"give at most {most}")
    elif n is not None and k > n and k % n:
        message = f"{k} given, and above its n_predict of {n} {method} takes only multiples of {n}"
        settling.problem(K, message, f"give {k - k % n} or {k + n - k % n}")
    elif n is not None and k > n:
        again = f"{k} is above the n_predict of {method}, {n}: its modules are used {k // n} times in a step"
        settling.warn(f"{K} {again}, and later drafts are accepted less often", ConfigWarning)
        settling.decide(K, k, again)


def settle_revision(settling: Settling, draft: DraftSource | None) -> None:
    """Note the revision of a hub id, or that there is none to choose."""
    revision = settling.config.revision
    if revision is None:
        return
    if draft is not None and draft.revision == revision:
        settling.decide("revision", revision, "given; this revision is fetched from the hub")
        return
    why = "there is no draft checkpoint" if draft is None else f"model {draft.model!r} is a local path"
    settling.warn(f"revision is ignored: {why}", ConfigWarning)
    settling.decide("revision", None, f"ignored: {why}")


def settle_max_model_len(settling: Settling, traits: MethodTraits) -> int:
    """Return the position at which drafts end: what is given, or the smaller one of the drafter's and the target's."""
    key, given = "max_model_len", settling.config.max_model_len
    limits = {"the target's": settling.target.max_model_len}
    if traits.max_position is not None:
        limits["the drafter's"] = traits.max_position
    whose, least = min(limits.items(), key=lambda item: item[1])
    if given is None:
        settling.decide(key, least, f"{whose} limit; no draft is allowed at this position or beyond")
        return least
    below = [f"{name} is {limit}" for name, limit in limits.items() if given > limit]
    if below:
        settling.problem(key, f"{given} given, and {' and '.join(below)}", f"give at most {least}")
    else:
        settling.decide(key, given, "given; no draft is allowed at this position or beyond")
    return given


def settle_tensor_parallel(settling: Settling, traits: MethodTraits) -> int:
    """Return over how many devices the drafter is spread: 1, or as many as the target."""
    key, given = "draft_tensor_parallel_size", settling.config.draft_tensor_parallel_size
    target = settling.target.tensor_parallel_size
    if given is None:
        if traits.weights != "none":
            settling.decide(key, target, "as many devices as the target's")
        return target
    if given not in (1, target):
        message = f"{given} given, and the target's is {target}"
        settling.problem(key, message, "leave it out" if target == 1 else f"give 1 or {target}")
    else:
        settling.decide(key, given, "given")
    return given


def settle_slots(settling: Settling, traits: MethodTraits) -> tuple[int, int]:
    """Return (look-ahead positions, extra input rows) of each request; `MethodTraits` says what they are."""
    ahead = traits.lookahead_tokens(settling.config.num_speculative_tokens or 0)
    if traits.num_lookahead_slots is not None:
        reason = "the method says so"
    else:
        reason = "k: the drafter keeps a cache" if ahead else "the method keeps no cache of its own"
    settling.decide("num_lookahead_slots", ahead, reason)
    if traits.extra_slots:
        settling.decide("extra_slots", traits.extra_slots, "the method says so")
    return ahead, traits.extra_slots


def note_limits(settling: Settling) -> None:
    """Note the limits that the host applies at every step."""
    config, k = settling.config, settling.config.num_speculative_tokens
    schedule = config.num_speculative_tokens_per_batch_size
    if schedule is not None:
        most = max(size_k for _, _, size_k in schedule)
        cut = f"; K above {k} counts as {k}" if k is not None and most > k else ""
        settling.decide(SCHEDULE, schedule, f"given; the host cuts each step's drafts to it{cut}")
    for key in LIMITS:
        value = getattr(config, key)
        if value is not None:
            settling.decide(key, value, "given; the host cuts each step's drafts to it")
    if config.cut_by_cost is not None:
        what = "cuts drafts that cost more than they bring" if config.cut_by_cost else "cuts no draft by what it costs"
        settling.decide("cut_by_cost", config.cut_by_cost, f"given; the host {what}")


def settle_noise(settling: Settling, verifier: str, traits: MethodTraits, *, emits_host_draws: bool) -> None:
    """Note what the noise of a seeded request depends on; why, is in docs/losslessness.md."""
    if emits_host_draws:
        settling.decide("noise", "seed", f"{verifier} emits the host's own draws, which no draft can change")
    elif traits.remembers:
        why = f"drafts may come from earlier answers, of which the noise of {verifier} must be independent"
        settling.decide("noise", "seed, prompt, request options, order of arrival, memory at the start", why)
    else:
        why = f"drafts may come from the prompt, of which the noise of {verifier} must be independent"
        settling.decide("noise", "seed, prompt, request options", why)
