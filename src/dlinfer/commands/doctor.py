"""`dlinfer doctor`: which vendors there are, and whose kernel serves which operator."""

from __future__ import annotations

import contextlib
import json as json_format
from typing import Annotated, Any

import typer

from dlinfer.commands.settings import SETTINGS, problems

__all__ = ["doctor_command"]


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
    findings = diagnosis([device] if device else devices_here())
    if json:
        typer.echo(json_format.dumps(findings, indent=1))
    else:
        _print(findings)
    if findings["problems"]:
        raise typer.Exit(1)


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


def diagnosis(devices: list[str]) -> dict[str, Any]:
    """Everything that `doctor` says."""
    import os

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
    return {
        "version": __version__,
        "torch": torch.__version__,
        "settings": {name: os.environ.get(name, "") for name in SETTINGS},
        "vendors": vendors,
        "served": served,
        "problems": list(problems()),
    }


def _print(findings: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=100, highlight=False, markup=False)
    console.print(f"dlinfer {findings['version']}, torch {findings['torch']}")
    vendors = Table("vendor", "version", "devices", "operators", "problem")
    for vendor in findings["vendors"]:
        devices = ", ".join(vendor["devices"]) or ("" if vendor["problem"] else "all")
        vendors.add_row(
            vendor["name"], vendor["version"], devices, str(vendor["kernels"]), vendor["problem"] or "none"
        )
    console.print(vendors)
    for device, operators in findings["served"].items():
        by_vendor: dict[str, list[str]] = {}
        for operator, vendor in operators.items():
            by_vendor.setdefault(vendor, []).append(operator)
        console.print(f"on {device}:")
        for vendor, names in by_vendor.items():
            console.print(f"  {vendor} serves {len(names)}: {', '.join(names)}")
    for name, value in findings["settings"].items():
        console.print(f"{name}={value or '(not set)'}: {SETTINGS[name].text}")
    for problem in findings["problems"]:
        console.print(f"problem: {problem}", style="bold red")
