"""A process that replays the calls its parent names, one after the other.

It reads one JSON line per call from standard input and answers with one JSON line on the descriptor given as
its argument: standard output stays free for whatever an operator may print.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from op_tools.replay.items import Item
from op_tools.replay.model import ItemReport, Options
from op_tools.replay.run import replay_item

__all__ = ["main"]


def main(descriptor: int) -> None:
    options = Options.from_dict(json.loads(sys.stdin.readline()))
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:
        answers.write("ready\n")
        answers.flush()
        for line in sys.stdin:
            task = json.loads(line)
            report = replay_item(Item(Path(task["folder"]), task["prefix"]), options, task["first_id"])
            answers.write(_answer(report))
            answers.flush()


def _answer(report: ItemReport) -> str:
    return json.dumps(report.as_dict()) + "\n"


if __name__ == "__main__":
    main(int(sys.argv[1]))
