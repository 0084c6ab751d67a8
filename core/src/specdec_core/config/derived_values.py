"""Settles the numbers that follow from several parts: k, the drafter's length and devices, slots, limits of a batch."""

from __future__ import annotations

from typing import Final

from specdec_core.config.resolution import Resolution
from specdec_core.errors import ConfigWarning
from specdec_core.sources import DraftSource
from specdec_core.traits import MethodTraits

K: Final = "num_speculative_tokens"
SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
LIMITS: Final = ("disable_by_batch_size", "max_step_tokens")


def check_k(resolution: Resolution, method: str, traits: MethodTraits) -> None:
    """Check k against what the method's modules can make: one rule and one wording for all methods.

    Up to n_predict any k is right. Above it k must be a multiple, and the user is warned that modules are used again;
    a method that cannot use them again sets `max_tokens`. For a tree given beforehand k is its nodes.
    """
    k, n, most = resolution.config.num_speculative_tokens, traits.n_predict, traits.max_tokens
    if k is None:
        return
    if traits.tree_nodes is not None and k != traits.tree_nodes:
        message = f"{k} given, and the tree of {method} has {traits.tree_nodes} nodes"
        resolution.problem(K, message, f"leave it out, or give {traits.tree_nodes}")
    elif most is not None and k > most:
        whose = " (its n_predict)" if n == most else ""
        resolution.problem(K, f"{k} given, and {method} drafts at most {most}{whose} here", f"give at most {most}")
    elif n is not None and k > n and k % n:
        message = f"{k} given, and above its n_predict of {n} {method} takes only multiples of {n}"
        resolution.problem(K, message, f"give {k - k % n} or {k + n - k % n}")
    elif n is not None and k > n:
        again = f"{k} is above the n_predict of {method}, {n}: its modules are used {k // n} times in a step"
        resolution.warn(f"{K} {again}, and later drafts are accepted less often", ConfigWarning)
        resolution.decide(K, k, again)


def decide_revision(resolution: Resolution, draft: DraftSource | None) -> None:
    """Note the revision of a hub id, or that there is none to choose."""
    revision = resolution.config.revision
    if revision is None:
        return
    if draft is not None and draft.revision == revision:
        resolution.decide("revision", revision, "given; this revision is fetched from the hub")
        return
    why = "there is no draft checkpoint" if draft is None else f"model {draft.model!r} is a local path"
    resolution.warn(f"revision is ignored: {why}", ConfigWarning)
    resolution.decide("revision", None, f"ignored: {why}")


def decide_max_model_len(resolution: Resolution, traits: MethodTraits) -> int:
    """Return the position at which drafts end: what is given, or the smaller one of the drafter's and the target's."""
    key, given = "max_model_len", resolution.config.max_model_len
    limits = {"the target's": resolution.target.max_model_len}
    if traits.max_position is not None:
        limits["the drafter's"] = traits.max_position
    whose, least = min(limits.items(), key=lambda item: item[1])
    if given is None:
        resolution.decide(key, least, f"{whose} limit; no draft is allowed at this position or beyond")
        return least
    below = [f"{name} is {limit}" for name, limit in limits.items() if given > limit]
    if below:
        resolution.problem(key, f"{given} given, and {' and '.join(below)}", f"give at most {least}")
    else:
        resolution.decide(key, given, "given; no draft is allowed at this position or beyond")
    return given


def decide_tensor_parallel(resolution: Resolution, traits: MethodTraits) -> int:
    """Return over how many devices the drafter is spread: 1, or as many as the target."""
    key, given = "draft_tensor_parallel_size", resolution.config.draft_tensor_parallel_size
    target = resolution.target.tensor_parallel_size
    if given is None:
        if traits.weights != "none":
            resolution.decide(key, target, "as many devices as the target's")
        return target
    if given not in (1, target):
        message = f"{given} given, and the target's is {target}"
        resolution.problem(key, message, "leave it out" if target == 1 else f"give 1 or {target}")
    else:
        resolution.decide(key, given, "given")
    return given


def decide_slots(resolution: Resolution, traits: MethodTraits) -> tuple[int, int]:
    """Return (look-ahead positions, extra input rows) of each request; `MethodTraits` describes them."""
    ahead = traits.lookahead_tokens(resolution.config.num_speculative_tokens or 0)
    if traits.num_lookahead_slots is not None:
        reason = "declared by the method"
    else:
        reason = "k: the drafter keeps a cache" if ahead else "the method keeps no cache of its own"
    resolution.decide("num_lookahead_slots", ahead, reason)
    if traits.extra_slots:
        resolution.decide("extra_slots", traits.extra_slots, "declared by the method")
    return ahead, traits.extra_slots


def note_limits(resolution: Resolution) -> None:
    """Note the limits that the host applies at every step."""
    config, k = resolution.config, resolution.config.num_speculative_tokens
    schedule = config.num_speculative_tokens_per_batch_size
    if schedule is not None:
        most = max(size_k for _, _, size_k in schedule)
        cut = f"; K above {k} counts as {k}" if k is not None and most > k else ""
        resolution.decide(SCHEDULE, schedule, f"given; the host cuts each step's drafts to it{cut}")
    for key in LIMITS:
        value = getattr(config, key)
        if value is not None:
            resolution.decide(key, value, "given; the host cuts each step's drafts to it")
    if config.cut_by_cost is not None:
        what = "cuts drafts that cost more than they bring" if config.cut_by_cost else "cuts no draft by what it costs"
        resolution.decide("cut_by_cost", config.cut_by_cost, f"given; the host {what}")


def decide_noise(resolution: Resolution, verifier: str, traits: MethodTraits, *, emits_host_draws: bool) -> None:
    """Note what the noise of a seeded request depends on; why, is in docs/losslessness.md."""
    if emits_host_draws:
        resolution.decide("noise", "seed", f"{verifier} emits the host's own draws, which no draft can change")
    elif traits.remembers:
        why = f"drafts may come from earlier answers, of which the noise of {verifier} must be independent"
        resolution.decide("noise", "seed, prompt, request options, order of arrival, memory at the start", why)
    else:
        why = f"drafts may come from the prompt, of which the noise of {verifier} must be independent"
        resolution.decide("noise", "seed, prompt, request options", why)
