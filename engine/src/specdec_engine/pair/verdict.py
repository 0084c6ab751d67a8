"""What the shares of accepted drafts mean, in words: a verdict and hints on what to change; it runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from specdec_engine.pair.findings import DTYPE, MAP, Finding
from specdec_engine.pair.probe import EARLIER, Tried

GOOD: Final = 0.3  # share of first drafts accepted from which on a pair is called one
BAD: Final = 0.1
BETTER: Final = 1.5  # times as many accepted make a shift the likely cause
MORE: Final = 0.1
SAME: Final = 0.9  # drafts that are one id
RENAMED: Final = 0.8  # drafts that one renaming of ids makes right

Acceptance = Literal["good", "weak", "bad", "no drafts"]


def acceptance(tried: Sequence[Tried]) -> Acceptance:
    """Return how the pair does as configured, the first of what was tried."""
    first = tried[0].first
    if first is None:
        return "no drafts"
    return "good" if first >= GOOD else "weak" if first >= BAD else "bad"


def hints(tried: Sequence[Tried], findings: Sequence[Finding] = ()) -> Iterator[str]:
    """Yield what may be wrong, most telling first; none for a pair that does well and is bettered by no shift.

    `findings` are those of the files: a problem among them is the cause where drafts are seldom accepted.
    """
    base = tried[0]
    if base.first is None:
        yield "the method drafted nothing on these prompts; give prompts that it has drafts for"
        return
    head = f"accepted {base.first:.2f} of first drafts"
    problems = [f"{each.topic}: {each.text}" for each in findings if each.state == "problem"]
    found = [f"{head}; {problem}" for problem in problems] if base.first < GOOD else []
    found = found or list(_shifts(head, base, tried[1:])) or list(_offsets(head, base))
    if not found and any(each.topic == MAP for each in findings):
        found = list(_renamed(head, base))
    if not found and base.first < BAD:
        found = [f"{head}; {DTYPE}: {each.text}" for each in findings if each.topic == DTYPE and each.state == "note"][
            -1:
        ]
    if not found and base.first < GOOD and base.constant >= SAME:
        found.append(
            f"{head}, and {base.constant:.0%} of them are the id {base.favourite}: weights look as if they were not "
            "loaded, or are of another head"
        )
    if not found and base.first < BAD:
        found.append(
            f"{head}, and no shift accepts more: look for a draft of another target or another fine-tune of it, for "
            "another tokenizer, and for prompts without the chat template that it was trained with (--chat)"
        )
    yield from found


def _shifts(head: str, base: Tried, others: Sequence[Tried]) -> Iterator[str]:
    assert base.first is not None
    better = [
        each for each in others if each.first is not None and each.first >= max(base.first * BETTER, base.first + MORE)
    ]
    for each in sorted(better, key=lambda each: -(each.first or 0.0))[:1]:
        if each.name == EARLIER:
            yield (
                f"{head}, {each.first:.2f} with the states of the position before: the positions look shifted by one; "
                "the drafter pairs each id with a state that is one position too late for its weights"
            )
        else:
            yield (
                f"{head}, {each.first:.2f} with {each.name}: the aux layers look shifted by one; the checkpoint was "
                f"made for the residual stream after layers {list(each.layers or ())}"
            )


def _offsets(head: str, base: Tried) -> Iterator[str]:
    assert base.first is not None
    earlier, _, later = base.offsets
    for share, where in ((earlier, "before"), (later, "after")):
        if share >= max(base.first * BETTER, base.first + MORE) and share >= GOOD:
            yield (
                f"{head}, while {share:.2f} of them are the text's id one position {where}: the positions look shifted "
                "by one; the first draft has to be the id after the newest one"
            )


def _renamed(head: str, base: Tried) -> Iterator[str]:
    assert base.first is not None
    if base.first < GOOD and base.renamed is not None and base.renamed >= RENAMED and base.example is not None:
        drafted, meant = base.example
        yield (
            f"{head}, and {base.renamed:.2f} of those that came again would be if each id stood for another one, "
            f"{drafted} for {meant}: the vocabulary map (d2t) looks like that of another draft"
        )
