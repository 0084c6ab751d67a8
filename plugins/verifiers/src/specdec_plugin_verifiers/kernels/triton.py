"""The verifiers' ops in Triton: no wait for the device, and no row of weights written; torch_ref defines them."""

# Triton reads annotations as code of the kernel, so kernels carry none but constexpr.
# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False
# ruff: noqa: ANN001, ANN202
from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec_core.noise import Noise
from specdec_nn.ops.noise import triton as noise_triton
from specdec_nn.ops.noise.triton import OPTIONS, on_device
from specdec_nn.ops.ptx import PtxCase
from specdec_nn.ops.triton_cache import check_cache
from specdec_plugin_verifiers.distributions import Distributions, Remainder

check_cache()

STRETCH: Final = 1024  # ids looked at together


@triton.jit
def _distribution(distribution, column, ids, mask, MAPPED: tl.constexpr):
    """Return q in float64 of target ids, a block; `distribution` points to the distribution's row."""
    if MAPPED:
        columns = tl.load(column + ids, mask=mask, other=-1)
        known = mask & (columns >= 0)
        return tl.load(distribution + tl.where(known, columns, 0), mask=known, other=0.0).to(tl.float64)
    return tl.load(distribution + ids, mask=mask, other=0.0).to(tl.float64)


@triton.jit
def _weights(p, distribution, column, vocabulary, ids, mask, alpha, beta, MAPPED: tl.constexpr):
    """Return max(alpha p - beta q, 0) of target ids, a block; beta 0 means that there is no distribution."""
    weight = alpha * tl.load(p + ids, mask=mask, other=0.0).to(tl.float64)
    soft = mask & (ids < tl.where(beta > 0, vocabulary, 0))
    weight = weight - beta * _distribution(distribution, column, ids, soft, MAPPED)
    return tl.where(mask, tl.maximum(weight, 0.0), 0.0)


@triton.jit
def _excess_row(
    p, distribution, column, vocabulary, alpha, beta, removed, count, MAPPED: tl.constexpr, SIZE: tl.constexpr
):
    """Return the sum of the weights of one row, those of the first `count` removed ids left out."""
    sums = tl.zeros([SIZE], tl.float64)
    for first in range(0, vocabulary, SIZE):
        ids = first + tl.arange(0, SIZE)
        weight = _weights(p, distribution, column, vocabulary, ids, ids < vocabulary, alpha, beta, MAPPED)
        for j in range(0, count):
            weight = tl.where(ids == tl.load(removed + j), 0.0, weight)
        sums += weight
    return tl.sum(sums, 0)


@triton.jit
def _rest_of_distribution(distribution, column, vocabulary, removed, count, MAPPED: tl.constexpr, SIZE: tl.constexpr):
    """Return the sum of q over target ids, the first `count` removed ids left out."""
    sums = tl.zeros([SIZE], tl.float64)
    for first in range(0, vocabulary, SIZE):
        ids = first + tl.arange(0, SIZE)
        rest = _distribution(distribution, column, ids, ids < vocabulary, MAPPED)
        for j in range(0, count):
            rest = tl.where(ids == tl.load(removed + j), 0.0, rest)
        sums += rest
    return tl.sum(sums, 0)


@triton.jit
def _left_at(
    p, stride, vocabulary, q, q_stride, column, rows, alphas, betas, q_rows, removed, width, ids, MAPPED: tl.constexpr
):
    """Return the weights of the program's remainder at a block of ids."""
    r = tl.program_id(0)
    distribution = q + tl.maximum(tl.load(q_rows + r), 0) * q_stride
    row = p + tl.load(rows + r) * stride
    alpha, beta = tl.load(alphas + r), tl.load(betas + r)
    weight = _weights(row, distribution, column, vocabulary, ids, ids < vocabulary, alpha, beta, MAPPED)
    for j in range(0, width):
        weight = tl.where(ids == tl.load(removed + r * width + j), 0.0, weight)
    return weight


