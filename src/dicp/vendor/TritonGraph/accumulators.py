"""`Reduce` and `Scan` over tiles: states that begin neutral, are joined element by element, then along the row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dicp.loops.ir import Reduce, Scan
from dicp.vendor.TritonGraph.expressions import HELD_TYPES, plain_text

__all__ = ["TileAccumulator", "neutral"]

_FEWEST = -(1 << 63)
_MOST = (1 << 63) - 1


def neutral(kind: str, dtype: torch.dtype) -> str:
    """The extreme of no elements."""
    if dtype.is_floating_point:
        return plain_text(float("-inf") if kind == "max" else float("inf"), dtype)
    if dtype is torch.bool:
        return plain_text(kind == "min", dtype)
    limits = torch.iinfo(dtype)
    return plain_text(limits.min if kind == "max" else limits.max, dtype)


@dataclass(frozen=True)
class _State:
    """One value of a state: its dtype, what it begins with, and what an element contributes."""

    dtype: torch.dtype
    initial: str
    element: str

    @property
    def held(self) -> str:
        return HELD_TYPES[self.dtype]


@dataclass(frozen=True)
class TileAccumulator:
    """The text of one reduction or scan; `operands` are the texts of its operands."""

    instruction: Reduce | Scan
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.instruction.results[0].name

    @property
    def join(self) -> str:
        """The function of two states."""
        kind = self.instruction.kind
        if isinstance(self.instruction, Scan) and kind in ("max", "min"):
            return f"device.running_{kind}_of"
        return f"device.{kind}_of"

    def states(self) -> tuple[_State, ...]:
        i, x = self.instruction, self.operands[0]
        dtype = i.operands[0].dtype
        match i.kind:
            case "sum" | "prod":
                return (_State(dtype, plain_text(int(i.kind == "prod"), dtype), x),)
            case "any" | "all":
                return (_State(torch.int32, str(int(i.kind == "all")), f"{x}.to(tl.int32)"),)
            case "max" | "min":
                extreme = _State(dtype, neutral(i.kind, dtype), x)
                if isinstance(i, Reduce):
                    return (extreme,)
                return extreme, _State(torch.int64, str(_FEWEST), self.operands[1])
            case "argmax" | "argmin":
                extreme = _State(dtype, neutral(i.kind[3:], dtype), x)
                return extreme, _State(torch.int64, str(_MOST), self.operands[1])
            case "welford":
                zero = plain_text(0.0, dtype)
                counted = tuple(_State(dtype, zero, text) for text in (x, "0.0", "1.0"))
                return counted
            case _:
                return (_State(dtype, neutral("max", dtype), x), _State(dtype, "0.0", "1.0"))

    def names(self, suffix: str) -> str:
        return ", ".join(f"{self.name}_{suffix}{n}" for n in range(len(self.states())))

    def begin(self, tile: str) -> list[str]:
        """Neutral states, before loops over columns."""
        return [
            f"{self.name}_a{n} = tl.full({tile}, {state.initial}, {state.held})"
            for n, state in enumerate(self.states())
        ]

    def element(self, tile: str, mask: str) -> list[str]:
        """The states of the elements of a tile, neutral where there are none."""
        lines = []
        for n, state in enumerate(self.states()):
            text = f"tl.full({tile}, {state.element}, {state.held})"
            if state.element not in ("0.0", "1.0"):
                text = f"tl.broadcast_to({state.element}, {tile})"
            if mask:
                text = f"tl.where({mask}, {text}, {state.initial})"
            lines.append(f"{self.name}_e{n} = {text}.to({state.held})")
        return lines

    def update(self) -> str:
        """Joins the elements with the states so far."""
        return f"{self.names('a')} = {self.join}({self.names('a')}, {self.names('e')})"

    def along(self, suffix: str) -> list[str]:
        """Joins the states of a row: `NAME_s0...` of it."""
        states, names = self.states(), self.names(suffix)
        result = self.names("s")
        if len(states) == 1:
            kind = self.instruction.kind
            if kind == "sum":
                return [f"{result} = tl.sum({names}, 1, keep_dims=True).to({states[0].held})"]
            if kind in ("any", "all"):
                function = "max" if kind == "any" else "min"
                return [f"{result} = tl.{function}({names}, 1, keep_dims=True)"]
            return [f"{result} = tl.reduce({names}, 1, {self.join}, keep_dims=True)"]
        return [f"{result} = tl.reduce(({names}), 1, {self.join}, keep_dims=True)"]

    def finish(self) -> list[str]:
        """The results of a reduction, of the states of its row."""
        i, name = self.instruction, self.name
        lines = []
        for n, result in enumerate(i.results):
            text = f"{name}_s{n}"
            if i.kind in ("any", "all"):
                text = f"({text} != 0)"
            elif n and i.kind.startswith("arg"):
                text = f"tl.where({text} == {_MOST}, 0, {text})"
            lines.append(f"{result.name} = {text}")
        return lines

    # scans

    def scanned(self) -> list[str]:
        """The states along a row, joined with the carry `NAME_a...` of the columns before."""
        states, names = self.states(), self.names("e")
        given = names if len(states) == 1 else f"({names})"
        lines = [f"{self.names('c')} = tl.associative_scan({given}, 1, {self.join})"]
        lines.append(f"{self.names('c')} = {self.join}({self.names('a')}, {self.names('c')})")
        lines += self.along("e")
        lines.append(f"{self.names('a')} = {self.join}({self.names('a')}, {self.names('s')})")
        return lines + self._scan_results()

    def _scan_results(self) -> list[str]:
        i, name = self.instruction, self.name
        if i.kind == "logsumexp":
            high, total = f"{name}_c0", f"{name}_c1"
            infinite = f'tl.abs({high}) == float("inf")'
            return [f"{name} = tl.where({infinite}, {high}, {high} + libdevice.log({total}))"]
        return [f"{result.name} = {name}_c{n}" for n, result in enumerate(i.results)]
