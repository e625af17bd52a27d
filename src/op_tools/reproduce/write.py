"""From a captured call to a file that shows what is wrong with it."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from dicore.console import counted
from dicore.files import replaced, write_text
from op_tools.captured.load import Item, described_values
from op_tools.describe import printable
from op_tools.reproduce.cutting import cut
from op_tools.reproduce.judged import JudgedCall
from op_tools.reproduce.limits import ErrorLimits
from op_tools.reproduce.rendering import NotWritable
from op_tools.reproduce.script import REPEAT, Builder, Script, build, failures_on, is_faithful, tried
from op_tools.runs import BadInput
from op_tools.tables import figure

__all__ = [
    "NotReproduced",
    "NotWrong",
    "ReproduceOptions",
    "Reproduction",
    "examined",
    "is_wrong",
    "write",
    "write_first",
]

NOT_WRONG = 1
# How many calls are tried before one is written unconfirmed.
MOST_TRIED = 10
NOT_CONFIRMED = (
    "NOT confirmed: the captured values are wrong, but on the device of this machine the call is right now. Was the kernel "
    "loaded by the program? --import MODULE loads it here and in the file; --repeat N tries more often"
)
_INTERNAL = 3
_PATIENCE = 300.0
_FURTHEST = 1 << 62
# Plain tolerances first, then the bound of each element, then the signs of errors as well, then what all have in common.
_RULES: tuple[dict[str, bool], ...] = (
    {}, {"elementwise": True}, {"elementwise": True, "leans": True}, {"elementwise": True, "factor": True},
)  # fmt: skip


@dataclass(frozen=True)
class ReproduceOptions:
    """What to write."""

    item: Item
    out: Path
    device: str = ""
    limit: int = 64 << 20
    force: bool = False
    verify: bool = True
    repeat: int = REPEAT  # how often the call runs, on the device and in the file
    imports: tuple[str, ...] = ()  # modules that runs of the file import first
    must_fail: bool = False  # on its device, where this machine has it, before anything is written


@dataclass(frozen=True)
class Reproduction:
    """What was written."""

    path: Path
    nbytes: int
    operator: str
    capture: str
    wrong: tuple[str, ...]  # values, with what is wrong
    beside: Path | None = None
    cut: str = ""  # how the call was made smaller
    on_cpu: bool = False  # passed there
    on_device: int | None = None  # exit code on the device that was asked for
    confirmed: str = ""  # what the call did on the device of this machine before the file was written
    passed_over: tuple[str, ...] = ()  # surer calls that were not taken, and why


class NotWrong(BadInput):
    """The captured values are right."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_WRONG)


