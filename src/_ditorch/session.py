"""The state of ditorch in this process: the chosen framework and its mapping."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import threading
import warnings

import torch

from _ditorch.adapters import Adapter
from _ditorch.adapters.base import is_importing_framework
from _ditorch.mapping import Mapping
from _ditorch.mapping.unmapped import explain_early_imports
from _ditorch.selection import Choice, choose, framework_wanted, ignored_settings, mapping_wanted

__all__ = ["TESTED_TORCH", "Session", "hand_over_visible_devices", "of_process", "remarks", "untested_torch"]

TESTED_TORCH = ((2, 11), (2, 13))
"""The oldest and the newest torch that the tests of this version ran with."""

_ATTRIBUTE = "_ditorch_session"


class Session:
    """One per process; `start` is what `import ditorch` does."""

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self.framework = ""
        self.mapping: Mapping | None = None
        self.held = False
        """Set by a program whose user wants no mapping: `import ditorch` then starts nothing."""
        self._lock = threading.RLock()

    def start(self, choice: Choice | None = None, *, quiet: bool = False) -> str:
        """Choose a framework, load it, map cuda's names onto it unless a setting says no; once."""
        with self._lock:
            if self.held or is_importing_framework():
                return self.framework
            if self.choice is None and (choice is not None or framework_wanted()):
                choice = choice or choose()
                hand_over_visible_devices(choice.adapter)
                _load(choice)
                target = choice.adapter.target()
                if target is not None:
                    self.mapping = Mapping(target)
                    explain_early_imports(self.mapping.patches)
                self.framework = choice.adapter.label()
                self.choice = choice
                if mapping_wanted():
                    self.enable()
                if not quiet and _speaks_for_the_job():
                    print(f"ditorch.framework: {self.framework}", flush=True)
                # Last: a program may have turned warnings into errors.
                if _speaks_for_the_job():
                    for text in remarks(choice):
                        warnings.warn(f"ditorch: {text}", RuntimeWarning, stacklevel=3)
            return self.framework

    def enable(self) -> None:
        """Apply the mapping, even where a setting had turned it off; nothing to do on a real cuda device."""
        with self._lock:
            self.held = False
            if self.choice is None:
                self.start(choose())  # which refuses where no framework is wanted
            if self.mapping is None or self.mapping.enabled:
                return
            if by := self.mapped_by():
                # Its functions would become our originals, and neither of the two could be taken back.
                text = f"ditorch: {by} has mapped the names of cuda already, so ditorch leaves them to it. "
                text += "Take that import out to have ditorch's mapping."
                warnings.warn(text, RuntimeWarning, stacklevel=3)
                return
            self.mapping.enable()

    def disable(self) -> None:
        """Take every change to torch back."""
        with self._lock:
            if self.mapping is not None:
                self.mapping.disable()

    def mapped_by(self) -> str:
        """The module that maps the names of cuda instead of ditorch; empty if none does."""
        return "" if self.choice is None else self.choice.adapter.mapped_by()

    @property
    def enabled(self) -> bool:
        return self.mapping is not None and self.mapping.enabled


def of_process() -> Session:
    """The one session, also for a second copy of ditorch: `importlib.reload`, or a purge of sys.modules.

    A new session would take the functions of the first one's mapping for torch's own. So it is kept where
    the mapping is: with torch.
    """
    held: Session | None = vars(torch).get(_ATTRIBUTE)
    if held is None:
        held = Session()
        setattr(torch, _ATTRIBUTE, held)
    return held


def untested_torch(version: str = torch.__version__) -> str:
    """A sentence for a torch that this version was not tested with; empty for one that it was."""
    found = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = TESTED_TORCH
    if found is None or oldest <= (int(found[1]), int(found[2])) <= newest:
        return ""
    span = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return (
        f"this torch is {version}; this ditorch was tested with {span}. Names that differ may not be mapped"
    )


def hand_over_visible_devices(adapter: Adapter) -> None:
    """Give CUDA_VISIBLE_DEVICES to a framework that reads another variable, unless that one is set."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    own = adapter.visible_devices
    if own and own not in os.environ and re.fullmatch(r"\d+(,\d+)*", wanted):
        os.environ[own] = wanted


def remarks(choice: Choice) -> list[str]:
    """What the user should know of the start, beside the line with the framework."""
    found = [text for text in (untested_torch(), *ignored_settings()) if text]
    adapter = choice.adapter
    for passed in choice.passed_over:
        there = passed.availability
        if there.broken:
            found.append(f"{there.missing}. {adapter.package} is used instead. To do: {there.advice}.")
        elif there.kept_out:
            found.append(
                f"{passed.adapter.package} has {there.kept_out} device(s) that cannot be used, because "
                f"{there.missing}. To do: {there.advice}."
            )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if visible and not adapter.follows_visible_devices():
        found.append(
            f"CUDA_VISIBLE_DEVICES={visible} has no effect on {adapter.package}: all its devices are visible"
        )
    return found


def _load(choice: Choice) -> None:
    adapter = choice.adapter
    if not adapter.installed():
        raise ImportError(
            f"{choice.reason} asks for {adapter.package}, which is not installed. To do: {adapter.how_to_install}. "
            f"Run `ditorch doctor` to see what there is."
        )
    try:
        adapter.load()
    except Exception as error:  # vendors' packages raise RuntimeError and OSError as well
        raise ImportError(
            f"ditorch chose {adapter.package} ({choice.reason}), which cannot be imported: {error}. "
            f"Run `ditorch doctor` to see what is missing and what to do."
        ) from error


def _speaks_for_the_job() -> bool:
    """Data loading workers and the other ranks of a job would only repeat the line."""
    # The second is a spawned child that imports the program again, before multiprocessing knows it for a
    # child; its sys.argv is the parent's by then.
    is_worker = multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv
    return not is_worker and os.environ.get("RANK", "0") in ("", "0")
