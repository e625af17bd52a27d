"""Writes the project of a new vendor: a runtime, three operators, tests, all of it running on the first day.

    write_project("mychip", Path("mychip"))

The project stands on its own: it is built against the installed headers and found by its entry point.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path

from dicore.files import write_text
from diopi.vendors import installed

__all__ = ["FILES", "OPERATORS", "NewVendorError", "write_project"]

OPERATORS = ("diopiAdd", "diopiMm", "diopiFill")
"""What the operators.cpp of a new project implements."""

FILES = {
    "pyproject.toml": "pyproject.toml",
    "CMakeLists.txt": "CMakeLists.txt",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/ci.yml": "ci.yml",
    "csrc/runtime.cpp": "runtime.cpp",
    "csrc/operators.cpp": "operators.cpp",
    "src/@NAME@/__init__.py": "package.py",
    "examples/train_cnn.py": "train_cnn.py",
    "config/convert_config.yaml": "convert_config.yaml",
    "config/device_config.py": "device_config.py",
    "tests/test_@NAME@.py": "test_vendor.py",
}
"""File of the project -> template."""

_TEMPLATES = Path(__file__).parent / "templates"


class NewVendorError(ValueError):
    """The project cannot be written; says why and what to do."""


def write_project(name: str, folder: Path) -> list[Path]:
    """Writes the project of the vendor `name` into `folder`, which is new or empty. Gives the files written."""
    check_name(name)
    _check_folder(folder)
    written = []
    for target, template in FILES.items():
        path = folder / _filled(target, name)
        text = (_TEMPLATES / f"{template}.in").read_text(encoding="utf-8")
        try:
            write_text(path, _filled(text, name))
        except OSError as error:
            raise NewVendorError(
                f"{path} cannot be written: {error.strerror}. Choose another folder with --folder."
            ) from None
        written.append(path)
    return written


def check_name(name: str) -> None:
    """NewVendorError if the name cannot be that of a vendor, a Python package and a C library at once."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII):
        raise NewVendorError(
            f"{name!r} cannot be the name of a vendor. Expected letters, digits and underscores, a letter first, such as mychip."
        )
    if name in installed():
        raise NewVendorError(
            f"a vendor {name!r} is installed already. Choose another name, or `pip uninstall` that one."
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or _is_a_module(name):
        raise NewVendorError(
            f"the Python package of the vendor would be called {name!r}, which Python or an installed package uses "
            f"already. Choose another name, such as {name}_chip."
        )


def _is_a_module(name: str) -> bool:
    if name in sys.stdlib_module_names or name in sys.builtin_module_names:
        return True
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None  # without an origin it is any folder of that name


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NewVendorError(f"{folder} is a file. Give a folder that is new or empty with --folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise NewVendorError(
            f"the folder {folder} is not empty, and nothing in it is overwritten. "
            "Give one that is new or empty with --folder."
        )


def _filled(text: str, name: str) -> str:
    return text.replace("@NAME@", name).replace("@UPPER@", name.upper())
