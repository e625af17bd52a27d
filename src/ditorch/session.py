"""The state of ditorch in this process: the chosen framework and its mapping."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

from ditorch.mapping import Mapping
from ditorch.selection import Choice, choose, mapping_wanted

__all__ = ["Session"]


class Session:
    """One per process, held by the package; `start` is what `import ditorch` does."""

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self.framework = ""
        self.mapping: Mapping | None = None
        self._lock = threading.RLock()

    def start(self, choice: Choice | None = None, *, quiet: bool = False) -> str:
        """Choose a framework, load it, map cuda's names onto it unless a setting says no; once."""
        with self._lock:
            if self.choice is None:
                choice = choice or choose()
                _load(choice)
                target = choice.adapter.target()
                self.mapping = None if target is None else Mapping(target)
                self.framework = choice.adapter.label()
                self.choice = choice
                if mapping_wanted():
                    self.enable()
                if not quiet and _speaks_for_the_job():
                    print(f"ditorch.framework: {self.framework}", flush=True)
            return self.framework

    def enable(self) -> None:
        """Apply the mapping, even where a setting had turned it off; nothing to do on a real cuda device."""
        with self._lock:
            if self.choice is None:
                self.start()
            if self.mapping is not None:
                self.mapping.enable()

    def disable(self) -> None:
        """Take every change to torch back."""
        with self._lock:
            if self.mapping is not None:
                self.mapping.disable()

    @property
    def enabled(self) -> bool:
        return self.mapping is not None and self.mapping.enabled


def _load(choice: Choice) -> None:
    try:
        choice.adapter.load()
    except ImportError as error:
        adapter = choice.adapter
        raise ImportError(
            f"ditorch chose {adapter.package} ({choice.reason}), which cannot be imported: {error}. "
            f"Run `ditorch doctor` to see what is missing and what to do."
        ) from error


def _speaks_for_the_job() -> bool:
    """Data loading workers and the other ranks of a job would only repeat the line."""
    # The second is a spawned child before multiprocessing knows it for one.
    is_worker = multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.argv
    return not is_worker and os.environ.get("RANK", "0") in ("", "0")
