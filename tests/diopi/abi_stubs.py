"""A library that has every operator of the list and prints the arguments it gets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from abi_rows import HEADERS, ROOT, Row

from diopi.library import Generator, Library, Tensor

_HEAD = """
#include <stdio.h>
static char text[8192];
static int used;
#define SAY(...) (used += snprintf(text + used, sizeof(text) - used, __VA_ARGS__))
const char* stub_text(void) { return text; }
static void say_tensor(diopiConstTensorHandle_t th) {
    int64_t numel = -1;
    if (th) diopiGetTensorNumel(th, &numel);
    SAY("t%ld ", (long)numel);
}
static void say_size(diopiSize_t size) {
    SAY("[");
    for (int64_t i = 0; i < size.len; ++i) SAY("%ld,", (long)size.data[i]);
    SAY("] ");
}
static void say_scalar(const diopiScalar_t* s) {
    if (!s) SAY("null ");
    else if (s->stype == diopi_dtype_float64) SAY("f%g ", s->fval);
    else SAY("%d:%ld ", (int)s->stype, (long)s->ival);
}
static void say_generator(diopiConstGeneratorHandle_t th) {
    uint64_t seed = 0, offset = 0;
    diopiGeneratorGetSeedAndOffset((diopiGeneratorHandle_t)th, &seed, &offset);
    SAY("g%lu+%lu ", (unsigned long)seed, (unsigned long)offset);
}
"""
# what a stub says about an argument of a type; {n} is its name
_SAY = {
    "diopiTensorHandle_t": "say_tensor({n});",
    "diopiConstTensorHandle_t": "say_tensor({n});",
    "diopiTensorHandle_t*": "say_tensor({n}[0]);",
    "diopiConstTensorHandle_t*": "say_tensor({n}[0]); say_tensor({n}[1]);",
    "diopiGeneratorHandle_t": "say_generator({n});",
    "diopiGeneratorHandle_t*": "say_generator({n}[0]); say_generator({n}[1]);",
    "diopiSize_t": "say_size({n});",
    "diopiSize_t*": "say_size(*{n});",
    "diopiScalar_t*": "say_scalar({n});",
    "char*": 'SAY("%s ", {n});',
    "float": 'SAY("%g ", (double){n});',
    "double": 'SAY("%g ", {n});',
    "double*": 'SAY("%g ", *{n});',
    "int64_t": 'SAY("%ld ", (long){n});',
    "int64_t*": 'SAY("%ld ", (long)*{n});',
    "int32_t": 'SAY("%d ", {n});',
    "int": 'SAY("%d ", {n});',
    "bool": 'SAY("%d ", {n});',
    "bool*": 'SAY("%d ", *{n});',
    "void*": 'SAY("%lx ", (unsigned long){n});',
    "diopiReduction_t": 'SAY("%d ", (int){n});',
    "diopiRoundMode_t": 'SAY("%d ", (int){n});',
    "diopiMemoryFormat_t": 'SAY("%d ", (int){n});',
}


def _plain(ctype: str) -> str:
    return ctype.removeprefix("const ")


def _stub(row: Row) -> str:
    parameters = ", ".join(f"{t} {n}" for t, n in zip(row.types, row.names, strict=True))
    said = " ".join(_SAY[_plain(t)].format(n=n) for t, n in zip(row.types[1:], row.names[1:], strict=True))
    return f"diopiError_t {row.name}({parameters}) {{ used = 0; text[0] = 0; {said} return diopiForceFallbackToCPU; }}"


def stub_library(folder: Path, functions: list[Row]) -> tuple[Library, Path]:
    """Compiled and loaded."""
    source, library = folder / "stubs.c", folder / "libstubs.so"
    lines = [f"#include <diopi/{header}>" for header in HEADERS]
    source.write_text("\n".join([*lines, _HEAD, *(_stub(row) for row in functions)]) + "\n")
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-w",
            "-shared",
            "-fPIC",
            f"-I{ROOT / 'include'}",
            "-o",
            str(library),
            str(source),
        ],
        check=True,
    )
    return Library.open(library), library


def expected_arguments(row: Row) -> tuple[dict[str, Any], str]:
    """Distinct values for every argument, and what the stub must say about them."""
    given: dict[str, Any] = {}
    said = []
    for number, (ctype, name) in enumerate(zip(row.types[1:], row.names[1:], strict=True), 1):
        value, text = _value(_plain(ctype), number)
        if value is not None:
            given[name] = value
        said.append(text)
    return given, "".join(said)


def _tensor(count: int) -> Tensor:
    return Tensor(None, [count], [1], "float32")


def _value(ctype: str, number: int) -> tuple[Any, str]:
    large = 2**40 + number
    match ctype:
        case "diopiTensorHandle_t" | "diopiConstTensorHandle_t":
            return _tensor(number), f"t{number} "
        case "diopiTensorHandle_t*":
            return [_tensor(number)], f"t{number} "
        case "diopiConstTensorHandle_t*":
            return [_tensor(number), None], f"t{number} t-1 "
        case "diopiGeneratorHandle_t":
            return Generator(b"", number, large), f"g{number}+{large} "
        case "diopiGeneratorHandle_t*":
            return [Generator(b"", 1, 2), Generator(b"", 3, large)], f"g1+2 g3+{large} "
        case "diopiSize_t" | "diopiSize_t*":
            return [number, -large], f"[{number},{-large},] "
        case "diopiScalar_t*":
            return [(number + 0.5, f"f{number + 0.5:g} "), (large, f"6:{large} "), (True, "6:1 ")][number % 3]
        case "char*":
            return f"word{number}", f"word{number} "
        case "float" | "double" | "double*":
            return number + 0.25, f"{number + 0.25:g} "
        case "int64_t" | "int64_t*":
            return large, f"{large} "
        case "int32_t" | "int":
            return -number - 2**20, f"{-number - 2**20} "
        case "void*":
            return large, f"{large:x} "
    return number % 2, f"{number % 2} "  # bool and the enumerations
