"""Nonsense for the operators of a DIOPI library: which calls are made, and how a described call is made.

A call is described by plain values (JSON), so that it can be written down before it is made and made again. What the C
interface cannot check is kept right: a list has as many places as its count says, and tensors lie within their memory.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fuzz_seeds import seeds

if TYPE_CHECKING:
    from diopi.library import Library

PLACES = 6  # of every list
SLOT, GUARD = 1 << 16, 256  # memory of one tensor, and of what must stay untouched around it
DTYPES = (
    "float32", "float32", "float32", "int64", "int64", "float64", "float16", "bfloat16", "bool", "int32", "uint8", "int8",
    "int16", "complex64", "complex128",
)  # fmt: skip
FILLS = ("small", "small", "zero", "negative", "bytes")
WORDS = (
    "none", "tanh", "mean", "sum", "max", "avg", "prod", "amax", "floor", "trunc", "constant", "reflect", "replicate",
    "circular", "nearest", "bilinear", "bicubic", "linear", "area", "left", "", "x" * 300, "%s%n", "BSH", "SBH", "BSND",
)  # fmt: skip
INTEGERS = (0, 1, 2, 3, -1, -2, 5, 7, 64, -(2**31), 2**31 - 1, 2**40, -(2**63), 2**63 - 1)
REALS = (0.0, 1.0, 0.5, -1.0, 2.0, 1e-5, 1e300, -1e300, float("nan"), float("inf"), float("-inf"))


def _strategies() -> dict[str, Any]:
    """Kind of argument (diopi.library.signatures) -> what is tried, as descriptions."""
    from hypothesis import strategies as st

    extent = st.sampled_from((0, 1, 1, 2, 2, 3, 4, 5, 8))
    small = st.integers(-3, 4)
    integer = st.one_of(small, small, st.sampled_from(INTEGERS))
    size = st.one_of(st.lists(small, max_size=4), st.lists(integer, max_size=6), st.none())
    broken = st.sampled_from((-1, 3, -(2**63), 2**63 - 1)).map(lambda n: {"null": n})
    number = st.one_of(st.sampled_from(REALS), integer, st.booleans())
    scalar = st.one_of(
        number, number, st.fixed_dictionaries({"dtype": st.sampled_from(DTYPES), "value": number})
    )
    tensor = st.fixed_dictionaries(
        {
            "shape": st.one_of(st.lists(extent, max_size=4), st.lists(extent, max_size=7)),
            "dtype": st.sampled_from(DTYPES),
            "layout": st.sampled_from(("plain", "plain", "plain", "reversed", "gaps", "expanded")),
            "fill": st.sampled_from(FILLS),
        }
    )
    enum = st.sampled_from((0, 1, 2, 3, 4, -1, 99, 2**31 - 1))
    return {
        "tensor": tensor,
        "tensors": st.lists(st.one_of(tensor, st.none()), max_size=PLACES),
        "generator": st.sampled_from(("good", "good", "short", "noise", None)),
        "size": st.one_of(size, size, size, broken),
        "size?": st.one_of(size, size, broken),
        "scalar?": st.one_of(scalar, scalar, scalar, st.none()),
        "text?": st.one_of(st.sampled_from(WORDS), st.sampled_from(WORDS), st.none()),
        "bool": st.booleans(),
        "float": st.sampled_from(REALS[:7] + REALS[8:]),
        "double": st.sampled_from(REALS),
        "int64": integer,
        "int32": integer.map(lambda n: max(min(n, 2**31 - 1), -(2**31))),
        "uint64": integer.map(abs),
        "enum": enum,
        "bool?": st.one_of(st.none(), st.booleans()),
        "double?": st.one_of(st.none(), st.sampled_from(REALS)),
        "int64?": st.one_of(st.none(), integer),
        "pointer": st.none(),
    }


def _counts(signature: list[tuple[str, str]]) -> set[str]:
    """Numbers that say how long a list is: the one after a list."""
    lists = ("tensors", "generators", "made")
    after = itertools.pairwise(signature)
    return {name for (_, before), (name, kind) in after if kind == "int64" and before in lists}


def _call_strategy(signature: list[tuple[str, str]], kinds: dict[str, Any]) -> Any:
    from hypothesis import strategies as st

    counted = _counts(signature)
    integer = st.integers(-2, PLACES)

    @st.composite
    def build(draw: Any) -> dict[str, Any]:
        theme = draw(kinds["tensor"])  # most tensors are alike, or calls would fail at their first check
        arguments: dict[str, Any] = {}
        for name, kind in signature:
            if kind in ("context", "made") or kind.endswith("!"):
                continue
            if name in counted:
                arguments[name] = draw(integer)
            elif kind == "tensor":
                choice = draw(st.integers(0, 9))
                alike = {**theme, "fill": draw(st.sampled_from(FILLS))}
                if choice in (6, 7):
                    alike = {**draw(kinds["tensor"]), "shape": theme["shape"]}
                arguments[name] = None if choice == 9 else draw(kinds["tensor"]) if choice == 8 else alike
            else:
                arguments[name] = draw(kinds[kind])
        return arguments

    return build()


def _changed_strategy(right: list[dict[str, Any]], nonsense: Any) -> Any:
    """A right call with up to three arguments of a nonsensical one."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: Any) -> dict[str, Any]:
        arguments = dict(draw(st.sampled_from(right)))
        other = draw(nonsense)
        for name in draw(st.lists(st.sampled_from(sorted(other)), max_size=3)):
            arguments[name] = other[name]
        return arguments

    return build()


