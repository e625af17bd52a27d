"""From the text of kernels to functions that launch them.

Triton's own launch looks up settings and describes every argument anew, which takes longer than most kernels run. Kernels here
are compiled once for pointers that are aligned, and once more when some are not; then they are launched directly.
"""

from __future__ import annotations

import linecache
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-not-found]

from dicp.compile_jobs.disk_cache import default_folder
from dicp.errors import LOG, CompileError, warn_once
from dicp.vendor.TritonGraph.installation import INTERPRETED

__all__ = ["KernelLauncher", "compile_all", "loaded_module"]

ALIGNMENT = 16
THREADS = 8
# How a compiled kernel is called is Triton's own business, and was read in this version. Any other launches as documented.
_DIRECT = triton.__version__.startswith("3.6.") and not INTERPRETED
# A product and a sum are two operations of the graph; formulas that want one say so.
_OPTIONS = {"enable_fp_fusion": False}


def loaded_module(source: str) -> dict[str, Any]:
    """The names that a module defines. Triton reads the text of functions, and finds it by the module's file name."""
    name = f"<dicp {sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "dicp_generated", "__file__": name}
    exec(compile(source, name, "exec"), namespace)
    return namespace


class KernelLauncher:
    """One function of Triton; its parameters are pointers, then int64."""

    def __init__(self, function: Any, warps: int, pointers: Sequence[torch.dtype], numbers: int) -> None:
        self.jit, self.warps, self.pointers, self.numbers = function, warps, tuple(pointers), numbers
        self.compiled: dict[bool, tuple[Any, Any, Any]] = {}
        """By whether all pointers are aligned."""

    def warm_up(self, aligned: bool = True) -> Any:
        """Compiles it down to machine code, or takes that from Triton's cache."""
        jit = self.jit
        if not aligned:
            names = jit.arg_names[: len(self.pointers)]
            jit = triton.jit(
                jit.fn, do_not_specialize=jit.do_not_specialize, do_not_specialize_on_alignment=names
            )
        numbers = [1 << 40] * self.numbers
        return jit.warmup(*self.pointers, *numbers, grid=(1,), num_warps=self.warps, **_OPTIONS)

    def compile(self, aligned: bool = True) -> None:
        """Makes it ready to be launched."""
        if _DIRECT:
            kernel = self.warm_up(aligned)
            self.compiled[aligned] = kernel.run, kernel.function, kernel.packed_metadata

    def __call__(self, stream: int, programs: int, *arguments: Any) -> None:
        """So many programs on a stream of the current device; tensors stand for pointers to their first elements."""
        if programs <= 0:
            return
        if not _DIRECT:
            with np.errstate(all="ignore"):
                self.jit[(programs,)](*arguments, num_warps=self.warps, **_OPTIONS)
            return
        count = len(self.pointers)
        addresses = [tensor.data_ptr() for tensor in arguments[:count]]
        together = 0
        for address in addresses:
            together |= address
        aligned = together % ALIGNMENT == 0
        found = self.compiled.get(aligned)
        if found is None:
            compile_all([self], aligned)
            found = self.compiled[aligned]
        run, function, metadata = found
        run(programs, 1, 1, stream, function, metadata, None, None, None, *addresses, *arguments[count:])


def compile_all(launchers: Iterable[KernelLauncher], aligned: bool = True) -> None:
    """Compiles kernels, some at a time. Raises CompileError."""
    todo = list(launchers)
    try:
        with _cache_in(_cache_folder()):
            _compile(todo, aligned)
        return
    except Exception as error:
        LOG.debug("Triton's compiler failed, or its cache", exc_info=True)
        first = error
    # A cache that is damaged, full or not to be written to is no reason to fail.
    try:
        temporary = tempfile.TemporaryDirectory(prefix="dicp-triton-", ignore_cleanup_errors=True)
        with temporary as folder, _cache_in(Path(folder)):
            _compile(todo, aligned)
    except Exception as error:
        raise CompileError(f"Triton failed: {type(error).__name__}: {error}") from error
    warn_once(
        "triton:cache",
        f"Triton's compiler failed with its cache in {_cache_folder()} ({type(first).__name__}: {first}), and works without:"
        " kernels are made again by every process. Remove that folder, or set DICP_CACHE_DIR to one with room that this user"
        " may write to.",
    )


def _compile(launchers: Sequence[KernelLauncher], aligned: bool) -> None:
    if len(launchers) == 1 or not _DIRECT:
        for launcher in launchers:
            launcher.compile(aligned)
        return
    device = triton.runtime.driver.active.get_current_device()
    compile_here = _on_device(device)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as threads:
        list(threads.map(lambda launcher: compile_here(launcher, aligned), launchers))


def _on_device(device: int) -> Callable[[KernelLauncher, bool], None]:
    """Threads begin with another current device."""

    def compile_here(launcher: KernelLauncher, aligned: bool) -> None:
        triton.runtime.driver.active.set_current_device(device)
        launcher.compile(aligned)

    return compile_here


def _cache_folder() -> Path:
    """Beside what other backends compile; TRITON_CACHE_DIR is obeyed."""
    chosen = os.environ.get("TRITON_CACHE_DIR")
    return Path(chosen) if chosen else default_folder() / "triton"


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(folder)
        yield