class NotReproduced(BadInput):
    """The captured values are wrong, and those that the device gives now are right."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_WRONG)


def examined(item: Item, device: str = "", repeat: int = REPEAT) -> JudgedCall:
    """Judge a captured call; where its capture shows nothing wrong, what the device gives now."""
    call = JudgedCall.of_item(item)
    if device and not call.wrong and torch.device(device).type != "cpu":
        try:
            call.judge_on(torch.device(device), repeat)
        except Exception as error:  # the operator's own, or the device's
            what = f"{type(error).__name__}: {error}"
            raise BadInput(f"{call.name} could not run on {device}: {what}") from error
    if not any(value.verdict is not None for value in call.values):
        raise BadInput(
            f"{item.label} has no results to look at, only inputs. Say --device NAME to run the call on a device of this "
            f"machine, or capture it again: OpCapture saves results, and inputs that the call writes to."
        )
    return call


def is_wrong(item: Item) -> bool:
    """Whether a captured call is wrong; one that cannot be judged is not."""
    try:
        return bool(JudgedCall.of_item(item).wrong)
    except BadInput:
        return False


def write(request: ReproduceOptions) -> Reproduction:
    """Write the file. Raises BadInput, and NotWrong where the captured values are right and nothing forces it."""
    call = examined(request.item, request.device, request.repeat)
    if not call.wrong and not request.force:
        shown = ", ".join(f"{v.name} {v.verdict.status}" for v in call.values if v.verdict is not None)
        raise NotWrong(
            f"{call.name} at {request.item.label} is not wrong ({shown or 'nothing was compared'}). No file was "
            f"written; --force writes one anyway."
        )
    try:
        return _written(request, call)
    except NotWritable as error:
        raise BadInput(f"{call.name} cannot be written down: it needs {error}.") from error


def write_first(items: Iterable[Item], request: ReproduceOptions) -> Reproduction:
    """Write the file of the first of these calls that is still wrong on its device.

    Where none is, or this machine has no such device, of the first that can be written. Raises BadInput.
    """
    passed_over: list[str] = []
    unconfirmed: list[Item] = []
    problem: BadInput | None = None
    for item in islice(items, MOST_TRIED):
        try:
            made = write(replace(request, item=item, must_fail=True))
            return replace(made, passed_over=tuple(passed_over))
        except NotReproduced as error:
            unconfirmed.append(item)
            passed_over.append(str(error))
        except BadInput as error:
            problem = problem or error
            passed_over.append(str(error))
    if not unconfirmed:
        assert problem is not None
        raise problem
    made = write(replace(request, item=unconfirmed[0]))
    return replace(made, passed_over=tuple(passed_over), confirmed=NOT_CONFIRMED)


def _device_here(request: ReproduceOptions, call: JudgedCall) -> torch.device | None:
    """The device to confirm on: the one asked for, or the captured one where this machine has it."""
    name = request.device or str(call.captured.header.get("device") or "")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        return None
    return device if device.type != "cpu" else None


def _confirmed(request: ReproduceOptions, call: JudgedCall, script: Script) -> str:
    """Run the call on its device. Raises NotReproduced where it gives right values."""
    device = _device_here(request, call)
    if device is None:
        return ""
    failed, said = failures_on(script, device, request.repeat)
    if not failed:
        raise NotReproduced(
            f"{call.name} at {request.item.label}: captured wrong, right in {counted(request.repeat, 'call')} on {device} now"
        )
    return f"on {device}: {said}"


def _written(request: ReproduceOptions, call: JudgedCall) -> Reproduction:
    strides = _source_strides(request.item, call)
    script = _best(call, strides, request)
    text = ""
    if len(script.text) > request.limit:
        smaller = None if call.random else cut(call, request.limit)
        if smaller is not None:
            candidate = _best(smaller[0], (), request)
            if len(candidate.text) <= request.limit:
                script, (call, text) = candidate, smaller
    beside = None
    if len(script.text) > request.limit:
        beside = request.out.with_suffix(".pt")
        script = _best(call, strides, request, beside.name)
    confirmed = _confirmed(request, call, script) if request.must_fail else ""
    _save(request.out, script, beside)
    nbytes = request.out.stat().st_size + (beside.stat().st_size if beside is not None else 0)
    passed = _verified(request, beside) if request.verify else False
    on_device = _ran(request, request.device)[0] if request.verify and request.device else None
    wrong = tuple(
        f"{value.name}: {value.verdict.reason}" for value in call.wrong if value.verdict is not None
    )
    return Reproduction(
        request.out, nbytes, call.name, request.item.label, wrong, beside, text, passed, on_device, confirmed
    )


def _best(
    call: JudgedCall, strides: tuple[tuple[int, ...] | None, ...], request: ReproduceOptions, beside: str = ""
) -> Script:
    """The simplest file whose rule tells the captured values from the CPU's."""
    title = _title(call, request)
    limits: dict[int, ErrorLimits | None] = {}
    first = build(Builder(call, strides, limits, request.repeat), title, beside=beside)
    stored = not is_faithful(first, call)
    for rule in _RULES:
        script = first
        if rule or stored:
            builder = Builder(call, strides, limits, request.repeat)
            script = build(builder, title, beside=beside, stored=stored, **rule)
        try:
            found, passed = tried(script, call)
        except Exception as error:
            # What runs by itself, from bytes in a file, may ask for more than the call did.
            what = f"{type(error).__name__}: {error}"
            raise BadInput(f"{call.name} does not run from a file: {what}") from error
        if passed and (found or not call.wrong):
            return script
    reason = "the captured values pass" if passed else "the CPU's own values fail"
    raise BadInput(
        f"no rule in a file tells the captured values of {call.name} from right ones ({reason}). "
        f"`op-tools replay` judges the call with more than a file can hold."
    )


# --- the text at the top ----------------------------------------------------------------------------------


