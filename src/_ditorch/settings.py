"""The environment variables of ditorch. Imports nothing of this package: see `dicore.settings`."""

from __future__ import annotations

from dicore.settings import Variable, flag

DEVICE = Variable(
    "DITORCH_DEVICE",
    "",
    "the framework that `import ditorch` uses; `none`: no framework",
    unset="what is installed and has a device",
)
DISABLE_MOCK = Variable("DITORCH_DISABLE_MOCK", False, "`1`: never map the names of CUDA", flag)
MOCK_CUDA = Variable(
    "DIPU_MOCK_CUDA",
    True,
    "`0`: do not map the names of CUDA when `torch_dipu` or `ditorch` is imported",
    flag,
)
SHOW_DEVICE_AS_CUDA = Variable(
    "DITORCH_SHOW_DEVICE_AS_CUDA", True, "`0`: `device.type` never equals `'cuda'`", flag
)
FP32_COLLECTIVES = Variable(
    "DITORCH_FP32_COLLECTIVES", False, "`1`: sums of half-precision tensors are made in float32", flag
)
