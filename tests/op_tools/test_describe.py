"""Row names are those of the published tables, and no tensor is too strange to be described."""

from __future__ import annotations

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from op_tools import describe

pytestmark = pytest.mark.unit

X = torch.ones(2, 3)


def names(rows: list[describe.Row]) -> list[str]:
    return [row["name"] for row in rows]


def test_single_argument_several_arguments_nested_arguments_and_keywords() -> None:
    assert names(describe.rows_of("torch.rsqrt", "inputs", (X,))) == ["torch.rsqrt inputs"]
    assert names(describe.rows_of("torch.Tensor.argmax", "inputs", (X,), {"dim": -1})) == [
        "torch.Tensor.argmax inputs",
        "torch.Tensor.argmax inputs dim",
    ]
    assert names(describe.rows_of("torch.Tensor.mean", "inputs", (X, (-1,)), {"keepdim": True})) == [
        "torch.Tensor.mean inputs[0]",
        "torch.Tensor.mean inputs [1][0]",
        "torch.Tensor.mean inputs keepdim",
    ]
    assert names(describe.rows_of("torch.cat", "inputs", ([X, X],))) == [
        "torch.cat inputs [0][0]",
        "torch.cat inputs [0][1]",
    ]


def test_a_size_is_one_value_and_none_is_shown() -> None:
    rows = describe.rows_of("torch.Tensor.expand", "inputs", (X, torch.Size([16384]), None))
    assert [row.get("value", "no value") for row in rows] == ["no value", "torch.Size([16384])", "None"]
    assert "value" not in rows[0]


def test_forms_of_each_tool() -> None:
    sort = X.sort()
    assert names(describe.capture_rows("torch.Tensor.sort", (X,), {}, sort)) == [
        "torch.Tensor.sort inputs",
        "torch.Tensor.sort outputs [0][0]",
        "torch.Tensor.sort outputs [0][1]",
    ]
    assert names(describe.time_grad_rows("f", (X,), (X, None))) == [
        "f grad_outputs [0][0]",
        "f grad_inputs [0][0]",
        "f grad_inputs [0][1]",
    ]
    assert names(describe.capture_rows("f", (X, 2), {"p": 1}, X, "(cpu)")) == [
        "f inputs(cpu)[0]",
        "f inputs(cpu)[1]",
        "f inputs(cpu) p",
        "f outputs(cpu)",
    ]
    assert names(describe.compare_grad_rows("f", (X,), (None, X), (None, X))) == [
        "f grad_output(cpu)",
        "f grad_inputs[0]",
        "f grad_inputs[1]",
        "f grad_inputs(cpu)[0]",
        "f grad_inputs(cpu)[1]",
    ]
    assert describe.numbered("f", "grad", 1) == ["f grad"]
    assert describe.numbered("f", "grad", 2) == ["f grad[0]", "f grad[1]"]


def test_facts_of_a_tensor() -> None:
    tensor = torch.zeros(4, 3, dtype=torch.bfloat16).t()
    assert describe.tensor_row(tensor) == {
        "shape": (3, 4),
        "stride": (1, 3),
        "numel": 12,
        "dtype": "bfloat16",
        "device": "cpu",
        "requires_grad": False,
        "layout": "torch.strided",
        "data_ptr": tensor.data_ptr(),
    }


class Shy(torch.Tensor):
    """A subclass that must not be asked while it is described."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        Shy.asked += 1
        raise RuntimeError("do not ask")


def strange_tensors() -> dict[str, torch.Tensor]:
    with FakeTensorMode():
        fake = torch.empty(2, 3)
    return {
        "fake": fake,
        "meta": torch.empty(2, 3, device="meta"),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(1.0),
        "subclass": torch.ones(2, 2).as_subclass(Shy),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "complex": torch.ones(2, dtype=torch.complex64).conj(),
    }


@pytest.mark.parametrize("kind", list(strange_tensors()))
def test_every_kind_of_tensor_is_described(kind: str) -> None:
    tensor = strange_tensors()[kind]
    row = describe.rows_of("f", "inputs", (tensor,))[0]
    with torch._C.DisableTorchFunctionSubclass():
        assert row["dtype"] == str(tensor.dtype).removeprefix("torch.")
        assert row["device"] == str(tensor.device)
    json.dumps(describe.as_plain([tensor]))


def test_a_subclass_is_not_asked() -> None:
    tensor = torch.ones(2, 2).as_subclass(Shy)
    Shy.asked = 0
    assert describe.tensor_row(tensor)["shape"] == (2, 2)
    assert Shy.asked == 0


def test_values_are_one_bounded_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert describe.text_of("two\nlines") == "two lines"
    assert describe.text_of(1e-05) == "1e-05"
    assert describe.text_of("\x1b[2Jclear") == " [2Jclear"
    assert describe.text_of("均值") == "均值"
    assert describe.text_of(Broken()) == "<Broken>"
    assert len(describe.text_of("x" * 10_000)) == describe.LONGEST_VALUE
    rows = describe.rows_of("f", "outputs", (list(range(1000)),))
    assert len(rows) == describe.MOST_ITEMS + 1
    assert rows[-1]["value"] == f"{1000 - describe.MOST_ITEMS} more"


def test_plain_data_for_json() -> None:
    plain = describe.as_plain(
        {"args": (X, [1, None, 2.5], torch.float16, slice(1, 2)), "kwargs": {"p": "mean"}}
    )
    assert plain["args"][0]["shape"] == [2, 3]
    assert plain["args"][1:] == [[1, None, 2.5], "torch.float16", "slice(1, 2, None)"]
    assert plain["kwargs"] == {"p": "mean"}
    assert json.loads(json.dumps(plain)) == plain
