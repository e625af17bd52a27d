"""The environment variables that the device reads, with their values and meanings."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from diopi.vendors import installed

__all__ = ["SettingFinding", "settings_in_force"]

_PREFIX = "DIPU_"

_SHARED: dict[str, tuple[str, str]] = {
    "DIPU_DEVICE": (
        "",
        "the vendor: a name, or the path of its library; empty: the best one that has a device",
    ),
    "DIPU_ADAPTOR_CONFIG": ("", "rules (convert_config.yaml) applied in front of the vendor's operators"),
    "DIOPI_ADAPTOR_REPORT": ("", "a file that gets what these rules cost, when the process ends"),
    "DIPU_MOCK_CUDA": (
        "1",
        "map the names of cuda onto dipu when torch_dipu or ditorch is imported; 0: do not",
    ),
    "DIPU_FORCE_FALLBACK_OPS_LIST": (
        "",
        "operators that fall back although DIOPI serves them: names or patterns, with commas",
    ),
    "DIPU_AUTOCOMPARE_OPS_LIST": ("", "operators whose results are compared with the CPU's, likewise"),
    "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS": ("", "operators that keep torch's own implementation, likewise"),
    "DIPU_DUMP_OP_ARGS": (
        "0",
        "1: print each operator and its DIOPI function, 2: and arguments, 3: and values",
    ),
    "DIPU_LOG_FALLBACK_INFO": ("0", "1: a line for every call that falls back, with the reason"),
    "DIPU_WITH_DIOPI_LIBRARY": ("", "DISABLE: no operator of the vendor is used, everything falls back"),
    "DITORCH_DEVICE": ("", "the framework that ditorch uses; none: no framework; empty: ditorch chooses"),
    "DITORCH_DISABLE_MOCK": ("0", "1: never map the names of cuda"),
    "DITORCH_SHOW_DEVICE_AS_CUDA": ("1", "0: device.type never equals 'cuda'"),
    "DITORCH_FP32_COLLECTIVES": ("0", "1: sums of half-precision tensors are made in float32"),
    "TORCH_DEVICE_BACKEND_AUTOLOAD": ("1", "0: plain `import torch` does not register dipu"),
}


@dataclass(frozen=True)
class SettingFinding:
    name: str
    value: str
    is_set: bool
    meaning: str
    known: bool = True


def settings_in_force(vendor: str, environment: Mapping[str, str] = os.environ) -> list[SettingFinding]:
    """Every setting with its value, the vendor's own included, and what looks like one but is not."""
    known = _SHARED | _vendor_settings(vendor)
    findings = [
        SettingFinding(name, environment.get(name, default), name in environment, meaning)
        for name, (default, meaning) in known.items()
    ]
    for name in sorted(environment):
        if name in known or not name.startswith(_PREFIX):
            continue
        if vendor and name.startswith(f"{_PREFIX}{vendor.upper()}_"):
            findings.append(SettingFinding(name, environment[name], True, f"left to the vendor {vendor}"))
        else:
            findings.append(SettingFinding(name, environment[name], True, _guess(name, list(known)), False))
    return findings


def _vendor_settings(vendor: str) -> dict[str, tuple[str, str]]:
    """What a vendor declares beside its library: a mapping `settings` of name to (default, meaning)."""
    return dict(getattr(installed().get(vendor), "settings", None) or {})


def _guess(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"not a setting of this version{f'; did you mean {close[0]}?' if close else ''}"
