import pytest
import torch

from specdec_nn.ops.linear.reference import PackedLinear, linear_reference

linear_numba = pytest.importorskip("specdec_nn.ops.linear.numba")
team = pytest.importorskip("specdec_nn.ops.cpu.team")
linear, ROW_EXACT_MAX = linear_numba.linear, linear_numba.ROW_EXACT_MAX

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(7, 5), (1, 1), (48, 16), (49, 577), (192, 64), (131, 577)]
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def make(out_features, in_features, dtype, bias=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=g).to(dtype)
    return PackedLinear(weight, torch.randn(out_features, generator=g).to(dtype) * 10 if bias else None)


def rows(n, in_features, dtype, seed=1):
    return torch.randn(n, in_features, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("op", [linear_reference, linear])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_product_is_that_of_float64_within_rounding(op, dtype, shape, bias):
    packed, x = make(*shape, dtype, bias), rows(11, shape[1], dtype)
    exact = x.double() @ packed.weight.double().T + (packed.bias.double() if bias else 0.0)
    size = x.double().abs() @ packed.weight.double().abs().T + (packed.bias.double().abs() if bias else 0.0)
    # float32 sums, then half a unit of the result's dtype; the reference rounds once more, before the bias.
    bound = size * 2.0**-20 + exact.abs() * UNIT[dtype] + (size * UNIT[dtype] if op is linear_reference else 0.0)
    got = op(x, packed)
    assert got.dtype is dtype and got.shape == exact.shape
    assert ((got.double() - exact).abs() <= bound + 1e-7).all()


@pytest.mark.parametrize("shape", [(7, 5), (131, 577), (96, 64)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bit_identical_whatever_its_batch_place_and_neighbours(dtype, shape):
    packed, x = make(*shape, dtype), rows(1, shape[1], dtype, seed=5)
    alone = linear(x, packed)
    for n in range(1, ROW_EXACT_MAX + 1):
        batch = rows(n, shape[1], dtype, seed=100 + n) * 50
        for place in {0, n // 2, n - 1}:
            batch[place] = x[0]
            assert torch.equal(linear(batch, packed)[place], alone[0]), (n, place)
            batch[place] = rows(1, shape[1], dtype, seed=200 + n)[0]


def test_a_row_beside_nan_is_untouched():
    packed, x = make(50, 33, torch.bfloat16), rows(8, 33, torch.bfloat16)
    clean = linear(x, packed)
    x[3] = float("nan")
    dirty = linear(x, packed)
    assert dirty[3].isnan().all()
    keep = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(dirty[keep], clean[keep])


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_batches_are_right_too(dtype):
    packed, x = make(70, 40, dtype), rows(600, 40, dtype)
    exact = x.double() @ packed.weight.double().T + packed.bias.double()
    assert torch.allclose(
        linear(x, packed).double(), exact, rtol=2 * UNIT[dtype], atol=2e-5 if dtype is torch.float32 else 0.1
    )


def test_bfloat16_results_are_rounded_to_nearest_even():
    # 1 + 2^-8 lies half-way between two bfloat16 and goes to the even one, 1 + 3 * 2^-8 too; a bit more goes up.
    x = torch.tensor([[1.0, 2.0**-8, 0.0], [1.0, 3 * 2.0**-8, 0.0], [1.0, 2.0**-8, 2.0**-16]]).bfloat16()
    packed = PackedLinear(torch.ones(1, 3, dtype=torch.bfloat16))
    assert linear(x, packed)[:, 0].tolist() == [1.0, 1.015625, 1.0078125]


def test_of_the_two_bfloat16_of_a_lane_the_second_is_added_first_on_every_instruction_set():
    # From 2^24, one more rounds away; it stays where 2^24 has been taken off before it.
    x, weight = torch.zeros(1, 64).bfloat16(), torch.ones(1, 64).bfloat16()
    x[0, 1], x[0, 32], x[0, 33] = 2.0**24, 1.0, -(2.0**24)
    assert linear(x, PackedLinear(weight)).item() == 1.0
    x[0, 32], x[0, 33] = -(2.0**24), 1.0
    assert linear(x, PackedLinear(weight)).item() == 0.0


def test_strided_rows_and_columns_are_read_rightly():
    packed, wide = make(20, 12, torch.float32), rows(6, 24, torch.float32)
    for x in (wide[:, :12], wide[::2, 3:15], rows(12, 6, torch.float32).T):
        assert torch.equal(linear(x, packed), linear(x.contiguous(), packed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_read_where_it_lies_and_what_is_written_to_it_counts(dtype):
    packed, x = make(50, 96, dtype), rows(9, 96, dtype)
    form = linear_numba.pack(packed)
    assert form.weight_at == packed.weight.data_ptr() and form.bias_at == packed.bias.data_ptr()
    before = linear(x, packed)
    packed.weight.mul_(2)
    packed.bias.mul_(2)
    assert torch.equal(linear(x, packed), 2 * before)


@pytest.mark.parametrize("inputs", [1568, 5001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_too_long_for_the_nearest_cache_has_the_same_bits_in_company(dtype, inputs):
    packed, x = make(50, inputs, dtype), rows(9, inputs, dtype)
    size = linear_numba.spread_bytes(linear_numba._KINDS[dtype], inputs)
    assert linear_numba.STRETCH < 8 * size, "eight rows go through their inputs in stretches"
    alone = torch.cat([linear(x[r : r + 1], packed) for r in range(9)])
    for count in (2, 5, 8, 9):
        assert torch.equal(linear(x[:count], packed), alone[:count])
    exact = (x.double() @ packed.weight.double().T + packed.bias.double()).to(dtype)
    torch.testing.assert_close(alone, exact, rtol=2e-2 if dtype is not torch.float32 else 1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(50, 33), (49, 64), (7, 224)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_wider_weight_and_transposed_ones_give_the_same_bits(dtype, shape):
    wide, x = make(shape[0], shape[1] + 31, dtype, bias=False).weight, rows(9, shape[1], dtype)
    part = wide[:, : shape[1]]
    whole = linear(x, PackedLinear(part.clone()))
    wide[:, shape[1] :] = float("nan")
    assert torch.equal(linear(x, PackedLinear(part)), whole)
    assert torch.equal(linear(x, PackedLinear(part.T.contiguous().T)), whole)


def test_nothing_past_the_last_output_is_written():
    packed, x = make(50, 16, torch.bfloat16), rows(3, 16, torch.bfloat16)
    room = torch.full((5, 50), 7.0, dtype=torch.bfloat16)
    form = linear_numba.pack(packed)
    own = (
        form.panel,
        form.kind,
        2,
        x.data_ptr(),
        32,
        form.weight_at,
        form.row,
        form.bias_at,
        room[1].data_ptr(),
        3,
        16,
        50,
    )
    team.RUN(form.worker, *own)
    assert torch.equal(room[1:4], linear(x, packed))
    assert (room[0] == 7).all() and (room[4] == 7).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_of_any_kind_and_number_give_the_same_bits(monkeypatch, dtype, threads):
    packed, x = make(1000, 64, dtype), rows(13, 64, dtype)
    want = linear(x, packed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for run in (team.RUN, team.run_by_numba):
        monkeypatch.setattr(linear_numba, "RUN", run)
        assert torch.equal(linear(x, packed), want)
    assert team.by_openmp("libnothing.so") is None


def test_no_rows_and_foreign_dtypes_go_through():
    packed = make(9, 4, torch.float32)
    assert linear(rows(0, 4, torch.float32), packed).shape == (0, 9)
    double = PackedLinear(packed.weight.double(), packed.bias.double())
    x = rows(3, 4, torch.float64)
    assert torch.equal(linear(x, double), linear_reference(x, double))


def test_the_original_weight_is_kept_and_shapes_are_checked():
    packed = make(9, 4, torch.float32)
    weight = packed.weight
    linear(rows(1, 4, torch.float32), packed)
    assert packed.weight is weight and packed.form is not None
    assert (packed.out_features, packed.in_features) == (9, 4)
    with pytest.raises(ValueError, match=r"bias must be \[9\]"):
        PackedLinear(weight, torch.zeros(4))
    with pytest.raises(ValueError, match=r"must be \[out, in\]"):
        PackedLinear(torch.zeros(3))
