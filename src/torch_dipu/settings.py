"""The environment variables of the device. Imports nothing of this package: see `dicore.settings`.

Those that may change while the program runs are read in C++ (csrc/aten), which follows every change of `os.environ`.
"""

from __future__ import annotations

from dicore.settings import Variable, declarations, flag, one_of


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"expected a number above 0, got {text!r}")
    return number


FORCE_FALLBACK_OPS_LIST = Variable(
    "DIPU_FORCE_FALLBACK_OPS_LIST",
    "",
    "operators that fall back although DIOPI serves them: names or patterns, with commas",
    dynamic=True,
)
KEEP_TORCHOP_DEFAULT_IMPL_OPS = Variable(
    "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS",
    "",
    "operators that keep torch's own implementation, likewise",
    dynamic=True,
)
AUTOCOMPARE_OPS_LIST = Variable(
    "DIPU_AUTOCOMPARE_OPS_LIST",
    "",
    "operators whose results are compared with the CPU's, likewise",
    dynamic=True,
)
DUMP_OP_ARGS = Variable(
    "DIPU_DUMP_OP_ARGS",
    "0",
    "`1`: print each operator and its DIOPI function, `2`: and arguments, `3`: and values",
    one_of("0", "1", "2", "3"),
    dynamic=True,
)
LOG_FALLBACK_INFO = Variable(
    "DIPU_LOG_FALLBACK_INFO",
    "0",
    "`1`: a line for every call that falls back, with the reason",
    one_of("0", "1"),
    dynamic=True,
)
WITH_DIOPI_LIBRARY = Variable(
    "DIPU_WITH_DIOPI_LIBRARY",
    "",
    "`DISABLE`: no operator of the vendor is used, everything falls back",
    dynamic=True,
)
DEVICE_MEMCACHING_ALGORITHM = Variable(
    "DIPU_DEVICE_MEMCACHING_ALGORITHM",
    "TORCH",
    "how device memory is cached: `TORCH` or `BF` split and merge blocks, `BS` keeps blocks by size class, `RAW` keeps nothing",
    one_of("TORCH", "BF", "BS", "RAW"),
)
MEM_CHECK = Variable(
    "DIPU_MEM_CHECK",
    "0",
    "`1`: at the end, print the device memory that was not freed; print at once what is handed out or freed twice",
    one_of("0", "1"),
    dynamic=True,
)
MEM_CHECK_ENABLE_BACKTRACE = Variable(
    "DIPU_MEM_CHECK_ENABLE_BACKTRACE",
    "0",
    "`1`: the memory checker shows where memory was allocated, in Python and in C++",
    one_of("0", "1"),
    dynamic=True,
)
MEM_CHECK_LOG_INTERVAL = Variable(
    "DIPU_MEM_CHECK_LOG_INTERVAL",
    1000,
    "the memory checker prints its figures after so many allocations",
    _at_least_one,
    dynamic=True,
)
MEM_CHECK_MAX_BLOCK = Variable(
    "DIPU_MEM_CHECK_MAX_BLOCK",
    10000,
    "with more blocks than this the memory checker says once that there may be a leak",
    _at_least_one,
    dynamic=True,
)
ADAPTOR_CONFIG = Variable(
    "DIPU_ADAPTOR_CONFIG", "", "rules (`convert_config.yaml`) in front of the vendor's operators"
)
AUTOLOAD = Variable(
    "TORCH_DEVICE_BACKEND_AUTOLOAD", True, "`0`: plain `import torch` does not register dipu", flag
)


def mock_cuda() -> bool:
    """Whether `import torch_dipu` maps the names of CUDA onto the device."""
    mock_cuda, disable = _of_ditorch("DIPU_MOCK_CUDA"), _of_ditorch("DITORCH_DISABLE_MOCK")
    return bool(mock_cuda.get_or_default() and not disable.get_or_default())


def asked_for() -> bool:
    """Whether the user said that the names of CUDA shall mean this device, also beside a real one."""
    named = _of_ditorch("DITORCH_DEVICE").text().lower() in ("dipu", "torch_dipu")
    return named or _of_ditorch("DIPU_MOCK_CUDA").is_set()


def _of_ditorch(name: str) -> Variable:
    """Its declaration, without importing ditorch: that would map the names."""
    return declarations("_ditorch")[name]
