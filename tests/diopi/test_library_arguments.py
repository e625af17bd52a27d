"""How the arguments of every operator arrive in C."""

from __future__ import annotations

import ctypes
from pathlib import Path

from abi_rows import rows
from abi_stubs import expected_arguments, stub_library
from fresh_process import fresh

from dicore.console import counted
from diopi.library.errors import writes_out_of_bounds
from diopi.library.signatures import OPERATORS


@fresh
def test_all_arguments_of_all_operators_arrive(tmp_path: Path) -> None:
    """Stubs made from the published list say what they got; the loader must have handed over just that."""
    operators = [row for row in rows() if row.name in OPERATORS]
    library, path = stub_library(tmp_path, operators)
    stubs = ctypes.CDLL(str(path))
    stubs.stub_text.restype = ctypes.c_char_p
    for row in operators:
        given, wanted = expected_arguments(row)
        answer = library.call(row.name, given)
        assert answer.status == "diopiForceFallbackToCPU"  # what the stubs return
        got = stubs.stub_text().decode()
        assert got == wanted, f"{row.name}: {got} instead of {wanted}"
    assert len(operators) == len(library.functions()) == 538


def test_one_byte_is_not_several() -> None:
    assert [counted(n, "byte") for n in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
    assert writes_out_of_bounds("x", 0, 0) == []
    assert writes_out_of_bounds("x", 1, 3) == [
        "wrote 3 bytes behind the end of x",
        "wrote 1 byte in front of x",
    ]
