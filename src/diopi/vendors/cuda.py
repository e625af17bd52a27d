"""NVIDIA cards (vendors/cuda): compiled where torch is built for CUDA, taken when it is asked for.

torch has these cards as `cuda` already, so nobody gets them as `dipu` without `DIPU_DEVICE=cuda`.
"""

from pathlib import Path

from diopi.vendors import Vendor

VENDOR = Vendor(
    name="cuda",
    library=Path(__file__).parent / "lib" / "libdiopi_cuda.so",
    priority=-200,
    needs="the project to be built with a torch for CUDA",
)
