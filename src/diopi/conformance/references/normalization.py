"""References of normalisations, by their definition. Half dtypes are computed in float32 and rounded at the end."""

from __future__ import annotations

from torch import Tensor

from diopi.conformance.references.gradients import upcast


def layer_norm_gradients(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    normalized: int,
    biased: bool = True,
) -> tuple[Tensor | None, ...]:
    """Of the input, the weight and the bias, from the statistics that the forward pass saved; the last `normalized`
    dimensions are one row."""
    rows, axes = list(range(input.dim() - normalized)), list(range(input.dim() - normalized, input.dim()))
    centred = _centred(upcast(input), upcast(mean), upcast(rstd))
    gradient = upcast(grad_output)
    scaled = gradient if weight is None else gradient * upcast(weight)
    whole = _normalized_gradient(scaled, centred, upcast(rstd), axes)
    of_weight = None if weight is None else _summed(gradient * centred, rows).to(weight.dtype)
    of_bias = _summed(gradient, rows).to(input.dtype) if biased else None
    return whole.to(input.dtype), of_weight, of_bias


def group_normalized(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, num_groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the mean and inverse deviation of every group of channels of every sample."""
    grouped = upcast(input).reshape(input.shape[0], num_groups, -1)
    mean, inverse = _moments(grouped, [2], eps)
    normalized = _centred(grouped, mean, inverse).reshape(input.shape)
    result = _affine(normalized, weight, bias, 1)
    return tuple(x.to(input.dtype) for x in (result, mean.squeeze(2), inverse.squeeze(2)))  # type: ignore[return-value]


def group_norm_gradients(
    grad_output: Tensor, input: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int
) -> tuple[Tensor | None, ...]:
    """Of the input, the weight and the bias of `group_normalized`."""
    grouped = (input.shape[0], num_groups, -1)
    inverse = upcast(rstd).reshape(*grouped[:2], 1)
    centred = _centred(upcast(input).reshape(grouped), upcast(mean).reshape(*grouped[:2], 1), inverse)
    gradient = upcast(grad_output)
    scaled = _affine(gradient, weight, None, 1).reshape(grouped)
    whole = _normalized_gradient(scaled, centred, inverse, [2]).reshape(input.shape).to(input.dtype)
    if weight is None:
        return whole, None, None
    others = _other_axes(input, 1)
    of_weight = _summed(gradient * centred.reshape(input.shape), others)
    return whole, of_weight.to(weight.dtype), _summed(gradient, others).to(weight.dtype)


def batch_normalized(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """The result, the statistics of the batch (none in evaluation), and the running ones."""
    x, axes = upcast(input), _other_axes(input, 1)
    if not training:
        assert running_mean is not None and running_var is not None
        inverse = (upcast(running_var) + eps).rsqrt()
        result = normalized_by(input, weight, bias, running_mean, inverse)
        return result, input.new_empty(0), input.new_empty(0), running_mean, running_var
    mean, inverse = (s.reshape(-1) for s in _moments(x, axes, eps))
    result = _affine(_centred(x, _channels(mean, x), _channels(inverse, x)), weight, bias, 1).to(input.dtype)
    count = x.numel() // x.shape[1]
    unbiased = (x - _channels(mean, x)).square().sum(axes) / (count - 1)
    return (
        result,
        mean.to(input.dtype),
        inverse.to(input.dtype),
        _moved(running_mean, mean, momentum),
        _moved(running_var, unbiased, momentum),
    )


def batch_norm_gradients(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    training: bool,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """Of the input, the weight and the bias; in evaluation the statistics do not depend on the input."""
    x, gradient, axes = upcast(input), upcast(grad_output), _other_axes(input, 1)
    if training:
        assert save_mean is not None and save_invstd is not None
        mean, inverse = _channels(upcast(save_mean), x), _channels(upcast(save_invstd), x)
    else:
        assert running_mean is not None and running_var is not None
        mean, inverse = _channels(upcast(running_mean), x), (_channels(upcast(running_var), x) + eps).rsqrt()
    centred, scaled = _centred(x, mean, inverse), _affine(gradient, weight, None, 1)
    whole = _normalized_gradient(scaled, centred, inverse, axes) if training else scaled * inverse
    if weight is None:
        return whole.to(input.dtype), None, None
    of_weight = _summed(gradient * centred, axes).to(weight.dtype)
    return whole.to(input.dtype), of_weight, _summed(gradient, axes).to(weight.dtype)


def instance_normalized(
    input: Tensor, axis: int, scale: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Every channel of every sample by itself; `axis` is that of the channels."""
    x = upcast(input)
    mean, inverse = _moments(x, _pixels(input, axis), eps)
    return _affine(_centred(x, mean, inverse), scale, bias, axis).to(input.dtype)


def instance_norm_gradients(
    grad_output: Tensor, input: Tensor, scale: Tensor | None, axis: int, eps: float
) -> tuple[Tensor | None, ...]:
    """Of the input, the scale and the bias of `instance_normalized`."""
    x, gradient, pixels = upcast(input), upcast(grad_output), _pixels(input, axis)
    mean, inverse = _moments(x, pixels, eps)
    centred = _centred(x, mean, inverse)
    scaled = _affine(gradient, scale, None, axis)
    whole = _normalized_gradient(scaled, centred, inverse, pixels).to(input.dtype)
    if scale is None:
        return whole, None, None
    others = _other_axes(input, axis)
    of_scale = _summed(gradient * centred, others).to(scale.dtype)
    return whole, of_scale, _summed(gradient, others).to(scale.dtype)


# ---- synchronised batch normalisation ----


def channel_statistics(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of every channel."""
    mean, inverse = _moments(upcast(input), _other_axes(input, 1), eps)
    return mean.reshape(-1), inverse.reshape(-1)


def gathered_statistics(
    mean_all: Tensor,
    invstd_all: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor | None, ...]:
    """The statistics of all processes together, from those of each and from how many elements each had."""
    means, share = upcast(mean_all), upcast(counts).reshape(-1, 1).to(upcast(mean_all).dtype)
    variances = upcast(invstd_all) ** -2 - eps
    total = share.sum()
    mean = (means * share).sum(0) / total
    squares = ((variances + (means - mean) ** 2) * share).sum(0)
    inverse = (squares / total + eps) ** -0.5
    moved = _moved(running_mean, mean, momentum), _moved(running_var, squares / (total - 1), momentum)
    return mean.to(mean_all.dtype), inverse.to(mean_all.dtype), *moved


def channel_sums(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, input_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Tensor | None, ...]:
    """Sums over a process' own samples: of the gradient, of the gradient times the centred input, and from these
    the gradients of weight and bias; only what is asked for."""
    x, gradient, axes = upcast(input), upcast(grad_out), _other_axes(input, 1)
    plain = _summed(gradient, axes)
    times_centred = _summed(gradient * (x - _channels(upcast(mean), x)), axes)
    return (
        plain if input_g else None,
        times_centred if input_g else None,
        times_centred * upcast(invstd) if weight_g else None,
        plain if bias_g else None,
    )


def synchronised_gradient(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input from the sums over all processes; `count` says how many elements each had."""
    x, total = upcast(input), int(count.sum())
    inverse = _channels(upcast(invstd), x)
    mean_gradient = _channels(upcast(sum_dy) / total, x)
    slope = _channels(upcast(sum_dy_xmu) / total, x) * inverse.square()
    whole = upcast(grad_out) - mean_gradient - (x - _channels(upcast(mean), x)) * slope
    return _affine(whole * inverse, weight, None, 1).to(input.dtype)


def normalized_by(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor
) -> Tensor:
    """Normalised with given statistics of the channels."""
    x = upcast(input)
    centred = _centred(x, _channels(upcast(mean), x), _channels(upcast(invstd), x))
    return _affine(centred, weight, bias, 1).to(input.dtype)


# ---- vocabulary ----


def _other_axes(x: Tensor, axis: int) -> list[int]:
    return [i for i in range(x.dim()) if i != axis % x.dim()]


def _pixels(x: Tensor, axis: int) -> list[int]:
    """Everything but samples and channels."""
    return [i for i in _other_axes(x, axis) if i != 0]


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x


def _channels(stat: Tensor, x: Tensor) -> Tensor:
    return stat.reshape([-1 if i == 1 else 1 for i in range(x.dim())])


def _moments(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation, with the reduced dimensions kept."""
    mean = x.mean(axes, keepdim=True)
    return mean, ((x - mean).square().mean(axes, keepdim=True) + eps).rsqrt()


def _centred(x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return (x - mean) * inverse


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int) -> Tensor:
    shape = [-1 if i == axis % x.dim() else 1 for i in range(x.dim())]
    x = x if weight is None else x * upcast(weight).reshape(shape)
    return x if bias is None else x + upcast(bias).reshape(shape)


def _normalized_gradient(scaled: Tensor, centred: Tensor, inverse: Tensor, axes: list[int]) -> Tensor:
    """Through a normalisation over `axes`: what shifts or scales all elements alike changes nothing."""
    shift = scaled.mean(axes, keepdim=True)
    stretch = (scaled * centred).mean(axes, keepdim=True)
    return inverse * (scaled - shift - centred * stretch)


def _moved(running: Tensor | None, now: Tensor, momentum: float) -> Tensor | None:
    """A running statistic after one step."""
    if running is None:
        return None
    return (upcast(running) * (1 - momentum) + now * momentum).to(running.dtype)
