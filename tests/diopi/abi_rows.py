"""The published interface, read from its list alone: no code of diopi takes part, so that a mistake there shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERFACE = ROOT / "src" / "diopi" / "table" / "interface.tsv"
HEADERS = (
    "diopirt.h",
    "functions.h",
    "functions_ext.h",
    "functions_mmcv.h",
    "functions_lmdeploy.h",
    "functions_sparse.h",
)

# The types as the binary interface has them; a name stays where C has no other spelling (enumerations, structures).
SPELLED = {
    "diopiContextHandle_t": "struct diopiContext*",
    "diopiTensorHandle_t": "struct diopiTensor*",
    "diopiConstTensorHandle_t": "const struct diopiTensor*",
    "diopiGeneratorHandle_t": "struct diopiGenerator*",
    "diopiConstGeneratorHandle_t": "const struct diopiGenerator*",
    "diopiStreamHandle_t": "void*",
    "diopiDeviceIndex_t": "signed char",
    "int64_t": "long",
    "uint64_t": "unsigned long",
    "size_t": "unsigned long",
    "int32_t": "int",
}
LAYOUT = """
ASSERT(sizeof(diopiSize_t) == 16 && offsetof(diopiSize_t, data) == 0 && offsetof(diopiSize_t, len) == 8, "diopiSize_t");
ASSERT(sizeof(diopiScalar_t) == 16 && offsetof(diopiScalar_t, stype) == 0, "diopiScalar_t");
ASSERT(offsetof(diopiScalar_t, fval) == 8 && offsetof(diopiScalar_t, ival) == 8, "diopiScalar_t values");
ASSERT(sizeof(diopiError_t) == 4 && sizeof(diopiDtype_t) == 4 && sizeof(diopiDevice_t) == 4, "enumerations");
ASSERT(sizeof(diopiReduction_t) == 4 && sizeof(diopiRoundMode_t) == 4 && sizeof(diopiMemoryFormat_t) == 4, "modes");
ASSERT(sizeof(diopiDeviceIndex_t) == 1 && sizeof(diopiStreamHandle_t) == 8 && sizeof(bool) == 1, "small types");
ASSERT(diopiSuccess == 0 && diopiErrorOccurred == 1 && diopiNotInited == 2, "codes");
ASSERT(diopiNoRegisteredStreamCreateFunction == 3 && diopiNoRegisteredStreamDestoryFunction == 4, "codes");
ASSERT(diopiNoRegisteredStreamSyncFunction == 5 && diopiNoRegisteredDeviceMemoryMallocFunction == 6, "codes");
ASSERT(diopiNoRegisteredDeviceMemoryFreeFunction == 7, "codes");
ASSERT(diopiNoRegisteredDevice2DdeviceMemoryCopyFunction == 8, "codes");
ASSERT(diopiNoRegisteredDevice2HostMemoryCopyFunction == 9, "codes");
ASSERT(diopiNoRegisteredHost2DeviceMemoryCopyFunction == 10, "codes");
ASSERT(diopiNoRegisteredGetLastErrorFunction == 11 && diopi5DNotSupported == 12 && diopiNoImplement == 13, "codes");
ASSERT(diopiForceFallbackToCPU == 14 && diopiDtypeNotSupported == 1000, "codes");
ASSERT(diopi_host == 0 && diopi_device == 1, "devices");
ASSERT(diopi_dtype_int8 == 0 && diopi_dtype_uint8 == 1 && diopi_dtype_int16 == 2 && diopi_dtype_uint16 == 3, "dtypes");
ASSERT(diopi_dtype_int32 == 4 && diopi_dtype_uint32 == 5 && diopi_dtype_int64 == 6 && diopi_dtype_uint64 == 7, "dtypes");
ASSERT(diopi_dtype_float16 == 8 && diopi_dtype_float32 == 9 && diopi_dtype_float64 == 10, "dtypes");
ASSERT(diopi_dtype_bool == 11 && diopi_dtype_bfloat16 == 12 && diopi_dtype_tfloat32 == 13, "dtypes");
ASSERT(diopi_dtype_complex32 == 14 && diopi_dtype_complex64 == 15 && diopi_dtype_complex128 == 16, "dtypes");
ASSERT(diopi_dtype_unsupported == 255, "dtypes");
ASSERT(diopiMemoryFormatContiguous == 0 && diopiMemoryFormatChannelsLast == 1, "formats");
ASSERT(diopiMemoryFormatChannelsLast3d == 2 && diopiMemoryFormatPreserve == 3, "formats");
ASSERT(diopiMemoryFormatChannelsLast1d == 4, "formats");
ASSERT(ReductionNone == 0 && ReductionMean == 1 && ReductionSum == 2 && ReductionEND == 3, "reductions");
ASSERT(RoundModeNone == 0 && RoundModeTrunc == 1 && RoundModeFloor == 2 && RoundModeEND == 3, "rounding");
"""


@dataclass(frozen=True)
class Row:
    """One published function."""

    header: str
    name: str
    returns: str
    types: tuple[str, ...]
    names: tuple[str, ...]


def _split(argument: str) -> tuple[str, str]:
    words = argument.split()
    if len(words) == 1 or words[-1].endswith("*"):  # a pointer without a name
        return " ".join(words), ""
    return " ".join(words[:-1]), words[-1]


def rows() -> list[Row]:
    """All of them."""
    found = []
    for line in INTERFACE.read_text(encoding="utf-8").splitlines()[1:]:
        header, name, returns, _, count, arguments = line.split("\t")
        pairs = [_split(a) for a in arguments.split(";") if a.strip()]
        assert len(pairs) == int(count), name
        found.append(Row(header, name, returns, tuple(t for t, _ in pairs), tuple(n for _, n in pairs)))
    return found


def spelled(ctype: str) -> str:
    """`const diopiConstTensorHandle_t` -> `const struct diopiTensor* const` and so on."""
    stem, stars = ctype.rstrip("*"), len(ctype) - len(ctype.rstrip("*"))
    constant = stem.startswith("const ")
    stem = SPELLED.get(stem.removeprefix("const "), stem.removeprefix("const "))
    if constant:
        stem = f"{stem} const" if stem.endswith("*") or not stars else f"const {stem}"
    return stem + "*" * stars
