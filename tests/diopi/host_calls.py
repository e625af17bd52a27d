"""Calls a function of the vendor library directly, with tensors for its arguments, in guarded buffers."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from diopi.conformance.execution import Ran, run_once
from diopi.library import Library
from diopi.table import load
from diopi.vendors import choose


@cache
def library() -> Library:
    return Library.open(choose(os.environ.get("DIPU_DEVICE", "host")).library)


def run(function: str, arguments: dict[str, Any]) -> Ran:
    """What the function answers, whatever it is."""
    return run_once(library(), load().entries[function], arguments, {})


def values(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The results of a call that has to work."""
    ran = run(function, arguments)
    assert ran.ok, ran.error
    assert not ran.faults
    return ran.values
