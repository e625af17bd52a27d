"""What every backend that prints the loop IR must do: a class of tests for its test file to inherit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1e-42, -1e-42, 88.8, -104.5, 1e38, -3.5]


class LoopBackendTests:
    """On inputs of `device`, which may be empty where the tests are skipped."""

    backend: ClassVar[str]
    device: ClassVar[str] = "cpu"
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = ((7, 5, 2), (3, 9, 8), (300, 200, 41))
    sums: ClassVar[dict[str, float]] = {}
    """The tolerance of long sums, where it is not torch's."""

    @pytest.fixture(autouse=True)
    def settings(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
        monkeypatch.setenv("DICP_FALLBACK", "never")
        torch._dynamo.reset()

    def compiled(self, function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend, fullgraph=True, **options)

    def check(self, function: Callable[..., Any], *arguments: Tensor, **tolerance: float) -> None:
        given = copy.deepcopy(arguments)
        with torch.no_grad():
            expected = function(*given)
            found = self.compiled(function)(*arguments)
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
        torch.testing.assert_close(arguments, given, equal_nan=True)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(self.device, dtype)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_formulas_norms_and_softmax_of_floats(self, dtype: torch.dtype) -> None:
        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            y = F.layer_norm(F.gelu(x) * x.sigmoid() + x.tanh(), (40,), w)
            return y, y.softmax(-1), y.logsumexp(0), y.var(0), y.argmax(1), y.cumsum(1), y.amin()

        tolerance = {} if dtype.itemsize > 2 else {"rtol": 0.02, "atol": 0.06}
        self.check(function, self.randn(37, 40, dtype=dtype), self.randn(40, dtype=dtype), **tolerance)

    @pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
    def test_integers_wrap_and_divide_as_torch_does(self, dtype: torch.dtype) -> None:
        def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            divided = [torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")]
            bits = (x << (y & 3), x >> (y & 3), (x ^ y) | ~x, torch.gcd(x, y))
            rest = (torch.remainder(x, y), torch.fmod(x, y), x.float() / 3, torch.where(x.ne(x), y, x))
            return (x * y + 100, *divided, *bits, *rest, x**3, x.sum(1), x.amax(0))

        low = 0 if dtype is torch.uint8 else -100
        x = torch.randint(low, 100, (9, 33), generator=torch.Generator().manual_seed(1)).to(dtype)
        y = torch.randint(1, 10, (9, 33), generator=torch.Generator().manual_seed(2)).to(dtype)
        y = y if low == 0 else torch.where(x % 2 == 0, -y, y)
        self.check(function, x.to(self.device), y.to(self.device))

    def test_values_that_are_not_finite(self) -> None:
        def function(x: Tensor) -> tuple[Tensor, ...]:
            functions = (torch.exp, torch.tanh, torch.erf, torch.sigmoid, torch.log, torch.sqrt, torch.sign)
            pairs = (torch.maximum(x, x.flip(0)), torch.fmin(x, x.flip(0)), torch.remainder(x, x.flip(0)))
            extremes = (x.amax(), x[:4].amax(), x.argmax(), x[5:].argmin(), -x, x.logsumexp(0))
            signs = (torch.tanh(x).signbit(), torch.erf(x).signbit(), x.signbit())
            return (*(f(x) for f in functions), *pairs, *extremes, *signs, x.isnan(), x.bfloat16(), x.half())

        self.check(function, torch.tensor(SPECIAL * 4, device=self.device))

    def test_indices_that_are_computed(self) -> None:
        def function(x: Tensor, table: Tensor) -> tuple[Tensor, ...]:
            places = ((x != 0).long(), (x > 0).long(), (x > 0).int().long() * 3 + 1, x.long().clamp(0, 4))
            return tuple(torch.gather(table, -1, p) for p in places)

        x = torch.arange(45).remainder(11).sub(5).view(5, 9).to(self.device, torch.int32)
        for dtype in (torch.int32, torch.float32, torch.int64):
            self.check(function, x, torch.arange(45).view(5, 9).to(self.device, dtype))

    def test_a_wrong_index_is_an_error(self) -> None:
        take = self.compiled(lambda table, i: F.embedding(i, table) * 2)
        table, places = self.randn(4, 6), torch.tensor([[1, 3]], device=self.device)
        assert torch.equal(take(table, places), F.embedding(places, table) * 2)
        with pytest.raises(IndexError, match="index 4 is out of bounds for a dimension with size 4"):
            take(table, places + 1)
            if self.device != "cpu":  # nothing waits for the device: a later call tells it
                torch.get_device_module(self.device).synchronize()
                take(table, places)
        assert torch.equal(take(table, places), F.embedding(places, table) * 2)

    def test_operators_that_are_called_between_kernels_and_views_that_are_returned(self) -> None:
        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            y = F.conv2d(x.relu(), w, padding=1) * 2
            z = F.max_pool2d(y, 2)
            return z, y.flatten(1)[:, 3:], (z.flatten(1) @ z.flatten(1).t()).sort(1).values + 1

        self.check(function, self.randn(2, 3, 8, 8), self.randn(4, 3, 3, 3), **self.sums)

    def test_inputs_are_changed_in_place(self) -> None:
        def step(weight: Tensor, moment: Tensor, gradient: Tensor) -> Tensor:
            moment.mul_(0.9).add_(gradient)
            weight.sub_(moment * 0.1)
            return weight.sum()

        self.check(step, self.randn(4, 6), self.randn(4, 6) + 1, self.randn(4, 6) * 2)

    def test_one_compilation_for_many_shapes(self) -> None:
        function = self.compiled(lambda x, y: torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2, dynamic=True)
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile", skip_guard_eval_unsafe=False):
            with torch.compiler.set_stance("default"):
                function(self.randn(4, 6), self.randn(4, 3))
            for rows, columns, more in self.shapes:
                x, y = self.randn(rows, columns), self.randn(rows, more)
                expected = torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2
                torch.testing.assert_close(function(x, y), expected)

    def test_training_follows_eager(self) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.0), nn.Linear(32, 3))
        model = nn.Sequential(*layers, nn.LogSoftmax(-1)).to(self.device)
        other = copy.deepcopy(model)
        x, target = self.randn(64, 6), torch.arange(64, device=self.device) % 3
        losses: list[list[float]] = []
        for module, function in ((model, model), (other, self.compiled(other))):
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

    def test_frozen_weights_are_constants(self) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval().to(self.device)
        function = self.compiled(model, options={"freezing": True})
        with torch.no_grad():
            x = self.randn(5, 6)
            torch.testing.assert_close(function(x), model(x))
