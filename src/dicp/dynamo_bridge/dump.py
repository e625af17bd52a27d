"""DICP_DUMP_DIR: a folder for each graph with all that is known about it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from torch.fx import GraphModule

from dicore.files import write_text
from dicp.dynamo_bridge.record import GraphRecord
from dicp.errors import DicpError, warn_once
from dicp.graph.serialize import save_graph
from dicp.settings import DUMP_DIR

__all__ = ["dump"]

_NUMBERS = itertools.count()


def dump(record: GraphRecord, gm: GraphModule) -> None:
    """Writes the record of a graph, and the graph itself so that it can be loaded; nothing where no folder is set.

    A folder that cannot be written to is said once and stops nobody.
    """
    chosen = DUMP_DIR.get()
    if not chosen:
        return
    folder = Path(chosen).expanduser() / f"{record.backend}_{os.getpid()}_{next(_NUMBERS):03d}_{record.kind}"
    try:
        for name, text in _files(record):
            write_text(folder / name, text)
        save_graph(gm, folder / "graph.pt")
    except DicpError as error:
        write_text(folder / "graph.pt.error.txt", f"{error}\n")
    except OSError as error:
        warn_once(
            "dump",
            f"DICP_DUMP_DIR={chosen}: nothing can be kept there ({error.strerror or error}). Give another folder.",
        )


def _files(record: GraphRecord) -> Iterator[tuple[str, str]]:
    for number, recorded in enumerate(record.passes):
        if recorded.changed:
            yield f"passes/{number:02d}_{recorded.name.replace(' ', '_')}.txt", recorded.text
    summary = [f"backend {record.backend}, {record.kind}"]
    if record.failure:
        summary.append(f"all of it runs eagerly: {record.failure}")
    for number, step in enumerate(record.steps):
        summary.append(f"step {number}: {'compiled' if step.compiled else 'eager'}, {step.seconds:.3f} s")
        summary += [f"  {line}" for line in step.text.splitlines()]
        summary += [f"  {name}: {reason}" for name, reason in step.reasons.items()]
        for name, text in step.artifacts.items():
            yield f"step{number}/{name}", text
    yield "steps.txt", "\n".join(summary) + "\n"
    yield "executor.py", record.executor
