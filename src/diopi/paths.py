"""Where the parts of the installation are, for build systems: `python -m diopi.paths --include` prints a folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PathsError", "include_folder", "library_folder", "main"]

_PACKAGE = Path(__file__).resolve().parent
_USAGE = """usage: python -m diopi.paths --include | --lib

--include  the folder of the C headers (diopi/functions.h, dipu/vendor.h)
--lib      the folder of libdiopirt.so, for programs that link the runtime functions of DIOPI by name"""


class PathsError(RuntimeError):
    """A part of the installation is missing; says what to do."""


def include_folder() -> Path:
    """The folder to give to a compiler with -I."""
    # beside the packages once installed; the repository's own where the sources are used in place
    candidates = (_PACKAGE.parent / "torch_dipu" / "include", _PACKAGE.parents[1] / "include")
    for folder in candidates:
        if (folder / "diopi" / "functions.h").is_file() and (folder / "dipu" / "vendor.h").is_file():
            return folder
    looked = " and ".join(str(folder) for folder in candidates)
    raise PathsError(f"the headers are missing; looked in {looked}. Install ditorch again (pip install).")


def library_folder() -> Path:
    """The folder of libdiopirt.so."""
    folder = _PACKAGE / "lib"
    if not (folder / "libdiopirt.so").is_file():
        raise PathsError(f"{folder / 'libdiopirt.so'} is missing. Install ditorch again (pip install).")
    return folder


def main(arguments: Sequence[str]) -> int:
    """Prints what was asked for; 2 for wrong usage, 1 if it is not there."""
    folders = {"--include": include_folder, "--lib": library_folder}
    if len(arguments) != 1 or arguments[0] not in folders:
        asked = arguments[:1] in (["--help"], ["-h"])
        print(_USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        print(folders[arguments[0]]())
    except PathsError as error:
        print(f"diopi.paths: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
