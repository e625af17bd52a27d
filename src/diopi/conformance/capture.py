"""Writes the data that case sources read: `python -m diopi.conformance.capture [opinfo|models]`.

`opinfo` notes which ATen overloads each entry of PyTorch's operator database reaches, `models` captures the ATen calls of a
training step of every model. Both are committed; they depend on PyTorch (and transformers), not on the operator table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def opinfo_index() -> dict[str, Any]:
    """Group -> the overloads it reaches, as numbers into one list."""
    from diopi.conformance import opinfo_source

    reached: dict[str, set[str]] = {}
    for group, entry in opinfo_source.database().items():
        found: set[str] = set()

        def note(overload: str, values: dict[str, Any], found: set[str] = found) -> None:
            found.add(overload)

        for dtype in opinfo_source.DTYPES:
            opinfo_source.run_samples(entry, dtype, note)
        reached[group] = found
    names = sorted(set().union(*reached.values()))
    numbers = {name: i for i, name in enumerate(names)}
    groups = {group: sorted(numbers[name] for name in found) for group, found in reached.items()}
    return {"overloads": names, "groups": groups}


def _write_opinfo() -> None:
    from diopi.conformance.opinfo_source import INDEX, problem

    if trouble := problem():
        raise SystemExit(trouble)
    index = opinfo_index()
    lines = [
        f"  {json.dumps(group)}: {json.dumps(found, separators=(',', ':'))}"
        for group, found in index["groups"].items()
    ]
    text = (
        '{"overloads":\n '
        + json.dumps(index["overloads"])
        + ',\n "groups": {\n'
        + ",\n".join(lines)
        + "\n}}\n"
    )
    (DATA / INDEX).write_text(text, encoding="utf-8")
    print(f"{DATA / INDEX}: {len(index['groups'])} groups reach {len(index['overloads'])} ATen overloads")


def _write_models(names: list[str]) -> None:
    from diopi.conformance import capture_models

    capture_models.write(DATA, names)


def main(arguments: list[str]) -> int:
    """Writes what is asked for; everything without arguments."""
    known = {"opinfo", "models"}
    if arguments and arguments[0] not in known:
        print(
            f"unknown part {arguments[0]!r}; say opinfo or models [NAME...], or nothing for both",
            file=sys.stderr,
        )
        return 2
    if not arguments or arguments[0] == "opinfo":
        _write_opinfo()
    if not arguments or arguments[0] == "models":
        _write_models(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
