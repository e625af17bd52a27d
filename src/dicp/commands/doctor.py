"""`dicp doctor`: which backends there are and with which compilers, what is in the cache, what is wrong with the settings."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dicore.console import facts_table, make_table
from dicore.doctor import (
    DiagnosedProblem,
    Diagnosis,
    SettingStatus,
    print_notes,
    print_problems,
    settings_status,
    settings_table,
)
from dicore.settings import Variable, declarations

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CompilerDiagnosis", "diagnose", "doctor_command"]

_PROBLEM = "problem:"


@dataclass(kw_only=True)
class CompilerDiagnosis(Diagnosis):
    """What `dicp doctor` found."""

    backends: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each backend its facts."""
    cache: dict[str, str] = field(default_factory=dict)
    settings: list[SettingStatus] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Versions, backends, cache, settings, notes, problems: in this order."""
        from rich.markup import escape

        console.print(facts_table("Versions", self.versions))
        table = make_table("backend", title="Backends")
        table.add_column("facts", overflow="fold")
        for name, facts in self.backends.items():
            lines = (f"{fact}: {value}" if fact else value for fact, value in facts.items())
            table.add_row(escape(name), escape("\n".join(lines)))
        console.print(table)
        console.print(facts_table("Cache of compiled code", self.cache))
        console.print(settings_table(self.settings))
        print_notes(console, self.notes)
        print_problems(console, self.problems)


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, backends and their compilers, the cache and the settings, and say what to do.

    Exit code 0: all fine; 1: something does not work.
    """
    raise typer.Exit(diagnose().report(as_json=as_json))


def diagnose() -> CompilerDiagnosis:
    """Everything that `doctor` says."""
    import torch

    from dicp import __version__

    versions = {"dicp": __version__, "torch": torch.__version__, "python": platform.python_version()}
    diagnosis = CompilerDiagnosis(versions=versions)
    found = [*declarations("dicp").values(), *_look_at_backends(diagnosis)]
    variables = list({variable.name: variable for variable in found}.values())
    _look_at_cache(diagnosis)
    _look_at_settings(diagnosis, variables)
    return diagnosis


def _look_at_backends(diagnosis: CompilerDiagnosis) -> list[Variable]:
    """Gives the variables that the backends declare."""
    from dicp import registry
    from dicp.errors import ForeignBackendError

    variables: list[Variable] = []
    for name in registry.names():
        with diagnosis.attempt(f"backend {name}", "install its package again, or ask who announces it"):
            try:
                backend = registry.find(name)
            except ForeignBackendError as error:
                diagnosis.notes.append(f"{error}")
                continue
            facts = dict(backend.doctor())
            variables += backend.settings
            diagnosis.backends[name] = facts or {"": "ready"}
            for fact, value in facts.items():
                if value.startswith(_PROBLEM):
                    what, _, advice = value.removeprefix(_PROBLEM).strip().partition("; ")
                    diagnosis.problems.append(DiagnosedProblem(f"backend {name}: {fact}: {what}", advice))
    return variables


def _look_at_cache(diagnosis: CompilerDiagnosis) -> None:
    from dicp.compile_jobs.disk_cache import DiskCache
    from dicp.settings import CACHE_SIZE

    store = DiskCache()
    files, size = store.size()
    diagnosis.cache = {
        "folder": str(store.folder),
        "files": str(files),
        "size": f"{size / 2**20:.1f} MiB of {CACHE_SIZE.get() / 2**20:.0f} MiB",
    }
    try:
        _write_into(store.folder)
        diagnosis.cache["can be written to"] = "yes"
    except OSError as error:
        diagnosis.cache["can be written to"] = f"no: {error.strerror or error}"
        diagnosis.problems.append(
            DiagnosedProblem(
                f"compiled code cannot be kept in {store.folder}: {error.strerror or error}",
                "set DICP_CACHE_DIR to a folder with room that this user may write to",
            )
        )


def _write_into(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="work-", dir=folder) as file:
        file.write(b"x" * 4096)


def _look_at_settings(diagnosis: CompilerDiagnosis, variables: Sequence[Variable]) -> None:
    diagnosis.settings = settings_status(variables, ("DICP_",))
    for variable in variables:
        problem = variable.problem() if variable.is_set() else None
        if problem:
            diagnosis.problems.append(DiagnosedProblem(problem, ""))
    diagnosis.notes += [
        f"{setting.name}: {setting.meaning}" for setting in diagnosis.settings if not setting.known
    ]
