"""Which published files are compiled, with what in front of them, and why others are not."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from diopi.paths import include_folder

__all__ = ["COMPILED", "DEVICES", "FOLDER", "LEFT_OUT", "NEEDS_KERNELS", "PublishedError", "Toolchain"]

FOLDER = Path(__file__).parent
DEVICES = ("cpu", "cuda")

COMPILED = {
    "impl/torch/functions/functions.cpp": "torch",
    "impl/torch/functions/functions_lightllm.cpp": "torch",
    "impl/torch/functions/error.cpp": "",
    "impl/torch/helper.cpp": "aten",
    "impl/torch/build_aten.cpp": "aten",
    "adaptor/csrc/convert.cpp": "",
    "adaptor/csrc/composite_ops.cpp": "",
}
"""File -> which headers of torch it uses: its frontend (nn, optim), those of its tensors, or none. The longest one first."""
LEFT_OUT = {
    "impl/torch/functions/functions_ext.cpp": "needs the sources of flash-attention and kernels in .cu files",
    "impl/torch/functions/functions_mmcv.cpp": "needs kernels in .cu files",
    "impl/torch/functions/functions_sparse.cpp": "needs kernels in .cu files",
}
GENERATOR = "adaptor/codegen/gen.py"
INTERFACE = "proto/include/diopi"
NEEDS_KERNELS = frozenset({"diopiNms", "diopiRoiAlign", "diopiRoiAlignBackward"})
"""Functions of compiled files that call kernels of .cu files (`impl/torch/vision_kernel.h`)."""


class PublishedError(RuntimeError):
    """The library cannot be built; says why and what to do."""


@dataclass(frozen=True)
class Toolchain:
    """How a file is compiled and the library is linked, for one device."""

    device: str
    compiler: str
    torch: Path
    cuda: tuple[Path, ...] = ()
    """Folders of the CUDA headers."""
    cuda_libraries: tuple[Path, ...] = ()

    @classmethod
    def find(cls, device: str) -> Toolchain:
        """What is installed here; PublishedError names what is missing."""
        spec = importlib.util.find_spec(
            "torch"
        )  # found without importing it: a device plugged into it stays out
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            raise PublishedError("torch is not installed. Install torch 2.11 to 2.13.")
        torch, compiler = Path(folders[0]), os.environ.get("CXX", "c++")
        if device == "cpu":
            return cls(device, compiler, torch)
        if not (torch / "lib" / "libtorch_cuda.so").is_file():
            raise PublishedError(
                f"--device cuda: the torch in {torch} has no CUDA. Install one that has, or build for the CPU."
            )
        headers = [folder for folder in _cuda_folders("include") if (folder / "cuda_runtime_api.h").is_file()]
        if not headers:
            raise PublishedError(
                "--device cuda: cuda_runtime_api.h is not found. Set CUDA_HOME to the toolkit."
            )
        others = [folder for folder in _cuda_folders("include") if folder not in headers]
        libraries = [folder for folder in _cuda_folders("lib*") if any(folder.glob("libcudart.so*"))]
        if not libraries:
            raise PublishedError("--device cuda: libcudart.so is not found. Set CUDA_HOME to the toolkit.")
        return cls(device, compiler, torch, (*headers[:1], *others), tuple(libraries[:1]))

    def compile_flags(self, source: Path, generated: Path) -> list[str]:
        """For a published file: our headers in front of theirs, torch's behind."""
        shim = FOLDER / "shim" / self.device
        own = [shim, include_folder(), generated, source / "impl" / "torch", source / "adaptor" / "csrc"]
        torch = [self.torch / "include", self.torch / "include" / "torch" / "csrc" / "api" / "include"]
        return [
            *("-std=c++17", "-O2", "-fPIC", "-w"),  # warnings about published files help nobody here
            *(f"-I{folder}" for folder in own),
            *(word for folder in (*self.cuda, *torch) for word in ("-isystem", str(folder))),
        ]

    def libraries(self) -> list[str]:
        """For the linker."""
        folders = [self.torch / "lib", *self.cuda_libraries]
        paths = [word for folder in folders for word in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
        if self.device == "cpu":
            return [*paths, "-ltorch", "-ltorch_cpu", "-lc10"]
        runtime = sorted(self.cuda_libraries[0].glob("libcudart.so*"))[0].name
        return [*paths, "-ltorch", "-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda", "-lc10", f"-l:{runtime}"]


def _cuda_folders(kind: str) -> list[Path]:
    """Where the toolkit or the wheels that torch brings have their headers (`include`) or libraries (`lib*`)."""
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    wheels = [path / "nvidia" for path in map(Path, sys.path) if (path / "nvidia").is_dir()]
    patterns = [*((home, kind) for home in homes), *((home, f"targets/*/{kind}") for home in homes)]
    patterns += [(wheel, f"*/{kind}") for wheel in wheels]
    return [found for folder, pattern in patterns for found in sorted(folder.glob(pattern)) if found.is_dir()]