@triton.jit
def _excess(
    p, stride, vocabulary, q, q_stride, column, rows, alphas, betas, q_rows, removed, width, out,
    MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    r, part = tl.program_id(0), tl.program_id(1)
    ids = part * SIZE + tl.arange(0, SIZE)
    weight = _left_at(
        p, stride, vocabulary, q, q_stride, column, rows, alphas, betas, q_rows, removed, width, ids, MAPPED
    )
    tl.store(out + r * tl.num_programs(1) + part, tl.sum(weight, 0))


@triton.jit(do_not_specialize=["purpose"])
def _residual(
    p, stride, vocabulary, q, q_stride, column, rows, alphas, betas, q_rows, removed, width,
    keys, positions, seq_index, purpose, scores, winners, MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    r, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + r)
    ids = part * SIZE + tl.arange(0, SIZE)
    weight = _left_at(
        p, stride, vocabulary, q, q_stride, column, rows, alphas, betas, q_rows, removed, width, ids, MAPPED
    )
    key, position, seq = tl.load(keys + row), tl.load(positions + row), tl.load(seq_index + row)
    e = noise_triton.exponential(key, ids, position, seq, purpose)
    score = tl.where(weight > 0, weight / e, -1.0)
    best = tl.max(score, 0)
    place = r * tl.num_programs(1) + part
    tl.store(scores + place, best)
    tl.store(winners + place, tl.min(tl.where(score == best, ids, vocabulary), 0))


@triton.jit
def _accept(
    p, stride, vocabulary, q, q_stride, totals, column, tokens, soft, q_rows, most, ratio, alphas, betas,
    MAPPED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    a = tl.program_id(0)
    row, own, kinds = p + a.to(tl.int64) * stride, tokens + a * most, soft + a * most
    q_row = tl.load(q_rows + a)
    has_distribution = q_row >= 0
    distribution = q + tl.maximum(q_row, 0) * q_stride
    total = tl.load(totals + tl.maximum(q_row, 0), mask=has_distribution, other=1.0)
    mass = total * 0.0 + 1.0
    alpha, beta = mass, total * 0.0
    for j in range(0, most):
        token = tl.load(own + j)
        new = token >= 0
        more = token < 0
        for i in range(0, most):
            other = tl.load(own + i)
            new = new & ((i >= j) | (other != token))
            more = more | ((i > j) & (other >= 0))
        place = tl.where(new, token, 0)
        weight = _weights(row, distribution, column, vocabulary, place, new, alpha, beta, MAPPED)
        drafted = _distribution(distribution, column, place, new & has_distribution, MAPPED)
        drawn = new & (tl.load(kinds + j) != 0)
        point = tl.where(mass > 0, weight / tl.where(mass > 0, mass, 1.0), 0.0)
        possible = (drafted > 0) & (total > 0)
        divided = tl.where(possible, point * total / tl.where(possible, drafted, 1.0), 0.0)
        tl.store(ratio + a * most + j, tl.where(new, tl.where(drawn, divided, point), 0.0))
        if drawn & (mass > 0) & (total > 0):
            alpha, beta = alpha / mass, beta / mass + 1.0 / total
        # Summed over what remains: a difference would be rounding where the children have nearly all of it.
        if new & more:
            mass = _excess_row(row, distribution, column, vocabulary, alpha, beta, own, j + 1, MAPPED, SIZE)
            if has_distribution:
                total = _rest_of_distribution(distribution, column, vocabulary, own, j + 1, MAPPED, SIZE)
    tl.store(alphas + a, alpha)
    tl.store(betas + a, beta)


@triton.jit(do_not_specialize=["purpose"])
def _uniform(keys, positions, seq_index, purpose, words, width, out, SIZE: tl.constexpr):
    r, first = tl.program_id(0), tl.program_id(1) * SIZE
    at = first + tl.arange(0, SIZE)
    word = tl.load(words + r * width + at, mask=at < width, other=0)
    key, position, seq = tl.load(keys + r), tl.load(positions + r), tl.load(seq_index + r)
    u = noise_triton.uniform(key, word, position, seq, purpose)
    tl.store(out + r * width + at, u, mask=at < width)


@triton.jit
def _walk(children, own_row, ratio, uniforms, starts, most, depth, stops, path, SIZE: tl.constexpr):
    tree = tl.program_id(0)
    row = tl.load(starts + tree)
    order = tl.arange(0, SIZE)
    for level in range(0, depth):
        place = row * most + order
        below = tl.load(children + place, mask=order < most, other=-1)
        u = tl.load(uniforms + place, mask=order < most, other=1.0)
        chance = tl.load(ratio + place, mask=order < most, other=0.0)
        first = tl.min(tl.where((below >= 0) & (u < chance), order, SIZE), 0)
        node = tl.sum(tl.where(order == first, below, 0), 0) - tl.where(first == SIZE, 1, 0)
        tl.store(path + tree * depth + level, node)
        row = tl.load(own_row + tl.maximum(node, 0), mask=node >= 0, other=row)
    tl.store(stops + tree, row)


def _distributions(distributions: Distributions) -> tuple[Tensor, int, Tensor, bool]:
    """Return q, its stride, the column of each id, and whether there is such a map."""
    q = distributions.q if len(distributions.q) else distributions.q.new_zeros(1, 1)
    q = q.contiguous()
    return q, q.stride(0), q if distributions.column is None else distributions.column, distributions.column is not None


def _left(left: Remainder) -> tuple[Any, ...]:
    columns = (left.rows, left.alpha, left.beta, left.q_row, left.removed)
    return *(column.contiguous() for column in columns), left.removed.shape[1]


def _noise(noise: Noise, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(on_device(values, device) for values in (noise.keys, noise.positions, noise.seq_index))


def uniform(noise: Noise, purpose: int, words: Tensor) -> Tensor:
    """Return u [R, c] float64; see torch_ref."""
    out = torch.empty(words.shape, dtype=torch.float64, device=words.device)
    rows, width = words.shape
    size = min(triton.next_power_of_2(max(width, 1)), STRETCH)
    if out.numel():
        places = _noise(noise, words.device)
        grid = rows, triton.cdiv(width, size)
        _uniform[grid](*places, int(purpose), words.contiguous(), width, out, SIZE=size, **OPTIONS)
    return out


def excess(p: Tensor, left: Remainder, distributions: Distributions) -> Tensor:
    """Return what the weights of each remainder add up to, [n] float64; see torch_ref."""
    p, (q, q_stride, column, mapped) = p.contiguous(), _distributions(distributions)
    parts = triton.cdiv(p.shape[1], STRETCH)
    out = torch.empty(len(left.rows), parts, dtype=torch.float64, device=p.device)
    if len(out):
        given = (p, p.stride(0), p.shape[1], q, q_stride, column, *_left(left), out)
        _excess[(len(out), parts)](*given, MAPPED=mapped, SIZE=STRETCH, **OPTIONS)
    return out.sum(1)


def residual(p: Tensor, left: Remainder, distributions: Distributions, noise: Noise, purpose: int) -> Tensor:
    """Return one id a remainder, [n] int64; see torch_ref."""
    p, (q, q_stride, column, mapped) = p.contiguous(), _distributions(distributions)
    rows, vocabulary = len(left.rows), p.shape[1]
    parts = triton.cdiv(vocabulary, STRETCH)
    scores = torch.empty(rows, parts, dtype=torch.float64, device=p.device)
    winners = torch.empty(rows, parts, dtype=torch.int32, device=p.device)
    if rows:
        given = (p, p.stride(0), vocabulary, q, q_stride, column, *_left(left))
        drawn = (*_noise(noise, p.device), int(purpose), scores, winners)
        _residual[(rows, parts)](*given, *drawn, MAPPED=mapped, SIZE=STRETCH, **OPTIONS)
    best, _ = scores.max(1, keepdim=True)
    winner = torch.where(scores == best, winners, vocabulary).amin(1).long()
    return torch.where(best[:, 0] < 0, -1, winner)


def accept(
    p: Tensor, tokens: Tensor, soft: Tensor, q_row: Tensor, distributions: Distributions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ratios [A, C], alpha [A] and beta [A]; see torch_ref."""
    p, (q, q_stride, column, mapped) = p.contiguous(), _distributions(distributions)
    nodes, most = tokens.shape
    ratio = torch.empty(tokens.shape, dtype=torch.float64, device=p.device)
    alpha, beta = (torch.empty(nodes, dtype=torch.float64, device=p.device) for _ in range(2))
    if nodes:
        totals = distributions.total if len(distributions.total) else alpha
        given = (p, p.stride(0), p.shape[1], q, q_stride, totals, column)
        family = (tokens.contiguous(), soft.to(torch.int8).contiguous(), q_row.contiguous(), most)
        _accept[(nodes,)](*given, *family, ratio, alpha, beta, MAPPED=mapped, SIZE=STRETCH, **OPTIONS)
    return ratio, alpha, beta


def tree_walk(
    children: Tensor, own_row: Tensor, ratio: Tensor, uniforms: Tensor, starts: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Return the rows [n] of the last nodes, and the nodes on the way, [n, depth]; see torch_ref."""
    stops = torch.empty(len(starts), dtype=torch.int64, device=starts.device)
    path = torch.empty(len(starts), depth, dtype=torch.int64, device=starts.device)
    if len(starts):
        most = children.shape[1]
        given = (t.contiguous() for t in (children, own_row, ratio, uniforms, starts))
        size = triton.next_power_of_2(max(most, 1))
        _walk[(len(starts),)](*given, most, depth, stops, path, SIZE=size)
    return stops, path


def ptx_cases() -> list[PtxCase]:
    """Return what the kernels are compiled for without a GPU, see `specdec_nn.ops.ptx`."""
    places = "column rows q_rows removed keys positions seq_index tokens words children own_row starts stops path"
    kinds = {"*fp32": "p q", "*i8": "soft", "*i32": "winners", "*i64": places}
    kinds["*fp64"] = "alphas betas scores out totals ratio uniforms"

    def case(kernel: Any, **constants: Any) -> PtxCase:
        own = set(kernel.arg_names)
        types = {kind: " ".join(name for name in names.split() if name in own) for kind, names in kinds.items()}
        return PtxCase(kernel, types, constants, OPTIONS)

    mapped = [case(kernel, MAPPED=True, SIZE=STRETCH) for kernel in (_excess, _residual, _accept)]
    return [*mapped, case(_uniform, SIZE=4), case(_walk, SIZE=4)]
