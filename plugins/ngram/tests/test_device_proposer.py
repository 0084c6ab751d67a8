"""The proposer `ngram_gpu`: the same drafts as `ngram`, in the device form, from a buffer of a fixed size."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from specdec_core.errors import SpecdecError
from specdec_plugin_ngram.device_proposer import NgramGpuProposer
from specdec_plugin_ngram.kernels import torch_ref
from specdec_plugin_ngram.proposer import NgramProposer

VOCAB = 1000
WIDTH = 5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def options_of(low=1, high=3, match="earliest"):
    return SimpleNamespace(prompt_lookup_min=low, prompt_lookup_max=high, match=match)


def device_proposer(options, *, max_num_seqs=8, match=torch_ref.ngram_match, max_model_len=4096):
    return NgramGpuProposer(
        options,
        match=match,
        width=WIDTH,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        device=DEVICE,
    )


@pytest.mark.parametrize("match", ["earliest", "latest"])
def test_drafts_equal_those_of_ngram(match, request_of, batch_of, rows_of, text_of):
    rng = random.Random(match)
    options = options_of(1, 6, match)
    host, device = NgramProposer(options, VOCAB), device_proposer(options)
    alive = []
    drafted = 0
    for step in range(300):
        if len(alive) < 8 and rng.random() < 0.4:
            alive.append(request_of(f"request {step}", text_of(rng)))
            host.start(alive[-1])
            device.start(alive[-1])
        for request in alive:
            ids = text_of(rng, 6)
            request.extend([rng.choice([10**6, -1]) if rng.random() < 0.03 else token for token in ids])
        rng.shuffle(alive)
        taking_part = [request for request in alive if rng.random() < 0.7]
        batch = batch_of(
            taking_part, [rng.randint(0, WIDTH) for _ in taking_part], [rng.random() < 0.9 for _ in taking_part]
        )
        draft = device.propose(batch)
        assert draft.lengths is None
        assert draft.tokens.shape == (len(taking_part), WIDTH)
        assert draft.tokens.dtype == torch.int32
        rows = rows_of(host.propose(batch))
        assert draft.tokens.tolist() == [row + [-1] * (WIDTH - len(row)) for row in rows]
        drafted += sum(map(len, rows))
        if alive and rng.random() < 0.3:
            reason = rng.choice(["done", "preempted", "failed"])
            gone = alive.pop()
            host.finish(gone, reason)
            device.finish(gone, reason)
    assert drafted > 500


def test_only_new_ids_are_copied_and_only_used_rows_are_searched(request_of, batch_of):
    searched = []

    def match(tokens, lengths, *rest):
        searched.append((tuple(tokens.shape), lengths.tolist(), tokens.data_ptr()))
        return torch_ref.ngram_match(tokens, lengths, *rest)

    proposer = device_proposer(options_of(), match=match)
    requests = [request_of("a", [1, 2, 3, 1, 2]), request_of("b", [4, 5, 4])]
    for request in requests:
        proposer.start(request)
    searched.clear()
    proposer.propose(batch_of(requests, [2, 2]))
    requests[1].extend([5, 4])
    requests[1]._buffer[0] = 9  # already copied, so the device must not see the change
    draft = proposer.propose(batch_of(requests[1:], [3]))
    assert draft.tokens.tolist() == [[5, 4, -1, -1, -1]] or draft.tokens.tolist() == [[5, 4, 5, -1, -1]]
    assert [shape for shape, _, _ in searched] == [(2, 5), (2, 5)]
    assert [lengths for _, lengths, _ in searched] == [[5, 3], [0, 5]]
    assert searched[0][2] == searched[1][2], "the buffer is searched in place"


def test_no_search_without_a_row_that_may_draft(request_of, batch_of):
    proposer = device_proposer(options_of())
    request = request_of("a", [1, 1, 1])
    proposer.start(request)
    proposer._match = None
    for limits, known in (([0], [True]), ([3], [False])):
        assert proposer.propose(batch_of([request], limits, known)).tokens.tolist() == [[-1] * WIDTH]


def test_slots_are_freed_and_used_again(request_of, batch_of, rows_of):
    proposer = device_proposer(options_of(), max_num_seqs=2)
    for i in range(20):
        pair = [request_of(f"{i} a", [i, 5, i]), request_of(f"{i} b", [i, 6, i])]
        for request in pair:
            proposer.start(request)
        assert rows_of(proposer.propose(batch_of(pair, [1, 1]))) == [[5], [6]]
        for request in pair:
            proposer.finish(request, "done")


def test_one_request_too_many_is_refused_by_name(request_of):
    proposer = device_proposer(options_of(), max_num_seqs=2)
    for name in ("a", "b", "b"):  # starting b twice takes one slot
        proposer.start(request_of(name, [1]))
    with pytest.raises(SpecdecError, match=r"'c'.*max_num_seqs"):
        proposer.start(request_of("c", [1]))


def test_memory_is_the_buffer_and_close_releases_it(request_of):
    proposer = device_proposer(options_of(), max_num_seqs=3, max_model_len=100)
    assert proposer.memory_bytes() == 3 * 100 * 4
    proposer.start(request_of("a", [1, 2, 3]))
    assert proposer.memory_bytes() == 3 * 100 * 4
    proposer.close()
    assert proposer.memory_bytes() == 0
