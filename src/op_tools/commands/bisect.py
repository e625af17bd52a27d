"""`op-tools bisect`: the smallest list of operators that, run on the CPU, restores a script's result."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dicore.suggestions import closest, did_you_mean
from op_tools.bisect import printing
from op_tools.bisect.bisection import Bisection, By
from op_tools.bisect.readings import Reading, numbers_in, pattern_of
from op_tools.bisect.running import MAPPING, Runner, ScriptRun
from op_tools.runs import BadInput

__all__ = ["bisect_command"]

_FOUND, _NONE_RESTORES, _INTERRUPTED = 0, 1, 130


def bisect_command(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script, run unchanged each time.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, run as `python -m` does.")] = False,
    result: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="The result is what this finds in the output. Default: numbers after `loss`, or those of the last line.",
        ),
    ] = "",
    result_file: Annotated[
        Path | None, typer.Option(help="The result is in this file that the script writes: JSON or numbers.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="The script is right when it ends with exit code 0.")
    ] = False,
    expect: Annotated[
        str, typer.Option(metavar="NUMBERS", help="The right result: `2.1,2.0`. Saves the reference run.")
    ] = "",
    expect_file: Annotated[
        Path | None, typer.Option(help="The right result, read from a file as --result-file is.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="`loss`: search until the result is right; `verdict`: until OpAutoCompare judges no operator wrong, at every "
            "call. Default: loss; verdict where the loss differs by no more than rounding.",
        ),
    ] = "",
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Relative difference up to which a result counts as restored."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds a run may take; 0: no limit.")] = 0.0,
    prior: Annotated[
        bool, typer.Option("--prior/--no-prior", help="Suspect operators that OpAutoCompare finds wrong.")
    ] = True,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import this before the script."),
    ] = None,
    mapping: Annotated[
        bool,
        typer.Option("--ditorch/--no-ditorch", help="Map the names of cuda, where ditorch is installed."),
    ] = True,
    keep: Annotated[Path | None, typer.Option(help="Keep what each run prints in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the smallest list of operators that, run on the CPU, restores a script's result.

    The first run is the script as it is, and judges each operator; the second has every operator on the CPU and is the
    reference. Where the loss does not differ, the operators judged wrong are the answer. Options stand before the script, its own
    arguments after it. Exit code 0: found; 1: no list restores the result; 2: wrong usage; 3: internal error; 5: nothing to
    search; 130: interrupted.
    """
    if not module:
        _check(Path(script))
    _check_ranks()
    _check_modules(imports or ())
    before = [*([MAPPING] if mapping and find_spec(MAPPING) is not None else []), *(imports or ())]
    chosen = _by(by, prior)
    reading = _reading(result, result_file, exit_code)
    expected = _expected(expect, expect_file, exit_code)
    with _folder(keep) as folder:
        runner = Runner(
            script, arguments or (), reading, Path(folder), timeout or None, before, module=module
        )
        show = _Show(as_json)
        bisection = Bisection(runner, show, expected, tolerance, prior, chosen)
        try:
            code = _NONE_RESTORES if bisection.run() is None else _FOUND
        except KeyboardInterrupt:
            code = _INTERRUPTED
        finally:
            show.clear()
        if code == _INTERRUPTED:
            typer.echo(printing.known_so_far(bisection), err=True)
        if as_json:
            typer.echo(printing.as_json(bisection, code))
        elif code != _INTERRUPTED:
            typer.echo(f"\n{printing.answer(bisection)}")
    raise typer.Exit(code)


def _check(script: Path) -> None:
    if not script.exists():
        near = _near(script)
        raise BadInput(f"{script} does not exist. Expected a Python script, then its arguments.{near}")
    if not script.is_file():
        raise BadInput(f"{script} is not a file. Expected a Python script, then its arguments.")
    try:
        with warnings.catch_warnings(action="ignore"):  # the script's own runs will show them
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{script} is not a Python script: {error}") from error
    except OSError as error:
        raise BadInput(
            f"{script} cannot be read: {error.strerror}. Check who owns it and its mode."
        ) from error


def _check_ranks() -> None:
    if os.environ.get("WORLD_SIZE", "1").strip() not in {"", "0", "1"}:
        raise BadInput(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but bisect runs scripts of one process only. Unset it, or make "
            "the fault appear in one process. `ditorch run --tool autocompare` judges operators in many."
        )


def _check_modules(names: Sequence[str]) -> None:
    for name in names:
        found = None
        with contextlib.suppress(ImportError, ValueError):  # its package does not exist, or the name is none
            found = find_spec(name)
        if found is None:
            raise BadInput(f"--import {name}: there is no such module in this Python, {sys.executable}.")


def _near(script: Path) -> str:
    folder = script.parent
    names = [path.name for path in folder.iterdir()] if folder.is_dir() and os.access(folder, os.R_OK) else []
    found = closest(script.name, names, most=3)
    return f" Did you mean {', '.join(str(folder / name) for name in found)}?" if found else ""


def _by(text: str, prior: bool) -> By:
    known: dict[str, By] = {"": "", "loss": "loss", "verdict": "verdict"}
    if text not in known:
        raise BadInput(f"--by {text}: expected loss or verdict.{did_you_mean(text, list(known)[1:])}")
    chosen = known[text]
    if chosen == "verdict" and not prior:
        raise BadInput(
            "--by verdict needs the verdicts of OpAutoCompare, which --no-prior leaves out. Give one of them."
        )
    return chosen


def _reading(result: str, result_file: Path | None, exit_code: bool) -> Reading:
    if (result != "") + (result_file is not None) + exit_code > 1:
        raise BadInput(
            "--result, --result-file and --exit-code each say where the result is. Give one of them."
        )
    return Reading(pattern_of(result) if result else None, result_file, exit_code)


def _expected(expect: str, expect_file: Path | None, exit_code: bool) -> tuple[float, ...] | None:
    if expect and expect_file is not None:
        raise BadInput("--expect and --expect-file both give the right result. Give one of them.")
    if not expect and expect_file is None:
        return None
    if exit_code:
        raise BadInput("with --exit-code the right result is exit code 0; --expect has no meaning beside it.")
    if expect_file is not None and not expect_file.is_file():
        raise BadInput(f"--expect-file {expect_file} does not exist.")
    numbers = numbers_in(expect) if expect_file is None else Reading(file=expect_file).read("")
    if not numbers or any(map(math.isnan, numbers)):
        source = f"--expect {expect!r}" if expect_file is None else f"--expect-file {expect_file}"
        raise BadInput(
            f"{source} holds no result. Expected numbers such as 2.1,2.0 (in a file: JSON too), no NaN."
        )
    return numbers


def _folder(keep: Path | None) -> AbstractContextManager[str]:
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="op_tools_bisect_")
    if keep.exists() and not keep.is_dir():
        raise BadInput(f"--keep {keep} is not a folder.")
    return nullcontext(str(keep))


class _Show:
    """Prints a line when a run is over; on a terminal, says that the next one is under way."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.count = 0
        if not quiet:
            typer.echo(printing.HEADER)
        self._under_way()

    def __call__(self, run: ScriptRun) -> None:
        self.count += 1
        self.clear()
        if not self.quiet:
            for line in (printing.run_line(run), *printing.found_lines(run)):
                typer.echo(line)
        self._under_way()

    def clear(self) -> None:
        """Take back what was said of the next run."""
        if sys.stderr.isatty():
            typer.echo("\r\033[K", nl=False, err=True)

    def _under_way(self) -> None:
        if sys.stderr.isatty():
            typer.echo(f"run {self.count + 1} ...", nl=False, err=True)
