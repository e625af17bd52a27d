"""What LMDeploy keeps in the class of a backend and belongs to one engine. Several may live in a process and take turns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

# An engine runs its steps in a thread of its own.
_TURN = threading.Lock()
# On an engine's `cache_config`, which every step carries.
_GRAPH_MODE = "dlinfer_graph_mode"


@functools.cache
def install() -> None:
    """Once in a process, and after the backends have their graph runners."""
    from lmdeploy.pytorch.backends.dlinfer.ascend import AscendOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.camb import CambOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.maca import MacaOpsBackend

    # As get_k_block_shape of each has it.
    layouts = {AscendOpsBackend: "BSND", CambOpsBackend: "BNSD", MacaOpsBackend: "BSND"}
    for backend, layout in layouts.items():
        backend.build_graph_runner = staticmethod(_marking(backend.build_graph_runner, layout))
        backend.update_step_context = classmethod(_by_engine(backend.update_step_context.__func__))


def _marking(original: Callable[..., Any], layout: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def build_graph_runner(
        model: Any, model_config: Any, cache_config: Any, backend_config: Any, device: Any
    ) -> Any:
        runner = original(model, model_config, cache_config, backend_config, device)
        runner.cache_layout = layout
        setattr(cache_config, _GRAPH_MODE, not backend_config.eager_mode)
        return runner

    return build_graph_runner


def _by_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_step_context(backend: Any, step_context: Any) -> Any:
        config = step_context.cache_config
        with _TURN:
            backend.total_slots = (
                None  # a table of the engine that came before, with its number and size of blocks
            )
            backend.enable_graph = getattr(config, _GRAPH_MODE)
            backend.max_batches = config.max_batches
            return original(backend, step_context)

    return update_step_context
