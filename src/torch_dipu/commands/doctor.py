"""`dipu doctor`: versions, the vendor and its devices, settings, what works, what to do."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as distribution_version
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diopi.vendors import installed
from ditorch.checks import CheckResult, run_checks
from ditorch.diagnosis import DeviceFinding, Problem, device_findings, torch_build
from ditorch.tables import checks_table, devices_table, facts_table, make_console, print_problems
from torch_dipu.commands.checks import DEVICE_CHECKS
from torch_dipu.commands.settings import SettingFinding, settings_in_force

__all__ = ["Diagnosis", "diagnose", "doctor"]

_DEVICE_TYPE = "dipu"


@dataclass
class Diagnosis:
    versions: dict[str, str]
    vendor: dict[str, Any] = field(default_factory=dict)
    devices: list[DeviceFinding] = field(default_factory=list)
    settings: list[SettingFinding] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, the vendor, devices and settings, try the device, and say what to do.

    Exit code 0: all fine; 1: something does not work.
    """
    diagnosis = diagnose()
    if as_json:
        typer.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis, make_console())
    raise typer.Exit(0 if diagnosis.ok else 1)


def diagnose() -> Diagnosis:
    """Look at everything that can be looked at; later findings do not depend on earlier ones being good."""
    diagnosis = Diagnosis(versions=_versions())
    _look_at_versions(diagnosis)
    _look_at_vendor(diagnosis)
    _look_at_settings(diagnosis)
    if diagnosis.vendor:
        _look_at_devices(diagnosis)
    return diagnosis


def _versions() -> dict[str, str]:
    import torch_dipu

    try:
        distribution = distribution_version("ditorch")
    except PackageNotFoundError:
        distribution = "not installed"
    return {
        "torch_dipu": torch_dipu.__version__,
        "distribution": distribution,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch build": torch_build(),
    }


def _look_at_versions(diagnosis: Diagnosis) -> None:
    versions = diagnosis.versions
    if versions["distribution"] not in (versions["torch_dipu"], "not installed"):
        diagnosis.problems.append(
            Problem(
                f"torch_dipu {versions['torch_dipu']} is imported from {_location()}, but the installed "
                f"distribution is {versions['distribution']}",
                "install again (`pip install . --no-build-isolation`), or take the other copy off PYTHONPATH",
            )
        )


def _location() -> str:
    import torch_dipu

    return os.path.dirname(torch_dipu.__file__ or "")


def _look_at_vendor(diagnosis: Diagnosis) -> None:
    import torch_dipu

    try:
        diagnosis.vendor = dict(torch_dipu.dipu.vendor())
    except Exception as error:  # whatever keeps a vendor from loading is the finding
        vendors = ", ".join(sorted(installed())) or "none"
        diagnosis.problems.append(
            Problem(
                f"no vendor: {type(error).__name__}: {error}",
                f"installed vendors: {vendors}. Set DIPU_DEVICE to one of them, or to the path of a library "
                "built for this version; unset it to take the best one",
            )
        )
        return
    if not diagnosis.vendor.get("operators"):
        diagnosis.problems.append(
            Problem(
                f"{diagnosis.vendor.get('library')} holds no DIOPI operator",
                "everything runs by fallback on the CPU; give the library with the operators",
            )
        )


def _look_at_settings(diagnosis: Diagnosis) -> None:
    diagnosis.settings = settings_in_force(str(diagnosis.vendor.get("name", "")))
    diagnosis.remarks += [
        f"{setting.name}: {setting.meaning}" for setting in diagnosis.settings if not setting.known
    ]
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        diagnosis.remarks.append(
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0: programs must `import torch_dipu` (or ditorch)."
        )
    elif not any(entry.value.startswith("torch_dipu") for entry in entry_points(group="torch.backends")):
        diagnosis.remarks.append(
            "torch's entry point for dipu is not installed: programs must `import torch_dipu` (or ditorch)."
        )


def _look_at_devices(diagnosis: Diagnosis) -> None:
    try:
        diagnosis.devices = device_findings(_DEVICE_TYPE)
    except Exception as error:  # a driver can fail in any way
        diagnosis.problems.append(Problem(f"devices cannot be listed: {error}", "check the vendor's driver"))
        return
    if not diagnosis.devices:
        diagnosis.problems.append(
            Problem(
                f"the vendor {diagnosis.vendor.get('name')} has no device",
                "check its driver and its settings below",
            )
        )
        return
    diagnosis.checks = run_checks(_DEVICE_TYPE, DEVICE_CHECKS)
    diagnosis.problems += [
        Problem(f"the check '{check.name}' failed: {check.reason}", "report it with `dipu doctor --json`")
        for check in diagnosis.checks
        if not check.ok
    ]


def _print(diagnosis: Diagnosis, console: Console) -> None:
    console.print(facts_table("Versions", diagnosis.versions))
    if diagnosis.vendor:
        facts = {name: _text(value) for name, value in diagnosis.vendor.items()}
        console.print(facts_table("Vendor", facts))
    if diagnosis.devices:
        console.print(devices_table(diagnosis.devices))
    console.print(_settings_table(diagnosis.settings))
    if diagnosis.checks:
        console.print(checks_table(diagnosis.checks))
    for remark in diagnosis.remarks:
        console.print(f"[yellow]Note:[/] {escape(remark)}")
    print_problems(console, diagnosis.problems)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _settings_table(settings: list[SettingFinding]) -> Table:
    table = Table("setting", title="Settings (bold: set)", title_justify="left")
    table.add_column("value", overflow="fold")
    table.add_column("meaning")
    for setting in settings:
        style = "red" if not setting.known else "bold" if setting.is_set else "dim"
        table.add_row(setting.name, escape(setting.value), escape(setting.meaning), style=style)
    return table
