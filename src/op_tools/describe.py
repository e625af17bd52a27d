"""Rows that describe the tensors and values of a call, for the printed tables and for JSON.

The names of rows are what users know from the published tables: `inputs` for a single argument, `inputs[1]`
for one of several, `inputs [1][0]` for what a list or tuple holds, `inputs dim` for a keyword. Describing
must never disturb a run: whatever a tensor cannot tell (a sparse one its strides, a fake one its address)
stays blank.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from op_tools.engine import native

__all__ = [
    "Row", "as_plain", "brief", "brief_call", "capture_rows", "compare_grad_rows", "dtype_name", "leaves",
    "numbered", "printable", "rows_of", "tensor_row", "text_of", "time_grad_rows",
]  # fmt: skip

Row = dict[str, Any]

# A list of a thousand numbers is one value to a reader, not a thousand rows.
MOST_ITEMS = 64
LONGEST_VALUE = 200


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def _address(tensor: torch.Tensor) -> int:
    """A fake tensor would warn, once for the whole program, where only a real one has an address."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    if fakes is not None and isinstance(tensor, fakes.FakeTensor):
        raise TypeError("a fake tensor has no address")
    return tensor.data_ptr()


_READERS = (
    ("shape", lambda tensor: tuple(tensor.shape)),
    ("stride", lambda tensor: tuple(tensor.stride())),
    ("numel", lambda tensor: tensor.numel()),
    ("dtype", lambda tensor: dtype_name(tensor.dtype)),
    ("device", lambda tensor: str(tensor.device)),
    ("requires_grad", lambda tensor: tensor.requires_grad),
    ("layout", lambda tensor: str(tensor.layout)),
    ("data_ptr", _address),
)


def tensor_row(tensor: torch.Tensor) -> Row:
    """What a table shows of a tensor, without its name and without ever failing."""
    row: Row = {}
    # Asking a subclass for its shape would run its own __torch_function__.
    with torch._C.DisableTorchFunctionSubclass():
        for column, read in _READERS:
            with contextlib.suppress(Exception):
                row[column] = read(tensor)
    return row


def text_of(value: object) -> str:
    """A value on one line of bounded length."""
    try:
        text = " ".join(str(value).split()) if not isinstance(value, str) else value
    except Exception:  # a broken __repr__ is the user's, and not ours to report
        text = f"<{type(value).__name__}>"
    text = printable(text)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def printable(text: str) -> str:
    """Text from a file as a terminal may see it: one line, and no escape sequences."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def rows_of(
    name: str, what: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> list[Row]:
    """Rows '<name> <what>[i]' for the arguments and '<name> <what> <keyword>' for the keywords."""
    label = f"{name} {what}".strip()
    rows: list[Row] = []
    for index, value in enumerate(args):
        rows += _rows(label if len(args) == 1 else f"{label}[{index}]", f"{label} [{index}]", value)
    for keyword, value in (kwargs or {}).items():
        rows += _rows(f"{label} {keyword}", f"{label} {keyword} ", value)
    return rows


def _rows(name: str, prefix: str, value: object) -> list[Row]:
    """The row of a value; of a container those of its items, whose names begin with `prefix`."""
    if _is_container(value):
        return _nested(prefix, value)
    facts = tensor_row(value) if isinstance(value, torch.Tensor) else {"value": text_of(value)}
    return [{"name": name, **facts}]


def _is_container(value: object) -> bool:
    """What is shown item by item. A size is one value, and so is a container without items."""
    return isinstance(value, list | tuple | dict) and not isinstance(value, torch.Size) and len(value) > 0


def _nested(label: str, container: Any) -> list[Row]:
    rows: list[Row] = []
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for count, (key, value) in enumerate(items):
        if count == MOST_ITEMS:
            rows.append({"name": f"{label}[...]", "value": f"{len(container) - count} more"})
            break
        rows += _rows(f"{label}[{key}]", f"{label}[{key}]", value)
    return rows


def leaves(value: Any) -> list[Any]:
    """What is compared value by value: the items of lists, tuples and dicts; a size is one value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def numbered(name: str, what: str, count: int) -> list[str]:
    """Names of compared values: 'torch.add output', or 'torch.add output[0]' where there are several."""
    if count == 1:
        return [f"{name} {what}"]
    return [f"{name} {what}[{index}]" for index in range(count)]


