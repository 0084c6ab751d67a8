"""The table target's distribution is the table, exactly, whatever stands before the newest id."""

import numpy as np
import pytest
import torch

from specdec_testing.goodness_of_fit import assert_follows, count
from specdec_testing.table import random_table, table_target


def distribution_of(model, ids):
    with torch.inference_mode():
        return model(torch.tensor(ids), use_cache=False).logits.double().softmax(-1).numpy()


@pytest.mark.parametrize("vocab_size", [2, 5, 16, 37, 128])
@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_distribution_is_the_row_of_the_newest_id(vocab_size, concentration):
    table = random_table(vocab_size, seed=3, concentration=concentration)
    ids = np.random.default_rng(0).integers(0, vocab_size, (2, 40))
    assert np.abs(distribution_of(table_target(table), ids) - table[ids]).max() < 1e-6


def test_impossible_ids_have_probability_zero():
    table = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
    assert np.abs(distribution_of(table_target(table), [[0, 1, 2]]) - table).max() < 1e-6
    assert distribution_of(table_target(table), [[1]])[0, 0, 1:].sum() == 0


def test_logits_do_not_depend_on_the_shape_of_the_batch():
    model = table_target(random_table(16, 1))
    ids = torch.randint(0, 16, (1, 24), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits[0]
        for i in range(24):
            assert torch.equal(model(ids[:, i : i + 1], use_cache=False).logits[0, 0], whole[i])


def test_it_is_a_real_model_with_its_own_cache():
    model = table_target(random_table(16, 1, 0.2))
    ids = torch.tensor([[3, 4, 5]])
    output = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    expected = [5]
    for _ in range(6):
        expected.append(int(random_table(16, 1, 0.2)[expected[-1]].argmax()))
    assert output[0, 2:].tolist() == expected


@pytest.mark.parametrize("table", [np.ones((2, 3)), np.full((2, 2), 0.6), [[1.5, -0.5], [0.5, 0.5]], [[1.0]]])
def test_what_is_no_table_of_distributions_is_refused(table):
    with pytest.raises(ValueError, match="table of distributions"):
        table_target(table)


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    table_target(random_table(5))
    assert torch.equal(torch.rand(2), expected)


def test_samples_follow_their_distribution_and_no_other():
    rng, distribution = np.random.default_rng(0), random_table(8, 5, 0.5)[0]
    draws = rng.choice(8, size=20_000, p=distribution)
    assert_follows(count(draws, 8), distribution)
    shifted = 0.97 * distribution + 0.03 / 8
    with pytest.raises(AssertionError, match="do not follow"):
        assert_follows(count(draws, 8), shifted)


def test_small_cells_are_pooled():
    distribution = np.array([0.5, 0.4999, 0.00005, 0.00005])
    assert_follows([500, 499, 1, 0], distribution)
    with pytest.raises(AssertionError, match="rare ids"):
        assert_follows([500, 400, 50, 50], distribution)


def test_each_row_is_held_to_its_own_distribution():
    table = random_table(6, 2)
    rng = np.random.default_rng(1)
    counts = np.stack([rng.multinomial(5000, row) for row in table])
    assert_follows(counts, table)
    with pytest.raises(AssertionError):
        assert_follows(counts[::-1], table)


def test_an_impossible_draw_is_named():
    with pytest.raises(AssertionError, match="id 2"):
        assert_follows([500, 499, 1], [0.5, 0.5, 0.0])


def test_too_few_counts_are_no_proof():
    with pytest.raises(AssertionError, match="too few"):
        assert_follows([1, 0], [0.5, 0.5])


def test_false_alarms_are_as_rare_as_the_significance_says():
    rng, distribution = np.random.default_rng(2), random_table(20, 1, 0.3)[0]
    rejected = 0
    for _ in range(400):
        try:
            assert_follows(rng.multinomial(2000, distribution), distribution, significance=0.05)
        except AssertionError:
            rejected += 1
    assert 5 <= rejected <= 40
