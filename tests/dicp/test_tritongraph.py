"""The backend `tritongraph`: its kernels, run by Triton's interpreter or on a GPU, give what eager gives."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from dicp_triton import triton_device
from torch import Tensor, nn
from torch.nn import functional as F

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.runner import RunOptions, run_suite
from dicp.conformance.suite import DicpSuite

DEVICE = triton_device()
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not DEVICE, reason="no triton, or neither a GPU nor TRITON_INTERPRET=1"),
]


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "never")


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="tritongraph", fullgraph=True, **options)


def check(function: Callable[..., Any], *arguments: Tensor, **tolerance: float) -> None:
    given = copy.deepcopy(arguments)
    with torch.no_grad():
        expected = function(*given)
        found = compiled(function)(*arguments)
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
    torch.testing.assert_close(arguments, given, equal_nan=True)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_formulas_norms_and_softmax_of_floats(dtype: torch.dtype) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.layer_norm(F.gelu(x) * x.sigmoid() + x.tanh(), (40,), w)
        return y, y.softmax(-1), y.logsumexp(0), y.var(0), y.argmax(1), y.cumsum(1), y.amin()

    tolerance = {} if dtype.itemsize > 2 else {"rtol": 0.02, "atol": 0.06}
    check(function, randn(37, 40, dtype=dtype), randn(40, dtype=dtype), **tolerance)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_wrap_and_divide_as_torch_does(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x * y + 100,
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, y, rounding_mode="trunc"),
            torch.remainder(x, y),
            torch.fmod(x, y),
            x << (y & 3),
            x >> (y & 3),
            (x ^ y) | ~x,
            torch.gcd(x, y),
            x**3,
            x.sum(1),
            x.amax(0),
            x.float() / 3,
        )

    low = 0 if dtype is torch.uint8 else -100
    x = torch.randint(low, 100, (9, 33), generator=torch.Generator().manual_seed(1)).to(dtype)
    y = torch.randint(1, 10, (9, 33), generator=torch.Generator().manual_seed(2)).to(dtype)
    check(function, x.to(DEVICE), (y if low == 0 else torch.where(x % 2 == 0, -y, y)).to(DEVICE))


def test_values_that_are_not_finite() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, 1e-42, -1e-42, 88.8, -104.5, 1e38, -3.5] * 4, device=DEVICE)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        functions = (torch.exp, torch.tanh, torch.erf, torch.sigmoid, torch.log, torch.sqrt, torch.sign)
        pairs = (torch.maximum(x, x.flip(0)), torch.fmin(x, x.flip(0)), torch.remainder(x, x.flip(0)))
        extremes = (x.amax(), x[:4].amax(), x.argmax(), x[5:].argmin(), -x, x.logsumexp(0))
        return (*(f(x) for f in functions), *pairs, *extremes, x.isnan(), x.bfloat16(), x.half(), x.signbit())

    check(function, x)


def test_a_wrong_index_is_an_error() -> None:
    take = compiled(lambda table, i: F.embedding(i, table) * 2)
    table, places = randn(4, 6), torch.tensor([[1, 3]], device=DEVICE)
    assert torch.equal(take(table, places), F.embedding(places, table) * 2)
    with pytest.raises(IndexError, match="index 4 is out of bounds for a dimension with size 4"):
        take(table, places + 1)
        if DEVICE != "cpu":  # nothing waits for the device: a later call tells it
            torch.get_device_module(DEVICE).synchronize()
            take(table, places)
    assert torch.equal(take(table, places), F.embedding(places, table) * 2)


# Sizes for each way to divide rows and columns: short rows, rows in blocks, shares of a row, columns of memory, one row.
@pytest.mark.parametrize("shape", [(5, 40), (3, 20000), (1, 70000), (3000, 3), (70, 130)])
def test_rows_and_columns_of_any_length(shape: tuple[int, int]) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        normed = F.layer_norm(x, x.shape[1:]) * w
        return normed, x.sum(0), (x * w).amax(), x.softmax(1), x.mean(1), x.argmin(0), (x > 2).any()

    check(function, randn(*shape), randn(shape[1]), rtol=1e-4, atol=1e-4)


def test_transposes_joins_and_places_of_rows() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        swapped = x.permute(2, 0, 1).contiguous() + 1
        turned = torch.cat([-x[..., 20:], x[..., :20]], -1) * x.softmax(-1)
        return (
            swapped,
            turned,
            torch.cat([x, y], 1),
            F.pad(x, (1, 2)),
            F.pad(x[0, 0], (1, 0)),
            x.softmax(-1).flip(-1),
            x.cumsum(0),
        )

    check(function, randn(3, 37, 40), randn(3, 5, 40))


def test_operators_that_are_called_between_kernels_and_views_that_are_returned() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x.relu(), w, padding=1) * 2
        z = F.max_pool2d(y, 2)
        return z, y.flatten(1)[:, 3:], (z.flatten(1) @ z.flatten(1).t()).sort(1).values + 1

    check(function, randn(2, 3, 8, 8), randn(4, 3, 3, 3), rtol=1e-4, atol=1e-4)


def test_inputs_are_changed_in_place() -> None:
    def step(weight: Tensor, moment: Tensor, gradient: Tensor) -> Tensor:
        moment.mul_(0.9).add_(gradient)
        weight.sub_(moment * 0.1)
        return weight.sum()

    check(step, randn(4, 6), randn(4, 6) + 1, randn(4, 6) * 2)


def test_pointers_that_are_not_aligned() -> None:
    check(lambda x: F.softmax(x * 2, -1), randn(401)[1:].view(4, 100))


def test_one_module_for_many_shapes() -> None:
    function = compiled(lambda x, y: torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2, dynamic=True)
    with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile", skip_guard_eval_unsafe=False):
        with torch.compiler.set_stance("default"):
            function(randn(4, 6), randn(4, 3))
        for rows, columns, more in ((7, 5, 2), (3, 9, 8), (30, 20, 41)):
            x, y = randn(rows, columns), randn(rows, more)
            expected = torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2
            torch.testing.assert_close(function(x, y), expected)


def test_training_follows_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.0), nn.Linear(32, 3), nn.LogSoftmax(-1)
    ).to(DEVICE)
    other = copy.deepcopy(model)
    x, target = randn(64, 6), torch.arange(64, device=DEVICE) % 3
    losses: list[list[float]] = []
    for module, function in ((model, model), (other, compiled(other))):
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.nll_loss(function(x), target)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < losses[0][0] - 0.05
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


def test_frozen_weights_are_constants() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval().to(DEVICE)
    function = compiled(model, options={"freezing": True})
    with torch.no_grad():
        x = randn(5, 6)
        torch.testing.assert_close(function(x), model(x))


# One operator of each kind, and dtypes that differ in how they are held; `dicp conformance` has all.
SAMPLED = ("add", "_softmax", "cat", "cumsum", "embedding", "native_layer_norm", "where", "mm", "var_mean")


def test_operators_give_what_eager_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEVICE is not None
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")
    suite = DicpSuite("tritongraph", DEVICE)
    wanted = frozenset(SAMPLED) & suite.functions()
    chosen = CaseFilter(functions=wanted, dtypes=frozenset({"float32", "bfloat16", "int64"}))
    report = run_suite(suite, RunOptions(chosen, in_process=True))
    assert report.functions() == wanted and len(wanted) >= 7
    assert report.counts().get("pass", 0) > 20 and report.failures() == []


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above rest on: a mistake in what is printed shows."""
    from dicp.vendor.TritonGraph import primitives

    assert find_spec("triton") is not None and (os.environ.get("TRITON_INTERPRET") == "1") == (
        DEVICE == "cpu"
    )
    monkeypatch.setitem(primitives._INFIX, "mul", "+")
    with pytest.raises(AssertionError, match="not close"):
        check(lambda x, y: x * y, randn(3, 5), randn(5))
