"""A folder of its own for every captured call, also where two processes or two calls would have the same name.

`<op>/<pid>/<id>/<time>`: containers that share a folder count their processes from 1, and of one backward two calls of an
operator may have one id and one second. A process takes its name by making a folder, which only one can; a call that comes
second has a number behind its time. Names that nobody else has stay as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import OrderedDict

from op_tools.storage.call_info import RESULTS, CallInfo, host_name, process_label
from op_tools.storage.files import safe_name
from op_tools.storage.writer import reset_in_children

# Folders of names that processes have taken; they stay, because the captures do.
PROCESSES = f"{RESULTS}/.processes"
# Calls remembered to tell two of one name apart: far more than one second can hold.
_MOST_CALLS = 1 << 16


class _CallFolders:
    """Of this process, whatever the number of stores and roots."""

    def __init__(self) -> None:
        self.after_fork()
        reset_in_children(self)

    def after_fork(self) -> None:
        """A child is another process: it takes a name of its own."""
        self._lock = threading.Lock()
        self._labels: dict[tuple[str, str], str] = {}
        self._calls: OrderedDict[str, int] = OrderedDict()
        self._order = 0

    def take(self, root: str, call: CallInfo) -> None:
        """Give the call its folder (without the side) and its place in the order, once."""
        with self._lock:
            if call.folder:
                return
            label = self._label(root, process_label(call.rank, call.world_size))
            purpose = f"/{safe_name(call.purpose)}" if call.purpose else ""
            folder = f"{safe_name(call.name)}/{label}{purpose}/{int(call.forward_id)}/{safe_name(call.time)}"
            key = f"{root}/{folder}"
            count = self._calls[key] = self._calls.get(key, 0) + 1
            if len(self._calls) > _MOST_CALLS:
                self._calls.popitem(last=False)
            self._order += 1
            call.order = self._order
            call.folder = folder if count == 1 else f"{folder}_{count}"

    def _label(self, root: str, wanted: str) -> str:
        label = self._labels.get((root, wanted))
        if label is None:
            label = self._labels[root, wanted] = _taken(root, wanted)
        return label


def _taken(root: str, wanted: str) -> str:
    """The name that this process has below a root: the wanted one, or else with the host's name and a number."""
    # In a run of several ranks the host is part of it already.
    candidates = [wanted] if host_name() in wanted else [wanted, f"{host_name()}_{wanted}"]
    try:
        os.makedirs(f"{root}/{PROCESSES}", exist_ok=True)
        numbered = (f"{candidates[-1]}_{number}" for number in itertools.count(2))
        for label in itertools.chain(candidates, numbered):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{root}/{PROCESSES}/{label}")
                return label
    except OSError:  # nothing can be written here: the writer will find out and say so
        pass
    return wanted


FOLDERS = _CallFolders()
