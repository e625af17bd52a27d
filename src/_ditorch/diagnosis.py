"""`ditorch doctor`: what it finds out, and how that is printed."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from _ditorch import __version__
from _ditorch.adapters import Adapter, Availability, all_adapters
from _ditorch.checks import CHECKS, DeviceInfo, device_infos, devices_table, torch_build
from _ditorch.selection import Choice, NoFrameworkError, UnknownDeviceError, choose, mapping_wanted
from _ditorch.session import of_process, remarks, untested_torch
from dicore.console import facts_table, make_table
from dicore.doctor import DiagnosedProblem, Diagnosis, checks_table, print_notes, print_problems
from dicore.settings import declarations, unknown_variables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["AdapterStatus", "FrameworkDiagnosis", "diagnose"]

_COLOURS = {"chosen": "green", "usable": "green", "kept out": "yellow", "broken": "red"}


@dataclass(frozen=True)
class AdapterStatus:
    name: str
    package: str
    device_type: str
    installed: bool
    version: str
    devices: int
    chosen: bool
    state: str
    """chosen, usable, kept out, broken, no device, or not installed."""
    missing: str
    advice: str


@dataclass(kw_only=True)
class FrameworkDiagnosis(Diagnosis):
    """What `ditorch doctor` found."""

    adapters: list[AdapterStatus] = field(default_factory=list)
    framework: str = ""
    reason: str = ""
    mapping: str = ""
    process_group: str = ""
    devices: list[DeviceInfo] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Versions, frameworks, the choice, its devices, what works, notes, problems: in this order."""
        console.print(facts_table("Versions", self.versions))
        console.print(_adapters_table(self.adapters))
        if self.framework:
            console.print(facts_table("Framework", self._choice()))
        if self.devices:
            console.print(devices_table(self.devices))
        if self.checks:
            console.print(checks_table(self.checks))
        print_notes(console, self.notes)
        print_problems(console, self.problems)

    def _choice(self) -> dict[str, str]:
        facts = {
            "ditorch.framework": self.framework,
            "chosen because": self.reason,
            "names of cuda": self.mapping,
        }
        if self.mapping.startswith("on"):
            group = self.process_group
            facts["process group"] = (
                f"'nccl' means '{group}'" if group else "none: this device has no distributed backend"
            )
        return facts


def diagnose() -> FrameworkDiagnosis:
    """Look at everything, start ditorch if that is possible, and try the device."""
    diagnosis = FrameworkDiagnosis(versions=_versions())
    choice = _choice(diagnosis)
    if choice is not None and choice.adapter.installed():
        _load(choice)
    # Before the mapping is on: afterwards torch.cuda answers for the mapped device.
    diagnosis.adapters = [_adapter_status(adapter, choice) for adapter in all_adapters()]
    if choice is None:
        diagnosis.notes += [*filter(None, [untested_torch()]), *_unknown_settings()]
        return diagnosis
    diagnosis.notes = [*remarks(choice), *_others(diagnosis.adapters, choice), *_unknown_settings()]
    if _start(diagnosis, choice):
        device_type = choice.adapter.device_type
        diagnosis.devices = device_infos(device_type)
        checks = (*CHECKS, _cuda_names) if of_process().enabled else CHECKS
        diagnosis.try_out(checks, device_type, command="ditorch doctor")
    return diagnosis


def _versions() -> dict[str, str]:
    return {
        "ditorch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch build": torch_build(),
    }


def _choice(diagnosis: FrameworkDiagnosis) -> Choice | None:
    try:
        choice = choose()
    except UnknownDeviceError as error:
        diagnosis.problems.append(DiagnosedProblem(error.what, error.advice))
        return None
    except NoFrameworkError as error:  # a wish, and no problem
        diagnosis.notes.append(str(error))
        return None
    diagnosis.reason = choice.reason
    return choice


def _unknown_settings() -> list[str]:
    unknown = unknown_variables(os.environ, declarations("_ditorch").values(), ("DITORCH_",))
    return [f"{name} is set but is no setting of this version.{hint}" for name, hint in unknown]


