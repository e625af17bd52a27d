"""The environment variables of dlinfer, and what is wrong with those that are set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["SETTINGS", "problems"]


@dataclass(frozen=True)
class Setting:
    """A variable in words, and what raises an error if its value cannot be followed: the code that reads it."""

    text: str
    read: Callable[[], object] = lambda: None


def _vendor() -> None:
    """The vendor, and whether values are checked."""
    from dlinfer.vendors.selection import resolve

    resolve("rms_norm", "cpu")


def _level() -> None:
    """Read once, while the vendor's library is loaded."""
    from dlinfer.errors import VendorError
    from dlinfer.vendors import installed

    problem = installed()["cpp"].problem or ""
    if "DLINFER_CPP_LEVEL" in problem:
        raise VendorError(problem)


def _layout() -> None:
    import dlinfer.ops.cache  # noqa: F401  (reads it)


def _transposed() -> None:
    # LMDeploy and dlinfer.ops compare with "1", so anything else is read as 0.
    value = os.environ["DLINFER_LINEAR_USE_NN_LAYOUT"]
    if value not in ("0", "1"):
        raise ValueError(f"is {value!r} and read as 0; expected 1, 0 or nothing")


def _backend() -> None:
    from dlinfer.graph import backends

    if backends.chosen() != backends.NO_GRAPH:
        backends.find()


def _device() -> None:
    from dlinfer.framework.lmdeploy.places import chosen_place

    chosen_place()


def _memory() -> None:
    from dlinfer.framework.lmdeploy.places import cpu_memory

    cpu_memory()


def _vllm() -> None:
    from dlinfer.framework.vllm_ext import wanted_device

    wanted_device()


SETTINGS = {
    "DLINFER_VENDOR": Setting("the vendor to use; default: the best one for the device", _vendor),
    "DLINFER_CHECK": Setting(
        "1: check lengths and tables on devices too; 0: only where a vendor needs it", _vendor
    ),
    "DLINFER_CACHE_LAYOUT": Setting("BSND or BNSD: how the caller's paged caches lie; default BSND", _layout),
    "DLINFER_LINEAR_USE_NN_LAYOUT": Setting("1: weights of linear layers are stored [in, out]", _transposed),
    "DLINFER_CPP_LEVEL": Setting(
        "plain, avx2 or avx512: instructions that cpp uses; default: the best that the CPU has", _level
    ),
    "DLINFER_GRAPH_BACKEND": Setting(
        "who runs captured graphs: eager, aten, cudagraphs, inductor, none, ...; default eager", _backend
    ),
    "DLINFER_DEVICE": Setting(
        "where LMDeploy's tensors live: cpu, dipu or cuda; default: cuda if there is one", _device
    ),
    "DLINFER_CPU_MEMORY": Setting("GiB of the CPU's free memory that LMDeploy may see; default 4", _memory),
    "DLINFER_VLLM_DEVICE": Setting("cpu: vLLM runs on dlinfer; default: it does not", _vllm),
    "DLINFER_CACHE": Setting(
        "the folder for models that are unpacked once; default: dlinfer in the user's cache"
    ),
}


def problems() -> Iterator[str]:
    """What programs would be told about the variables that are set."""
    said = set()
    for name, setting in SETTINGS.items():
        if not os.environ.get(name, "").strip():
            continue
        try:
            setting.read()
        except Exception as error:  # each reader has its own kind
            text = str(error) if name in str(error) else f"{name}: {error}"
            if text not in said:
                said.add(text)
                yield text
