"""The environment variables of dlinfer. Imports nothing of this package: see `dicore.settings`."""

from __future__ import annotations

import math

from dicore.settings import Variable, one_of, size


def _gibibytes(text: str) -> float:
    """A number alone is in GiB; `512M` and `4G` say their unit."""
    try:
        amount = float(text) if text[-1:].isdigit() else size(text) / (1 << 30)
    except ValueError:
        amount = 0.0
    if not 0 < amount < math.inf:
        raise ValueError(f"expected GiB as a number above 0, such as 4 or 0.5, or 512M, got {text!r}")
    return amount


VENDOR = Variable(
    "DLINFER_VENDOR",
    "",
    "the vendor to use",
    unset="the available one of highest priority for the device",
)
CHECK = Variable(
    "DLINFER_CHECK",
    "",
    "`1`: check lengths, tables and indices also where that waits for a device; `0`: only where a vendor needs it",
    one_of("0", "1"),
    unset="what costs no waiting",
)
CACHE_LAYOUT = Variable(
    "DLINFER_CACHE_LAYOUT",
    "BSND",
    "`BSND` or `BNSD`: how the caller's paged caches lie",
    one_of("BSND", "BNSD"),
)
LINEAR_USE_NN_LAYOUT = Variable(
    "DLINFER_LINEAR_USE_NN_LAYOUT",
    "0",
    "`1`: weights of linear layers are stored [in, out], as LMDeploy does under the same variable",
    one_of("0", "1"),
)
CPP_LEVEL = Variable(
    "DLINFER_CPP_LEVEL",
    "",
    "`plain`, `avx2` or `avx512`: instructions that `cpp` uses",
    one_of("plain", "avx2", "avx512"),
    unset="the best that the CPU has",
)
GRAPH_BACKEND = Variable(
    "DLINFER_GRAPH_BACKEND",
    "eager",
    "who runs captured graphs: `eager`, `aten`, `cudagraphs`, `inductor`, `none` ...",
    dynamic=True,
)
DEVICE = Variable(
    "DLINFER_DEVICE",
    "",
    "where LMDeploy's tensors live: `cpu`, `dipu` or `cuda`",
    one_of("cpu", "dipu", "cuda"),
    unset="`cuda` if there is one, else `cpu`",
)
CPU_MEMORY = Variable(
    "DLINFER_CPU_MEMORY",
    4,
    "GiB of the CPU's free memory that LMDeploy may see; `512M` and `2G` say their unit",
    _gibibytes,
)
VLLM_DEVICE = Variable(
    "DLINFER_VLLM_DEVICE",
    "",
    "`cpu`: vLLM runs on dlinfer",
    one_of("cpu"),
    unset="vLLM's own platforms",
)
CACHE = Variable(
    "DLINFER_CACHE",
    "",
    "the folder for models that are unpacked once",
    unset="`dlinfer` in the user's cache",
)