def _title(call: JudgedCall, request: ReproduceOptions) -> str:
    header, extra = call.captured.header, call.captured.extra
    device = _safe(call.seen_on or str(header.get("device") or ""))
    what = "was not found wrong"
    if call.wrong:
        what = "is wrong" if any(value.failed for value in call.wrong) else "is less precise than its dtype"
    lines = [f"{call.name} {what} on {device}.", ""]
    facts = {
        "Call site": call.captured.call_site,
        "Module": extra.get("module"),
        "Step, rank": f"{header.get('step')}, {header.get('rank')}" if header.get("step") is not None else "",
        "Captured with": f"torch {header['torch']}" if header.get("torch") else "",
        "Autocast": str(call.autocast) if call.autocast is not None else "",
        "Capture": request.item.folder.name and str(Path(*request.item.folder.parts[-4:])),
    }
    lines += [_fact(name, str(text)) for name, text in facts.items() if text]
    for value in call.values:
        if value.verdict is not None and value.verdict.status != "skipped":
            lines.append(_fact(value.name, _verdict_text(value.verdict)))
    lines += [
        "",
        "Run:  python FILE [--device NAME] [--repeat N] [--import MODULE]",
        "Exit code 0: the device gives the right values; 1: it does not; 2: there is no such device.",
        "",
        "The call runs on the device, from the captured inputs, N times on memory that holds one thing and another, and",
        "on the CPU: in float64 or, where values are only moved or picked, in the same dtype. A value is wrong where it",
        "is further off than correct arithmetic can be; one wrong call of N is enough.",
        *(["Here values are drawn at random: they are judged by their distribution."] if call.random else ()),
        "The file needs nothing but torch; backends of other packages load as torch loads them.",
        "",
    ]
    return "\n".join(lines)


def _fact(name: str, text: str) -> str:
    text, first, rest = _safe(text), f"{name + ':':<15}", " " * 15
    return textwrap.fill(text, 110, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _verdict_text(verdict: Any) -> str:
    text = f"{verdict.status}{': ' + verdict.reason if verdict.reason else ''}"
    if math.isfinite(verdict.max_abs_diff) and verdict.status != "same":
        text += f"; max_abs_diff {figure(verdict.max_abs_diff)}"
        text += f", max_relative_diff {figure(verdict.max_relative_diff)}"
    return text


def _safe(text: str) -> str:
    """Text from a capture inside a string: nothing in it ends the string."""
    return printable(text).replace("\\", "/").replace('"', "'")[:300]


# --- files ------------------------------------------------------------------------------------------------


def _source_strides(item: Item, call: JudgedCall) -> tuple[tuple[int, ...] | None, ...]:
    """Strides before the capture closed the gaps of views, from the description beside it."""
    tensors = call.captured.tensors
    found = [value for value in described_values(item.file("input")) if isinstance(value, dict)]
    if [row["shape"] for row in found] != [list(tensor.shape) for tensor in tensors]:
        return ()
    return tuple(
        _strides(row.get("stride"), tensor.dim()) for row, tensor in zip(found, tensors, strict=True)
    )


def _strides(said: Any, dims: int) -> tuple[int, ...] | None:
    """Anybody may have written the description: only what can be strides counts."""
    if not isinstance(said, list) or len(said) != dims:
        return None
    return tuple(said) if all(type(step) is int and 0 <= step < _FURTHEST for step in said) else None


def _save(path: Path, script: Script, beside: Path | None) -> None:
    try:
        with contextlib.ExitStack() as stack:
            if beside is not None:  # put in place after the file itself, so that it never lies there alone
                torch.save(script.packer.tensor(), stack.enter_context(replaced(beside)))
            write_text(path, script.text)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror}. Say -o FILE for another path."
        ) from error


def _ran(request: ReproduceOptions, device: str) -> tuple[int, str]:
    imports = [word for name in request.imports for word in ("--import", name)]
    command = [sys.executable, str(request.out), "--device", device, *imports]
    # Modules that were found from the working folder are to be found again.
    paths = [os.getcwd(), os.environ.get("PYTHONPATH", "")] if imports else [os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {_PATIENCE:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _verified(request: ReproduceOptions, beside: Path | None) -> bool:
    """Run the file in an interpreter of its own, on the CPU, where it must pass; otherwise it proves nothing."""
    path = request.out
    code, said = _ran(request, "cpu")
    if code == 0:
        return True
    kept = path.with_name(path.name + ".failed")
    path.replace(kept)
    if beside is not None:
        beside.unlink(missing_ok=True)
    raise BadInput(
        f"the file does not pass on this machine's CPU (exit code {code}), so it would prove nothing. It is kept as "
        f"{kept}. It said: {said[-500:]}",
        _INTERNAL,
    )
