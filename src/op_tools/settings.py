"""The settings that all operator tools have, and their lists of operators.

Each tool adds a schema of its own (a subclass of `ToolSettings`) in its file. Values come from an argument, then the
environment, then `ditorch.toml` or `pyproject.toml` ([op_tools], [op_tools.<section>]), then the default: `dicore.settings`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import Any

from dicore.settings import SettingError, Variable, flag, one_of, setting

__all__ = [
    "NATIVE",
    "PATH",
    "ROOT",
    "RUN_ID",
    "TOLERANCE",
    "NameFilter",
    "ToolSettings",
    "level_setting",
    "tolerance",
]

ROOT = "op_tools"
"""The table of the settings file; a tool has a table of its own below it."""


def tolerance(text: str) -> tuple[float, float]:
    """Read atol and rtol."""
    try:
        atol, rtol = (float(part) for part in text.split(","))
    except ValueError:
        atol = rtol = math.nan
    if not (0 <= atol < math.inf and 0 <= rtol < math.inf):
        raise ValueError(f"expected 'atol,rtol', two numbers of at least 0, as in '1e-3,1e-4', got {text!r}")
    return atol, rtol


PATH = Variable(
    "OP_TOOLS_PATH",
    "",
    "folders with tools of your own, one file each, separated as in PATH; see `op_tools.registry`",
)
RUN_ID = Variable(
    "OP_TOOLS_RUN_ID",
    "",
    "id of the run that a process belongs to; processes get it from the one that starts them",
    unset="made from the launcher's variables",
)
NATIVE = Variable(
    "OP_TOOLS_NATIVE",
    True,
    "see what reaches the kernels without a dispatch mode; `0` uses the mode, as an installation without compiled parts does",
    flag,
)
TOLERANCE = Variable(
    "AUTOCOMPARE_ERROR_TOLERANCE",
    "",
    "`atol,rtol` of the column allclose; for a dtype or an operator `AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16`, "
    "`LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16`",
    tolerance,
    dynamic=True,
    unset="by dtype",
    pattern=r"\w*AUTOCOMPARE_ERROR_TOLERANCE(_\w+)?",
)


@dataclasses.dataclass(frozen=True)
class ToolSettings:
    """What every tool has; a subclass adds its LIST, its DISABLE_LIST and what else it needs."""

    verbose: bool = setting(False, "OP_TOOLS_VERBOSE", flag, "print a table for every call")
    results: str = setting("op_tools_results", "OP_TOOLS_RESULTS", str, "folder for all results")
    device: str = setting(
        "auto",
        "OP_TOOLS_DEVICE",
        str,
        "device types whose calls are taken, separated by commas; `auto`: all but the CPU",
    )
    max_cache_size: int = setting(1000, "OP_TOOLS_MAX_CACHE_SIZE", int, "rows kept before they are written")
    print_stack: bool = setting(
        False, "OP_TOOLS_PRINT_STACK", flag, "print whole call stacks instead of one line"
    )


def level_setting(variable: str) -> Any:
    """The setting of a tool that takes the calls of the program, or those that reach the kernels."""
    return setting("api", variable, one_of("api", "aten"), "`api`, or `aten` for what reaches the kernels")


@functools.lru_cache(maxsize=64)
def _compiled(text: str, source: str) -> re.Pattern[str] | None:
    items = [item.strip() for item in text.split(",") if item.strip()]
    for item in items:
        try:
            re.compile(item)
        except re.error as error:
            raise SettingError(
                f"{source}: {item!r} is not a valid pattern ({error}). Items are full operator names or regular "
                f"expressions that match a whole name, separated by commas; for every name with 'add' in it "
                f"write '.*add.*'."
            ) from error
    return re.compile("|".join(f"(?:{item})" for item in items)) if items else None


class NameFilter:
    """Which operators a tool is for: those on the list that are not on the list of exceptions."""

    def __init__(
        self,
        listed: str = ".*",
        disabled: str = "",
        listed_source: str = "list",
        disabled_source: str = "disable_list",
    ) -> None:
        self.listed = listed
        self._wanted = _compiled(listed, listed_source)
        self._unwanted = _compiled(disabled, disabled_source)

    def match(self, *names: str) -> bool:
        """Whether an operator is meant that goes by these names: one is listed and none is an exception."""
        return not self.excludes(*names) and self._matches(self._wanted, names)

    def excludes(self, *names: str) -> bool:
        """Whether one of the names is on the list of exceptions."""
        return self._matches(self._unwanted, names)

    @staticmethod
    def _matches(pattern: re.Pattern[str] | None, names: Sequence[str]) -> bool:
        return pattern is not None and any(map(pattern.fullmatch, names))

    def names_exactly(self, name: str) -> bool:
        """Whether the list spells this very name out, as opposed to a pattern that happens to match it."""
        return name in [item.strip() for item in self.listed.split(",")]
