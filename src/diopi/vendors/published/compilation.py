"""Compiles and links: published sources, what their own generator makes of them, and a runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from diopi.paths import include_folder
from diopi.vendors.published.sources import (
    COMPILED,
    FOLDER,
    GENERATOR,
    INTERFACE,
    LEFT_OUT,
    NEEDS_KERNELS,
    PublishedError,
    Toolchain,
)

__all__ = ["BuiltLibrary", "build", "missing_symbols", "operator_of"]

_RUNTIME_ENTRY = "dipuGetVendorTable"
# The namespaces of the published sources in mangled names: what is undefined there was left out, everything else is torch's.
_NAMESPACES = re.compile(r"_ZNK?(4impl|6vision|4mmcv|3ext|6sparse|10flash_attn)")
_FUNCTION = re.compile(r"diopi[A-Z]")
_OPERATOR = re.compile(r"_ZN4impl4cuda(\d+)(diopi\w+)")


@dataclass(frozen=True)
class BuiltLibrary:
    """What came of a build."""

    path: Path
    functions: tuple[str, ...]
    """DIOPI functions that the library exports."""
    left_out: tuple[str, ...]
    """Functions that the published sources have and this library has not."""


def build(
    source: Path,
    out: Path,
    device: str = "cpu",
    *,
    jobs: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> BuiltLibrary:
    """Builds `out` from a checkout of DIOPI; PublishedError says what was missing or did not compile."""
    _check_source(source)
    toolchain = Toolchain.find(device)
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PublishedError(f"{out.parent} cannot be made: {error.strerror}. Give another --out.") from None
    with tempfile.TemporaryDirectory(prefix="diopi-published-") as name:
        folder = Path(name)
        _generate(source.absolute(), folder)
        objects = _compiled(
            _commands(toolchain, source.absolute(), folder), jobs or os.cpu_count() or 1, tell
        )
        return _linked(toolchain, objects, folder, out)


def _check_source(source: Path) -> None:
    needed = (*COMPILED, GENERATOR, INTERFACE)
    missing = [name for name in needed if not (source / name).exists()]
    if missing:
        raise PublishedError(
            f"{source} is no checkout of DIOPI: it has no {missing[0]}. Give the folder that holds impl/, adaptor/ and proto/."
        )


def _generate(source: Path, folder: Path) -> None:
    """The published generator writes the C functions and the declarations of what is behind them."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(source / GENERATOR),
        "-d",
        str(source),
        "-o",
        str(folder),
        "-c",
        "torch",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not (folder / "diopi_adaptor.cpp").is_file():
        lines = (done.stderr or done.stdout).strip().splitlines()
        hint = " Run `pip install pyyaml`." if "yaml" in done.stderr else ""
        raise PublishedError(f"{GENERATOR} failed: {lines[-1] if lines else 'it wrote nothing'}.{hint}")


@dataclass(frozen=True)
class _Command:
    file: str
    words: tuple[str, ...]
    object: Path


def _commands(toolchain: Toolchain, source: Path, folder: Path) -> list[_Command]:
    flags = toolchain.compile_flags(source, folder)
    preludes = {
        "": [],
        "aten": ["-include", str(FOLDER / "shim" / toolchain.device / "prelude.h")],
    }
    preludes["torch"] = ["-DPUBLISHED_FRONTEND", *preludes["aten"]]
    runtime = FOLDER / "runtime" / f"{toolchain.device}.cpp"
    name = f'-DPUBLISHED_NAME="published-{toolchain.device}"'
    files = [(str(source / file), preludes[headers]) for file, headers in COMPILED.items()]
    files += [(str(folder / "diopi_adaptor.cpp"), []), (str(runtime), [name, f"-I{include_folder()}"])]
    commands = []
    for number, (file, more) in enumerate(files):
        made = folder / f"{number}-{Path(file).stem}.o"
        commands.append(
            _Command(file, (toolchain.compiler, *flags, *more, "-c", file, "-o", str(made)), made)
        )
    return commands


def _compiled(commands: Sequence[_Command], jobs: int, tell: Callable[[str], None]) -> list[Path]:
    def run(command: _Command) -> None:
        _run(command.words, f"{command.file} does not compile")
        tell(f"compiled {command.file}")

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(run, command) for command in commands]:
            future.result()
    return [command.object for command in commands]


def _run(words: Sequence[str], problem: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PublishedError(f"there is no {words[0]} here. Install a C++ compiler, or set CXX.") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise PublishedError(
            "\n  ".join([f"{problem}:", *errors[:5], f"{words[0]} ended with {done.returncode}"])
        )
    return done.stdout


def _linked(toolchain: Toolchain, objects: Sequence[Path], folder: Path, out: Path) -> BuiltLibrary:
    symbols = _run(["nm", *map(str, objects)], "nm cannot read what was compiled")
    missing, defined = missing_symbols(symbols.splitlines())
    left_out = {operator_of(symbol) for symbol in missing} - {""} | NEEDS_KERNELS
    exported = sorted(name for name in defined if _FUNCTION.match(name) and name not in left_out)
    script = folder / "exports.map"
    script.write_text(_export_script(exported), encoding="utf-8")
    linking = out.with_name(f".{out.name}.{os.getpid()}")  # a process may have the old one loaded
    try:
        _run(
            [
                toolchain.compiler,
                *("-shared", "-o", str(linking), *map(str, objects)),
                *(f"-Wl,--defsym={symbol}=diopi_published_left_out" for symbol in sorted(missing)),
                f"-Wl,--version-script={script}",
                *toolchain.libraries(),
            ],
            f"{out.name} cannot be linked",
        )
        os.replace(linking, out)
    except OSError as error:
        raise PublishedError(f"{out} cannot be written: {error.strerror}. Give another --out.") from None
    finally:
        linking.unlink(missing_ok=True)
    return BuiltLibrary(out, tuple(exported), tuple(sorted(left_out)))


def missing_symbols(lines: Iterable[str]) -> tuple[set[str], set[str]]:
    """Of what `nm` prints: symbols of the published sources that nothing defines, and all that are defined."""
    defined, undefined = set(), set()
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[1] in "TWVBDR":
            defined.add(words[2])
        elif len(words) == 2 and words[0] == "U":
            undefined.add(words[1])
    return {name for name in undefined - defined if _NAMESPACES.match(name)}, defined


def operator_of(symbol: str) -> str:
    """`_ZN4impl4cuda12diopiRMSNormE...` -> `diopiRMSNorm`; empty for what is no operator."""
    found = _OPERATOR.match(symbol)
    return found[2][: int(found[1])] if found else ""


def _export_script(names: Sequence[str]) -> str:
    """Exactly the functions that are there: one that is not exported is "not implemented"."""
    exported = "".join(f"  {name};\n" for name in (_RUNTIME_ENTRY, *names))
    return f"{{\nglobal:\n{exported}local:\n  *;\n}};\n"


def reasons() -> list[str]:
    """Why files of the published library are not compiled, a line each."""
    return [f"{file}: {reason}" for file, reason in LEFT_OUT.items()]
