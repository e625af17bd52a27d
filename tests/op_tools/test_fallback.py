"""OpFallback: on the CPU, forward and backward, and to the program as if it were on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import op_tools
from op_tools.engine import ENGINE

D = "dipu"


@pytest.fixture
def wrong_kernels() -> Iterator[Any]:
    """The device computes some operators wrongly: what is right was not computed there."""
    library = torch.library.Library("aten", "IMPL")

    def add(name: str, kernel: Any) -> None:
        library.impl(name, kernel, "PrivateUse1")

    yield add
    library._destroy()


def wrong_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.full((a.shape[0], b.shape[1]), 77.0, device=a.device, dtype=a.dtype)


def wrong_tanh_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.full_like(grad, 77.0)


def test_all_forward_and_backward_run_on_the_cpu(wrong_kernels: Any) -> None:
    wrong_kernels("mm", wrong_mm)
    wrong_kernels("tanh_backward", wrong_tanh_backward)
    a = torch.randn(3, 3)
    x = a.to(D).requires_grad_()
    expected = a.clone().requires_grad_()
    torch.tanh(expected @ expected).sum().backward()
    with op_tools.OpFallback() as tool:
        y = torch.tanh(x @ x)
        y.sum().backward()
    assert y.device.type == D and x.grad.device.type == D
    torch.testing.assert_close(x.grad.cpu(), expected.grad)
    assert tool.ran["aten.mm.default"] == 3 and tool.ran["aten.tanh_backward.default"] == 1
    assert (x.detach() @ x.detach()).flatten()[0].item() == 77  # the device is still wrong


def test_the_list_names_api_calls_and_covers_their_backward(wrong_kernels: Any) -> None:
    wrong_kernels("mm", wrong_mm)
    wrong_kernels("tanh_backward", wrong_tanh_backward)
    x = torch.zeros(2, 2, device=D, requires_grad=True)
    with op_tools.OpFallback(list="torch.tanh") as tool:
        y = torch.tanh(x @ x)
        y.sum().backward()
    # The product is wrong in both directions; the gradient of tanh(77) is 0 where it would be 77.
    assert set(tool.ran) == {"aten.tanh.default", "aten.tanh_backward.default"}
    assert y.flatten()[0].item() == 1 and x.grad.flatten()[0].item() == 154


def test_all_but_the_listed(wrong_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_kernels("mm", wrong_mm)
    monkeypatch.setenv("OP_FALLBACK_DISABLE_LIST", "torch.Tensor.matmul")
    x = torch.ones(2, 2, device=D, requires_grad=True)
    torch.dipu.reset_op_counts()
    with op_tools.OpFallback() as tool:
        y = x @ x
        z = torch.mm(x, x)
        (y.tanh().sum() + z.sum()).backward()
    assert y.flatten()[0].item() == 77 and z.flatten()[0].item() == 2
    assert tool.ran["aten.mm.default"] == 3  # torch.mm and its backward, not those of matmul
    assert tool.ran["aten.tanh_backward.default"] == 1
    assert "tanh" not in str(torch.dipu.op_counts())


def test_an_operator_may_be_listed_by_its_aten_name(wrong_kernels: Any) -> None:
    wrong_kernels("mm", wrong_mm)
    x = torch.ones(2, 2, device=D)
    with op_tools.OpFallback(list="aten.mm.default") as tool:
        assert torch.nn.functional.linear(x, x).flatten()[0].item() == 2
        x + 1
    assert set(tool.ran) == {"aten.mm.default"}


CASES = {
    "in place": lambda x, y: x.add_(y, alpha=2),
    "in place on a view": lambda x, y: x[1:, ::2].mul_(3),
    "augmented": lambda x, y: x.__iadd__(1),
    "out": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "out resized": lambda x, y: torch.mul(x, y, out=torch.empty(0, device=x.device)),
    "out of another stride": lambda x, y: torch.add(x, y, out=torch.empty(4, 3, device=x.device).t()),
    "several out": lambda x, y: torch.max(x, 1, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int64))),
    "setitem": lambda x, y: x.__setitem__((slice(1, 3), 2), 7.0),
    "setitem mask": lambda x, y: x.__setitem__(x > 0, y[x > 0]),
    "setitem index": lambda x, y: x.__setitem__(torch.tensor([0, 2], device=x.device), 5.0),
    "overlapping arguments": lambda x, y: x.add_(x.t()[:3, :3].sum()),
    "argument twice": lambda x, y: x.mul_(x),
    "view": lambda x, y: x.t().reshape(-1)[2:5],
    "sort": lambda x, y: x.sort(dim=1),
    "max": lambda x, y: torch.max(x, dim=0),
    "topk": lambda x, y: x.topk(2),
    "var_mean": lambda x, y: torch.var_mean(x, dim=0),
    "split": lambda x, y: torch.split(x, 2, dim=1),
    "chunk": lambda x, y: x.chunk(2),
    "unbind": lambda x, y: x.unbind(),
    "comparison": lambda x, y: x > y,
    "to half": lambda x, y: x.half() * 2,
    "to cpu": lambda x, y: x.cpu() + 1,
    "like on the cpu": lambda x, y: torch.zeros_like(x, device="cpu"),
    "mixed dtypes": lambda x, y: x.bfloat16() * y,
    "integer division": lambda x, y: x.int() // 2,
    "item": lambda x, y: x.sum().item(),
    "list": lambda x, y: x.tolist(),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "nonzero": lambda x, y: x.nonzero(),
    "cat": lambda x, y: torch.cat([x, y, x[:1]]),
    "foreach": lambda x, y: torch._foreach_add_([x, y], 1.0),
    "expanded": lambda x, y: x[0].expand(3, 4) + y,
    "empty": lambda x, y: x[:0].sum() + x[:0].mean(dim=0).nan_to_num(),
    "scalar tensor": lambda x, y: torch.tensor(2.0) * x,
    "complex": lambda x, y: torch.complex(x, y).abs(),
    "batch norm": lambda x, y: torch.nn.functional.batch_norm(x, y[0].clone(), y[1].abs().clone(), training=True),
    "conv": lambda x, y: torch.nn.functional.conv1d(x[None], y[None, :, :3]),
    "attention": lambda x, y: torch.nn.functional.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None]),
    "embedding": lambda x, y: torch.nn.functional.embedding(torch.tensor([0, 2], device=x.device), x),
    "cross entropy": lambda x, y: torch.nn.functional.cross_entropy(x, torch.tensor([0, 1, 3], device=x.device)),
}  # fmt: skip


def _state(value: Any) -> Any:
    """What the program can tell of a result."""
    if isinstance(value, torch.Tensor):
        return (
            value.device.type,
            value.dtype,
            value.shape,
            value.stride(),
            value.requires_grad,
            value.cpu().tolist(),
            value._is_view(),
        )
    if isinstance(value, tuple | list):
        return (type(value), [_state(item) for item in value], getattr(value, "indices", None) is not None)
    return value


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("case", CASES)
def test_the_program_cannot_tell(case: str, inference: bool) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(3, 4), torch.randn(3, 4)

    def run() -> tuple[Any, ...]:
        with torch.inference_mode(inference):
            x, y = a.to(D), b.to(D)
            result = CASES[case](x, y)
            return _state(result), _state(x), _state(y)

    bare = run()
    with op_tools.OpFallback():
        watched = run()
    assert _rounded(watched) == _rounded(bare)
    assert ENGINE.failures.seen == {}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, tuple | list):
        return [_rounded(item) for item in value]
    return value


def test_views_share_memory_with_the_programs_tensor() -> None:
    x = torch.arange(6.0, device=D)
    with op_tools.OpFallback():
        view = x.reshape(2, 3).t()[1]
        view.add_(100)
        x[0] = -1
        part, _ = x.split(3)
        part.mul_(2)
    assert x.tolist() == [-2, 202, 4, 3, 104, 5] and view.tolist() == [202, 104]


def _train(
    steps: int, tool: Any, model: torch.nn.Module, optimizer: type[torch.optim.Optimizer]
) -> list[float]:
    model = copy.deepcopy(model)
    stepper = optimizer(model.parameters(), lr=0.05)
    losses = []
    generator = torch.Generator().manual_seed(3)
    if tool is not None:
        tool.start()
    for _ in range(steps):
        x = torch.randn(6, 5, generator=generator).to(D)
        loss = model(x).square().mean()
        loss.backward()
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    if tool is not None:
        tool.stop()
    return losses + [value.sum().item() for value in model.state_dict().values()]


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_training_goes_the_same_way(optimizer: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 2)
    ).to(D)  # fmt: skip
    bare = _train(8, None, model, optimizer)
    tool = op_tools.OpFallback()
    watched = _train(8, tool, model, optimizer)
    assert watched == pytest.approx(bare, rel=1e-5)
    assert watched[0] != pytest.approx(watched[7], rel=1e-3)
    assert sum(tool.ran.values()) > 100 and ENGINE.failures.seen == {}


def test_random_operators_stay_on_the_device_unless_listed_by_name() -> None:
    x = torch.ones(64, device=D)

    def draw() -> tuple[Any, ...]:
        torch.manual_seed(5)
        return (
            torch.nn.functional.dropout(x, 0.5).tolist(),
            torch.rand_like(x).tolist(),
            x.clone().uniform_().tolist(),
        )

    bare = draw()
    torch.manual_seed(5)
    cpu = torch.get_rng_state()
    with op_tools.OpFallback():
        assert draw() == bare
        assert torch.equal(torch.get_rng_state(), cpu)
    with op_tools.OpFallback(list="torch.rand_like,torch.Tensor.clone") as tool:
        dropped, listed, drawn = draw()
    torch.manual_seed(5)
    assert listed == torch.rand(64).tolist() and dropped == bare[0] and drawn == bare[1]
    assert tool.ran == {"aten.uniform_.default": 1}  # rand_like is an empty tensor, filled


def test_an_operator_the_cpu_cannot_run_stays_with_a_notice(capfd: Any) -> None:
    library = torch.library.Library("opt_test_fallback", "DEF")
    library.define("only_here(Tensor x) -> Tensor")
    library.impl("only_here", lambda x: x + 41, "PrivateUse1")
    x = torch.ones(2, device=D)
    with op_tools.OpFallback() as tool:
        assert torch.ops.opt_test_fallback.only_here(x).tolist() == [42, 42]
        torch.ops.opt_test_fallback.only_here(x)
    assert set(tool.stayed) == {"opt_test_fallback.only_here.default"}
    assert capfd.readouterr().out.count("stays on the device, the CPU cannot run it") == 1
    library._destroy()


def test_errors_of_the_program_are_the_devices_own() -> None:
    x = torch.ones(3, device=D)
    cases: list[Any] = [
        lambda: x.reshape(2, 2), lambda: x + torch.ones(2, device=D), lambda: x.add_(torch.ones(3)), lambda: x[5],
        lambda: torch.nn.functional.cross_entropy(x, x.long()),
    ]  # fmt: skip
    for case in cases:
        try:
            case()
        except Exception as error:
            bare: Any = (type(error), str(error))
        else:
            bare = None
        with op_tools.OpFallback():
            try:
                case()
            except Exception as error:
                assert (type(error), str(error)) == bare
            else:
                assert bare is None


def test_half_kernels_the_cpu_lacks_run_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1.5, 2.5], device=D, dtype=torch.float16)
    original = torch.ops.aten.neg.default

    class Picky:
        """The CPU's neg without half."""

        def __init__(self) -> None:
            self._schema = original._schema

        def __call__(self, value: torch.Tensor) -> torch.Tensor:
            if value.device.type == "cpu" and value.dtype == torch.float16:
                raise RuntimeError("\"neg\" not implemented for 'Half'")
            return original(value)

    tool = op_tools.OpFallback()
    tool.opened()
    from op_tools.engine.call import Call
    from op_tools.engine.subscriptions import Subscription

    call = Call(Subscription("aten.neg.default", ()), Picky(), (x,), {}, "aten", 1, 0)
    result = tool._on_cpu(call)
    assert result.dtype == torch.float16 and result.device.type == D and result.tolist() == [-1.5, -2.5]


def test_the_table_shows_both_sides(capfd: Any) -> None:
    x = torch.ones(2, 3, device=D)
    with op_tools.OpFallback(verbose=True, list="torch.add"):
        torch.add(x, x)
        x - 1
    out = capfd.readouterr().out
    assert "apply OpFallbackHook on torch.add\n" in out and "skip OpFallbackHook on torch.Tensor.sub" in out
    for name in (
        "torch.add input(device)[0]",
        "torch.add input(cpu)[1]",
        "torch.add output(device)",
        "torch.add output(cpu)",
    ):
        assert name in out


def test_a_kernel_that_is_registered_later_is_taken_too_and_the_devices_own_is_back_at_the_end() -> None:
    x = torch.ones(4, device=D)
    with op_tools.OpFallback() as tool:
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("neg", lambda self: torch.zeros_like(self), "PrivateUse1")
            assert torch.neg(x).tolist() == [-1.0] * 4
        assert torch.neg(x).tolist() == [-1.0] * 4
    assert tool.ran["aten.neg.default"] == 2
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("neg", lambda self: torch.zeros_like(self), "PrivateUse1")
        assert torch.neg(x).tolist() == [0.0] * 4
    assert torch.neg(x).tolist() == [-1.0] * 4
