"""apply_feature: a tool on chosen functions, under a condition, until it is removed."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import op_tools
from op_tools.engine import ENGINE, private

D = "dipu"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A third-party package with functions and classes."""
    module: Any = types.ModuleType("someones_ops")
    source = """
import torch

def scale(x, factor=2.0):
    "Multiplies."
    return x * factor

def fails(x):
    raise KeyError("theirs")

class Layer:
    bias = 1.0
    def __init__(self, weight):
        self.weight = weight
    def run(self, x):
        return x * self.weight + self.bias
    @classmethod
    def plain(cls, x):
        return x + cls.bias
    @staticmethod
    def double(x):
        return x + x
    def __call__(self, x):
        return self.run(x)

class Special(Layer):
    pass

not_a_function = 3
"""
    exec(compile(source, "someones_ops.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "someones_ops", module)
    yield module


def names(rows: Any, folder: str = "op_observe_result") -> list[str]:
    return [row["name"] for row in rows(folder)]


def test_names_functions_methods_and_lists(rows: Any) -> None:
    x = torch.ones(2, device=D)
    features = [
        op_tools.apply_feature("torch.add", "dump_op_args"),
        op_tools.apply_feature(torch.Tensor.mul, "dump_op_args"),
        op_tools.apply_feature(["torch.Tensor.neg", torch.nn.functional.relu], "dump_op_args"),
        op_tools.apply_feature(torch.ops.aten.sin.default, "dump_op_args"),
    ]
    assert torch.add(x, 1).tolist() == [2, 2]
    assert (x * 3).tolist() == x.mul(3).tolist() == [3, 3]  # self is not lost
    assert x.neg().tolist() == [-1, -1]
    torch.nn.functional.relu(x), torch.ops.aten.sin.default(x)
    x + 1, x.sub(1), torch.neg(x)
    for feature in features:
        feature.remove()
        feature.remove()
        assert not feature.active
    torch.add(x, 1)
    assert sorted(names(rows)) == sorted(
        [
            "torch.add",
            "torch.Tensor.mul",
            "torch.Tensor.mul",
            "torch.Tensor.neg",
            "torch.nn.functional.relu",
            "aten.sin.default",
        ]
    )
    assert private.function_modes() == []


def test_the_condition_gets_the_arguments_and_decides(capfd: Any, rows: Any) -> None:
    seen = []

    def condition(a: torch.Tensor, b: Any, *, alpha: int = 1) -> bool:
        seen.append((tuple(a.shape), alpha, (a + a).shape))
        return a.dim() == 2

    x, y = torch.ones(2, device=D), torch.ones(2, 2, device=D)
    with op_tools.apply_feature("torch.add", feature="dump_op_args", condition_func=condition):
        torch.add(x, x)
        torch.add(y, y, alpha=3)
    assert seen == [((2,), 1, (2,)), ((2, 2), 3, (2, 2))]
    assert names(rows) == ["torch.add"]
    out = capfd.readouterr().out
    assert "skip OpObserveHook on torch.add" in out and "apply OpObserveHook on torch.add" in out


def test_a_condition_that_fails_is_reported_and_the_call_runs(capfd: Any) -> None:
    def condition(*args: Any) -> bool:
        raise ValueError("what is this")

    with op_tools.apply_feature("torch.add", "dump_op_args", condition):
        assert torch.add(torch.ones(1, device=D), 1).item() == 2
    assert "what is this" in capfd.readouterr().err


def test_the_environment_is_read_at_every_call(capfd: Any) -> None:
    x = torch.full((2, 2), 3.0, device=D)
    with op_tools.apply_feature("torch.div", feature="cast_dtype") as feature:
        torch.div(x, x)
        os.environ["OP_DTYPE_CAST_DICT"] = "torch.float32->torch.float16"
        try:
            y = torch.div(x, 7)
            os.environ["OP_DTYPE_CAST_DICT"] = "torch.float32->torch.bfloat16"
            z = torch.div(x, 7)
        finally:
            del os.environ["OP_DTYPE_CAST_DICT"]
        assert feature.tool.count == {"torch.div": 2}
    assert (
        y[0, 0].item()
        == (torch.tensor(3.0).half() / 7).item()
        != z[0, 0].item()
        == (torch.tensor(3.0).bfloat16() / 7).item()
    )
    out = capfd.readouterr().out
    assert (
        "torch.float32 -> torch.float16" in out
        and "torch.float16 -> torch.float32" in out
        and "torch.float32->torch.bfloat16" in out
    )


def test_two_calls_before_backward(rows: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    with (
        op_tools.apply_feature("torch.mul", "measure_op_time", verbose=False),
        op_tools.apply_feature("torch.mul", "fallback", verbose=False),
    ):
        a = torch.mul(x, 2)
        b = torch.mul(x, 3)
        (a + b).sum().backward()
    assert x.grad.tolist() == [5, 5]
    table = rows("op_time_measure_result")
    assert [row["name"] for row in table] == ["torch.mul"] * 2 and all(
        float(row["backward_elasped"]) > 0 for row in table
    )


def test_fallback_of_one_function_covers_its_backward_and_nothing_else() -> None:
    x = torch.randn(3, 3, device=D, requires_grad=True)
    with op_tools.apply_feature("torch.tanh", "fallback", lambda a: a.dim() == 2, verbose=False) as feature:
        y = torch.tanh(torch.mm(x, x))
        torch.tanh(x[0])
        y.sum().backward()
        assert feature.tool.ran == {"aten.tanh.default": 1, "aten.tanh_backward.default": 1}


@pytest.mark.parametrize(
    "feature",
    [
        "fallback",
        "autocompare",
        "measure_op_time",
        "dump_op_args",
        "cast_dtype",
        "op_capture",
        "overflow_check",
    ],
)
def test_every_feature_on_a_method_forward_and_backward(feature: str) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=D, requires_grad=True)
    with op_tools.apply_feature("torch.Tensor.matmul", feature):
        y = x @ x
        y.sum().backward()
    assert y.tolist() == [[7, 10], [15, 22]] and x.grad.tolist() == [[7, 11], [9, 13]]
    assert ENGINE.failures.seen == {}


def test_functions_of_other_packages(package: Any, rows: Any) -> None:
    x = torch.ones(2, device=D)
    original = package.scale
    with op_tools.apply_feature(["someones_ops.scale", package.fails], "dump_op_args"):
        assert package.scale is not original and package.scale.__doc__ == "Multiplies."
        assert package.scale(x, factor=4.0).tolist() == [4, 4]
        assert package.scale(torch.ones(1)).tolist() == [2]  # not on the device: not the tool's
        with pytest.raises(KeyError, match="theirs"):
            package.fails(x)
    assert package.scale is original
    assert names(rows) == ["someones_ops.scale"]


def test_methods_of_other_packages_keep_self_and_class(package: Any, rows: Any) -> None:
    x = torch.ones(2, device=D)
    layer, other = package.Layer(3.0), package.Special(5.0)
    before = dict(vars(package.Layer))
    features = [
        op_tools.apply_feature(item, "dump_op_args")
        for item in (package.Layer.run, "someones_ops.Layer.plain", "someones_ops.Layer.double")
    ]
    assert layer.run(x).tolist() == [4, 4] and other.run(x).tolist() == [6, 6] and layer(x).tolist() == [4, 4]
    assert (
        package.Layer.plain(x).tolist()
        == package.Special.plain(x).tolist()
        == layer.plain(x).tolist()
        == [2, 2]
    )
    assert package.Layer.double(x).tolist() == layer.double(x).tolist() == [2, 2]
    for feature in features:
        feature.remove()
    assert dict(vars(package.Layer)) == before and "run" not in vars(package.Special)
    seen = names(rows)
    assert (
        seen.count("someones_ops.Layer.run") == 3
        and seen.count("someones_ops.Layer.plain") == 3
        and seen.count("someones_ops.Layer.double") == 2
    )


def test_a_bound_method_is_that_objects_only(package: Any, rows: Any) -> None:
    x = torch.ones(2, device=D)
    one, two = package.Layer(3.0), package.Layer(5.0)
    with op_tools.apply_feature(one.run, "dump_op_args"):
        assert one.run(x).tolist() == [4, 4] and two.run(x).tolist() == [6, 6]
    assert "run" not in vars(one)
    assert len(names(rows)) == 1 and names(rows)[0].endswith("Layer.run")


def test_an_inherited_method_is_replaced_in_the_class_that_was_named(package: Any, rows: Any) -> None:
    x = torch.ones(2, device=D)
    with op_tools.apply_feature("someones_ops.Special.run", "dump_op_args"):
        assert package.Special(2.0).run(x).tolist() == [3, 3] and package.Layer(2.0).run(x).tolist() == [3, 3]
    assert "run" not in vars(package.Special) and len(names(rows)) == 1


def test_a_module_of_the_program_by_its_forward(rows: Any) -> None:
    net = torch.nn.Linear(2, 2).to(D)
    with op_tools.apply_feature(net.forward, "measure_op_time", verbose=False):
        net(torch.ones(1, 2, device=D)).sum().backward()
    assert net.weight.grad is not None and "forward" not in vars(net)
    (row,) = rows("op_time_measure_result")
    assert row["name"].endswith("Linear.forward") and float(row["backward_elasped"]) > 0


def test_two_features_on_one_function_and_removal_in_any_order(package: Any, rows: Any) -> None:
    x = torch.ones(2, device=D)
    original = package.scale
    first = op_tools.apply_feature("someones_ops.scale", "dump_op_args")
    second = op_tools.apply_feature("someones_ops.scale", "measure_op_time", verbose=False)
    package.scale(x)
    first.remove()
    package.scale(x)
    second.remove()
    package.scale(x)
    assert package.scale is original
    assert len(names(rows)) == 1 and len(names(rows, "op_time_measure_result")) == 2


@pytest.mark.parametrize(
    ("ops", "feature", "error", "words"),
    [
        (
            "torch.add",
            "fallbacks",
            ValueError,
            "unknown feature 'fallbacks'; expected one of autocompare, overflow_check",
        ),
        ("torch.ad", "fallback", ValueError, "there is no function 'torch.ad'"),
        ("nothing.at.all", "fallback", ValueError, "there is no function 'nothing.at.all'"),
        ("someones_ops.not_a_function", "fallback", TypeError, "is not a function but a int"),
        ([], "fallback", ValueError, "at least one operator"),
        (3, "fallback", TypeError, "name of an operator or a function"),
        ([None], "fallback", TypeError, "name of an operator or a function"),
        (lambda x: x, "fallback", ValueError, "made inside a function"),
    ],
)
def test_mistakes_are_said_clearly_and_leave_nothing_on(
    ops: Any, feature: str, error: Any, words: str, package: Any
) -> None:
    with pytest.raises(error, match=words):
        op_tools.apply_feature(ops, feature)
    assert ENGINE.tools == () and private.function_modes() == []


def test_other_mistakes() -> None:
    with pytest.raises(TypeError, match="condition_func must be callable"):
        op_tools.apply_feature("torch.add", "fallback", condition_func=3)
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        op_tools.apply_feature("torch.add", "fallback", colour="red")
    assert ENGINE.tools == ()
