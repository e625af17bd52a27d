"""Capability: kernels that others compiled, launched in a stream's order; what other libraries get of torch_dipu."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from built import library

import torch_dipu
from torch_dipu import kernels

if not kernels.available():
    pytest.skip("the vendor loads no kernels that others compiled", allow_module_level=True)


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_double))


IS_HOST = torch_dipu.dipu.vendor_name() == "host"


@pytest.fixture(scope="module")
def module_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module with the kernel `scale(float* x, float factor)`, one grid element for each number."""
    if IS_HOST:
        return library("kernels.c", tmp_path_factory.mktemp("kernels"))
    if given := os.environ.get("DIPU_TEST_MODULE"):
        return Path(given)
    pytest.skip("DIPU_TEST_MODULE names no module for this chip with a kernel scale(float* x, float factor)")


@pytest.fixture
def compiled(module_file: Path) -> Path:
    """The module with all kernels of kernels.c."""
    if not IS_HOST:
        pytest.skip("kernels.c is for the simulated chip")
    return module_file


@pytest.fixture(params=["as it is", "asynchronous"])
def queue(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether work is certainly still queued when a call returns."""
    if request.param == "as it is":
        yield False
        return
    if not IS_HOST:
        pytest.skip("the simulated chip alone can be told to be slow")
    torch.dipu.configure(**{"async": True, "delay_us": 2000})
    yield True
    torch.dipu.configure(**{"async": False, "delay_us": 0})


@pytest.mark.parametrize("form", ["file", "image"])
def test_a_kernel_computes(module_file: Path, form: str) -> None:
    device = f"dipu:{torch.dipu.device_count() - 1}"
    module = kernels.Module(module_file if form == "file" else module_file.read_bytes(), device)
    x = torch.arange(6.0, device=device)
    module.kernel("scale").launch((x, ctypes.c_float(2.5)), grid=(5,))
    assert x.cpu().tolist() == [0, 2.5, 5, 7.5, 10, 5]


def test_a_kernel_gets_what_it_was_given(compiled: Path) -> None:
    out = torch.zeros(14, dtype=torch.float64, device="dipu")
    arguments = (out, -(2**40), 0.1, True, Pair(7, 2.25))
    kernels.Module(compiled).kernel("describe").launch(
        arguments, grid=(2, 3), block=(4, 5, 6), shared_memory=100
    )
    assert out.cpu().tolist() == [2, 3, 1, 4, 5, 6, 5, -(2**40), 0.1, 1, 7, 2.25, 0, 1]


def test_launches_run_in_order_with_their_own_copies_of_the_arguments(module_file: Path, queue: bool) -> None:
    module = kernels.Module(module_file)
    scale = module.kernel("scale")
    x = torch.ones(4, device="dipu")
    factor = ctypes.c_float(2)
    for _ in range(3):
        scale.launch((x, factor), grid=(4,))
        factor.value += 1  # the launch has its own
        x.add_(1)
    ready = torch.dipu.current_stream().query()
    del module, scale  # what is queued keeps them
    assert ready is not queue or not IS_HOST
    assert x.cpu().tolist() == [((1 * 2 + 1) * 3 + 1) * 4 + 1] * 4


def test_a_launch_goes_to_the_current_stream_or_the_one_given(module_file: Path, queue: bool) -> None:
    scale = kernels.Module(module_file).kernel("scale")
    x, busy = torch.ones(1, device="dipu"), torch.dipu.Stream()
    torch.dipu.synchronize()
    scale.launch((x, ctypes.c_float(3)), stream=busy)
    assert torch.dipu.current_stream().query()
    assert busy.query() is not queue or not IS_HOST
    with torch.dipu.stream(busy):
        scale.launch((x, ctypes.c_float(5)))
    busy.synchronize()
    assert x.item() == 15


def test_a_kernel_that_fails_is_named(compiled: Path, queue: bool) -> None:
    refuse = kernels.Module(compiled).kernel("refuse")
    with pytest.raises(RuntimeError, match=r"refuse.*number 13 is not allowed"):
        refuse.launch((ctypes.c_int32(13),))
        torch.dipu.synchronize()
    assert (torch.ones(2, device="dipu") + 1).tolist() == [2, 2]


def test_what_cannot_be_launched_is_refused(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(
        RuntimeError, match=r"loading the module .*text.so failed: the module cannot be loaded"
    ):
        kernels.Module(tmp_path / "text.so")
    with pytest.raises(
        RuntimeError, match="loading a module from memory failed: the module cannot be loaded"
    ):
        kernels.Module(b"no library")
    with pytest.raises(RuntimeError, match=r"loading a module from memory failed: .*neither was given"):
        kernels.Module(b"")
    module = kernels.Module(compiled)
    with pytest.raises(RuntimeError, match="the module has no kernel 'nothing'"):
        module.kernel("nothing")
    scale, x = module.kernel("scale"), torch.ones(2, device="dipu")
    with pytest.raises(
        ValueError, match=r"argument 0 of the kernel scale is a tensor on cpu; .* loaded on dipu:0"
    ):
        scale.launch((torch.ones(2), ctypes.c_float(2)))
    with pytest.raises(ValueError, match="which int64_t cannot hold"):
        scale.launch((2**63, x))
    with pytest.raises(TypeError, match="argument 1 of the kernel scale is str; expected a tensor, a number"):
        scale.launch((x, "2"))  # type: ignore[arg-type]
    for grid in ((0,), (), (1, 1, 1, 1), (2**32,)):
        with pytest.raises(ValueError, match="expected one to three sizes from 1"):
            scale.launch((x, ctypes.c_float(2)), grid=grid)
    with pytest.raises(ValueError, match="the stream is of dipu:1"):
        scale.launch((x, ctypes.c_float(2)), stream=torch.dipu.Stream("dipu:1"))
    assert x.tolist() == [1, 1]


def test_a_library_that_links_nothing_launches_on_the_current_stream(
    compiled: Path, queue: bool, tmp_path: Path
) -> None:
    caller = ctypes.CDLL(str(library("caller.c", tmp_path)))
    caller.stream.restype = ctypes.c_void_p
    caller.problem.restype = ctypes.c_char_p
    caller.scale.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_uint)
    side = torch.dipu.Stream("dipu:1")
    assert caller.stream(0) == torch_dipu.current_stream("dipu:0").dipu_stream
    with torch.dipu.device("dipu:1"), torch.dipu.stream(side):
        assert caller.stream(-1) == caller.stream(1) == side.dipu_stream != caller.stream(0)
        x = torch.ones(3, device="dipu:1")
        assert caller.scale(str(compiled).encode(), x.data_ptr(), 4.0, 2) == 0
        assert side.query() is not queue
        assert x.tolist() == [4, 4, 1]
    assert caller.stream(99) is None
    assert b"device index 99 does not exist" in caller.problem()
