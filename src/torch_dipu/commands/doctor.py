"""`dipu doctor`: versions, the vendor and its devices, settings, what works, what to do."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as distribution_version
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from _ditorch.checks import DeviceInfo, device_infos, devices_table, torch_build
from dicore.console import facts_table
from dicore.doctor import (
    Diagnosis,
    Problem,
    SettingStatus,
    checks_table,
    print_notes,
    print_problems,
    settings_status,
    settings_table,
)
from dicore.settings import Variable, declarations
from diopi.vendors import installed
from torch_dipu.commands.checks import DEVICE_CHECKS
from torch_dipu.settings import AUTOLOAD

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DeviceDiagnosis", "diagnose", "doctor"]

_DEVICE_TYPE = "dipu"


@dataclass(kw_only=True)
class DeviceDiagnosis(Diagnosis):
    """What `dipu doctor` found."""

    vendor: dict[str, Any] = field(default_factory=dict)
    devices: list[DeviceInfo] = field(default_factory=list)
    settings: list[SettingStatus] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Versions, the vendor, devices, settings, what works, remarks, problems: in this order."""
        console.print(facts_table("Versions", self.versions))
        if self.vendor:
            console.print(facts_table("Vendor", {name: _text(value) for name, value in self.vendor.items()}))
        if self.devices:
            console.print(devices_table(self.devices))
        console.print(settings_table(self.settings))
        if self.checks:
            console.print(checks_table(self.checks))
        print_notes(console, self.remarks)
        print_problems(console, self.problems)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, the vendor, devices and settings, try the device, and say what to do.

    Exit code 0: all fine; 1: something does not work.
    """
    raise typer.Exit(diagnose().report(as_json=as_json))


def diagnose() -> DeviceDiagnosis:
    """Look at everything that can be looked at; later findings do not depend on earlier ones being good."""
    diagnosis = DeviceDiagnosis(versions=_versions())
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


def _look_at_versions(diagnosis: DeviceDiagnosis) -> None:
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


def _look_at_vendor(diagnosis: DeviceDiagnosis) -> None:
    import torch_dipu

    vendors = ", ".join(sorted(installed())) or "none"
    advice = (
        f"installed vendors: {vendors}. Set DIPU_DEVICE to one of them, or to the path of a library "
        "built for this version; unset it to take the best one"
    )
    with diagnosis.attempt("no vendor", advice):
        diagnosis.vendor = dict(torch_dipu.dipu.vendor())
    if not diagnosis.vendor:
        return
    if not diagnosis.vendor.get("operators"):
        diagnosis.problems.append(
            Problem(
                f"{diagnosis.vendor.get('library')} holds no DIOPI operator",
                "everything runs by fallback on the CPU; give the library with the operators",
            )
        )


def _look_at_settings(diagnosis: DeviceDiagnosis) -> None:
    vendor = installed().get(str(diagnosis.vendor.get("name", "")))
    diagnosis.settings = settings_status(_variables(vendor.settings if vendor else ()), ("DIPU_", "DITORCH_"))
    if vendor is not None:
        diagnosis.settings = [_left_to(vendor.name, setting) for setting in diagnosis.settings]
    diagnosis.remarks += [
        f"{setting.name}: {setting.meaning}" for setting in diagnosis.settings if not setting.known
    ]
    if not AUTOLOAD.get_or_default():
        diagnosis.remarks.append(f"{AUTOLOAD.name}=0: programs must `import torch_dipu` (or ditorch).")
    elif not any(entry.value.startswith("torch_dipu") for entry in entry_points(group="torch.backends")):
        diagnosis.remarks.append(
            "torch's entry point for dipu is not installed: programs must `import torch_dipu` (or ditorch)."
        )


def _variables(of_vendor: Sequence[Variable]) -> list[Variable]:
    """What a user of the device can set: its own variables, and those of what is below and above it."""
    packages = (declarations(package).values() for package in ("diopi", "torch_dipu", "_ditorch"))
    return [*(variable for declared in packages for variable in declared), *of_vendor]


def _left_to(vendor: str, setting: SettingStatus) -> SettingStatus:
    """A vendor may read variables that it does not declare."""
    if setting.known or not setting.name.startswith(f"DIPU_{vendor.upper()}_"):
        return setting
    return replace(setting, meaning=f"left to the vendor {vendor}", known=True)


def _look_at_devices(diagnosis: DeviceDiagnosis) -> None:
    with diagnosis.attempt("devices cannot be listed", "check the vendor's driver"):
        diagnosis.devices = device_infos(_DEVICE_TYPE)
        if not diagnosis.devices:
            what = f"the vendor {diagnosis.vendor.get('name')} has no device"
            diagnosis.problems.append(Problem(what, "check its driver and its settings below"))
    if diagnosis.devices:
        diagnosis.try_out(DEVICE_CHECKS, _DEVICE_TYPE, command="dipu doctor")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
