"""What replay is asked to do and what it found: plain data, so that it travels between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["FAILED", "GOOD", "ItemReport", "ItemStatus", "Options", "Row"]

ItemStatus = Literal[
    "same",  # every result equal bit for bit
    "pass",  # different, and as near as correct arithmetic comes
    "lower_precision",  # explained by arithmetic of lower precision than the dtype
    "fail",  # wrong, or not what was captured
    "error",  # the operator raised, or its process died
    "refused",  # the capture asks for what replay never runs
    "not replayable",  # sound, but something it needs was not saved
    "not compared",  # it ran; there was nothing to compare with, or comparing was not asked for
]
GOOD: frozenset[str] = frozenset(["same", "pass", "lower_precision"])
FAILED: frozenset[str] = frozenset(["fail", "error", "refused"])

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to replay. `allow` names packages whose functions may run beside PyTorch's own."""

    acc_check: bool = True
    run_times: int = 1
    sync_time_measure: bool = False
    only_run_forward: bool = False
    device: str = ""  # empty: the accelerator of this machine, or the CPU
    reference: str = "cpu"
    allow: tuple[str, ...] = ()
    verbose: bool = True  # a table for every call
    documented: bool = False  # the tables as the product documents print them, however wide
    memory_limit: int = 0  # bytes one operator may ask for; 0: by the size of its capture


@dataclass
class ItemReport:
    """What came of one captured call."""

    item: str
    name: str = ""
    status: ItemStatus = "not compared"
    reason: str = ""
    rows: list[Row] = field(
        default_factory=list
    )  # one per compared value: the columns of the CSV file, and more
    times: list[Row] = field(default_factory=list)  # one per run
    text: str = ""  # what to print
