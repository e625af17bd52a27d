"""Tests of the device with its libraries compiled under a sanitizer: `make asan`, `make tsan`.

    python tools/sanitize.py address tests/torch_dipu -k streams

The libraries are built in a folder of their own (build/sanitize-address) and laid over the installed packages by PYTHONPATH;
torch and Python stay as they are, so reports are about this project's code. The exit code is pytest's, or 1 if the sanitizer
found something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPRESSIONS = ROOT / "tools" / "sanitizer_suppressions"
DEFAULT_TESTS = ["tests/torch_dipu"]
# Target -> its library in the folder of the build, and where it belongs.
TARGETS = {
    "diopirt": ("libdiopirt.so", "diopi/lib"),
    "diopi_direct": ("libdiopi_direct.so", "diopi/lib"),
    "diopi_adaptor": ("libdiopi_adaptor.so", "diopi/lib"),
    "torch_dipu": ("libtorch_dipu.so", "torch_dipu/lib"),
    "_C": ("_C.*.so", "torch_dipu"),
    "diopi_host": ("vendors/host/libdiopi_host.so", "diopi/vendors/lib"),
}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}


def build(sanitizer: str, folder: Path, jobs: int) -> Path:
    """The folder to put first on PYTHONPATH: the packages, with the device's libraries instrumented."""
    tree, site = folder / "cmake", folder / "site"
    options = [
        f"-DSANITIZE={sanitizer}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    _run(["cmake", "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *options])
    _run(["cmake", "--build", str(tree), "--parallel", str(jobs), "--target", *TARGETS])
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "src", site, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "include", site / "torch_dipu" / "include")
    for package in ("op_tools", "dlinfer"):  # as they are installed
        for library in Path(sysconfig.get_path("platlib"), package).glob("*.so"):
            shutil.copy2(library, site / package)
    for target, (pattern, place) in TARGETS.items():
        (built,) = tree.glob(pattern)
        (site / place).mkdir(parents=True, exist_ok=True)
        shutil.copy2(built, site / place)
        print(f"==> {target}: {built.stat().st_size >> 20} MiB", flush=True)
    return site


def environment(sanitizer: str, site: Path, log: Path) -> dict[str, str]:
    """The sanitizer's own library comes first in the process, Python's allocator steps aside, and reports go to files."""
    import torch

    libraries = [_compiler_library(RUNTIMES[sanitizer]), _compiler_library("libstdc++.so")]
    common = f"log_path={log}:exitcode=66:handle_segv=0"
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib"),
        "PYTHONPATH": str(site),
        "PYTHONMALLOC": "malloc",
        # torch and Python leave memory behind at the end of a process
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:verify_asan_link_order=0:alloc_dealloc_mismatch=0:detect_container_overflow=0",
        "TSAN_OPTIONS": f"{common}:ignore_noninstrumented_modules=1:suppressions={SUPPRESSIONS / 'thread'}",
    }


def reports(log: Path) -> list[Path]:
    """What the sanitizer wrote, a file for each process."""
    return sorted(log.parent.glob(f"{log.name}.*"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sanitizer", choices=sorted(RUNTIMES))
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))
    parser.add_argument("--jobs", type=int, default=jobs, help="compilers at a time")
    chosen, tests = parser.parse_known_args(arguments)
    folder = ROOT / "build" / f"sanitize-{chosen.sanitizer}"
    site = build(chosen.sanitizer, folder, chosen.jobs)
    log = folder / "report"
    for old in reports(log):
        old.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests or DEFAULT_TESTS)]
    status = subprocess.run(
        command, cwd=ROOT, env=environment(chosen.sanitizer, site, log), check=False
    ).returncode
    found = reports(log)
    for path in found:
        print(f"==> {path.relative_to(ROOT)}\n{path.read_text(errors='replace')}")
    print(
        f"==> {chosen.sanitizer} sanitizer: {len(found)} processes with a report, pytest ended with {status}"
    )
    return status or int(bool(found))


def _compiler_library(name: str) -> str:
    found = subprocess.run(
        [os.environ.get("CXX", "g++"), f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(found):
        sys.exit(f"the compiler has no {name}: install the sanitizer libraries of g++ (libasan, libtsan)")
    return str(Path(found).resolve())


def _run(command: list[str]) -> None:
    print("==>", " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


if __name__ == "__main__":
    sys.exit(main())
