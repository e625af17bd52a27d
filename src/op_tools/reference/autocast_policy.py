"""Makes the reference compute what autocast on an accelerator asks for.

The CPU's own autocast keeps fewer functions in float32 than an accelerator's does (a softmax of half inputs
stays half on the CPU), so running a composite under it would judge the device against another request.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from op_tools.categories import base_name, names_in
from op_tools.trees import map_leaves

# Functions that autocast runs in the low dtype on every accelerator.
LOWER = names_in(
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution matmul rmatmul mm mv bmm"
    " addmm addmv addr addbmm baddbmm linear chain_matmul multi_dot linalg_multi_dot einsum prelu gru_cell lstm_cell"
    " rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention lstm gru rnn_tanh rnn_relu"
)
# Of these: chains of products whose inner results each device rounds in its own way.
ROUNDS_INSIDE = names_in("lstm gru rnn_tanh rnn_relu")
# Functions that it runs in float32. cross_entropy is here for the log_softmax inside it.
SINGLE = names_in(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow rpow softplus layer_norm"
    " native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d"
    " hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss"
    " soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm"
    " logsumexp prod softmax log_softmax softmin cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"
    " cross_entropy"
)


class AutocastPolicy(TorchFunctionMode):
    """Casts the inputs of listed functions as an accelerator's autocast would.

    With `exact` the values are rounded to the low dtype but kept in float64: the truth of a rounded request.
    """

    def __init__(self, dtype: torch.dtype, *, exact: bool) -> None:
        super().__init__()
        self._dtype = dtype
        self._exact = exact

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = base_name(getattr(func, "__name__", ""))
        kwargs = dict(kwargs or {})
        if name in LOWER:
            args, kwargs = map_leaves(tuple(args), self._lowered), map_leaves(kwargs, self._lowered)
        elif name in SINGLE and not self._exact:
            args, kwargs = map_leaves(tuple(args), _single), map_leaves(kwargs, _single)
        return func(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if self._exact:
            return value.to(self._dtype).to(torch.float64)
        return value if value.dtype == torch.float64 else value.to(self._dtype)


def _single(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
