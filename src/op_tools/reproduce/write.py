"""From a captured call to a file that shows what is wrong with it."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dicore.files import replaced, write_text
from op_tools.captured.load import Item, described_values
from op_tools.describe import printable
from op_tools.reproduce.cutting import cut
from op_tools.reproduce.judged import JudgedCall
from op_tools.reproduce.limits import ErrorLimits
from op_tools.reproduce.rendering import NotWritable
from op_tools.reproduce.script import Builder, Script, build, is_faithful, tried
from op_tools.runs import BadInput

__all__ = ["NotWrong", "ReproduceOptions", "Reproduction", "examined", "is_wrong", "write"]

NOT_WRONG = 1
_INTERNAL = 3
_PATIENCE = 300.0
_FURTHEST = 1 << 62
# Plain tolerances first, then the bound of each element, then the signs of errors as well.
_RULES: tuple[dict[str, bool], ...] = ({}, {"elementwise": True}, {"elementwise": True, "leans": True})


@dataclass(frozen=True)
class ReproduceOptions:
    """What to write."""

    item: Item
    out: Path
    device: str = ""
    limit: int = 64 << 20
    force: bool = False
    verify: bool = True


@dataclass(frozen=True)
class Reproduction:
    """What was written."""

    path: Path
    nbytes: int
    operator: str
    wrong: tuple[str, ...]  # values, with what is wrong
    beside: Path | None = None
    cut: str = ""  # how the call was made smaller
    on_cpu: bool = False  # passed there
    on_device: int | None = None  # exit code on the device that was asked for


class NotWrong(BadInput):
    """The captured values are right."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_WRONG)


def examined(item: Item, device: str = "") -> JudgedCall:
    """Judge a captured call; where its capture shows nothing wrong, what the device gives now."""
    call = JudgedCall.of_item(item)
    if device and not call.wrong and torch.device(device).type != "cpu":
        try:
            call.judge_on(torch.device(device))
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
    call = examined(request.item, request.device)
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


def _written(request: ReproduceOptions, call: JudgedCall) -> Reproduction:
    strides = _source_strides(request.item, call)
    script = _best(call, strides, request)
    text = ""
    if len(script.text) > request.limit:
        smaller = cut(call, request.limit)
        if smaller is not None:
            candidate = _best(smaller[0], (), request)
            if len(candidate.text) <= request.limit:
                script, (call, text) = candidate, smaller
    beside = None
    if len(script.text) > request.limit:
        beside = request.out.with_suffix(".pt")
        script = _best(call, strides, request, beside.name)
    _save(request.out, script, beside)
    nbytes = request.out.stat().st_size + (beside.stat().st_size if beside is not None else 0)
    passed = _verified(request.out, beside) if request.verify else False
    on_device = _ran(request.out, request.device)[0] if request.verify and request.device else None
    wrong = tuple(
        f"{value.name}: {value.verdict.reason}" for value in call.wrong if value.verdict is not None
    )
    return Reproduction(request.out, nbytes, call.name, wrong, beside, text, passed, on_device)


def _best(
    call: JudgedCall, strides: tuple[tuple[int, ...] | None, ...], request: ReproduceOptions, beside: str = ""
) -> Script:
    """The simplest file whose rule tells the captured values from the CPU's."""
    title = _title(call, request)
    limits: dict[int, ErrorLimits | None] = {}
    first = build(Builder(call, strides, limits), title, beside=beside)
    stored = not is_faithful(first, call)
    for rule in _RULES:
        script = first
        if rule or stored:
            script = build(Builder(call, strides, limits), title, beside=beside, stored=stored, **rule)
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
    wrong = [value for value in call.wrong if value.verdict is not None]
    lines = [f"{call.name} {'is wrong' if wrong else 'was not found wrong'} on {device}.", ""]
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
        "Run:  python FILE [--device NAME]",
        "Exit code 0: the device gives the right values; 1: it does not; 2: there is no such device.",
        "",
        "The call runs on the device, from the captured inputs, and on the CPU: in float64 or, where values are only",
        "moved or picked, in the same dtype. A value is wrong where it is further off than correct arithmetic can be.",
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
        text += f"; max_abs_diff {verdict.max_abs_diff:.6g}"
        text += f", max_relative_diff {verdict.max_relative_diff:.6g}"
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


def _ran(path: Path, device: str) -> tuple[int, str]:
    command = [sys.executable, str(path), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {_PATIENCE:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _verified(path: Path, beside: Path | None) -> bool:
    """Run the file in an interpreter of its own, on the CPU, where it must pass; otherwise it proves nothing."""
    code, said = _ran(path, "cpu")
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
