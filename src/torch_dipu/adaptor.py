"""The adaptor in front of the vendor's operators: its rules, and what they cost.

`DIPU_ADAPTOR_CONFIG` names the rules (convert_config.yaml). With `DIOPI_ADAPTOR_REPORT=FILE` the costs are added to that file
when the process ends; `diopi adaptor report FILE` shows them.
"""

from __future__ import annotations

import atexit
import sys
from pathlib import Path

from diopi.adaptor import Cost, RulesError, read_rules
from diopi.adaptor.costs import append_costs
from diopi.settings import ADAPTOR_REPORT
from diopi.vendors import VendorError
from torch_dipu import _C
from torch_dipu.settings import ADAPTOR_CONFIG

__all__ = ["costs"]


def costs() -> list[Cost]:
    """What conversions cost so far, for each operator that was called through the adaptor."""
    return [Cost(**row) for row in _C.adaptor_costs()]


def use_rules() -> None:
    """Puts the rules that the environment names in front of the vendor, before its first use; VendorError if they are wrong."""
    path = ADAPTOR_CONFIG.get()
    if not path:
        return
    try:
        _C.choose_rules(read_rules(path).compact())
    except RulesError as error:
        raise VendorError(f"{ADAPTOR_CONFIG.name}={path}: {error}") from error
    if report := ADAPTOR_REPORT.get():
        atexit.register(_write_report, Path(report).absolute())


def _write_report(path: Path) -> None:
    try:
        append_costs(path, costs())
    except OSError as error:
        print(f"dipu: {ADAPTOR_REPORT.name}={path} cannot be written: {error.strerror}", file=sys.stderr)
