"""Operators called from C that was typed by hand, with numbers worked out by hand (callers/): the host vendor's arguments are
in the order of the header, and a kernel that exchanges two of them is noticed."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from diopi.library.direct import FOLDER as RUNTIME
from diopi.library.loader import signature
from diopi.library.signatures import OPERATORS
from diopi.vendors.host import VENDOR

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent / "callers"
ROOT = FOLDER.parents[2]
SOURCES = sorted(FOLDER.glob("*.c"))
NAMES = re.findall(r"^CALLER\((\w+)\)", "\n".join(path.read_text() for path in SOURCES), re.MULTILINE)
# Exchanging these two arguments changes nothing: sums and products, or arguments that the result does not depend on.
SYMMETRIC = {
    ("diopiAddScalar", "other", "alpha"),
    ("diopiAddcmul", "tensor1", "tensor2"),
    ("diopiApplyPenaltyV2", "frequency_penalty", "p_token_counts"),
    ("diopiClamp", "input", "min"),
    ("diopiEmbedding", "scale_grad_byfreq", "sparse"),
    ("diopiRotaryEmbeddingV2", "query", "key"),
    ("diopiSmoothL1Loss", "input", "target"),
}


def _build(target: Path, *flags: str) -> Path:
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    libraries = [str(VENDOR.library), f"-L{RUNTIME}", "-ldiopi_direct", "-ldiopirt", "-lm"]
    command = [
        "gcc",
        "-std=c11",
        "-O0",
        *warnings,
        f"-I{ROOT / 'include'}",
        *flags,
        "-o",
        str(target),
        *map(str, SOURCES),
    ]
    # the functions are declared weak, which alone does not make the linker keep a library
    link = ["-Wl,--no-as-needed,--allow-shlib-undefined", *libraries]
    subprocess.run([*command, *link], check=True)
    return target


def _run(program: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit status, and the line of each caller by name."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    folders = [VENDOR.library.resolve().parent, RUNTIME, Path(torch.origin).parent / "lib"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [program, *arguments], check=False, capture_output=True, text=True, env=environment, timeout=60
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAIL "))]
    return done.returncode, {line.split()[1].rstrip(":"): line for line in lines}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("callers") / "callers")


def test_sixty_and_more_operators_have_a_caller() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 60
    assert set(NAMES) <= set(OPERATORS)


def test_all_callers_get_the_numbers_they_expect(program: Path) -> None:
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    status, lines = _run(program)
    assert lines == {name: f"ok {name}" for name in NAMES}
    assert status == 0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin < 5


def test_a_wrong_expectation_fails_for_that_operator_alone(program: Path) -> None:
    status, lines = _run(program, "--wrong", "diopiSub")
    assert status == 1
    assert lines["diopiSub"] == "FAIL diopiSub: out[0] is 8, expected 9"
    assert [name for name, line in lines.items() if not line.startswith("ok")] == ["diopiSub"]


def test_every_caller_notices_a_wrong_number(program: Path) -> None:
    status, lines = _run(program, "--wrong", "all")
    assert status == 1
    assert [name for name in NAMES if not lines[name].startswith(f"FAIL {name}: ")] == []


def _exchanges(name: str) -> list[tuple[int, int]]:
    """Pairs of arguments of one kind whose exchange C would not notice, neighbours first."""
    kinds = signature(name)
    pairs = [(i, j) for i, j in combinations(range(len(kinds)), 2) if kinds[i][1] == kinds[j][1]]
    telling = [(i, j) for i, j in pairs if (name, kinds[i][0], kinds[j][0]) not in SYMMETRIC]
    return sorted(telling, key=lambda pair: (pair[1] - pair[0], -pair[0]))


@pytest.mark.parametrize("turn", range(3))
def test_exchanged_arguments_are_noticed(turn: int, tmp_path: Path) -> None:
    """As if the header or the kernel had two arguments the other way round, another pair each turn."""
    chosen = {name: _exchanges(name)[turn] for name in NAMES if turn < len(_exchanges(name))}
    lines = ["#include <diopi/functions.h>", "#include <diopi/functions_ext.h>"]
    for name, (i, j) in chosen.items():
        given = [f"a{k}" for k in range(len(signature(name)))]
        passed = list(given)
        passed[i], passed[j] = passed[j], passed[i]
        lines.append(f"#define {name}({', '.join(given)}) {name}({', '.join(passed)})")
    header = tmp_path / "exchanged.h"
    header.write_text("\n".join(lines) + "\n")
    # a tensor that is written in the place of one that is read: C would warn, a kernel would not
    program = _build(tmp_path / "callers", "-include", str(header), "-Wno-error")
    _, found = _run(program)
    assert len(found) == len(NAMES) and len(chosen) > 60
    assert [name for name in chosen if found[name].startswith("ok")] == []
