"""C sources of the tests, compiled to libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

from diopi.paths import include_folder

__all__ = ["library"]

_HERE = Path(__file__).parent


def library(source: str, folder: Path) -> Path:
    """The library of a source beside this file, in a folder."""
    made = folder / f"lib{Path(source).stem}.so"
    command = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", "-I", str(include_folder())]
    subprocess.run([*command, "-o", str(made), str(_HERE / source), "-ldl"], check=True)
    return made
