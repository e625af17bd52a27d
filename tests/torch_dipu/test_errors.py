"""Bad input is answered clearly, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from forked_python import run_python

import torch_dipu  # noqa: F401

ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", textwrap.dedent(code), timeout=120, env={**os.environ, **environment})


def test_out_of_memory_says_how_much_and_the_process_goes_on() -> None:
    done = run(
        """
        import torch
        kept = torch.zeros(10 * 2**20 // 4, device="dipu")
        try:
            torch.empty(100 * 2**20, dtype=torch.uint8, device="dipu")
        except torch.OutOfMemoryError as error:
            print(error)
        print("sum", (kept + 1).sum().item())
        small = torch.empty(2**20, dtype=torch.uint8, device="dipu")
        print("free", torch.dipu.mem_get_info()[0] < 64 * 2**20)
        """,
        DIPU_HOST_MEMORY="64M",
    )
    assert done.returncode == 0, done.stderr
    assert "Tried to allocate 100.00 MiB" in done.stdout or "Tried to allocate 104.00 MiB" in done.stdout
    assert "64.00 MiB in all" in done.stdout
    assert "54.00 MiB free" in done.stdout
    assert "10.00 MiB are held" in done.stdout
    assert f"sum {10 * 2**20 / 4}" in done.stdout
    assert "free True" in done.stdout


def test_results_made_by_alias_count_against_the_memory_too() -> None:
    done = run(
        """
        import torch
        x = torch.zeros(8 * 2**20, dtype=torch.uint8, device="dipu")
        kept = []
        try:
            for _ in range(100):
                kept.append(torch.bitwise_xor(x, x))   # no DIOPI entry: its result is adopted
        except torch.OutOfMemoryError:
            print("stopped at", len(kept))
        """,
        DIPU_HOST_MEMORY="64M",
    )
    assert "stopped at 7" in done.stdout, done.stdout + done.stderr


def test_memory_fraction() -> None:
    torch.dipu.set_per_process_memory_fraction(0.01, 1)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="fraction"):
            torch.empty(2**30, dtype=torch.uint8, device="dipu:1")
    finally:
        torch.dipu.set_per_process_memory_fraction(1.0, 1)
    with pytest.raises(ValueError, match="above 0 and up to 1"):
        torch.dipu.set_per_process_memory_fraction(1.5)


def test_wrong_device_index() -> None:
    with pytest.raises(
        RuntimeError, match=r"device index 7 does not exist: this machine has 2 devices \(dipu:0 to dipu:1\)"
    ):
        torch.zeros(2, device="dipu:7")
    with pytest.raises(RuntimeError, match="device index 5 does not exist"):
        torch.dipu.set_device(5)
    with pytest.raises(ValueError, match="expected a dipu device, got 'cpu'"):
        torch.dipu.set_device("cpu")


def test_tensors_on_two_devices() -> None:
    zero, one, host = torch.ones(3, device="dipu:0"), torch.ones(3, device="dipu:1"), torch.ones(3)
    for mixed in ((zero, one), (zero, host), (host, zero)):
        with pytest.raises(RuntimeError, match="same device"):
            torch.add(*mixed)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.linear(torch.ones(2, 3, device="dipu"), torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="same device"):
        torch.bitwise_xor(zero.int(), one.int())
    assert (zero + torch.tensor(2.0)).cpu().tolist() == [3, 3, 3]  # a CPU scalar is welcome


def test_unknown_vendor() -> None:
    done = run("import torch; print('imported'); torch.zeros(1, device='dipu')", DIPU_DEVICE="nochip")
    assert "imported" in done.stdout
    assert "DIPU_DEVICE='nochip' names no installed vendor; installed are: host" in done.stderr
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_DEVICE="/no/such/lib.so")
    assert "there is no such file" in done.stderr


def build_vendor(folder: Path, body: str) -> str:
    source, library = folder / "vendor.c", folder / "libvendor.so"
    source.write_text("#include <dipu/vendor.h>\n" + body)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-I", str(ROOT / "include"), "-o", str(library), str(source)], check=True
    )
    return str(library)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("int nothing;", "it has no symbol dipuGetVendorTable"),
        (
            'static const dipuVendorTable t = {sizeof(dipuVendorTable), (9u << 16) | 3u, "x"};'
            "const dipuVendorTable* dipuGetVendorTable(void) { return &t; }",
            "speaks version 9.3 of the vendor interface, this torch_dipu speaks 1.1",
        ),
        (
            'static const dipuVendorTable t = {40, DIPU_VENDOR_ABI, "x"};'
            "const dipuVendorTable* dipuGetVendorTable(void) { return &t; }",
            "ends before its mandatory entries",
        ),
        (
            'static const dipuVendorTable t = {sizeof(dipuVendorTable), DIPU_VENDOR_ABI, "x"};'
            "const dipuVendorTable* dipuGetVendorTable(void) { return &t; }",
            "lacks a mandatory entry: number 1 of 23",
        ),
    ],
)
def test_a_library_that_is_no_vendor_or_of_another_version(body: str, complaint: str, tmp_path: Path) -> None:
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_DEVICE=build_vendor(tmp_path, body))
    assert done.returncode == 1
    assert complaint in done.stderr


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("not a library")
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_DEVICE=str(path))
    assert "cannot load the vendor library" in done.stderr


def test_bad_settings_of_the_simulated_chip() -> None:
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_HOST_MEMORY="lots")
    assert "'lots' is not a size; expected a number of bytes or one with K, M, G or T" in done.stderr
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_HOST_NUMERICS="wild")
    assert "expected plain or reordered" in done.stderr
    done = run("import torch; torch.zeros(1, device='dipu')", DIPU_HOST_DEVICES="2x")
    assert "DIPU_HOST_DEVICES='2x': expected a number from 1 to" in done.stderr
    with pytest.raises(RuntimeError, match="unknown option 'speed'; known are numerics"):
        torch.dipu.configure(speed=3)


def test_a_host_read_of_device_memory_faults() -> None:
    done = run(
        """
        import ctypes, torch
        x = torch.ones(4, device="dipu")
        print("address", x.data_ptr() != 0, flush=True)
        ctypes.c_float.from_address(x.data_ptr()).value
        print("read it")
        """
    )
    assert "address True" in done.stdout
    assert "read it" not in done.stdout
    assert done.returncode < 0  # a signal


def test_a_kernel_error_names_its_operator() -> None:
    table, wrong = torch.randn(4, 3, device="dipu"), torch.tensor([9], device="dipu")
    with pytest.raises(IndexError, match=r"embedding.*diopiEmbedding: index out of range"):
        torch.nn.functional.embedding(wrong, table)
    assert (table + 1).shape == (4, 3)
