"""`python -m diopi.generate [--check] [--root DIR]`: writes the generated files, or compares them."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dicore.files import write_text
from diopi.generate import documents, interface, registrations, signatures
from diopi.table import OperatorTable, load

MADE_WITH = "2.13"


def rendered(table: OperatorTable) -> dict[str, str]:
    """All generated files of a table: path below the repository -> text."""
    makers = (interface, registrations, signatures, documents)
    return {name: text for maker in makers for name, text in maker.render_all(table).items()}


def _leftover(root: Path, files: Iterable[str]) -> list[Path]:
    """Files in folders of generated ones that the table no longer makes."""
    folders = {(root / name).parent for name in files if (root / name).parent.name == "generated"}
    kept = {root / name for name in files}
    return sorted(
        path for folder in folders if folder.is_dir() for path in folder.iterdir() if path not in kept
    )


def _difference(path: Path, text: str) -> list[str]:
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    return list(
        difflib.unified_diff(
            committed.splitlines(), text.splitlines(), str(path), "generated", lineterm="", n=1
        )
    )


def _obstacle() -> str | None:
    """Why nothing can be generated here, or None."""
    if importlib.util.find_spec("yaml") is None:
        return "PyTorch's code generator needs pyyaml. Run `pip install pyyaml`."
    version = importlib.metadata.version("torch")
    if not version.startswith(MADE_WITH):
        return f"the committed files are made with torch {MADE_WITH}, this is {version}: its operator list may differ."
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m diopi.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare with the committed files; exit 1 if they differ"
    )
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the repository (default: this folder)")
    options = parser.parse_args(arguments)
    if not (options.root / "src" / "diopi" / "table").is_dir():
        print(
            f"{options.root} is not the repository: it has no src/diopi/table. Run it there or give --root.",
            file=sys.stderr,
        )
        return 2
    if obstacle := _obstacle():
        print(obstacle, file=sys.stderr)
        return 2
    stale = 0
    files = rendered(load())
    for name, text in files.items():
        path = options.root / name
        if options.check:
            if difference := _difference(path, text):
                stale += 1
                print("\n".join(difference[:20]))
        elif _difference(path, text):  # an unchanged file keeps its time, so that nothing is built again
            write_text(path, text)
    for path in _leftover(options.root, files):
        if options.check:
            stale += 1
            print(f"{path} is made by no entry of the table")
        else:
            path.unlink()
    if stale:
        print(
            f"{stale} generated files are not what the table says. Run `python -m diopi.generate` and commit.",
            file=sys.stderr,
        )
        return 1
    print(f"{len(files)} generated files {'are up to date' if options.check else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