# --- forms of the published tables that several tools print -----------------------------------------------


def capture_rows(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, side: str = ""
) -> list[Row]:
    """Inputs and outputs of a call; `side` tells those of a reference apart: 'inputs(cpu)[0]', 'outputs(cpu)'."""
    return rows_of(name, f"inputs{side}", args, kwargs) + rows_of(name, f"outputs{side}", (result,))


def time_grad_rows(name: str, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> list[Row]:
    """Time measurement shows the gradients as one tuple each: 'grad_outputs [0][0]'."""
    outputs = rows_of(name, "grad_outputs", (tuple(grad_outputs),))
    return outputs + rows_of(name, "grad_inputs", (tuple(grad_inputs),))


def compare_grad_rows(
    name: str, grad_outputs: Sequence[Any], grads: Sequence[Any], reference: Sequence[Any], where: str = "cpu"
) -> list[Row]:
    """The gradients of a call's inputs, then the reference's."""
    return (
        rows_of(name, f"grad_output({where})", grad_outputs)
        + rows_of(name, "grad_inputs", grads)
        + rows_of(name, f"grad_inputs({where})", reference)
    )


# --- the same facts as plain data, for JSON and for columns of a CSV file ---------------------------------


def as_plain(value: Any) -> Any:
    """Tensors as dicts of facts inside the same lists and dicts; everything else as JSON holds it."""
    if isinstance(value, torch.Tensor):
        facts = tensor_row(value).items()
        return {key: list(item) if isinstance(item, tuple) else item for key, item in facts}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return text_of(value)


# --- a call's values on one line, as a row of a log or a CSV file says them -------------------------------

_LONGEST_BRIEF = 60
_MOST_BRIEF_ITEMS = 16
_texts: dict[Any, str] = {}


def brief(value: Any) -> str:
    """`(float32[8, 128]@dev:0, 2.0)`: dtype, shape and device of tensors, other values shortened."""
    return _native_brief(value) if _native_brief is not None else _brief(value)


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _brief_tensor(value)
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inside = ", ".join(brief(item) for item in value[:_MOST_BRIEF_ITEMS])
        more = ", ..." if len(value) > _MOST_BRIEF_ITEMS else ""
        return f"[{inside}{more}]" if isinstance(value, list) else f"({inside}{more})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {brief(item)}" for key, item in value.items()) + "}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_BRIEF else text[: _LONGEST_BRIEF - 3] + "..."


def in_brackets(texts: Sequence[str | None]) -> str:
    """The same of a list of tensors, each of which is there as text, or None."""
    inside = ", ".join(map(str, texts[:_MOST_BRIEF_ITEMS]))
    return f"[{inside}, ...]" if len(texts) > _MOST_BRIEF_ITEMS else f"[{inside}]"


def brief_call(args: Any, kwargs: Any) -> str:
    """The arguments of a call on one line."""
    if _native_brief_call is not None:
        return _native_brief_call(args, kwargs)
    parts = [brief(value) for value in args]
    parts += [f"{key}={brief(value)}" for key, value in kwargs.items()]
    return f"({', '.join(parts)})"


def _brief_tensor(tensor: torch.Tensor) -> str:
    layout = tensor.layout
    try:
        stride = tensor.stride() if layout is torch.strided else None
        key = (tensor.dtype, layout, tensor.shape, stride, tensor.device)
    except (RuntimeError, NotImplementedError):  # nested tensors cannot say
        return f"{dtype_name(tensor.dtype)} {layout} {type(tensor).__name__}@{tensor.device}"
    text = _texts.get(key)
    if text is None:
        if len(_texts) > 20_000:
            _texts.clear()
        text = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
        if stride is None:
            text += f" {layout}@{tensor.device}"
        else:
            text += f"@{tensor.device}" + ("" if tensor.is_contiguous() else f" stride {list(stride)}")
        _texts[key] = text
    return text


# The compiled part writes what most values are, and asks for the others here.
_native_brief, _native_brief_call = native.writers(_brief, _MOST_BRIEF_ITEMS)
