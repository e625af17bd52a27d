"""What the doctors share: checks that cannot bring the doctor down, settings in force, problems with remedies, output.

A doctor fills in a `Diagnosis`, which is plain data: tables and JSON show the same. The exit code is 0 if nothing is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dicore.settings import Variable, unknown_variables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "DiagnosedProblem",
    "Diagnosis",
    "DoctorCheck",
    "SettingStatus",
    "checks_table",
    "print_notes",
    "print_problems",
    "run_checks",
    "settings_status",
    "settings_table",
]


@dataclasses.dataclass(frozen=True)
class DiagnosedProblem:
    """Something that does not work, and what to do about it."""

    what: str
    advice: str


@dataclasses.dataclass(frozen=True)
class DoctorCheck:
    """What a check said; the reason is empty where it passed."""

    name: str
    ok: bool
    seconds: float
    reason: str = ""


def run_checks(checks: Iterable[Callable[..., None]], *arguments: Any) -> list[DoctorCheck]:
    """Run every check, whatever the earlier ones did; one that raises has failed."""
    return [_run(check, arguments) for check in checks]


def _run(check: Callable[..., None], arguments: tuple[Any, ...]) -> DoctorCheck:
    name = check.__name__.strip("_").replace("_", " ")
    start = time.perf_counter()
    try:
        check(*arguments)
    except Exception as error:  # whatever is raised is the result
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return DoctorCheck(name, False, time.perf_counter() - start, reason)
    return DoctorCheck(name, True, time.perf_counter() - start)


@dataclasses.dataclass(frozen=True)
class SettingStatus:
    """A variable with its value; one that is set and declared by nobody is not known."""

    name: str
    value: str
    is_set: bool
    meaning: str
    known: bool = True


def settings_status(
    variables: Iterable[Variable], prefixes: tuple[str, ...], environ: Mapping[str, str] | None = None
) -> list[SettingStatus]:
    """Every declared variable, then those that are set, have one of the prefixes and are declared by nobody."""
    environ = os.environ if environ is None else environ
    variables = list(variables)
    found = [
        SettingStatus(v.name, environ.get(v.name, v.default_text), v.name in environ, v.plain_help)
        for v in variables
    ]
    return found + [
        SettingStatus(name, environ[name], True, f"not a setting of this version.{hint}", known=False)
        for name, hint in unknown_variables(environ, variables, prefixes)
    ]


@dataclasses.dataclass(kw_only=True)
class Diagnosis:
    """What a doctor found. A subclass adds its findings and how they are shown."""

    versions: dict[str, str]
    checks: list[DoctorCheck] = dataclasses.field(default_factory=list)
    problems: list[DiagnosedProblem] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def show(self, console: Console) -> None:
        """Print the findings."""
        raise NotImplementedError

    @contextmanager
    def attempt(self, what: str, advice: str) -> Iterator[None]:
        """Whatever the block raises becomes a problem, and the diagnosis goes on."""
        try:
            yield
        except Exception as error:  # drivers and libraries fail in any way
            self.problems.append(DiagnosedProblem(f"{what}: {type(error).__name__}: {error}", advice))

    def try_out(self, checks: Iterable[Callable[..., None]], *arguments: Any, command: str) -> None:
        """Run checks; each that fails is a problem, to be reported with the command's JSON."""
        self.checks = run_checks(checks, *arguments)
        self.problems += [
            DiagnosedProblem(
                f"the check '{check.name}' failed: {check.reason}", f"report it with `{command} --json`"
            )
            for check in self.checks
            if not check.ok
        ]

    def report(self, *, as_json: bool) -> int:
        """Print tables or JSON; gives the exit code."""
        if as_json:
            print(json.dumps(self.as_dict(), indent=2))
        else:
            from dicore.console import make_console

            self.show(make_console())
        return 0 if self.ok else 1


def checks_table(checks: list[DoctorCheck]) -> Table:
    """Name, result, time and reason of each check."""
    from rich.markup import escape

    from dicore.console import make_table

    table = make_table("check", "result", "time", title="What works")
    table.add_column("reason", overflow="fold")
    for check in checks:
        result = "[green]ok[/]" if check.ok else "[red]failed[/]"
        table.add_row(check.name, result, f"{check.seconds * 1e3:.1f} ms", escape(check.reason))
    return table


def settings_table(settings: list[SettingStatus]) -> Table:
    """Name, value and meaning of each setting; what is set stands out."""
    from rich.markup import escape

    from dicore.console import make_table

    table = make_table("setting", title="Settings (bold: set)")
    table.add_column("value", overflow="fold")
    table.add_column("meaning")
    for setting in settings:
        style = "red" if not setting.known else "bold" if setting.is_set else "dim"
        table.add_row(setting.name, escape(setting.value), escape(setting.meaning), style=style)
    return table


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """What is worth knowing and no problem."""
    from rich.markup import escape

    for note in notes:
        console.print(f"[yellow]Note:[/] {escape(note)}")


def print_problems(console: Console, problems: list[DiagnosedProblem]) -> None:
    """The last word: all fine, or each problem with what to do about it."""
    from rich.markup import escape

    if not problems:
        console.print("[green]All fine.[/]")
    for problem in problems:
        console.print(f"[red]Problem:[/] {escape(problem.what)}")
        if problem.advice:
            console.print(f"  To do: {escape(problem.advice)}")
