"""What a search says: a line for each run while it goes on, then the answer; or all of it as one JSON document."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from dicore.console import counted
from op_tools.bisect.bisection import Bisection
from op_tools.bisect.running import ScriptRun, Suspicion

__all__ = ["HEADER", "answer", "as_json", "found_lines", "known_so_far", "run_line"]

_RESULT_WIDTH, _WIDTH = 48, 100
_MOST_FOUND = 5
HEADER = f"{'run':>3}  {'on the CPU':<14}  {'result':<{_RESULT_WIDTH}}  {'restored':<9}  {'seconds':>7}"


def run_line(run: ScriptRun) -> str:
    """One run in the columns of HEADER. A run that did not end well says why on a second line if that is long."""
    restored = {None: "", True: "yes", False: "no"}[run.restored]
    what = "failed" if run.problem else _shortened(run.result)
    line = f"{run.number:>3}  {_on_cpu(run):<14}  {what:<{_RESULT_WIDTH}}  {restored:<9}  {run.seconds:7.1f}"
    return f"{line}\n     {run.problem[: _WIDTH - 5]}" if run.problem else line


def found_lines(run: ScriptRun) -> list[str]:
    """What OpAutoCompare found in a run, the worst first: it counts also where the result does not show it."""
    bad = {name: found for name, found in run.found.items() if found.weight[0]}
    order = sorted(bad, key=lambda name: bad[name].weight, reverse=True)
    lines = [
        f"     {_word(bad[name])}: {name}: {_reason(bad[name])}"[:_WIDTH] for name in order[:_MOST_FOUND]
    ]
    if run.every and not order:
        lines.append("     every call judged, none wrong")
    if len(order) > _MOST_FOUND:
        lines.append(f"     and {len(order) - _MOST_FOUND} more")
    return lines


def _word(found: Suspicion) -> str:
    return "judged wrong" if found.verdict == "fail" else found.verdict.replace("_", " ")


def _reason(found: Suspicion) -> str:
    """The reason of a verdict, without the label that many begin with."""
    return found.reason.removeprefix(f"{_word(found)} than its dtype: ")


def _on_cpu(run: ScriptRun) -> str:
    if run.fallback is None:
        return "all, perturbed" if run.perturbed else "everything"
    return counted(len(run.fallback), "operator") if run.fallback else "nothing"


def _shortened(result: Sequence[float]) -> str:
    """The numbers of a result; of many, the first and the last."""
    if not result:
        return "none"
    words = [f"{value:.7g}" for value in result]
    text = ", ".join(words)
    if len(text) <= _RESULT_WIDTH:
        return text
    return f"{words[0]}, {words[1]}, ..., {words[-1]} ({len(words)} numbers)"


def answer(bisection: Bisection) -> str:
    """The list that was found, why each of its operators is suspected, and what to type."""
    if bisection.operators is None:
        return (
            f"No list of operators restores the result: with all {bisection.seen} on the CPU it is not the expected one "
            f"either.\nThe fault is not in an operator, or the expected result is not that of this script."
        )
    lines = _found_by_verdict(bisection) if bisection.by_verdict else _found_by_loss(bisection)
    if bisection.operators:
        lines += [
            "",
            "To run with it:" if len(bisection.operators) == 1 else "To run with them:",
            f"    {_command(bisection)}",
            "or, for scripts that use OpFallback themselves:",
            f"    export OP_FALLBACK_LIST={','.join(bisection.operators)}",
        ]
    return "\n".join([*lines, *_hints(bisection)])


def _found_by_loss(bisection: Bisection) -> list[str]:
    operators = bisection.operators or ()
    left = f" ({bisection.left:.1%} of the error is left)" if bisection.left else ""
    lines = [
        f"{len(operators)} of {bisection.seen} operators must run on the CPU to restore the result{left}; "
        f"{len(bisection.runs)} runs:"
    ]
    for name in operators:
        lines += [f"    {name}", *_why(bisection, name)]
    if others := [name for name in bisection.judged_wrong if name not in operators]:
        lines.append("also judged wrong, but the result does not need them on the CPU:")
        for name in others:
            lines += [f"    {name}", *_why(bisection, name)]
    return lines


def _found_by_verdict(bisection: Bisection) -> list[str]:
    names = bisection.judged_wrong
    are = "operator is" if len(names) == 1 else "operators are"
    lines = [f"{len(names)} {are} judged wrong; {counted(len(bisection.runs), 'run')}:"]
    if bisection.without_loss:
        lines.insert(0, f"searched by verdict: {bisection.without_loss}")
    for name in names:
        lines += [f"    {name}", *_why(bisection, name)]
    confirmed = bisection.operators and bisection.runs[-1].restored
    if confirmed:
        lines.append(
            f"with {', '.join(bisection.operators or ())} on the CPU no other operator is judged wrong"
        )
    if bisection.stays:
        what = ", ".join(bisection.stays)
        lines.append(
            f"{what}: stays on the device, since OpFallback leaves random operators and copies there"
        )
    return lines


def _why(bisection: Bisection, name: str) -> list[str]:
    suspicion = bisection.found.get(name)
    if suspicion is None or not suspicion.weight[0]:
        return []
    lines = [f"{_word(suspicion)}: {_reason(suspicion)}"] + (
        [f"at {suspicion.call_site}"] if suspicion.call_site else []
    )
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
    return [part for line in lines for part in wrapper.wrap(line)]


def _command(bisection: Bisection) -> str:
    runner = bisection.runner
    words = ["ditorch", "run", "--tool", "fallback", *(["-m"] if runner.module else []), runner.script]
    words += runner.arguments
    return f"OP_FALLBACK_LIST={','.join(bisection.operators or ())} {shlex.join(words)}"


def _hints(bisection: Bisection) -> list[str]:
    operators = bisection.operators or ()
    wrong = any(bisection.found[name].verdict == "fail" for name in operators if name in bisection.found)
    if (
        len(operators) > 3
        and not bisection.by_verdict
        and bisection.runner.reading.exit_code is False
        and not wrong
    ):
        return [
            "",
            "None of them was judged wrong by itself. Does the script give the same result every time? A script without "
            "a seed, or one that goes on from files of an earlier run, leads a search astray.",
        ]
    return []


def known_so_far(bisection: Bisection) -> str:
    """What an interrupted search has found out."""
    lines = [f"interrupted after {len(bisection.runs)} runs"]
    search = bisection.search
    if search is not None and search.culprits:
        lines.append(f"known to be needed: {', '.join(search.culprits)}")
    if search is not None and search.restoring is not None and len(search.restoring) < len(search.candidates):
        lines.append(f"known to restore the result: {', '.join(search.restoring)}")
    if bisection.judged_wrong:
        lines.append(f"judged wrong in the first run: {', '.join(bisection.judged_wrong)}")
    return "\n".join(lines)


def as_json(bisection: Bisection, code: int) -> str:
    """All of it for a machine. NaN and infinities are written as text: JSON has none."""
    search = bisection.search
    document: dict[str, Any] = {
        "script": bisection.runner.script,
        "arguments": bisection.runner.arguments,
        "exit_code": code,
        "operators": list(bisection.operators) if bisection.operators is not None else None,
        "needed_so_far": search.culprits if search is not None else [],
        "by": "verdict" if bisection.by_verdict else "loss",
        "stays": list(bisection.stays),
        "without_loss": bisection.without_loss,
        "noise": bisection.noise,
        "seen": list(search.candidates) if search is not None else [],
        "reference": _plain(bisection.judge.reference) if bisection.judge is not None else None,
        "allowance": bisection.judge.allowance if bisection.judge is not None else None,
        "error_left": bisection.left,
        "judged_wrong": {n: found.reason for n, found in bisection.found.items() if found.verdict == "fail"},
        "command": _command(bisection) if bisection.operators else None,
        "runs": [_run_as_json(run) for run in bisection.runs],
    }
    return json.dumps(document, indent=2)


def _run_as_json(run: ScriptRun) -> dict[str, Any]:
    return {
        "number": run.number,
        "on_cpu": "everything" if run.fallback is None else list(run.fallback),
        "result": _plain(run.result),
        "restored": run.restored,
        "exit_code": run.code,
        "problem": run.problem,
        "seconds": round(run.seconds, 3),
        "stayed_on_the_device": run.stayed,
    }


def _plain(numbers: Sequence[float]) -> list[float | str]:
    return [value if abs(value) < float("inf") else str(value) for value in numbers]
