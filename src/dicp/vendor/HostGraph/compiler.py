"""How generated C++ becomes a library: the system's compiler, its flags, and what the result depends on besides them."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from dicp.compile_jobs import CompileJob, JobResult
from dicp.settings import CXX, SANITIZE

__all__ = ["build", "command"]

_FLAGS = (
    *("-x", "c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp-simd"),
    # A product and a sum are two operations of the graph; formulas that want one say so.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv"),
    *("-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-semantic-interposition"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unused", "-Wno-psabi", "-Wno-attributes"),
    # Programs may compare integers with themselves.
    "-Wno-tautological-compare",
)
_SANITIZED = (
    *("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    *("-fno-sanitize=alignment,vptr", "-fno-sanitize-recover=undefined"),
)


def command() -> tuple[str, ...]:
    """The compiler's command, with {source} and {output} to be filled in."""
    flags = [*_FLAGS, *_wide_vectors()]
    if SANITIZE.get():
        flags += _SANITIZED
    return (*CXX.get().split(), *flags, "-o", "{output}", "{source}")


def build(source: str) -> JobResult:
    """The library of a source, from the cache or the compiler. Raises CompileError."""
    return CompileJob(source, command(), key=_processor()).run()


def _wide_vectors() -> tuple[str, ...]:
    return ("-mprefer-vector-width=512",) if "avx512f" in _processor().split() else ()


@cache
def _processor() -> str:
    """What -march=native depends on."""
    facts = [platform.machine(), os.uname().sysname]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return " ".join([*facts, platform.processor()])
    for name in ("model name", "flags", "Features", "CPU part"):
        facts += next((line.split(":")[1].split() for line in lines if line.startswith(name)), [])
    return " ".join(facts)
