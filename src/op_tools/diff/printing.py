"""What `op-tools diff` prints: one line first, then what to type next, then short tables."""

from __future__ import annotations

import shlex

from op_tools.describe import printable
from op_tools.diff.pairing import PairedCall
from op_tools.diff.report import REPORTED, Report
from op_tools.diff.sequence import RecordedCall
from op_tools.tables import figure, plain_table

__all__ = ["headline", "next_step", "text_of"]

_MOST_ROWS = 10
_OPERATOR_WIDTH, _LOCATION_WIDTH = 38, 44


def headline(report: Report) -> str:
    """The one line to read."""
    first = report.first
    if first is not None:
        return f"{_who(first)}: {_where(first.call)}: {_sentence(first.reason)}"
    word = "wrong" if report.mode == "captures" else "suspect"
    # What was not judged may be anything.
    lead = f"No call that was judged is {word}." if report.lost else f"No call is {word}."
    parts = [lead, _gaps(report), _structure(report), _parting(report)]
    return " ".join(part for part in parts if part)


def _gaps(report: Report) -> str:
    if not report.lost:
        return ""
    calls = "1 call" if report.lost == 1 else f"{report.lost} calls"
    return f"{calls} could not be judged in both runs (the note below says why)."


def _who(entry: PairedCall) -> str:
    if not entry.side:
        return f"{entry.status.capitalize()} (A or B)"
    return f"A and B are both {entry.status}" if entry.side == "both" else f"{entry.side} is {entry.status}"


def _where(call: RecordedCall) -> str:
    """Operator, source line, module, step and rank."""
    parts = [f"{call.name} ({call.phase}, step {call.step if call.step is not None else '?'}{_rank(call)})"]
    said = str(call.row.get("call_site") or "").partition("\n")[0]
    if call.location:
        parts.append(f"at {said}")
    if call.row.get("forward_name"):
        parts.append(f"from {call.row['forward_name']}")
    if call.module:
        parts.append(f"in {call.module}")
    return printable(" ".join(parts))


def _rank(call: RecordedCall) -> str:
    size = call.row.get("world_size")
    return f", rank {call.row.get('rank')}" if isinstance(size, int) and size > 1 else ""


def _sentence(reason: str) -> str:
    return printable(reason or "no reason given").rstrip(".") + "."


def _structure(report: Report) -> str:
    counts = report.counts()
    unpaired = [f"{counts[key]} only in {key[-1]}" for key in ("only in A", "only in B") if counts[key]]
    return f"Calls that one run has alone: {', '.join(unpaired)}." if unpaired else ""


def _parting(report: Report) -> str:
    if report.mode != "captures":
        return ""
    parted = report.parted
    if parted is None:
        return _equality(report)
    where = _where(parted.call)
    before = [e for e in report.entries if e.rank == parted.rank and e.order < parted.order]
    if any(e.pairing != "aligned" for e in before):
        return (
            f"The values part at {where}, after calls that one run has alone; every call that was judged is right for its "
            f"own inputs."
        )
    if parted.same_inputs is False:
        return (
            f"The runs were not given the same values: the inputs differ already at {where}, and nothing differs before. "
            f"Same seed, data and checkpoint?"
        )
    if parted.random:
        return f"The runs drew other random numbers at {where}: their values cannot be the same after it. Same seed?"
    # A call that could not be judged may be what made them part.
    rounding = "" if report.lost else ", and differ by rounding only from there"
    return f"The values part at {where}{rounding}; every call that was judged is right for its own inputs."


def _equality(report: Report) -> str:
    """Of the calls whose values were compared; those of the others may be equal or not."""
    if not report.judged:
        return "Nothing was judged."
    equal = sum(entry.same_outputs is True for entry in report.entries)
    left = report.counts()["aligned"] - equal
    rest = f"; {left} {'was' if left == 1 else 'were'} not compared" if left else ""
    return f"All values of the {equal} calls that were compared are equal{rest}." if equal else ""


def next_step(report: Report) -> str:
    """What to type next; empty where there is nothing to follow up."""
    first = report.first
    if first is None:
        return ""
    call = first.call
    if first.status == "wrong" and call.folder is not None:
        return printable(f"next: op-tools reproduce {shlex.quote(str(call.folder))}")
    return printable(
        f"next: capture this operator in both runs and compare again: OP_CAPTURE_LEVEL={call.level} "
        f"OP_CAPTURE_LIST={shlex.quote(call.name.partition(' ')[0])} ditorch run --tool capture ..."
    )


def text_of(report: Report) -> str:
    """Everything."""
    blocks = [headline(report)]
    if step := next_step(report):
        blocks[0] += f"\n{step}"
    blocks.append(f"A: {printable(str(report.a))}\nB: {printable(str(report.b))}\n{_counts(report)}")
    if operators := _operators(report):
        blocks.append(operators)
    blocks += [
        block for block in (_reported(report), _unpaired(report, "A"), _unpaired(report, "B")) if block
    ]
    blocks += ["\n".join(f"note: {printable(note)}" for note in report.notes)] if report.notes else []
    return "\n\n".join(blocks)


def _counts(report: Report) -> str:
    counts = {name: count for name, count in report.counts().items() if count or name in ("aligned", "wrong")}
    if report.mode != "captures":
        counts.pop("wrong", None)
    return plain_table([name.replace("_", " ") for name in counts], [list(counts.values())])


def _operators(report: Report) -> str:
    rows = report.operators()
    if not rows:
        return ""
    word = report.reported[0].status if report.reported else "wrong"
    columns = ("operator", "calls", word, "lower precision", "in", "error / bound")
    counts = ("calls", "wrong", "lower_precision", "sides")
    cells = [
        (
            _cut(row["name"], _OPERATOR_WIDTH),
            *map(row.get, counts),
            figure(row["worst"]) if row["worst"] else "",
        )
        for row in rows[:_MOST_ROWS]
    ]
    return plain_table(columns, cells) + _more(len(rows), "operators")


def _reported(report: Report) -> str:
    """Later findings, in order. The first has its line already."""
    found = report.reported
    if len(found) < 2:
        return ""
    cells = []
    for entry in found[:_MOST_ROWS]:
        name, step, where = _cells(entry.call)
        cells.append((name, entry.side, step, where))
    return plain_table((found[0].status, "in", "step", "where"), cells) + _more(
        sum(report.counts()[status] for status in REPORTED), "calls"
    )


def _unpaired(report: Report, side: str) -> str:
    entries = report.only_in(side)
    if not entries:
        return ""
    cells = [_cells(entry.call) for entry in entries[:_MOST_ROWS]]
    return plain_table((f"only in {side}", "step", "where"), cells) + _more(
        report.counts()[f"only in {side}"], "calls"
    )


def _more(count: int, what: str) -> str:
    return f"\n(the first {_MOST_ROWS} of {count} {what})" if count > _MOST_ROWS else ""


def _cells(call: RecordedCall) -> tuple[str, int | None, str]:
    """Operator, step, and where: file name, line and function, as the whole line does not fit a table."""
    where = call.module or call.phase
    if call.location:
        file, _, rest = str(call.row.get("call_site") or "").partition(" ")
        where = f"{file.rpartition('/')[2]} {rest}"
    return _cut(call.name, _OPERATOR_WIDTH), call.step, _cut(where, _LOCATION_WIDTH)


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 3] + "..."
