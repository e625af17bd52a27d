"""`dlinfer doctor`: which vendors there are, whose kernel serves which operator, and what is wrong with the settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dicore.console import make_table
from dicore.doctor import DiagnosedProblem, Diagnosis
from dicore.settings import declarations, unknown_variables
from dlinfer import settings

if TYPE_CHECKING:
    from rich.console import Console

_VARIABLES = declarations("dlinfer")


def doctor_command(
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Only this type of device. Default: all that are here."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say which vendors are installed, which serves each operator on each device, and why others cannot be used.

    Exit code 0: every operator is served; 1: a setting cannot be followed; 2: there is no such device.
    """
    _require(device)
    raise typer.Exit(diagnose([device] if device else devices_here()).report(as_json=json))


def _require(device: str | None) -> None:
    import torch

    try:
        torch.device(device or "cpu")
    except RuntimeError as error:
        typer.echo(f"dlinfer doctor: --device {device}: {str(error).strip().partition(chr(10))[0]}", err=True)
        raise typer.Exit(2) from None


def devices_here() -> list[str]:
    """cpu, and the accelerator that torch has."""
    import torch

    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu", *([current.type] if current is not None else [])]


@dataclass(kw_only=True)
class ServingDiagnosis(Diagnosis):
    """What `dlinfer doctor` found."""

    settings: dict[str, str]
    vendors: list[dict[str, Any]]
    served: dict[str, dict[str, str]]
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": self.versions["dlinfer"],
            "torch": self.versions["torch"],
            "settings": self.settings,
            "vendors": self.vendors,
            "served": self.served,
            "problems": [problem.what for problem in self.problems],
            "notes": self.notes,
        }

    def show(self, console: Console) -> None:
        """Versions, vendors, whose kernels serve, settings, notes, problems: in this order."""
        from rich.markup import escape

        def say(text: str, style: str | None = None) -> None:
            console.print(text, style=style, markup=False)

        say(f"dlinfer {self.versions['dlinfer']}, torch {self.versions['torch']}")
        table = make_table("vendor", "version", "devices", "operators", "problem")
        for vendor in self.vendors:
            devices = ", ".join(vendor["devices"]) or ("" if vendor["problem"] else "all")
            problem = vendor["problem"] or "none"
            cells = (vendor["name"], vendor["version"], devices, str(vendor["kernels"]), problem)
            table.add_row(*map(escape, cells))
        console.print(table)
        for device, operators in self.served.items():
            by_vendor: dict[str, list[str]] = {}
            for operator, name in operators.items():
                by_vendor.setdefault(name, []).append(operator)
            say(f"on {device}:")
            for name, names in by_vendor.items():
                say(f"  {name} serves {len(names)}: {', '.join(names)}")
        for name, value in self.settings.items():
            say(f"{name}={value or '(not set)'}: {_VARIABLES[name].plain_help}")
        for note in self.notes:
            say(f"note: {note}", "yellow")
        for problem in self.problems:
            say(f"problem: {problem.what}", "bold red")


def diagnose(devices: list[str]) -> ServingDiagnosis:
    """Everything that `doctor` says."""
    import torch

    from dlinfer import __version__
    from dlinfer.errors import VendorError
    from dlinfer.interface import OPERATORS
    from dlinfer.vendors import installed, served_by

    vendors = [
        {
            "name": found.name,
            "version": found.vendor.version if found.vendor is not None else "",
            "devices": list(found.vendor.devices) if found.vendor is not None else [],
            "kernels": len(found.vendor.kernels) if found.vendor is not None else 0,
            "problem": found.problem or "",
        }
        for found in installed().values()
    ]
    served: dict[str, dict[str, str]] = {}
    for device in devices:
        with contextlib.suppress(VendorError):  # by DLINFER_VENDOR, so it is among the problems
            served[device] = {name: served_by(name, device).name for name in OPERATORS}
    unknown = unknown_variables(os.environ, _VARIABLES.values(), ("DLINFER_",))
    return ServingDiagnosis(
        versions={"dlinfer": __version__, "torch": torch.__version__},
        settings={name: os.environ.get(name, "") for name in _VARIABLES},
        vendors=vendors,
        served=served,
        problems=[DiagnosedProblem(text, "") for text in setting_problems()],
        notes=[f"{name} is set but is no setting of this version.{hint}" for name, hint in unknown],
    )


# -- settings --------------------------------------------------------------------------------------------------


def setting_problems() -> Iterator[str]:
    """What programs would be told about the variables that are set: what cannot be read, and what is not here."""
    for variable in _VARIABLES.values():
        if not variable.is_set():
            continue
        if unreadable := variable.problem():
            yield unreadable
            continue
        try:
            _READERS.get(variable.name, lambda: None)()
        except Exception as error:  # each reader has its own kind
            yield str(error) if variable.name in str(error) else f"{variable.name}: {error}"


def _vendor() -> None:
    from dlinfer.vendors.dispatch import chosen

    chosen("cpu")


def _cpp_level() -> None:
    """Read once, while the vendor's library is loaded."""
    from dlinfer.errors import VendorError
    from dlinfer.vendors import installed

    problem = installed()["cpp"].problem or ""
    if settings.CPP_LEVEL.name in problem:
        raise VendorError(problem)


def _graph_backend() -> None:
    from dlinfer.graph import backends

    if backends.chosen() != backends.NO_GRAPH:
        backends.find()


def _device() -> None:
    from dlinfer.framework.lmdeploy.devices import chosen_device

    chosen_device()


# Values that can be read and may name what is not here: asked of the code that uses them.
_READERS = {
    settings.VENDOR.name: _vendor,
    settings.CPP_LEVEL.name: _cpp_level,
    settings.GRAPH_BACKEND.name: _graph_backend,
    settings.DEVICE.name: _device,
}
