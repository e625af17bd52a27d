"""What is handed to a library: tensors, numbers, generators."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from diopi.library.direct import direct
from diopi.library.errors import LibraryError

# name -> code and bytes of one element
DTYPES: dict[str, tuple[int, int]] = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "int16": (2, 2),
    "uint16": (3, 2),
    "int32": (4, 4),
    "uint32": (5, 4),
    "int64": (6, 8),
    "uint64": (7, 8),
    "float16": (8, 2),
    "float32": (9, 4),
    "float64": (10, 8),
    "bool": (11, 1),
    "bfloat16": (12, 2),
    "tfloat32": (13, 4),
    "complex32": (14, 4),
    "complex64": (15, 8),
    "complex128": (16, 16),
}
NAMES = {code: name for name, (code, _) in DTYPES.items()}
_INTEGERS = {name for name, (code, _) in DTYPES.items() if code <= 7}
HOST, DEVICE = 0, 1


def dtype_code(dtype: str) -> int:
    """The code of a dtype's name, such as `float32`."""
    if dtype not in DTYPES:
        raise LibraryError(f"{dtype!r} is no dtype of DIOPI; known are {', '.join(DTYPES)}")
    return DTYPES[dtype][0]


class Tensor:
    """A handle: memory that the caller owns, seen as a tensor. `pointer` is the address of the first element."""

    def __init__(
        self,
        pointer: int | None,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: str,
        *,
        storage_pointer: int | None = None,
        storage_offset: int = 0,
        storage_nbytes: int | None = None,
        on_host: bool = False,
        device_index: int = 0,
    ) -> None:
        self._handle: int | None = None
        if len(shape) != len(stride):
            raise LibraryError(f"a tensor of shape {list(shape)} cannot have the strides {list(stride)}")
        self.pointer, self.shape, self.stride, self.dtype = pointer, tuple(shape), tuple(stride), dtype
        numbers = ctypes.c_int64 * len(shape)
        self._handle = direct().tensor_create(
            pointer,
            len(shape),
            numbers(*shape),
            numbers(*stride),
            dtype_code(dtype),
            HOST if on_host else DEVICE,
            -1 if on_host else device_index,
            storage_pointer,
            storage_offset,
            -1 if storage_nbytes is None else storage_nbytes,
        )
        if not self._handle:
            raise LibraryError(f"no tensor {list(shape)} {list(stride)} {dtype}: {direct().reason()}")

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise LibraryError("this tensor was closed")
        return self._handle

    def make_sparse(self, crow_indices: Tensor, col_indices: Tensor, values: Tensor) -> None:
        """Gives the tensor the parts of a matrix of compressed rows; they must live as long as it does."""
        self._parts = (crow_indices, col_indices, values)
        direct().tensor_make_sparse(self.handle, crow_indices.handle, col_indices.handle, values.handle)

    def close(self) -> None:
        """Ends the handle; the memory is the caller's."""
        if self._handle:
            direct().tensor_destroy(self._handle)
        self._handle = None

    __del__ = close


class Generator:
    """The state of a random generator: bytes whose meaning is the vendor's, and a seed with an offset."""

    def __init__(self, state: bytes, seed: int = 0, offset: int = 0) -> None:
        self._handle: int | None = None
        self._initial = (bytes(state), seed, offset)

    def handle(self, machine: int | None) -> int:
        """The handle; made when the generator is first used, for the memory of that library."""
        if self._handle is None:
            state, seed, offset = self._initial
            self._handle = direct().generator_create(machine, state, len(state), seed, offset)
            if not self._handle:
                raise LibraryError(f"no generator: {direct().reason()}")
        return self._handle

    def state(self) -> bytes:
        """The state as the library left it."""
        if self._handle is None:
            return self._initial[0]
        length = direct().generator_state(self._handle, None, 0)
        buffer = ctypes.create_string_buffer(max(length, 1))
        direct().generator_state(self._handle, buffer, length)
        return buffer.raw[:length]

    def close(self) -> None:
        """Ends the handle."""
        if self._handle:
            direct().generator_destroy(self._handle)
        self._handle = None

    __del__ = close


@dataclass(frozen=True)
class Scalar:
    """A number with the dtype it is announced as. That of an integer sends `ival`; every other one, also bool, sends `fval`."""

    dtype: str
    value: bool | int | float

    @property
    def integral(self) -> bool:
        return self.dtype in _INTEGERS


@dataclass(frozen=True)
class Made:
    """A tensor the library made; its memory is valid until the answer is closed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    pointer: int
    on_host: bool = False
    """In host memory: the library asked for it there."""

    @property
    def description(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class SizeStruct(ctypes.Structure):
    """diopiSize_t"""

    _fields_ = (("data", ctypes.POINTER(ctypes.c_int64)), ("len", ctypes.c_int64))


class _Number(ctypes.Union):
    _fields_ = (("fval", ctypes.c_double), ("ival", ctypes.c_int64))


class ScalarStruct(ctypes.Structure):
    """diopiScalar_t"""

    _anonymous_ = ("number",)
    _fields_ = (("stype", ctypes.c_int), ("number", _Number))


def made_from(handle: int, runtime: ctypes.CDLL) -> Made:
    """Reads what a handle describes, through the runtime functions as a vendor does."""
    shape, stride = SizeStruct(), SizeStruct()
    dtype, device, pointer = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    th = ctypes.c_void_p(handle)
    answers = (
        runtime.diopiGetTensorShape(th, ctypes.byref(shape)),
        runtime.diopiGetTensorStride(th, ctypes.byref(stride)),
        runtime.diopiGetTensorDtype(th, ctypes.byref(dtype)),
        runtime.diopiGetTensorDevice(th, ctypes.byref(device)),
        runtime.diopiGetTensorData(th, ctypes.byref(pointer)),
    )
    if any(answers):
        raise LibraryError("the library returned a tensor handle that diopiRequireTensor did not make")
    return Made(
        tuple(shape.data[: shape.len]),
        tuple(stride.data[: stride.len]),
        NAMES[dtype.value],
        pointer.value or 0,
        device.value == HOST,
    )
