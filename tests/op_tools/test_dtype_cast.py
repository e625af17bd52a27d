"""OpDtypeCast: computed in another dtype, and to the program in its own."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import op_tools
from dicore.settings import SettingError
from op_tools.engine import ENGINE
from op_tools.tools.dtype_cast import parse

D = "dipu"
BF = torch.bfloat16


def test_half_types_are_computed_in_float32_by_default() -> None:
    a, b = torch.randn(4, 64), torch.randn(5, 64)
    for dtype in (torch.float16, BF):
        x, w = a.to(dtype), b.to(dtype)
        expected = torch.nn.functional.linear(x.float(), w.float()).to(dtype)
        with op_tools.OpDtypeCast() as tool:
            y = torch.nn.functional.linear(x.to(D), w.to(D))
        assert y.dtype == dtype and torch.equal(y.cpu(), expected)
        assert tool.count["torch.nn.functional.linear"] == 1


def test_the_computation_really_is_in_the_other_dtype() -> None:
    x = torch.tensor([1.0, 2**-20], device=D)
    with op_tools.OpDtypeCast(dict="torch.float32->torch.bfloat16"):
        y = x.sum()
        z = torch.add(x, 1.0)
    assert y.dtype == torch.float32 and y.item() == 1.0  # 2**-20 is lost in bfloat16
    assert z.tolist() == [2.0, 1.0]
    with op_tools.OpDtypeCast(dict="torch.float32->torch.float64"):
        big = torch.tensor([1e8, 1.0, -1e8], device=D)
        assert (big.cumsum(0)).tolist()[2] == 1.0


def test_the_variable_and_the_list_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.half->torch.double")
    monkeypatch.setenv("OP_DTYPE_CAST_LIST", "torch.Tensor.mul")
    x = torch.ones(2, device=D, dtype=torch.float16)
    with op_tools.OpDtypeCast() as tool:
        assert (x * 3 + 1).tolist() == [4, 4]
    assert tool.count == {"torch.Tensor.mul": 1} and tool.casts == {torch.float16: torch.float64}


def test_identity_and_nothing_to_cast_change_no_bit() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to(D)

    def run() -> list[Any]:
        model.zero_grad()
        loss = model(torch.linspace(-1, 1, 12, device=D).reshape(3, 4)).square().sum()
        loss.backward()
        return [loss.tolist(), *(p.grad.tolist() for p in model.parameters())]

    bare = run()
    for settings in (
        {},
        {"dict": "torch.float32->torch.float32,torch.bfloat16->torch.bfloat16"},
        {"dict": ""},
    ):
        with op_tools.OpDtypeCast(**settings) as tool:
            assert run() == bare
        assert tool.count == {}


CASES = {
    "in place": lambda x, y: x.add_(y),
    "in place on a view": lambda x, y: x[1:].mul_(y[1:]),
    "augmented": lambda x, y: x.__imul__(3),
    "out": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "out resized": lambda x, y: torch.add(x, y, out=torch.empty(0, device=D, dtype=BF)),
    "out kept": lambda x, y: torch.mul(x, 2, out=y),
    "view": lambda x, y: x.t(),
    "reshape": lambda x, y: x.reshape(-1),
    "getitem": lambda x, y: x[1, 1:],
    "contiguous": lambda x, y: x.contiguous(),
    "split": lambda x, y: torch.split(x, 1),
    "to the same": lambda x, y: x.to(BF),
    "to float": lambda x, y: x.to(torch.float32),
    "float()": lambda x, y: x.float(),
    "half()": lambda x, y: x.half(),
    "to int": lambda x, y: (x * 4).int(),
    "type": lambda x, y: x.type(torch.float64),
    "mixed": lambda x, y: x * y.float(),
    "mixed halves": lambda x, y: x * y.half(),
    "with a number": lambda x, y: x * 2.5 + 1,
    "sum in float": lambda x, y: x.sum(dtype=torch.float32),
    "softmax in float": lambda x, y: torch.softmax(x, -1, dtype=torch.float32),
    "comparison": lambda x, y: x > y,
    "argmax": lambda x, y: x.argmax(),
    "sort": lambda x, y: x.sort(dim=1),
    "max": lambda x, y: x.max(dim=0),
    "topk": lambda x, y: torch.topk(x, 2),
    "var_mean": lambda x, y: torch.var_mean(x),
    "chunk of a product": lambda x, y: (x * y).chunk(2),
    "stack": lambda x, y: torch.stack([x, y]),
    "zeros_like": lambda x, y: torch.zeros_like(x),
    "empty_like": lambda x, y: torch.empty_like(x).shape,
    "item": lambda x, y: (x[0, 0] + 0).item(),
    "tolist": lambda x, y: x.tolist(),
    "clone": lambda x, y: x.clone(),
    "setitem": lambda x, y: x.__setitem__(0, y[1]),
    "setitem mask": lambda x, y: x.__setitem__(x > 0, 2.0),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "copy_": lambda x, y: x.copy_(y),
    "fill_": lambda x, y: x.fill_(3),
    "cpu": lambda x, y: x.cpu(),
    "is_floating_point": lambda x, y: (x.is_floating_point(), torch.is_floating_point(x), x.element_size()),
    "norm": lambda x, y: x.norm(),
    "foreach": lambda x, y: torch._foreach_mul([x, y], 2.0),
    "complex": lambda x, y: torch.view_as_complex(x.float().reshape(-1, 2)).abs(),
    "empty": lambda x, y: x[:0] * 2,
}  # fmt: skip


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.device.type, value.dtype, tuple(value.shape), value.stride(), value._is_view())
    if isinstance(value, tuple | list):
        return (type(value), [_facts(item) for item in value])
    return type(value)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, torch.Tensor):
        return value.double().flatten().tolist()
    if isinstance(value, tuple | list):
        return [number for item in value for number in _numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize("case", CASES)
def test_kinds_dtypes_and_views_are_those_without_the_cast(case: str) -> None:
    torch.manual_seed(2)
    a, b = torch.randn(3, 4).to(BF), torch.randn(3, 4).to(BF)

    def run() -> Any:
        x, y = a.to(D), b.to(D)
        result = CASES[case](x, y)
        return (_facts(result), _facts(x)), _numbers(result), _numbers((x, y))

    bare = run()
    with op_tools.OpDtypeCast():
        watched = run()
    assert watched[0] == bare[0]
    assert watched[1] == pytest.approx(bare[1], rel=2e-2, abs=1e-2)
    assert watched[2] == pytest.approx(bare[2], rel=2e-2, abs=1e-2)
    assert ENGINE.failures.seen == {}


def test_views_are_views_of_the_programs_tensor() -> None:
    x = torch.zeros(4, device=D, dtype=BF)
    with op_tools.OpDtypeCast():
        x.view(2, 2)[1].add_(1)
        x.reshape(2, 2)[0].fill_(3)
        x.contiguous().mul_(2)
        x.to(BF).sub_(1)
    assert x.tolist() == [5, 5, 1, 1]


def test_gradients_come_in_the_dtype_of_their_tensors() -> None:
    x = torch.randn(3, 4, device=D, dtype=BF, requires_grad=True)
    w = torch.randn(5, 4, device=D, dtype=BF, requires_grad=True)
    with op_tools.OpDtypeCast() as tool:
        h = torch.nn.functional.linear(x, w)
        h.mul_(2)
        torch.softmax(h, -1).square().sum().backward()
    assert x.grad.dtype == w.grad.dtype == BF and tool.count["torch.Tensor.mul_"] == 1
    a, b = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    torch.softmax((a @ b.t()) * 2, -1).square().sum().backward()
    torch.testing.assert_close(x.grad.double(), a.grad, rtol=5e-2, atol=2e-2)


def test_a_model_in_bfloat16_trains_near_its_float32_self() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 1)
    ).to(D, BF)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(16, 4, device=D, dtype=BF)
    losses = []
    with op_tools.OpDtypeCast():
        for _ in range(25):
            loss = (model(x).squeeze(-1) - x.sum(-1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert {p.dtype for p in model.parameters()} == {BF} and ENGINE.failures.seen == {}


def test_autocast_decides_the_dtypes_of_results() -> None:
    x = torch.randn(3, 4, device=D, dtype=BF)
    w = torch.randn(5, 4, device=D)

    def run() -> list[Any]:
        with torch.autocast(D, dtype=BF):
            y = torch.nn.functional.linear(x, w)
            return [y, torch.softmax(y, -1), y.sum(), torch.nn.functional.layer_norm(y, (5,)), y * 2, y.exp()]

    bare = [value.dtype for value in run()]
    with op_tools.OpDtypeCast():
        results = run()
    assert [value.dtype for value in results] == bare
    exact = torch.nn.functional.linear(x.float(), w).to(BF)
    assert torch.equal(results[0], exact)  # in float32, not in what autocast would take


def test_what_cannot_be_computed_in_the_other_dtype_stays(capfd: Any) -> None:
    x = torch.ones(2, device=D)
    with op_tools.OpDtypeCast(dict="torch.float32->torch.int64"):
        y = torch.sigmoid(x)
        z = torch.nn.functional.layer_norm(x, (2,))
    assert y.dtype == torch.float32 and z.dtype == torch.float32
    assert "stays in its own dtype" in capfd.readouterr().out


def test_a_checkpoint_that_stops_computing_again_is_let_stop() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(x) * 2) + 1

    def gradient() -> torch.Tensor:
        x = torch.linspace(-1, 1, 6, device=D, requires_grad=True)
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
        assert x.grad is not None
        return x.grad

    right = gradient()
    with op_tools.OpDtypeCast(dict="torch.float32->torch.float64") as tool:
        found = gradient()
    assert tool.count["torch.tanh"] == 3  # the fourth is where it stops
    torch.testing.assert_close(found, right)


def test_writes_are_kept_in_inference_mode() -> None:
    ordinary = torch.ones(3, device=D)
    with op_tools.OpDtypeCast(dict="torch.float32->torch.float64") as tool, torch.inference_mode():
        x = torch.arange(6.0, device=D).view(2, 3)
        x[1:].add_(1)
        ordinary.mul_(3)
        total = (x + ordinary).sum()
    assert x.tolist() == [[0, 1, 2], [4, 5, 6]] and ordinary.tolist() == [3, 3, 3] and total.item() == 36
    assert total.dtype == torch.float32 and tool.count["torch.Tensor.add_"] == 1


def test_errors_of_the_program_are_its_own() -> None:
    x = torch.ones(2, 3, device=D, dtype=BF)
    with pytest.raises(RuntimeError) as bare:
        torch.mm(x, x)
    with op_tools.OpDtypeCast(), pytest.raises(RuntimeError) as watched:
        torch.mm(x, x)
    assert str(watched.value) == str(bare.value)


def test_the_table_says_what_was_cast(capfd: Any) -> None:
    x = torch.ones(2, device=D, dtype=BF)
    with op_tools.OpDtypeCast(verbose=True):
        torch.add(x, x)
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| torch.add")]
    assert [tuple(cell.strip() for cell in line.strip("|").split("|"))[1:3] for line in lines] == [
        ("input[0]", "torch.bfloat16 -> torch.float32"), ("input[1]", "torch.bfloat16 -> torch.float32"),
        ("output[0]", "torch.float32 -> torch.bfloat16"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["torch.float16", "torch.float16->torch.flaot32", "float16=>float32", "torch.add->torch.float32"]
)
def test_a_bad_dict_is_a_clear_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", text)
    with pytest.raises(SettingError, match=r"OP_DTYPE_CAST_DICT.*FROM->TO"):
        op_tools.OpDtypeCast()
    del os.environ["OP_DTYPE_CAST_DICT"]
    with pytest.raises(ValueError, match="FROM->TO"):
        op_tools.OpDtypeCast(dict=text)


def test_dicts_are_read_with_blanks_and_short_names() -> None:
    assert parse(" float16 -> torch.float32 , torch.half->bfloat16,") == {torch.float16: torch.bfloat16}