def calls(
    functions: list[str], seed: int, seconds: float, *, changed: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls until the time is over, a few of each function in turn."""
    import random

    from diopi.library.loader import signature

    kinds = _strategies()
    nonsense = {name: _call_strategy(signature(name), kinds) for name in functions}
    strategies: dict[str, Any] = {}
    if changed:
        seeds("diopiAdd", PLACES)  # loads what the first one needs, before time counts
    deadline = time.monotonic() + seconds
    order = random.Random(seed)
    number = seed * 1_000_003
    while time.monotonic() < deadline and functions:
        for name in order.sample(functions, len(functions)):
            number += 1
            if name not in strategies:
                right = seeds(name, PLACES) if changed else []
                strategies[name] = _changed_strategy(right, nonsense[name]) if right else nonsense[name]
            strategy = strategies[name] if number % 3 else nonsense[name]
            for arguments in _examples(strategy, number):
                if time.monotonic() > deadline:
                    return
                yield name, arguments


def _examples(strategy: Any, number: int) -> list[dict[str, Any]]:
    """A handful of Hypothesis' examples; the number decides which."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=8,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(arguments: dict[str, Any]) -> None:
        found.append(arguments)

    collect()
    return found


def _strides(shape: list[int], layout: str) -> list[int]:
    strides, step = [], 2 if layout == "gaps" else 1
    order = shape if layout == "reversed" else list(reversed(shape))
    for extent in order:
        strides.append(step)
        step *= max(extent, 1)
    if layout != "reversed":
        strides.reverse()
    if layout == "expanded" and strides:
        strides[0] = 0
    return strides


def _engine_state(kind: str) -> bytes:
    """The state of a Mersenne twister as the simulated chip keeps it; or what is none."""
    if kind == "short":
        return b"\1\2\3"
    if kind == "noise":
        return b"\xa5" * 5056
    head = struct.pack("<QiiQ", 5, 1, 1, 0)
    words = struct.pack("<624Q", *((i * 2654435761 + 1) % 2**32 for i in range(624)))
    return head + words + struct.pack("<dddi4xfb3x", 0, 0, 0, 0, 0, 0)


def _content(fill: str, dtype: str, nbytes: int) -> bytes:
    """Bytes that make `small` numbers, zeros, negative ones or anything, whatever the dtype."""
    if fill == "bytes" and dtype != "bool":
        return bytes((i * 37 + 11) % 256 for i in range(nbytes))
    if fill == "zero":
        return bytes(nbytes)
    negative = fill == "negative"
    values = [-1, -2, -3] if negative else [0, 1, 2, 1]
    if dtype == "bool":
        pattern = b"\1\0\1"
    elif dtype in ("float32", "complex64"):
        pattern = struct.pack(f"<{len(values)}f", *values)
    elif dtype in ("float64", "complex128"):
        pattern = struct.pack(f"<{len(values)}d", *values)
    elif dtype == "float16":
        pattern = struct.pack(f"<{len(values)}e", *values)
    elif dtype == "bfloat16":
        pattern = b"".join(struct.pack("<f", v)[2:] for v in values)
    else:
        code = {"int8": "b", "uint8": "B", "int16": "h", "int32": "i", "int64": "q"}[dtype]
        pattern = struct.pack(f"<{len(values)}{code}", *(abs(v) if code == "B" else v for v in values))
    return (pattern * (nbytes // len(pattern) + 1))[:nbytes]


class Caller:
    """Makes described calls, each tensor in a slot of memory of its own."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._slots: list[int] = []
        self._used: list[tuple[int, int]] = []

    def functions(self) -> list[str]:
        from diopi.library.signatures import OPERATORS

        return [name for name in OPERATORS if self._library.has(name)]

    def call(self, function: str, arguments: dict[str, Any], counts: Counter[str]) -> str | None:
        """Counts the answer; says what is wrong if something was written where nothing is."""
        from diopi.library import LibraryError
        from diopi.library.loader import signature

        self._used = []
        kinds = dict(signature(function))
        try:
            given = {name: self._made(kinds[name], value) for name, value in arguments.items()}
            with self._library.call(function, given) as answer:
                counts[answer.status] += 1
            self._library.synchronize()
        except LibraryError:
            counts["refused before or after the call"] += 1
        return self._damage()

    def _made(self, kind: str, value: Any) -> Any:
        from diopi.library import Generator, Scalar
        from diopi.library.handles import SizeStruct

        if kind == "tensor":
            return self._tensor(value)
        if kind in ("tensors", "made") and value is not None:
            return [self._tensor(v) for v in value] + [None] * (PLACES - len(value))
        if kind == "generator":
            return None if value is None else Generator(_engine_state(value), 1, 2)
        if isinstance(value, dict) and "null" in value:
            return SizeStruct(None, value["null"])
        if isinstance(value, dict):
            return Scalar(value["dtype"], value["value"])
        return value

    def _tensor(self, described: dict[str, Any] | None) -> Any:
        from diopi.library import Tensor
        from diopi.library.handles import DTYPES as SIZES

        if described is None:
            return None
        shape, dtype = described["shape"], described["dtype"]
        strides = described["stride"] if "stride" in described else _strides(shape, described["layout"])
        extent = 0 if 0 in shape else sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        nbytes = extent * SIZES[dtype][1]
        if nbytes + 2 * GUARD > SLOT:
            shape, strides, nbytes = [2, 3], [3, 1], 6 * SIZES[dtype][1]
        data = described.get("data")
        content = _content(described["fill"], dtype, nbytes) if data is None else base64.b64decode(data)
        slot = self._slot(nbytes, content)
        return Tensor(slot + GUARD, shape, strides, dtype)

    def _slot(self, nbytes: int, content: bytes) -> int:
        if len(self._used) == len(self._slots):
            self._slots.append(self._library.memory.allocate(SLOT))
        slot = self._slots[len(self._used)]
        self._used.append((slot, nbytes))
        whole = b"\xc3" * GUARD + content + b"\xc3" * GUARD
        buffer = ctypes.create_string_buffer(whole, len(whole))
        self._library.memory.write(slot, ctypes.addressof(buffer), len(whole))
        return slot

    def _damage(self) -> str | None:
        for slot, nbytes in self._used:
            buffer = ctypes.create_string_buffer(2 * GUARD + nbytes)
            self._library.memory.read(slot, ctypes.addressof(buffer), len(buffer))
            around = buffer.raw[:GUARD] + buffer.raw[GUARD + nbytes :]
            if around != b"\xc3" * (2 * GUARD):
                return "writes outside of a tensor"
        return None
