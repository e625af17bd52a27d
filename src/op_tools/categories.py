"""What kind of operator a function is: the kind decides how its results may be judged.

- movement: results are copies or selections of inputs, conversions, constants, answers of comparisons: bit-exact.
- view: the same, and shares memory with its input.
- index: positions of picked values (argmax, sort); they may differ where the picked values tie.
- elementwise, reduction, matmul, other: arithmetic; results differ within what rounding explains.
- random: judged by its distribution (`is_random` says whether a call really draws numbers).
- uninitialised: values mean nothing. communication: other processes take part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch

Category = Literal[
    "elementwise", "reduction", "matmul", "movement", "index", "random", "view", "communication", "uninitialised", "other",
]  # fmt: skip


def names_in(text: str) -> frozenset[str]:
    """The words of a text: long tables of names stay readable."""
    return frozenset(text.split())


UNINITIALISED = names_in(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized resize resize_as"
)
VIEW = names_in(
    "view reshape transpose permute t T mT H mH squeeze unsqueeze expand expand_as split split_with_sizes chunk"
    " unbind narrow select slice flatten unflatten ravel movedim moveaxis swapaxes swapdims detach alias as_strided"
    " diagonal real imag view_as view_as_real view_as_complex view_as_strided tensor_split hsplit vsplit dsplit adjoint"
    " broadcast_to broadcast_tensors atleast_1d atleast_2d atleast_3d unsafe_chunk unsafe_split _unsafe_view"
    " _reshape_alias squeeze_copy numpy_T lift lift_fresh"
)
MOVEMENT = names_in(
    "clone contiguous copy to _to_copy type type_as float half double bfloat16 long int short char byte cpu"
    " cat concat concatenate stack hstack vstack dstack column_stack row_stack block_diag index_select gather take"
    " take_along_dim index getitem setitem masked_select masked_fill masked_scatter where flip fliplr flipud roll rot90"
    " tile repeat repeat_interleave pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d"
    " replication_pad1d replication_pad2d replication_pad3d tril triu diag diag_embed diagflat embedding one_hot zeros ones"
    " full fill zero zeros_like ones_like full_like eye new_zeros new_ones new_full new_tensor tensor"
    " as_tensor scalar_tensor scatter index_copy index_fill select_scatter slice_scatter diagonal_scatter"
    " as_strided_scatter select_backward slice_backward diagonal_backward relu relu6 threshold threshold_backward"
    " hardtanh hardtanh_backward clamp clamp_min clamp_max clip maximum minimum fmax fmin amax amin aminmax abs absolute"
    " neg negative positive sign floor ceil trunc fix eq ne ge gt le lt equal not_equal greater greater_equal less"
    " less_equal logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not"
    " bitwise_left_shift bitwise_right_shift lshift rshift and or xor invert isnan isinf isfinite isposinf isneginf"
    " isreal isin isclose allclose signbit copysign nan_to_num nonzero unique unique_consecutive _unique2 unique_dim"
    " searchsorted bucketize all any count_nonzero tril_indices triu_indices combinations cartesian_prod meshgrid"
    " pixel_shuffle pixel_unshuffle channel_shuffle im2col unfold upsample_nearest1d upsample_nearest2d"
    " upsample_nearest3d max_unpool1d max_unpool2d max_unpool3d item _local_scalar_dense tolist conj conj_physical"
    " resolve_conj resolve_neg index_put_backward size len numel stride dim shape bool index_of nextafter frexp"
    " to_dense to_sparse pin_memory __index__ __bool__ __int__ __len__ is_nonzero"
)
INDEX = names_in(
    "argmax argmin sort argsort msort topk kthvalue median nanmedian mode max min cummax cummin"
    " max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
    " adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
)
RANDOM = names_in(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal poisson binomial"
    " uniform exponential geometric cauchy log_normal random dropout dropout1d dropout2d dropout3d alpha_dropout"
    " feature_dropout feature_alpha_dropout native_dropout _fused_dropout rrelu rrelu_with_noise"
    " rrelu_with_noise_functional gumbel_softmax fractional_max_pool2d fractional_max_pool3d"
    " fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices _standard_gamma _sample_dirichlet"
    " normal_functional trunc_normal kaiming_uniform kaiming_normal xavier_uniform xavier_normal"
)
MATMUL = names_in(
    "mm bmm addmm addbmm baddbmm addmv mv dot vdot inner matmul rmatmul linear bilinear einsum tensordot chain_matmul"
    " multi_dot linalg_multi_dot linalg_matmul linear_backward matmul_backward conv1d conv2d conv3d conv_tbc"
    " conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution convolution_backward"
    " convolution_overrideable convolution_backward_overrideable scaled_dot_product_attention"
    " multi_head_attention_forward _native_multi_head_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell"
    " rnn_tanh_cell rnn_relu_cell _trilinear cdist _scaled_mm _addmm_activation _int_mm mkldnn_convolution"
    " mkldnn_linear mkldnn_rnn_layer linalg_vecdot vecdot"
)
ATTENTION = "attention"  # any name with it multiplies matrices: kernels of attention have many names
REDUCTION = names_in(
    "sum mean nansum nanmean prod cumsum cumprod logcumsumexp norm linalg_norm linalg_vector_norm linalg_matrix_norm var"
    " std var_mean std_mean logsumexp index_add scatter_add scatter_reduce index_reduce index_put _index_put_impl"
    " _unsafe_index_put embedding_bag _embedding_bag embedding_dense_backward embedding_backward avg_pool1d avg_pool2d"
    " avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
    " mse_loss l1_loss smooth_l1_loss huber_loss nll_loss nll_loss_forward nll_loss2d cross_entropy binary_cross_entropy"
    " binary_cross_entropy_with_logits kl_div trace trapz trapezoid segment_reduce bincount histc dist sum_to_size col2im"
    " fold unfold_backward cov corrcoef gather_backward index_select_backward _softmax_backward_data"
    " _log_softmax_backward_data avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward"
    " linalg_cross cross addmm_reduce _foreach_norm"
)
# Python composites of torch.nn.functional and methods whose aten namesake carries no tag.
ELEMENTWISE = names_in(
    "truediv rtruediv div rdiv floordiv rfloordiv mod pow rpow mul rmul add radd sub rsub gelu silu mish tanh sigmoid"
    " softplus softsign tanhshrink hardshrink softshrink elu selu celu leaky_relu prelu logsigmoid log_sigmoid glu"
    " gelu_backward silu_backward tanh_backward sigmoid_backward elu_backward leaky_relu_backward glu_backward addcdiv"
    " addcmul lerp float_power arange range linspace logspace"
)

_TABLES: tuple[tuple[Category, frozenset[str]], ...] = (
    ("uninitialised", UNINITIALISED),
    ("random", RANDOM),
    ("view", VIEW),
    ("index", INDEX),
    ("movement", MOVEMENT),
    ("matmul", MATMUL),
    ("reduction", REDUCTION),
    ("elementwise", ELEMENTWISE),
)

# What a Python operator method is called elsewhere: __iadd__ is add, __and__ is and.
_KEPT_DUNDERS = names_in("__index__ __bool__ __int__ __len__")


def base_name(name: str) -> str:
    """'torch.Tensor.add_', 'aten.add_.Tensor' and 'torch.Tensor.__iadd__' are all 'add'."""
    parts = name.split(".")
    if "aten" in parts[:-1]:
        last = parts[parts.index("aten") + 1]
    elif len(parts) > 1 and parts[-1] in ("default", "out", "__get__", "__set__"):
        last = parts[-2]
    else:
        last = parts[-1]
    if last in _KEPT_DUNDERS:
        return last
    if last.startswith("__") and last.endswith("__"):
        last = last.strip("_")
        return last[1:] if last.startswith("i") and last[1:] in IN_PLACE_OPERATORS else last
    if last.startswith("_foreach_") and last != "_foreach_norm":
        last = last.removeprefix("_foreach_")
    return last.rstrip("_") or last


IN_PLACE_OPERATORS = names_in("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift div")


@lru_cache(maxsize=8192)
def category_of(func: Callable[..., Any], name: str) -> Category:
    """The kind of `func` (an API function or an operator overload) known as `name`."""
    module = getattr(func, "__module__", None) or ""
    overload = func if isinstance(func, torch._ops.OpOverload) else None
    if overload is not None:
        name = str(overload)
        if overload.namespace not in ("aten", "prims") and "c10d" in overload.namespace:
            return "communication"
    elif module.startswith("torch.distributed") or name.startswith("torch.distributed."):
        return "communication"
    base = base_name(name)
    for category, names in _TABLES:
        if base in names:
            return category
    if ATTENTION in base:
        return "matmul"
    overload = overload or _aten_namesake(base)
    return "other" if overload is None else _by_schema(overload)


def _aten_namesake(base: str) -> torch._ops.OpOverload | None:
    packet = getattr(torch.ops.aten, base, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overloads = packet.overloads()
    return getattr(packet, overloads[0]) if overloads else None


def _by_schema(overload: torch._ops.OpOverload) -> Category:
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return "random"
    returns = overload._schema.returns
    if any(value.alias_info is not None and not value.alias_info.is_write for value in returns):
        return "view"
    if torch.Tag.pointwise in overload.tags:
        return "elementwise"
    if getattr(torch.Tag, "reduction", None) in overload.tags:
        return "reduction"
    return "other"


# Draws numbers only in training and with a probability above zero: (name of p, default), (name of training, default).
_DROPOUTS = names_in(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout"
)
_RECURRENT = names_in("lstm gru rnn_tanh rnn_relu")
_ALWAYS_RANDOM = RANDOM - _DROPOUTS - names_in("rrelu rrelu_with_noise rrelu_with_noise_functional")


def is_random(
    func: Callable[..., Any], name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> bool:
    """Whether this call draws random numbers: also composites such as attention with dropout."""
    kind = _randomness(func, name)
    if kind in ("never", "always"):
        return kind == "always"
    kwargs = kwargs or {}
    if kind == "recurrent":
        return _recurrent_draws(args, kwargs)
    bound = bound_arguments(func, args, kwargs)
    if kind == "rrelu":
        return bool(bound.get("training", False))
    p = bound.get("dropout_p", bound.get("p", 0.0))
    # torch.native_dropout(x, p, None) trains.
    train = bound.get("training", bound.get("train", True))
    return bool(p) and (train is None or bool(train))


def may_draw(func: Callable[..., Any], name: str) -> bool:
    """Whether some call of `func` draws random numbers."""
    return _randomness(func, name) != "never"


@lru_cache(maxsize=8192)
def _randomness(
    func: Callable[..., Any], name: str
) -> Literal["never", "always", "dropout", "rrelu", "recurrent"]:
    base = base_name(str(func) if isinstance(func, torch._ops.OpOverload) else name)
    if base in _ALWAYS_RANDOM:
        return "always"
    if base in _DROPOUTS or (ATTENTION in base and "backward" not in base):
        return "dropout"
    if base.startswith("rrelu"):
        return "never" if base.endswith("backward") else "rrelu"
    if base in _RECURRENT:
        return "recurrent"
    tagged = isinstance(func, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in func.tags
    return "always" if tagged else "never"


def bound_arguments(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    names, defaults = _parameters(func)
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


@lru_cache(maxsize=1024)
def _parameters(func: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    if not isinstance(func, torch._ops.OpOverload):
        try:
            parameters = inspect.signature(func).parameters.values()
        except (TypeError, ValueError):
            namesake = _aten_namesake(base_name(getattr(func, "__name__", "")))
            return _parameters(namesake) if namesake is not None else ((), {})
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return tuple(p.name for p in parameters), defaults
    arguments = func._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return tuple(a.name for a in arguments), defaults


def _recurrent_draws(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    # (input, hx, params, has_biases, num_layers, dropout, train, ...), or (data, batch_sizes, hx, params, ...).
    start = 3 if len(args) > 3 and isinstance(args[3], bool) else 4
    named = dict(zip(("has_biases", "num_layers", "dropout", "train"), args[start:], strict=False))
    named.update(kwargs)
    drops = float(named.get("dropout") or 0.0) > 0 and named.get("num_layers", 1) > 1
    return bool(named.get("train")) and drops