def _load(choice: Choice) -> None:
    """First of all: torch registers one PrivateUse1 backend only, and looking at the others must not take it."""
    try:
        choice.adapter.load()
    except Exception:  # told when ditorch is started; until then the adapter says what it finds
        return


def _adapter_status(adapter: Adapter, choice: Choice | None) -> AdapterStatus:
    installed = adapter.installed()
    absent = Availability(0, "not installed", adapter.how_to_install)
    found = adapter.availability() if installed else absent
    chosen = choice is not None and choice.adapter is adapter
    if found.kept_out and choice is not None and not chosen:
        found = replace(found, missing="", advice=f"to use it: DITORCH_DEVICE={adapter.name}")
    return AdapterStatus(
        name=adapter.name,
        package=adapter.package,
        device_type=adapter.device_type,
        installed=installed,
        version=found.version,
        devices=found.devices or found.kept_out,
        chosen=chosen,
        state=_state(installed, found, chosen),
        missing=found.missing,
        advice=found.advice,
    )


def _state(installed: bool, found: Availability, chosen: bool) -> str:
    if chosen:
        return "chosen"
    if not installed:
        return "not installed"
    if found.usable:
        return "usable"
    if found.kept_out:
        return "kept out"
    return "broken" if found.broken else "no device"


def _others(adapters: list[AdapterStatus], choice: Choice) -> list[str]:
    """Frameworks that could have been chosen as well, and how; who has said which wants no advice."""
    # The simulated device is always there and nobody expects it to be taken before a chip.
    others = [
        adapter.name
        for adapter in adapters[:-1]
        if adapter.state == "usable" or (adapter.state == "kept out" and adapter.devices)
    ]
    if not others or choice.wanted:
        return []
    return [
        f"{', '.join(others)} could be used as well: the first of the table that has a device is taken. "
        f"Set DITORCH_DEVICE={others[0]} for another."
    ]


def _start(diagnosis: FrameworkDiagnosis, choice: Choice) -> bool:
    status = next(adapter for adapter in diagnosis.adapters if adapter.chosen)
    if not status.devices:
        what = status.missing if status.installed else f"{status.package} is not installed"
        diagnosis.problems.append(DiagnosedProblem(f"{what} ({choice.reason})", status.advice))
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are the notes
            diagnosis.framework = of_process().start(choice, quiet=True)
    except Exception as error:  # the reason why it does not start is what the user asked for
        problem = DiagnosedProblem(
            f"{status.package} does not start: {type(error).__name__}: {error}", status.advice
        )
        diagnosis.problems.append(problem)
        return False
    diagnosis.mapping = _mapping_state(choice)
    diagnosis.process_group = choice.adapter.process_group or ""
    return True


def _mapping_state(choice: Choice) -> str:
    if choice.adapter.target() is None:
        return "not needed: the device is called cuda"
    if of_process().enabled:
        return f"on: 'cuda' means '{choice.adapter.device_type}'"
    if by := choice.adapter.mapped_by():
        return f"off: {by} maps them"
    if not mapping_wanted():
        return "off: DITORCH_DISABLE_MOCK or DIPU_MOCK_CUDA says so"
    return "off"


def _cuda_names(device_type: str) -> None:
    x = torch.ones(3, device="cuda")
    if x.device.type != device_type or not x.is_cuda or torch.device("cuda").type != device_type:
        raise AssertionError(f"'cuda' leads to {x.device}, not to {device_type}")


def _adapters_table(adapters: list[AdapterStatus]) -> Table:
    from rich.markup import escape

    table = make_table(title="Frameworks, the preferred first")
    table.add_column("device", no_wrap=True)
    table.add_column("package", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("what is missing, and what to do", overflow="fold")
    for adapter in adapters:
        colour = _COLOURS.get(adapter.state)
        state = f"[{colour}]{adapter.state}[/]" if colour else adapter.state
        missing = adapter.missing if adapter.installed else ""
        wanting = "; ".join(text for text in (missing, adapter.advice) if text)
        name = f"[bold]{adapter.name}[/]" if adapter.chosen else adapter.name
        count = str(adapter.devices) if adapter.devices else ""
        package = f"{adapter.package} {adapter.version}".strip()
        table.add_row(name, escape(package), state, count, escape(wanting))
    return table
