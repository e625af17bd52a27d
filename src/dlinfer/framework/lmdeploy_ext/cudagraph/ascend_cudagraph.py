"""The graph runner that LMDeploy asks for when `device_type` is ascend.

With `eager_mode=False` a decoding step is one graph (`dlinfer.graph`), which the backend of DLINFER_GRAPH_BACKEND runs.
Prefill runs eagerly: its shapes change with every prompt, and its kernels are large.
"""

from __future__ import annotations

from typing import Any

import torch
from lmdeploy.pytorch.backends.graph_runner import GraphRunner

from dlinfer.framework.lmdeploy_ext.cudagraph.padding import padded, padded_size, unpadded
from dlinfer.graph import CompiledGraph, backends, mark_fixed
from dlinfer.graph import compile as compile_graph

__all__ = ["AscendGraphRunner", "get_ascend_compatible_size"]


def get_ascend_compatible_size(n: int) -> int:
    """The batch size that a graph for `n` sequences is made for: `n` where one graph serves all sizes."""
    if backends.chosen() == backends.NO_GRAPH or not backends.find().fixed_sizes:
        return n
    return padded_size(n)


class AscendGraphRunner(GraphRunner):  # type: ignore[misc]
    """Runs decoding steps as one graph, everything else eagerly."""

    def __init__(
        self,
        model: torch.nn.Module,
        model_config: Any,
        cache_config: Any,
        backend_config: Any,
        device: torch.device,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, model_config, cache_config, backend_config, device, **kwargs)
        self.graph: CompiledGraph | None = None
        if not backend_config.eager_mode:
            compiled = compile_graph(model)
            self.graph = compiled if isinstance(compiled, CompiledGraph) else None
        self._caches: Any = None

    def __call__(self, **kwargs: Any) -> Any:
        """One forward pass."""
        if self.graph is None or not self._is_decoding(kwargs):
            return self.model(**kwargs)
        self._fix(kwargs["past_key_values"])
        if not self.graph.backend.fixed_sizes:
            return self.graph(**kwargs)
        tokens = kwargs["input_ids"].shape[-1]
        wanted = self._runner_meta.padding_batch_size or kwargs["attn_metadata"].kv_seqlens.shape[0]
        return unpadded(self.graph(**padded(kwargs, self._size(wanted))), tokens)

    def _is_decoding(self, inputs: dict[str, Any]) -> bool:
        """One new token for each sequence; the model may have its own reasons to refuse."""
        supports = getattr(self.model, "support_cuda_graph", None)
        return supports is not None and inputs["attn_metadata"].is_decoding and supports(**inputs)

    def _size(self, batch: int) -> int:
        return next(size for size in self.get_capture_batch_sizes() if size >= batch)

    def _fix(self, caches: list[list[torch.Tensor]]) -> None:
        """LMDeploy makes caches once; others come only after it put the engine to sleep."""
        if caches is not self._caches:
            mark_fixed(cache for layer in caches for cache in layer)
            self._caches = caches

    def get_capture_batch_sizes(self) -> list[int]:
        """What LMDeploy warms up with: all sizes, or one where a graph serves all."""
        if self.graph is None or not self.graph.backend.fixed_sizes:
            return [self.cache_config.max_batches]
        if self.cache_config.cudagraph_capture_batch_sizes is not None:
            return super().get_capture_batch_sizes()
        most = self.cache_config.max_batches
        return sorted({min(get_ascend_compatible_size(n), most) for n in range(1, most + 1)})

    def reset(self) -> None:
        """Forgets the graph: weights or caches are new objects."""
        super().reset()
        self._caches = None
        if self.graph is not None:
            self.graph.reset()
