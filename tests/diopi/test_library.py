"""Loading and calling libraries without a framework."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_python
from fresh_process import fresh

from diopi.library import Generator, Library, LibraryError, Scalar, Tensor
from diopi.vendors.host import VENDOR

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
HOST = VENDOR.library


def _compile(target: Path, *flags: str, source: Path = FOLDER / "tiny_vendor.c") -> Path:
    command = [
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-shared",
        "-fPIC",
        f"-I{ROOT / 'include'}",
        *flags,
        "-o",
        str(target),
        str(source),
    ]
    subprocess.run(command, check=True)
    return target


def _tiny(folder: Path, how: str = "headers") -> Library:
    return Library.open(_compile(folder / "libtiny.so", *(["-DHAND_TYPED"] if how == "hand typed" else [])))


both = pytest.mark.parametrize("how", ["headers", "hand typed"])


def _floats(library: Library, *values: float, stride: int = 1) -> Tensor:
    """Every `stride`-th element is a value; the others are -1."""
    data = [v for value in values for v in (value, *([-1.0] * (stride - 1)))]
    array = (ctypes.c_float * len(data))(*data)
    pointer = library.memory.allocate(4 * len(data))
    library.memory.write(pointer, ctypes.addressof(array), 4 * len(data))
    return Tensor(pointer, [len(values)], [stride], "float32")


def _read(library: Library, tensor: Tensor) -> list[float]:
    array = (ctypes.c_float * tensor.shape[0])()
    library.memory.read(tensor.pointer or 0, ctypes.addressof(array), ctypes.sizeof(array))
    return list(array)


@fresh
@both
def test_a_small_library_is_called(how: str, tmp_path: Path) -> None:
    tiny = _tiny(tmp_path, how)
    assert (tiny.vendor, tiny.version) == ("tiny", "7.8")
    assert tiny.functions() == {
        "diopiAddScalar", "diopiNonzero", "diopiEqual", "diopiSum",
        "diopiGetVendorName", "diopiGetImplVersion", "diopiGetLastErrorString",
    }  # fmt: skip
    x, out = _floats(tiny, 1, 2, 3, stride=2), _floats(tiny, 0, 0, 0)
    # a scalar arrives by pointer, with its type
    answer = tiny.call("diopiAddScalar", {"out": out, "input": x, "other": 2.5, "alpha": 2})
    assert answer.ok and answer.code == 0 and answer.status == "diopiSuccess"
    assert _read(tiny, out) == [6, 7, 8]
    tiny.call("diopiAddScalar", {"out": out, "input": x, "other": Scalar("float64", 3), "alpha": True})
    assert _read(tiny, out) == [4, 5, 6]
    # sizes arrive by value
    tiny.call("diopiSum", {"out": out, "input": x, "dim": [7, -2]})
    assert _read(tiny, out) == [7, -2, 6]
    tiny.call("diopiSum", {"out": out, "input": x})
    assert _read(tiny, out) == [7, -2, 6]


@fresh
@both
def test_results_that_the_library_makes(how: str, tmp_path: Path) -> None:
    tiny = _tiny(tmp_path, how)
    x = _floats(tiny, 0, 5, 0, 6, 7)
    with tiny.call("diopiNonzero", {"input": x}) as answer:
        made = answer.made["out"]
        assert (made.shape, made.stride, made.dtype) == ((3, 1), (1, 1), "int64")
        positions = (ctypes.c_int64 * 3)()
        tiny.memory.read(made.pointer, ctypes.addressof(positions), 24)
        assert list(positions) == [1, 3, 4]
    assert tiny.call("diopiEqual", {"input": x, "other": x}).values == {"out": True}
    assert tiny.call("diopiEqual", {"input": x, "other": None}).values == {"out": False}


@fresh
def test_what_a_library_does_not_have_is_not_called(tmp_path: Path) -> None:
    tiny = _tiny(tmp_path)
    assert not tiny.has("diopiExp")
    answer = tiny.call("diopiExp", {"out": None, "input": None})
    assert (answer.code, answer.status, answer.ok) == (13, "diopiNoImplement", False)
    assert "does not have diopiExp" in answer.error


@fresh
def test_a_failure_brings_the_librarys_own_words(tmp_path: Path) -> None:
    tiny = _tiny(tmp_path)
    x = _floats(tiny, 1)
    answer = tiny.call("diopiAddScalar", {"out": x, "input": x, "other": 1})
    assert (answer.code, answer.error) == (1, "an argument is NULL")
    flat = Tensor(x.pointer, [1, 1], [1, 1], "float32")
    assert (
        "one dimension"
        in tiny.call("diopiAddScalar", {"out": x, "input": flat, "other": 1, "alpha": 1}).error
    )
    assert tiny.last_error() == "one dimension is all this chip has"


@fresh
def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    tiny = _tiny(tmp_path)
    for name, arguments, complaint in [
        ("diopiSum", {"dim": 3}, r"diopiSum: argument dim \(size\) must be a list of whole numbers, not 3"),
        ("diopiSum", {"dim": [2**63]}, "argument dim .* from -9223372036854775808 to 9223372036854775807"),
        ("diopiSum", {"out": "x"}, r"argument out \(tensor\) must be a Tensor or None"),
        (
            "diopiSum",
            {"axis": [1]},
            r"unknown arguments \['axis'\]; the function has \['dim', 'input', 'out'\]",
        ),
        ("diopiAddScalar", {"other": 1j}, "argument other .* a number"),
        ("diopiAddScalar", {"other": Scalar("decimal", 1)}, "'decimal' is no dtype of DIOPI"),
        ("diopiGetStream", {}, "a runtime function"),
        ("diopiNothing", {}, "no function of DIOPI"),
    ]:
        with pytest.raises(LibraryError, match=complaint):
            tiny.call(name, arguments)


@fresh
def test_a_missing_number_is_named() -> None:
    with pytest.raises(
        LibraryError, match=r"diopiLogSoftmax: argument dim \(int64\) must be a value: it cannot be absent"
    ):
        Library.open(HOST).call("diopiLogSoftmax", {})


@fresh
def test_a_tensor_must_make_sense() -> None:
    for shape, stride, dtype, complaint in [
        ([2, -1], [1, 1], "float32", "absurd"),
        ([2**40, 2**40], [1, 1], "int8", "absurd"),
        ([2], [1, 1], "int8", "cannot have the strides"),
        ([2], [1], "float8", "known are int8"),
        ([1] * 65, [1] * 65, "int8", "64 dimensions"),
    ]:
        with pytest.raises(LibraryError, match=complaint):
            Tensor(0, shape, stride, dtype)
    tensor = Tensor(None, [0, 3], [3, 1], "float16")
    tensor.close()
    with pytest.raises(LibraryError, match="closed"):
        _ = tensor.handle


def _elf(path: Path, *, machine: int = 62, kind: int = 3, order: str = "<") -> Path:
    head = (
        b"\x7fELF"
        + bytes([2, 1 if order == "<" else 2, 1])
        + bytes(9)
        + struct.pack(order + "HH", kind, machine)
    )
    path.write_bytes(head + bytes(100))
    return path


@fresh
def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    text, empty, archive = tmp_path / "a.so", tmp_path / "b.so", tmp_path / "c.a"
    text.write_text("INPUT(libreal.so)\n")
    empty.write_bytes(b"")
    archive.write_bytes(b"!<arch>\n" + bytes(60))
    plain, missing = tmp_path / "plain.c", tmp_path / "missing.c"
    plain.write_text("int nothing_of_diopi(void) { return 1; }\n")
    missing.write_text("int not_there(void); int diopiExp(void) { return not_there(); }\n")
    for path, complaint in [
        (tmp_path / "nowhere.so", "there is no file .*nowhere.so. Give the path"),
        (tmp_path, "is a folder"),
        (text, "is a text file. Expected a shared object"),
        (empty, "is empty"),
        (archive, "is a static archive"),
        (_elf(tmp_path / "arm.so", machine=183), "is made for aarch64, but this machine is x86_64"),
        (_elf(tmp_path / "big.so", machine=22, order=">"), "machine number 22, but this machine"),
        (_elf(tmp_path / "object.o", kind=1), r"is an object file \(.o\)"),
        (_elf(tmp_path / "cut.so"), "cannot be loaded: "),
        (
            _compile(tmp_path / "libplain.so", source=plain),
            "is not a DIOPI library: it has none of the 538 functions",
        ),
        (
            _compile(tmp_path / "libmissing.so", source=missing),
            "undefined symbol: not_there. .*only the runtime functions",
        ),
    ]:
        with pytest.raises(LibraryError, match=complaint):
            Library.open(path)


@fresh
def test_a_runtime_library_must_hold_a_runtime(tmp_path: Path) -> None:
    tiny = _compile(tmp_path / "libtiny.so")
    with pytest.raises(LibraryError, match="holds no vendor runtime: it has no symbol dipuGetVendorTable"):
        Library.open(tiny, runtime=tiny)
    library = Library.open(tiny, runtime=HOST)  # its operators, the other's memory
    assert library.vendor == "tiny" and library.memory.on_device
    with pytest.raises(LibraryError, match=r"version 9\.0 of the vendor interface, this loader speaks 1\.1"):
        Library.open(_compile(tmp_path / "libold.so", source=_vendor_of_abi(tmp_path, 9)))


def _vendor_of_abi(folder: Path, major: int) -> Path:
    source = folder / "old.c"
    source.write_text(
        "#include <dipu/vendor.h>\n#include <diopi/functions.h>\n"
        f"static const dipuVendorTable table = {{sizeof(table), {major}u << 16}};\n"
        "const dipuVendorTable* dipuGetVendorTable(void) { return &table; }\n"
        "const char* diopiGetVendorName(void) { return 0; }\n"
    )
    return source


@fresh
def test_the_simulated_chip_is_called_on_its_own_memory() -> None:
    library = Library.open(HOST)
    assert library.vendor == "host" and library.memory.on_device and len(library.functions()) > 150
    x, y, out = _floats(library, 1, 2, 3), _floats(library, 10, 20, 30, stride=3), _floats(library, 0, 0, 0)
    assert library.call("diopiAdd", {"out": out, "input": x, "other": y, "alpha": 2}).ok
    library.synchronize()
    assert _read(library, out) == [21, 42, 63]
    library.memory.fill(out.pointer or 0, 0, 8)
    assert _read(library, out) == [0, 0, 63]
    answer = library.call("diopiAdd", {"out": out, "input": x, "other": None, "alpha": 1})
    assert answer.code == 1 and "diopiAdd: a tensor is NULL" in answer.error
    with pytest.raises(LibraryError, match="allocating device memory failed: the device's memory is full"):
        library.memory.allocate(2**50)


@fresh
def test_random_numbers_move_the_generators_state() -> None:
    import torch

    library = Library.open(HOST)
    torch_generator = torch.Generator().manual_seed(5)
    generator = Generator(torch_generator.get_state().numpy().tobytes())
    out = _floats(library, 0, 0, 0, 0)
    assert library.call("diopiUniformInp", {"inout": out, "from": 0.0, "to": 1.0, "generator": generator}).ok
    assert _read(library, out) == torch.empty(4).uniform_(generator=torch_generator).tolist()
    assert generator.state() == torch_generator.get_state().numpy().tobytes()
    assert (
        library.call(
            "diopiUniformInp", {"inout": out, "from": 0.0, "to": 1.0, "generator": Generator(b"x")}
        ).code
        == 1
    )


@fresh
def test_loading_does_not_import_torch() -> None:
    program = (
        "import sys; from diopi.library import Library; import diopi.table, diopi.vendors;"
        f"print(Library.open({str(HOST)!r}).vendor, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["host", "False"]


@pytest.mark.device
def test_a_process_of_torch_dipu_is_refused() -> None:
    program = (
        "import torch, torch_dipu\nfrom diopi.library import Library, LibraryError\n"
        f"try: Library.open({str(HOST)!r})\nexcept LibraryError as error: print(error)\n"
        "print((torch.ones(2, device='dipu') + 1).tolist())"
    )
    ran = run_python("-c", program, check=True)
    first, second = ran.stdout.splitlines()[-2:]
    assert "belong to torch_dipu in this process" in first and "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in first
    assert second == "[2.0, 2.0]"


@pytest.mark.device
def test_torch_dipu_imported_later_is_noticed() -> None:
    program = (
        f"from diopi.library import Library, LibraryError\nlibrary = Library.open({str(HOST)!r})\n"
        "import torch, torch_dipu\n(torch.ones(2, device='dipu') + 1)\n"
        "try: library.call('diopiExp', {})\nexcept LibraryError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "was imported after this library was loaded" in ran.stdout
