"""`dlinfer doctor`: which vendors there are, and whose kernel serves which operator."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Any

import typer

__all__ = ["doctor_command"]

SETTINGS = {
    "DLINFER_VENDOR": "the vendor to use; default: the best one for the device",
    "DLINFER_CHECK": "1: check lengths and tables on devices too; 0: only where a vendor needs it",
    "DLINFER_CACHE_LAYOUT": "BSND or BNSD: how the caller's paged caches lie; default BSND",
    "DLINFER_LINEAR_USE_NN_LAYOUT": "1: weights of linear layers are stored [in, out]",
    "DLINFER_CPP_LEVEL": "plain, avx2 or avx512: instructions that cpp uses; default: the best that the CPU has",
    "DLINFER_GRAPH_BACKEND": "who runs captured graphs: eager, aten, cudagraphs, inductor, none, ...; default eager",
    "DLINFER_DEVICE": "where LMDeploy's tensors live: cpu, dipu or cuda; default: cuda if there is one",
    "DLINFER_CPU_MEMORY": "GiB of the CPU's free memory that LMDeploy may see; default 4",
    "DLINFER_VLLM_DEVICE": "cpu: vLLM runs on dlinfer; default: it does not",
    "DLINFER_CACHE": "the folder for models that are unpacked once; default: dlinfer in the user's cache",
}


def doctor_command(
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Only this type of device. Default: all that are here."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say which vendors are installed, which serves each operator on each device, and why others cannot be used.

    Exit code 0: every operator is served; 1: a vendor that was asked for cannot be used.
    """
    findings = diagnosis([device] if device else devices_here())
    if json:
        typer.echo(json_format.dumps(findings, indent=1))
    else:
        _print(findings)
    if findings["problem"]:
        raise typer.Exit(1)


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
    from dlinfer.vendors import chosen, installed, served_by

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
    problem = ""
    for device in devices:
        try:
            chosen(device)
            served[device] = {name: served_by(name, device).name for name in OPERATORS}
        except VendorError as error:
            problem = str(error)
    return {
        "version": __version__,
        "torch": torch.__version__,
        "settings": {name: os.environ.get(name, "") for name in SETTINGS},
        "vendors": vendors,
        "served": served,
        "problem": problem,
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
        console.print(f"{name}={value or '(not set)'}: {SETTINGS[name]}")
    if findings["problem"]:
        console.print(f"problem: {findings['problem']}", style="bold red")
