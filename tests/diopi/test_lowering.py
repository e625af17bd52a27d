"""ATen calls become DIOPI calls as the operator table says."""

import pytest
import torch

from diopi import lowering
from diopi.lowering import NotServed, bound, lower_call, overload_name
from diopi.table import load


def test_tensor_and_number_take_different_functions():
    x, y = torch.ones(2, 3), torch.ones(3)
    call = lower_call("add.Tensor", {"self": x, "other": y, "alpha": 2})
    assert call.function == "diopiAdd"
    assert call.arguments["input"] is x and call.arguments["other"] is y and call.arguments["alpha"] == 2
    assert call.results == ("out",) and "out" not in call.arguments
    scalar = lower_call("add.Tensor", {"self": x, "other": 2.5})
    assert (scalar.function, scalar.arguments["other"], scalar.arguments["alpha"]) == (
        "diopiAddScalar",
        2.5,
        1,
    )


def test_a_number_in_front_is_exchanged_if_the_operator_commutes():
    x = torch.ones(3)
    call = lower_call("mul.Tensor", {"self": 3, "other": x})
    assert call.function == "diopiMulScalar"
    assert call.arguments["input"] is x and call.arguments["other"] == 3


def test_in_place_and_out_forms_name_what_is_written():
    x, out = torch.ones(3), torch.empty(3)
    assert lower_call("exp_", {"self": x}).arguments["input"] is x
    assert lower_call("exp_", {"self": x}).function == "diopiExpInp"
    given = lower_call("exp.out", {"self": x, "out": out})
    assert given.arguments["input"] is x and given.arguments["out"] is out


def test_names_of_the_cpu_become_those_of_a_device():
    arguments = {
        "input": torch.ones(1, 2, 4, 4),
        "weight": torch.ones(3, 2, 3, 3),
        "bias": None,
        "stride": [2, 1],
        "padding": [0, 1],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": 1,
    }
    call = lower_call("convolution", arguments)
    assert call.function == "diopiConvolution2d"
    assert call.arguments["stride"] == [2, 1] and call.arguments["padding"] == [0, 1]
    assert call.arguments["bias"] is None
    assert lower_call("div.Scalar", {"self": torch.ones(2), "other": 4}).function == "diopiDivScalar"


def test_a_keyword_of_python_as_a_name():
    call = lower_call("uniform_", {"self": torch.zeros(3), "from": -1.0, "to": 2.0, "generator": None})
    assert (call.arguments["from"], call.arguments["to"]) == (-1.0, 2.0)
    assert isinstance(call.arguments["generator"], torch.Generator)


@pytest.mark.parametrize(
    ("overload", "arguments", "why"),
    [
        ("add.Tensor", {"self": torch.ones(2), "other": torch.ones(2), "alpha": True}, "false"),
        ("exp", {"self": torch.ones(2).to_sparse()}, "not a plain dense tensor"),
        ("bitwise_not", {"self": torch.ones(2)}, "torch.float32"),
        ("linalg_eig", {"self": torch.ones(2, 2)}, "no entry for linalg_eig"),
    ],
)
def test_what_no_entry_serves_is_said(overload, arguments, why):
    with pytest.raises(NotServed, match=why):
        lower_call(overload, arguments)


def test_bound_fills_defaults_by_name():
    overload = torch.ops.aten.sum.dim_IntList
    x = torch.ones(2, 3)
    values = bound(overload, (x, [1]), {"dtype": torch.float64})
    assert overload_name(overload) == "sum.dim_IntList"
    assert values["self"] is x and values["dim"] == [1]
    assert values["keepdim"] is False and values["dtype"] is torch.float64


def test_every_expression_of_the_table_is_understood():
    assert lowering.unknown_names() == {}
    assert len(load().by_overload()) > 100
