"""The tests that points of [0, 1] must pass if a right generator drew them: uniform, independent, whatever they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.verdict.distribution.draws import LANES, Points
from op_tools.verdict.distribution.evidence import (
    Statistic,
    bins_nats,
    normal_nats,
    rate_nats,
    shape_nats,
    squares_nats,
    terms_nats,
)

# A continuous value stands for more than this part of [0, 1] on average: halves, or numbers far from 0.
COARSE = 2**-16
# The distribution function is looked at on a grid; bins have so many expected draws at least.
GRID_BITS, BINS, LEAST_IN_BIN = 12, 256, 32
# Independence is looked at from so many draws on: its statistics are normal then, far into their tails.
LEAST_FOR_DEPENDENCE = 256
MOST_BITS = 18
GROUPS, MOST_RANKED = 16, 1024
TAILS = tuple(2.0**-power for power in (40, 28, 20, 16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3))
# Lanes are looked at from so many draws of each on.
LEAST_ROWS = 4
ROWS = (16, 64, 256, 1024)
# Scores are cut off here, and the mean of the polynomial of degree 4 is then this.
WIDEST_SCORE, CUT_PEAK = 4.0, -0.0035935186
_ROOT_12 = math.sqrt(12)


def evidence_of(points: Points) -> Iterator[Statistic]:
    """All tests, those that cost least first."""
    if not points.count:
        return
    scores = torch.special.ndtri(points.at)
    yield from _moments(points, scores)
    yield from _shape(points)
    yield from _tails(points)
    yield from _lanes(points, scores)
    yield from _rows(points, scores)
    yield from _trend(points.at)
    for values in points.parameters:
        yield from _parameter(points, scores, values)
    yield from _independence(points.at)


def _moments(points: Points, scores: Tensor) -> Iterator[Statistic]:
    """Mean and variance: of normal scores, which are exactly normal, or of the points where rounding is coarse."""
    count = points.count
    if points.granule > COARSE:
        # Rounding down moves all points by half a granule, and rounding towards 0 both tails.
        for test, values, allowed in (
            ("mean", points.at - 0.5, points.granule / 2), ("variance", (2 * points.at - 1).abs() - 0.5, points.granule),
        ):  # fmt: skip
            shift = max(0.0, abs(float(values.mean())) - allowed) * _ROOT_12
            yield Statistic(
                test, normal_nats(shift * math.sqrt(count)), f"the {test} of {count} values is off"
            )
        return
    slack = points.granule * math.sqrt(count) * 4
    shift = float(scores.sum()) / math.sqrt(count)
    text = f"the mean of {count} values is {shift / math.sqrt(count):.4g} deviations off"
    yield Statistic("mean", normal_nats(max(0.0, abs(shift) - slack)), text)
    squares = scores.square()
    square = float(squares.mean())
    text = f"the variance of {count} values is {square:.4g} of what is expected"
    yield Statistic("variance", squares_nats(square, count), text)
    # The Hermite polynomial of degree 4, cut off where few values lie: its variance stays below 24.
    within = squares.clamp(max=WIDEST_SCORE**2)
    peak = float((within.square() - 6 * within + 3).sum()) - CUT_PEAK * count
    text = f"{count} values are gathered in the middle or the tails"
    yield Statistic("peak", terms_nats(peak, 24.0 * count, WIDEST_SCORE**4 - 6 * WIDEST_SCORE**2 + 3), text)


def _shape(points: Points) -> Iterator[Statistic]:
    """The distribution function, on a grid; and every binary digit, which is 1 in half of the draws."""
    count = points.count
    whole = (points.at * (1 << MOST_BITS)).long()
    grid = torch.bincount(whole >> (MOST_BITS - GRID_BITS), minlength=1 << GRID_BITS).double()
    edges = torch.arange(1, len(grid) + 1, dtype=torch.float64, device=grid.device) / len(grid)
    distance = float((grid.cumsum(0) / count - edges).abs().max())
    coarse = points.granule > COARSE
    widest = 0.0 if points.discrete else float((points.high - points.low).max())
    text = f"the distribution function of {count} values is off by {distance:.4g}"
    yield Statistic("shape", shape_nats(max(0.0, distance - (widest if coarse else 0.0)), count), text)
    bins = min(BINS, 1 << max(0, (count // LEAST_IN_BIN).bit_length() - 1))
    if coarse or bins < 2:
        return
    expected = count / bins
    statistic = float((grid.view(bins, -1).sum(1) - expected).square().sum() / expected)
    text = f"{bins} equally likely ranges hold uneven numbers of {count} values"
    yield Statistic("bins", bins_nats(statistic, bins - 1), text)
    if points.discrete:
        return
    usable = min(MOST_BITS, int(-math.log2(widest)) - 6)
    low_bits = MOST_BITS - GRID_BITS
    rest = torch.bincount(whole & ((1 << low_bits) - 1), minlength=1 << low_bits).double()
    ones = [*_ones(grid, GRID_BITS), *_ones(rest, low_bits)][:usable]
    for bit, hits in enumerate(ones):
        text = f"binary digit {bit + 1} is 1 in {hits} of {count} values"
        yield Statistic("bits", rate_nats(hits, count, 0.5) - math.log(MOST_BITS), text)


def _ones(histogram: Tensor, bits: int) -> list[int]:
    """How often each binary digit is 1, the highest first."""
    return [round(float(histogram.view(1 << bit, 2, -1)[:, 1].sum())) for bit in range(bits)]


def _tails(points: Points) -> Iterator[Statistic]:
    """How many values lie in either tail, however it is rounded."""
    count, low, high = points.count, points.at, points.at
    if not points.discrete:
        spread = (points.high - points.low) / 2
        low, high = points.low - spread, points.high + spread
    rates = torch.tensor(TAILS, dtype=torch.float64, device=low.device)
    penalty = math.log(2 * len(TAILS))
    for side, inner, outer in (("lower", low, high), ("upper", 1 - high, 1 - low)):
        most = _below(inner, rates)
        least = most if points.discrete else _below(outer, rates)
        for rate, few, many in zip(TAILS, least, most):  # noqa: B905
            hits = few if few > rate * count else many
            if min(few, many) <= rate * count <= max(few, many):
                continue
            text = f"{hits} of {count} values in the {side} tail, expected {rate * count:.4g}"
            yield Statistic("tails", rate_nats(hits, count, rate) - penalty, text)


def _below(values: Tensor, rates: Tensor) -> list[int]:
    """How many values are below each of the sorted rates."""
    found = torch.bincount(torch.bucketize(values, rates, right=True), minlength=len(rates) + 1)
    return [int(number) for number in found.cumsum(0)[: len(rates)].tolist()]


def _lanes(points: Points, scores: Tensor) -> Iterator[Statistic]:
    """Mean and variance of every 64th draw: what a thread, a lane or a column of memory draws."""
    rows = points.count // LANES
    if rows < LEAST_ROWS:
        return
    lanes = scores[: rows * LANES].view(rows, LANES)
    sums, squares = lanes.sum(0) / math.sqrt(rows), lanes.square().mean(0)
    slack = 4 * points.granule * math.sqrt(rows)
    shift = max(0.0, float(sums.abs().max()) - slack)
    nats = normal_nats(shift)
    if points.granule <= COARSE:
        nats = max(nats, *(squares_nats(float(value), rows) for value in squares.aminmax()))
    text = f"every {LANES}th of the values has another mean or variance than the others"
    yield Statistic("lanes", nats - math.log(8 * LANES), text)
    if points.granule <= COARSE:
        text = f"the means of every {LANES}th value differ more or less than by chance"
        yield Statistic("lanes", squares_nats(float(sums.square().mean()), LANES) - math.log(4), text)


def _rows(points: Points, scores: Tensor) -> Iterator[Statistic]:
    """The means of stretches of neighbours, which differ as much as their number says: what a row or a thread block shares."""
    if points.granule > COARSE:
        return
    for width in ROWS:
        rows = points.count // width
        if rows >= LEAST_ROWS:
            sums = scores[: rows * width].view(rows, width).sum(1).square() / width
            text = f"the means of rows of {width} values differ more or less than by chance"
            yield Statistic("rows", squares_nats(float(sums.mean()), rows) - math.log(len(ROWS)), text)


def digits(values: Tensor, levels: int, offset: int) -> Iterator[Statistic]:
    """Every binary digit of equally likely integers is 1 at a rate that follows from their number."""
    if values.is_floating_point() and levels > 1 / torch.finfo(values.dtype).eps:
        return
    whole = values.long() - offset
    for bit in range((levels - 1).bit_length()):
        weight = 1 << bit
        ones = (levels >> (bit + 1)) * weight + max(0, levels % (2 * weight) - weight)
        hits = int(((whole >> bit) & 1).sum())
        text = f"binary digit {bit} is 1 in {hits} of {values.numel()} values"
        nats = rate_nats(hits, values.numel(), ones / levels) - math.log(levels.bit_length())
        yield Statistic("bits", nats, text)


def _parameter(points: Points, scores: Tensor, values: Tensor) -> Iterator[Statistic]:
    """Mean and variance in groups of draws with similar parameters: a parameter that is ignored, or another element's."""
    groups = min(GROUPS, points.count // LEAST_IN_BIN)
    if groups < 2:
        return
    penalty = math.log(2 * (GROUPS + 1) * len(points.parameters))
    # Few different parameters have a group each; many are cut at quantiles.
    some = values[:: -(-points.count // MOST_RANKED)].unique()
    edges = some if len(some) <= GROUPS else some[:: -(-len(some) // groups)].contiguous()
    keys = torch.bucketize(values, edges)
    total = len(edges) + 1
    empty = torch.zeros(total, dtype=torch.float64, device=values.device)
    sums, squares = (empty.index_add(0, keys, terms).tolist() for terms in (scores, scores.square()))
    slack = 4 * points.granule
    for count, own, square in zip(torch.bincount(keys, minlength=total).tolist(), sums, squares):  # noqa: B905
        if not count:
            continue
        shift = max(0.0, abs(own) / math.sqrt(count) - slack * math.sqrt(count))
        nats = normal_nats(shift)
        if points.granule <= COARSE:
            nats = max(nats, squares_nats(square / count, count))
        text = f"{count} values of similar parameters have another mean or variance than those say"
        yield Statistic("parameter", nats - penalty, text)


def _independence(at: Tensor) -> Iterator[Statistic]:
    """Spectra and correlations of the points and of their distances from the middle, at all lags at once."""
    count = at.numel() if at.numel() < 4096 else at.numel() // 256 * 256
    if count < LEAST_FOR_DEPENDENCE:
        return
    at = at[:count]
    spectra = []
    for what, values in (("", at), (" distances from the median", (at - 0.5).abs())):
        centred = values - values.mean()
        spread = float(centred.square().mean().sqrt())
        if not spread > 0:
            return
        spectrum = torch.fft.rfft((centred / spread).float())
        power = spectrum.abs().double().square() / count
        if count % 2 == 0:
            power[-1] /= 2  # the highest frequency is real
        best = int(power[1:].argmax()) + 1
        text = f"the values{what} have a period of {count / best:.5g} draws"
        yield Statistic("period", float(power[best]) - math.log(count), text)
        spectra.append((what, spectrum))
    (_, plain), (folded_text, folded) = spectra
    root = math.sqrt(count)
    for what, product, pairs in (
        ("", plain.abs().square(), 1), (folded_text, folded.abs().square(), 1), (" and their squares", plain * folded.conj(), 1),
        (" of one half and, reversed, of the other", plain * plain, 2),
    ):  # fmt: skip
        lags = torch.fft.irfft(product, count).double() / (root * math.sqrt(pairs))
        if pairs == 1:
            lags = lags[1:]
            if count % 2 == 0 and not product.is_complex():
                lags[count // 2 - 1] /= math.sqrt(2)  # half of the way round: every pair counts twice
        best = int(lags.abs().argmax())
        lag = f" {min(best + 1, count - best - 1)} draws apart" if pairs == 1 else ""
        text = f"values{what}{lag} are correlated by {float(lags[best]) / root:.3g}"
        yield Statistic("dependence", normal_nats(float(lags[best])) - math.log(4 * count), text)


def _trend(at: Tensor) -> Iterator[Statistic]:
    """Whether values become larger, or spread wider, from the first to the last."""
    count = at.numel()
    if count < LEAST_FOR_DEPENDENCE:
        return
    index = torch.linspace(-1, 1, count, dtype=torch.float64, device=at.device)
    index /= float(index.square().sum().sqrt())
    for what, values in (("become larger or smaller", at), ("spread more or less", (2 * at - 1).abs())):
        shift = float(((values - values.mean()) * index).sum()) * _ROOT_12
        text = f"the values {what} from the first to the last"
        yield Statistic("trend", normal_nats(shift) - math.log(2), text)
