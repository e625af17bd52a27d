"""The 27 functions that a library calls back: the same questions to diopi.library's and to torch_dipu's."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from forked_python import run_python
from fresh_process import fresh

from diopi.library import Generator, Library, Tensor, loader
from diopi.vendors.host import VENDOR

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
HOST = VENDOR.library


def _described(shape: str, stride: str, numel: int, **other: object) -> str:
    said = {
        "dtype": 9,
        "device": 1,
        "item": 4,
        "offset": 0,
        "bytes": 48,
        "index": 0,
        "sparse": 0,
        "parts": 0,
        **other,
    }
    return (
        f" shape={shape} stride={stride} dtype={said['dtype']} device={said['device']} numel={numel} item={said['item']}"
        f" offset={said['offset']} bytes={said['bytes']} index={said['index']} sparse={said['sparse']} parts={said['parts']}"
        " failures=0 place=right"
    )


VIEWS = {
    "plain": _described("3,4", "4,1", 12),
    "transposed": _described("4,3", "1,4", 12),
    "offset": _described("2,2", "4,2", 4, offset=5),
    "expanded": _described("3,5", "4,0", 15),
    "scalar": _described("", "", 1, offset=5),
    "empty": _described("0,4", "4,1", 0),
    "bfloat16": _described("3,4", "4,1", 12, dtype=12, item=2, bytes=24),
    "float64": _described("2", "1", 2, dtype=10, item=8, bytes=16),
}
REQUIRED = {
    "plain": _described("2,3", "3,1", 6, bytes=24),
    "strided": _described("2,3", "1,2", 6, dtype=8, item=2, bytes=12),
    "empty": _described("0,4", "4,1", 0, dtype=11, item=1, bytes=0),
    "scalar": _described("", "", 1, dtype=15, item=8, bytes=8),
    "host": _described("5", "1", 5, dtype=6, item=8, bytes=40, device=0, index=-1),
    **dict.fromkeys(
        (
            "negative",
            "backwards",
            "overflowing",
            "larger than the device",
            "no dtype",
            "unknown dtype",
            "unknown device",
            "fewer strides",
            "negative count",
            "too many",
            "no numbers",
        ),
        " error, no tensor",
    ),
    "buffer": _described("100", "1", 100, dtype=1, item=1, bytes=100),
    "buffer of -1": " 1",
    "buffer of 0": " 1",
}
REST = {
    "many": "100 right",
    "without": " done",
    "environment": "stream=1 same=1 device=0 codes=0 version=DIOPI 1.2.0 records=0 open=1 ends=0 closed=1",
    "workspace": "1",
    "left": 0,
}


def _check(reports: dict[str, object], name: str) -> None:
    if name == "require":
        got = dict(line.split(":", 1) for line in str(reports["require"]).splitlines())
        assert got == REQUIRED
    else:
        assert reports[name] == {**VIEWS, **REST}[name]


NAMES = [*VIEWS, *REST, "require"]


@functools.cache
def _caller() -> Path:
    """The library that asks, compiled once."""
    folder = Path(tempfile.mkdtemp(prefix="diopi-caller-"))
    source, target = FOLDER / "runtime_caller.c", folder / "libcaller.so"
    flags = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-shared",
        "-fPIC",
        f"-I{ROOT / 'include'}",
    ]
    subprocess.run(["gcc", *flags, "-o", str(target), str(source), "-ldl"], check=True)
    os.environ["CALLER_RUNTIME"] = str(HOST)
    return target


class _Asking:
    """The caller library on diopi.library's functions."""

    def __init__(self) -> None:
        loader.direct().own_the_table()
        # With torch's libraries, wherever they are: the caller asks for it by its path alone.
        loader._load(HOST)
        self.library = Library.open(_caller())
        self.questions = ctypes.CDLL(str(_caller()))
        self.questions.caller_report.restype = ctypes.c_char_p
        self.questions.caller_used.restype = ctypes.c_size_t
        self.storage = self.library.memory.allocate(48)

    def tensor(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: str = "float32",
        offset: int = 0,
        nbytes: int = 48,
    ) -> Tensor:
        size = {"float32": 4, "bfloat16": 2, "float64": 8}[dtype]
        pointer = self.storage + offset * size
        return Tensor(
            pointer,
            shape,
            stride,
            dtype,
            storage_pointer=self.storage,
            storage_offset=offset,
            storage_nbytes=nbytes,
        )

    def ask(self, mode: str, tensor: Tensor) -> str:
        self.questions.caller_mode(mode.encode())
        assert self.library.call("diopiExp", {"out": tensor, "input": tensor}).ok
        return self.questions.caller_report().decode()


@functools.cache
def _direct_reports() -> dict[str, object]:
    asking = _Asking()
    assert asking.library.vendor == "caller"
    tensors = {
        "plain": asking.tensor([3, 4], [4, 1]),
        "transposed": asking.tensor([4, 3], [1, 4]),
        "offset": asking.tensor([2, 2], [4, 2], offset=5),
        "expanded": asking.tensor([3, 5], [4, 0]),
        "scalar": asking.tensor([], [], offset=5),
        "empty": asking.tensor([0, 4], [4, 1]),
        "bfloat16": asking.tensor([3, 4], [4, 1], "bfloat16", nbytes=24),
        "float64": asking.tensor([2], [1], "float64", nbytes=16),
    }
    reports: dict[str, object] = {name: asking.ask("describe", tensor) for name, tensor in tensors.items()}
    before = asking.questions.caller_used()
    for mode in ("require", "many", "without", "environment", "workspace"):
        reports[mode] = asking.ask(mode, tensors["plain"])
    reports["left"] = asking.questions.caller_used() - before
    return reports


@fresh
@pytest.mark.parametrize("name", NAMES)
def test_without_a_framework(name: str) -> None:
    _check(_direct_reports(), name)


@fresh
def test_generators_without_a_framework() -> None:
    asking = _Asking()
    generator = Generator(b"state of some chip", seed=77, offset=3)
    arguments = {"inout": asking.tensor([2], [1]), "from": 0.0, "to": 1.0, "generator": generator}
    assert asking.library.call("diopiUniformInp", arguments).ok
    report = asking.questions.caller_report().decode()
    assert report == "seed=77 offset=3 then 123 0 device=0 dtype=1 back=1 apart=1 codes=0"
    assert generator.state() == b"state of some chip"


@fresh
def test_sparse_parts() -> None:
    asking = _Asking()
    matrix = asking.tensor([3, 4], [4, 1])
    parts = [asking.tensor([n], [1]) for n in (4, 5, 6)]
    matrix.make_sparse(*parts)
    assert asking.ask("describe", matrix) == _described("3,4", "4,1", 12, sparse=1, parts=3)


@functools.cache
def _under_torch() -> subprocess.CompletedProcess[str]:
    return run_python(
        str(FOLDER / "runtime_under_torch.py"),
        env={
            **os.environ,
            "DIPU_DEVICE": str(_caller()),
            "CALLER_RUNTIME": str(HOST),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        },
    )


def _torch_reports() -> dict[str, object]:
    ran = _under_torch()
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.device
@pytest.mark.parametrize("name", NAMES)
def test_under_torch_dipu(name: str) -> None:
    _check(_torch_reports(), name)


@pytest.mark.device
def test_generators_under_torch_dipu() -> None:
    report = _torch_reports()["generator"]
    assert report == "seed=77 offset=0 then 123 0 device=0 dtype=1 back=1 apart=1 codes=0"
