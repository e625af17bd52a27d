"""`Reduce` and `Scan` as statements of C++: before the loops, in them, behind a block of columns, behind the loops."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from dicp.loops.ir import Reduce, Scan
from dicp.loops.primitives import Value
from dicp.vendor.HostGraph.bodies import BodyWriter, type_of
from dicp.vendor.HostGraph.expressions import literal_text
from dicp.vendor.HostGraph.nests import neutral

__all__ = ["BLOCK", "Accumulator", "reduction", "scan"]

BLOCK = 512
"""Columns that are gathered before they are joined with those before them."""


@dataclass
class Accumulator:
    """Statements of one reduction or scan. With `block` lines the innermost loop must be divided in blocks."""

    before: list[str] = field(default_factory=list)
    clauses: list[str] = field(default_factory=list)
    block_before: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    block: list[str] = field(default_factory=list)
    """Of `count` columns."""
    after: list[str] = field(default_factory=list)
    results: list[tuple[Value, str]] = field(default_factory=list)
    """What becomes of them when the loops are over."""


def reduction(i: Reduce, body: BodyWriter, place: str, blocked: bool) -> Accumulator:
    """`place`: where in the block a column is; `blocked`: the loops are long, sums of their floats are divided."""
    operands = [body.value(operand) for operand in i.operands]
    name, dtype = i.results[0].name, i.operands[0].dtype
    match i.kind:
        case "sum" | "prod":
            return _sum(i, name, operands[0], blocked)
        case "max" | "min":
            return _extreme(i, name, operands[0], dtype)
        case "any" | "all":
            sign = "|" if i.kind == "any" else "&"
            return Accumulator(
                before=[f"i32 {name}_a = {int(i.kind == 'all')};"],
                clauses=[f"reduction({sign} : {name}_a)"],
                update=[f"{name}_a {sign}= (i32){operands[0]};"],
                results=[(i.results[0], f"{name}_a != 0")],
            )
        case "argmax" | "argmin":
            kind = f"Extreme<{type_of(i.operands[0])}, {'true' if i.kind == 'argmax' else 'false'}>"
            initial = f"{{{neutral(i.kind[3:], dtype)}, 0}}"
            members = ("value", "position")
        case "welford":
            kind, initial, members = f"Welford<{type_of(i.operands[0])}>", "", ("mean", "squares")
        case _:
            kind, initial, members = f"LogSumExp<{type_of(i.operands[0])}>", "", ("highest", "sum")
    found = Accumulator(before=[f"{kind} {name}_a{initial};"])
    buffers = [f"{name}_b{k}" for k in range(len(operands))]
    for buffer, operand, value in zip(buffers, operands, i.operands, strict=True):
        found.before.append(f"{type_of(value)} {buffer}[{BLOCK}];")
        found.update.append(f"{buffer}[{place}] = {operand};")
    found.block.append(f"{name}_a.block({', '.join(buffers)}, count);")
    found.results = [(r, f"{name}_a.{m}") for r, m in zip(i.results, members, strict=True)]
    return found


def _sum(i: Reduce, name: str, operand: str, blocked: bool) -> Accumulator:
    dtype, sign = i.operands[0].dtype, "+" if i.kind == "sum" else "*"
    kind, neutral_text = type_of(i.operands[0]), literal_text(int(i.kind == "prod"), dtype)
    if not blocked or not dtype.is_floating_point:
        return Accumulator(
            before=[f"{kind} {name}_a = {neutral_text};"],
            clauses=[f"reduction({sign} : {name}_a)"],
            update=[f"{name}_a = ({kind})({name}_a {sign} {operand});"],
            results=[(i.results[0], f"{name}_a")],
        )
    return Accumulator(
        before=[f"double {name}_s = {int(i.kind == 'prod')};"],
        block_before=[f"{kind} {name}_a = {neutral_text};"],
        clauses=[f"reduction({sign} : {name}_a)"],
        update=[f"{name}_a = {name}_a {sign} {operand};"],
        block=[f"{name}_s = {name}_s {sign} {name}_a;"],
        results=[(i.results[0], f"({kind}){name}_s")],
    )


def _extreme(i: Reduce, name: str, operand: str, dtype: torch.dtype) -> Accumulator:
    initial, test = neutral(i.kind, dtype), "<" if i.kind == "max" else ">"
    if dtype.is_floating_point:
        order = "high_order" if i.kind == "max" else "low_order"
        return Accumulator(
            before=[f"auto {name}_a = {order}({initial});"],
            clauses=[f"reduction({i.kind} : {name}_a)"],
            update=[
                f"const auto {name}_k = {order}({operand});",
                f"{name}_a = {name}_a {test} {name}_k ? {name}_k : {name}_a;",
            ],
            results=[(i.results[0], f"of_order({name}_a)")],
        )
    kind = "i32" if dtype is torch.bool else type_of(i.operands[0])
    return Accumulator(
        before=[f"{kind} {name}_a = {initial};"],
        clauses=[f"reduction({i.kind} : {name}_a)"],
        update=[f"{name}_a = {name}_a {test} ({kind}){operand} ? ({kind}){operand} : {name}_a;"],
        results=[(i.results[0], f"({type_of(i.results[0])}){name}_a")],
    )


def scan(i: Scan, body: BodyWriter) -> Accumulator:
    """Of columns in order; the results are declared by the update."""
    operands = [body.value(operand) for operand in i.operands]
    result, dtype = i.results[0], i.operands[0].dtype
    name, kind = result.name, type_of(i.operands[0])
    if i.kind in ("sum", "prod"):
        wide = "double" if dtype.is_floating_point else kind
        sign = "+" if i.kind == "sum" else "*"
        return Accumulator(
            before=[f"{wide} {name}_a = {int(i.kind == 'prod')};"],
            update=[
                f"{name}_a = ({wide})({name}_a {sign} {operands[0]});",
                f"const {kind} {name} = ({kind}){name}_a;",
            ],
        )
    if i.kind == "logsumexp":
        return Accumulator(
            before=[f"RunningLogSumExp<{kind}> {name}_a;"],
            update=[f"const {kind} {name} = {name}_a.add({operands[0]});"],
        )
    return Accumulator(
        before=[
            f"RunningExtreme<{kind}, {'true' if i.kind == 'max' else 'false'}> {name}_a{{{neutral(i.kind, dtype)}}};"
        ],
        update=[
            f"{name}_a.add({', '.join(operands)});",
            f"const {kind} {name} = {name}_a.value;",
            f"const i64 {i.results[1].name} = {name}_a.position;",
        ],
    )
