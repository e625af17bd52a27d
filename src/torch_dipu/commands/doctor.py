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

from _ditorch.checks import CHECKS, DeviceCheck, DeviceInfo, device_infos, devices_table, torch_build
from dicore.console import facts_table
from dicore.doctor import (
    DiagnosedProblem,
    Diagnosis,
    SettingStatus,
    checks_table,
    print_notes,
    print_problems,
    settings_status,
    settings_table,
)
from dicore.settings import Variable, declarations
from diopi.vendors import installed, usable
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
            DiagnosedProblem(
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

    vendors = ", ".join(usable()) or "none"
    advice = (
        f"installed vendors: {vendors}. Set DIPU_DEVICE to one of them, or to the path of a library "
        "built for this version; unset it to take the best one"
    )
    with diagnosis.attempt("no vendor", advice):
        diagnosis.vendor = dict(torch_dipu.dipu.vendor())
    if not diagnosis.vendor:
        return
    if fault := diagnosis.vendor.get("options", {}).get("fault"):
        diagnosis.remarks.append(f"the vendor fails on request: {fault}")
    if not diagnosis.vendor.get("operators"):
        diagnosis.problems.append(
            DiagnosedProblem(
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
            diagnosis.problems.append(DiagnosedProblem(what, "check its driver and its settings below"))
    if diagnosis.devices:
        diagnosis.try_out(DEVICE_CHECKS, _DEVICE_TYPE, command="dipu doctor")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{name}={each}" for name, each in value.items() if each != ""]
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


# -- checks of what is particular to dipu; the general ones are ditorch's --------------------------------------


def memory_is_counted(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    before = module.memory_allocated()
    x = torch.ones(1 << 18, device=device_type)
    held = module.memory_allocated() - before
    if held < x.nbytes:
        raise AssertionError(f"{x.nbytes} bytes were allocated, {held} are counted")
    del x
    if module.memory_allocated() != before:
        raise AssertionError("freed memory is still counted as allocated")


def random_numbers(device_type: str) -> None:
    generator = torch.Generator(device_type)
    first = torch.rand(64, device=device_type, generator=generator.manual_seed(7)).cpu()
    second = torch.rand(64, device=device_type, generator=generator.manual_seed(7)).cpu()
    if not torch.equal(first, second):
        raise AssertionError("the same seed gives other numbers")
    if not (first.min() >= 0 and first.max() < 1 and first.unique().numel() > 32):
        raise AssertionError("torch.rand is not uniform in [0, 1)")


def event_timing(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    x = torch.ones(64, 64, device=device_type)
    start.record()
    for _ in range(4):
        x = x @ x / 64
    end.record()
    end.synchronize()
    elapsed = start.elapsed_time(end)
    if not elapsed > 0:
        raise AssertionError(f"work between two events took {elapsed} ms")


def pinned_memory(device_type: str) -> None:
    x = torch.arange(32.0).pin_memory()
    if not x.is_pinned():
        raise AssertionError("pin_memory() returned memory that is not pinned")
    back = x.to(device_type, non_blocking=True).cpu()
    if not torch.equal(back, x):
        raise AssertionError("a copy from pinned memory changed the values")


DEVICE_CHECKS: tuple[DeviceCheck, ...] = (
    *CHECKS,
    memory_is_counted,
    random_numbers,
    event_timing,
    pinned_memory,
)
