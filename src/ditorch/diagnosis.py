"""What `ditorch doctor` finds out: plain data, for a table or for JSON."""

from __future__ import annotations

import platform
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

import ditorch
from ditorch.adapters import Adapter, Availability, all_adapters
from ditorch.checks import CHECKS, CheckResult, run_checks
from ditorch.selection import Choice, NoFrameworkError, UnknownDeviceError, choose, mapping_wanted
from ditorch.session import remarks, untested_torch

__all__ = [
    "AdapterFinding",
    "DeviceFinding",
    "Diagnosis",
    "Problem",
    "device_findings",
    "diagnose",
    "torch_build",
]


@dataclass(frozen=True)
class AdapterFinding:
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


@dataclass(frozen=True)
class DeviceFinding:
    device: str
    name: str
    total_memory: int | None
    free_memory: int | None


@dataclass(frozen=True)
class Problem:
    what: str
    advice: str


@dataclass
class Diagnosis:
    versions: dict[str, str]
    adapters: list[AdapterFinding] = field(default_factory=list)
    framework: str = ""
    reason: str = ""
    mapping: str = ""
    process_group: str = ""
    devices: list[DeviceFinding] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def diagnose() -> Diagnosis:
    """Look at everything, start ditorch if that is possible, and try the device."""
    diagnosis = Diagnosis(versions=_versions())
    choice = _choice(diagnosis)
    if choice is not None and choice.adapter.installed():
        _load(choice)
    # Before the mapping is on: afterwards torch.cuda answers for the mapped device.
    diagnosis.adapters = [_adapter_finding(adapter, choice) for adapter in all_adapters()]
    if choice is None:
        diagnosis.notes += [text for text in (untested_torch(),) if text]
        return diagnosis
    diagnosis.notes = [*remarks(choice), *_others(diagnosis.adapters, choice)]
    if _start(diagnosis, choice):
        device_type = choice.adapter.device_type
        diagnosis.devices = device_findings(device_type)
        checks = (*CHECKS, _cuda_names) if ditorch.enabled() else CHECKS
        diagnosis.checks = run_checks(device_type, checks)
        diagnosis.problems += [
            Problem(
                f"the check '{check.name}' failed: {check.reason}", "report it with `ditorch doctor --json`"
            )
            for check in diagnosis.checks
            if not check.ok
        ]
    return diagnosis


def torch_build() -> str:
    """What the installed torch was compiled for."""
    if torch.version.cuda:
        return f"cuda {torch.version.cuda}"
    hip = getattr(torch.version, "hip", None)
    xpu = getattr(torch.version, "xpu", None)
    return f"rocm {hip}" if hip else f"xpu {xpu}" if xpu else "cpu"


def device_findings(device_type: str) -> list[DeviceFinding]:
    """Name and memory of each device of a type; what cannot be asked is left empty."""
    module = torch.get_device_module(device_type)
    findings = []
    for index in range(module.device_count()):
        free: int | None = None
        total: int | None = None
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info(index)
        name = module.get_device_name(index) if hasattr(module, "get_device_name") else ""
        findings.append(DeviceFinding(f"{device_type}:{index}", name, total, free))
    return findings


def _versions() -> dict[str, str]:
    return {
        "ditorch": ditorch.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch build": torch_build(),
    }


def _choice(diagnosis: Diagnosis) -> Choice | None:
    try:
        choice = choose()
    except UnknownDeviceError as error:
        diagnosis.problems.append(Problem(error.what, error.advice))
        return None
    except NoFrameworkError as error:  # a wish, and no problem
        diagnosis.notes.append(str(error))
        return None
    diagnosis.reason = choice.reason
    return choice


def _load(choice: Choice) -> None:
    """First of all: it takes torch's one place for such devices, and looking at the others must not."""
    try:
        choice.adapter.load()
    except Exception:  # told when ditorch is started; until then the adapter says what it finds
        return


def _adapter_finding(adapter: Adapter, choice: Choice | None) -> AdapterFinding:
    installed = adapter.installed()
    absent = Availability(0, "not installed", adapter.how_to_install)
    found = adapter.availability() if installed else absent
    chosen = choice is not None and choice.adapter is adapter
    if found.kept_out and choice is not None and not chosen:
        found = replace(found, missing="", advice=f"to use it: DITORCH_DEVICE={adapter.name}")
    return AdapterFinding(
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


def _others(adapters: list[AdapterFinding], choice: Choice) -> list[str]:
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


def _start(diagnosis: Diagnosis, choice: Choice) -> bool:
    finding = next(finding for finding in diagnosis.adapters if finding.chosen)
    if not finding.devices:
        what = finding.missing if finding.installed else f"{finding.package} is not installed"
        diagnosis.problems.append(Problem(f"{what} ({choice.reason})", finding.advice))
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are the notes
            diagnosis.framework = ditorch.start(choice)
    except Exception as error:  # the reason why it does not start is what the user asked for
        problem = Problem(
            f"{finding.package} does not start: {type(error).__name__}: {error}", finding.advice
        )
        diagnosis.problems.append(problem)
        return False
    diagnosis.mapping = _mapping_state(choice)
    diagnosis.process_group = choice.adapter.process_group or ""
    return True


def _mapping_state(choice: Choice) -> str:
    if choice.adapter.target() is None:
        return "not needed: the device is called cuda"
    if ditorch.enabled():
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


_cuda_names.__name__ = "cuda_names"
