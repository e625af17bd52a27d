"""The tables of environment variables in the English documents, made from the declarations of the packages.

    python tools/settings_tables.py            rewrites them
    python tools/settings_tables.py --check    fails when one differs

A variable is declared once, in the `settings.py` of its package (see `dicore.settings`); a vendor declares its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from _ditorch.configuration import tool_variables
from dicore.settings import Variable, declarations
from dicp import registry
from dicp.errors import DicpError
from diopi.vendors.host import VENDOR

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- settings:begin (made by tools/settings_tables.py) -->"
END = "<!-- settings:end -->"


def tables() -> dict[str, str]:
    """The table of each page."""
    packages = ("_ditorch", "diopi", "torch_dipu")
    of_the_device = [variable for package in packages for variable in declarations(package).values()]
    return {
        "README.md": table([*of_the_device, *VENDOR.settings]),
        "docs/dicp.md": table(_of_dicp()),
        "docs/dlinfer.md": table(declarations("dlinfer").values()),
        "docs/op_tools.md": table_of_tools(),
    }


def _of_dicp() -> list[Variable]:
    """Those of the package, and of the backends that this repository brings."""
    found = dict(declarations("dicp"))
    for name in registry.names():
        with suppress(DicpError):
            found |= {variable.name: variable for variable in registry.find(name).settings}
    return sorted(found.values(), key=lambda variable: variable.name)


def default_of(variable: Variable) -> str:
    return f"`{variable.default_text}`" if variable.default_text else variable.unset


def table(variables: Iterable[Variable]) -> str:
    """Name, default and meaning of each variable."""
    rows = [f"| `{v.name}` | {default_of(v)} | {v.help} |".replace("|  |", "| |") for v in variables]
    return "\n".join(["| Variable | Default | Meaning |", "|---|---|---|", *rows])


def table_of_tools() -> str:
    """The same for the settings of the operator tools, with the name of the argument, then what only the environment sets."""
    sections = tool_variables()
    common = sections["op_tools"]
    rows = [
        f"| `{v.name}` | {default_of(v) or 'empty'} | {v.help} | `{argument}` |"
        for section, variables in sections.items()
        for argument, v in variables.items()
        if section == "op_tools" or argument not in common
    ]
    # A variable with a pattern stands for a family, which the page has a table of its own for.
    rows += [
        f"| `{v.name}` | {default_of(v) or 'empty'} | {v.help} | none |"
        for v in declarations("op_tools").values()
        if not v.pattern
    ]
    return "\n".join(["| Variable | Default | Meaning | Argument |", "|---|---|---|---|", *rows])


def page(text: str, table: str) -> str:
    """The page with the table in its place between the two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"the page lacks the marks {BEGIN} and {END} between which the table belongs")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 when a page differs"
    )
    check: bool = parser.parse_args().check
    different = []
    for name, table in tables().items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (made := page(text, table)) != text:
            different.append(name)
            if not check:
                path.write_text(made, encoding="utf-8")
    if check and different:
        print(
            f"{', '.join(different)}: settings differ: run `python tools/settings_tables.py`.",
            file=sys.stderr,
        )
    return int(check and bool(different))


if __name__ == "__main__":
    sys.exit(main())
