"""`op-tools replay`, also `run_op_from_data.py`: run captured operators again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dicore.console import ProgressBar, progress_bar
from dicore.settings import variables_of
from op_tools import tables
from op_tools.describe import printable
from op_tools.replay import ExecutorError, ItemReport, Options, WorkerStartError, find_items, replay, summary
from op_tools.replay.printing import report_line, wrapped
from op_tools.replay.report import FAILED
from op_tools.runs import BadInput, size_option
from op_tools.settings import ToolSettings

__all__ = ["check_device", "normalised", "replay_command"]

# With more calls than this, only what needs attention is printed in full.
_MOST_PRINTED_ITEMS = 20
_SWITCHES = ("acc_check", "sync_time_measure", "only_run_forward")
_NO = ("false", "0", "no")


def normalised(arguments: Sequence[str]) -> list[str]:
    """Old command lines give switches a value: `--only_run_forward True`. Hyphens do as well as underscores."""
    result: list[str] = []
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        name, has_value, value = word.removeprefix("--").replace("-", "_").partition("=")
        if not word.startswith("--") or name not in _SWITCHES:
            result.append(word)
            continue
        if not has_value and pending and pending[0].lower() in ("true", "false"):
            value = pending.pop(0)
        result.append(f"--no_{name}" if value.lower() in _NO else f"--{name}")
    return result


def replay_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A tree of captures, or one of them.")],
    acc_check: Annotated[
        bool | None,
        typer.Option(
            "--acc_check/--no_acc_check", help="Compare with the reference and with what was captured."
        ),
    ] = None,
    run_times: Annotated[
        int, typer.Option("--run_times", "--run-times", min=1, help="Runs of each operator.")
    ] = 1,
    sync_time_measure: Annotated[
        bool,
        typer.Option(
            "--sync_time_measure/--no_sync_time_measure",
            help="Measure each run, waiting for the device around it.",
        ),
    ] = False,
    only_run_forward: Annotated[
        bool, typer.Option("--only_run_forward/--no_only_run_forward", help="No backward.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to run; default: this machine's accelerator.")] = "",
    reference: Annotated[str, typer.Option(help="Where the reference runs.")] = "cpu",
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes; default 1, with --ray one per CPU. 0: in this one, where a crash ends everything.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Ray cluster: HOST:PORT, auto, or local for one made here."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a call may take in a worker.")] = 600.0,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="PKG", help="Also run functions of this package.")
    ] = None,
    memory_limit: Annotated[
        str,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="What a call may allocate, such as 100M or 2G; 0: by the size of its capture.",
        ),
    ] = "0",
    out: Annotated[str, typer.Option(help="Folder for the log and the CSV files.")] = "op_tools_results",
    verbose: Annotated[
        bool | None,
        typer.Option(
            "--verbose/--quiet",
            help="The wide tables of the documents for every call, as with OP_TOOLS_VERBOSE=1; default: a short table, "
            "for few calls.",
        ),
    ] = None,
    documented: Annotated[bool, typer.Option("--documented", hidden=True)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
) -> None:
    """Run captured operators again, each by itself, forward and backward.

    Exit code 0: same; 1: something differs, fails or is refused; 2: wrong usage; 3: internal error; 5: nothing was
    compared; 130: interrupted.
    """
    if not directory.exists():
        raise typer.BadParameter(f"{directory} does not exist", param_hint="DIR")
    items = find_items(directory)
    if verbose is None and variables_of(ToolSettings)["verbose"].get_or_default():
        verbose = True
    compare = acc_check if acc_check is not None else not sync_time_measure
    options = Options(
        acc_check=compare,
        run_times=run_times,
        sync_time_measure=sync_time_measure,
        only_run_forward=only_run_forward,
        device=device,
        reference=reference,
        allow=tuple(allow or ()),
        verbose=(len(items) <= _MOST_PRINTED_ITEMS if verbose is None else verbose) and not as_json,
        documented=documented if verbose is None else verbose,
        memory_limit=size_option(memory_limit, "--memory-limit"),
    )
    if ray in (None, "local"):  # elsewhere the machines of the cluster have devices of their own
        check_device(device, "--device")
        check_device(reference, "--reference")
    if workers is None:
        workers = 1 if ray is None else 0
    reports = replay(items, options, workers=workers, timeout=timeout, ray=ray)
    code = _Show(len(items), options, quiet=as_json).run(reports, out, as_json)
    if not items and not as_json:
        typer.echo(f"no captured call (input.pth) under {directory}", err=True)
    raise typer.Exit(code)


def check_device(name: str, option: str) -> None:
    """Whether this machine has a device; an empty name is the default one."""
    import torch

    try:
        if name:
            torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{option} {name!r} is not a device of this machine: {reason}") from error


class _Show:
    """Prints reports in the order of their items, however they come in."""

    def __init__(self, total: int, options: Options, *, quiet: bool) -> None:
        self.options = options
        self.quiet = quiet
        self.total = total
        self.reports: dict[int, ItemReport] = {}
        self.printed = 0

    def run(self, replayed: Iterable[tuple[int, ItemReport]], out: str, as_json: bool) -> int:
        """Print and log the reports as they come in; the exit code."""
        interrupted = False
        log = summary.ReplayLog(out, times=self.options.sync_time_measure)
        try:
            with progress_bar("replay", self.total, quiet=self.quiet or self.total < 2) as bar:
                for index, report in replayed:
                    self.reports[index] = report
                    log.add(report)
                    self._print_ready(bar)
                    bar.advance()
        except KeyboardInterrupt:
            interrupted = True
            typer.echo(f"interrupted after {len(self.reports)} of {self.total} calls", err=True)
        except WorkerStartError as error:
            typer.echo(f"internal error: {error}", err=True)
            return summary.INTERNAL
        except ExecutorError as error:
            raise BadInput(str(error)) from error
        finally:
            log.close()
        reports = [self.reports[index] for index in sorted(self.reports)]
        code = summary.exit_code(reports, compared=self.options.acc_check)
        code = summary.INTERRUPTED if interrupted else code
        saved, lost = self._saved(reports, out, log.problem)
        code = code or (summary.USAGE if lost else summary.SAME)
        if as_json:
            typer.echo(summary.as_json(reports, code))
        if not self.quiet:
            self._close(reports, saved)
        return code

    def _saved(self, reports: list[ItemReport], out: str, problem: str) -> tuple[list[str], str]:
        """Write the CSV files: what to say of them, and why they could not be written."""
        try:
            compared = summary.write_comparisons(out, reports)
            timed = summary.write_times(out, reports) if self.options.sync_time_measure else None
        except OSError as error:
            if not problem:
                summary.tell_unwritten(f"results cannot be written: {error}")
            return [], problem or str(error)
        files = (("op elasped info", timed), ("op autocompare info", compared))
        return [f"{what} saved to {path}" for what, path in files if path is not None], problem

    def _print_ready(self, bar: ProgressBar) -> None:
        while self.printed in self.reports:
            text = "" if self.quiet else self._text(self.reports[self.printed])
            self.printed += 1
            if text:
                with bar.paused():
                    typer.echo(text)

    def _text(self, report: ItemReport) -> str:
        attention = report.status in FAILED or report.status == "not replayable"
        tabled = self.options.documented or self.options.acc_check
        if report.text and tabled and (self.options.verbose or report.status in FAILED):
            if not self.options.documented:  # the short table says why
                return report.text + "\n"
            return "\n".join([report.text, *([report_line(report)] if attention else [])])
        if not attention:
            return printable(report.item) if self.options.verbose and tabled else ""
        if not self.options.documented:
            return "\n".join(wrapped(report_line(report))) + "\n"
        return "\n".join([*([printable(report.item)] if self.options.verbose else []), report_line(report)])

    def _close(self, reports: list[ItemReport], saved: list[str]) -> None:
        times = [row for report in reports for row in report.times]
        if self.options.sync_time_measure and times:
            shorten = not self.options.documented
            typer.echo(tables.time_table(times, shorten=shorten))
        for line in saved:
            typer.echo(line)
        if reports and (self.options.acc_check or any(report.status in FAILED for report in reports)):
            typer.echo(summary.counted(reports))
