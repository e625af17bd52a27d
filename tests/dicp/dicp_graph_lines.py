"""Lines that random functions are made of: each is text of Python about one value of a name, or two."""

from __future__ import annotations

import random

import torch
from torch import Tensor

__all__ = [
    "convert_line",
    "copy_line",
    "exact_line",
    "pair_line",
    "reduction_line",
    "rounded_line",
    "view_line",
    "write_line",
]

DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def _dim(rng: random.Random, t: Tensor) -> int:
    return rng.randrange(-t.dim(), t.dim()) if t.dim() else 0


def view_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    d, e = _dim(rng, t), _dim(rng, t)
    order = rng.sample(range(t.dim()), t.dim())
    texts = [
        *(f"{name}.transpose({d}, {e})", f"{name}.permute({order})", f"{name}.movedim({d}, {e})"),
        *(f"{name}.unsqueeze({d})", f"{name}.squeeze()", f"{name}[None]", f"{name}.flatten()"),
        *(f"{name}.narrow({d}, 0, 1)", f"{name}.select({d}, 0)", f"{name}.select({d}, -1)"),
        *(f"{name}[..., 1:]", f"{name}[..., :-1]", f"{name}[..., ::2]", f"{name}[1:]", f"{name}[::3]"),
        *(
            f"{name}.chunk(2, {d})[0]",
            f"{name}.chunk(2, {d})[-1]",
            f"{name}.flip({d})",
            f"{name}.flip(0, -1)",
        ),
        *(f"{name}.diagonal(0, {d}, {e})", f"{name}.unfold({d}, 2, 1)", f"{name}.unflatten({d}, (1, -1))"),
        *(
            f"{name}.expand(3, *{name}.shape)",
            f"{name}.reshape(-1, {name}.shape[0])",
            f"{name}.view_as({name})",
        ),
        *(
            f"{name}.split(2, {d})[0]",
            f"{name}.unbind({d})[0]",
        ),
    ]
    if t.is_contiguous():  # torch's own decompositions keep no gaps of what was written to
        texts.append(f"{name}.as_strided({name}.shape, {name}.stride())")
    return rng.choice(texts)


def copy_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    d = _dim(rng, t)
    texts = [
        *(f"{name}.clone()", f"{name}.contiguous()", f"{name}.roll(1, {d})", f"{name}.roll((1, 2), (0, -1))"),
        *(f"{name}.repeat(2, *[1] * {max(t.dim() - 1, 0)})", f"{name}.tril()", f"{name}.triu(1)"),
        *(f"torch.cat([{name}, {name}], {d})", f"torch.stack([{name}, {name}], {d})", f"{name}.rot90()"),
        *(f"F.pad({name}, (1, 2))", f"F.pad({name}, (1, 0, 0, 2), value=3)", f"F.pad({name}, (-1, 1))"),
        *(
            f"{name}.index_select({d}, torch.arange({name}.shape[{d}] // 2))",
            f"{name}.repeat_interleave(2, {d})",
        ),
        *(f"{name}[torch.arange({name}.shape[0]) // 2]", f"{name}[..., torch.tensor([0, -1, 0])]"),
        *(
            f"torch.zeros_like({name}) + 1",
            f"torch.full_like({name}, 2)",
            f"{name}.new_ones(3, {name}.shape[0])",
        ),
    ]
    return rng.choice(texts)


def exact_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    texts = [f"{name}.abs()", f"-{name}", f"{name} * 2", f"{name} + 1", f"3 - {name}", f"{name}.clamp(-1, 2)"]
    texts += [f"{name}.relu()", f"{name}.clamp_min(0)", f"{name}.sign()", f"{name}.square()", f"{name} % 3"]
    if t.dtype.is_floating_point:
        texts += [f"{name}.floor()", f"{name}.ceil()", f"{name}.trunc()", f"{name}.round()", f"{name} / 2"]
        texts += [f"{name}.isnan()", f"{name}.isfinite()", f"{name}.nan_to_num(1, 2, 3)", f"F.relu6({name})"]
        texts += [f"F.leaky_relu({name}, 0.25)", f"{name}.signbit()", f"F.hardtanh({name})", f"{name}.frac()"]
    elif t.dtype is torch.bool:
        return rng.choice(
            [f"~{name}", f"{name}.logical_not()", f"{name}.int()", f"{name}.any()", f"{name}.all(-1)"]
        )
    else:
        texts += [
            f"{name} // 2",
            f"{name} >> 1",
            f"({name} & 7) << 1",
            f"{name} ^ 5",
            f"{name} | 3",
            f"~{name}",
        ]
        texts += [f"torch.div({name}, 3, rounding_mode='trunc')", f"torch.fmod({name}, 4)", f"{name} ** 2"]
    return rng.choice(texts)


def rounded_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    d = _dim(rng, t)
    texts = [
        *(
            f"{name}.tanh()",
            f"{name}.sigmoid()",
            f"{name}.erf()",
            f"{name}.sin()",
            f"{name}.cos()",
            f"{name}.atan()",
        ),
        *(
            f"{name}.abs().sqrt()",
            f"({name}.abs() + 1).log()",
            f"({name} / 8).exp()",
            f"({name}.abs() + 1).rsqrt()",
        ),
        *(
            f"F.gelu({name})",
            f"F.silu({name})",
            f"F.softplus({name})",
            f"F.elu({name})",
            f"F.mish({name})",
            f"{name} / 3",
        ),
        *(
            f"{name}.softmax({d})",
            f"{name}.log_softmax({d})",
            f"{name}.logsumexp({d})",
            f"F.hardswish({name})",
        ),
        *(f"F.layer_norm({name}, {name}.shape[-1:])", f"{name}.var({d}, correction=0)", f"{name}.std()"),
        *(f"({name} / 8).expm1()", f"({name}.abs() + 1) ** 0.5", f"{name}.norm(dim={d})", f"{name}.log1p()"),
        *(f"torch.lerp({name}, {name}.tanh(), 0.3)", f"torch.addcdiv({name}, {name}, {name}.abs() + 1)"),
        *(
            f"{name}.cumsum({d}) / 3",
            f"F.normalize({name}, dim={d})",
            f"{name} @ {name}.transpose(-1, -2) / 9",
        ),
        *(f"F.avg_pool1d({name}[None, None].flatten(1, -2), 2, 1, 1)", f"{name}.mean({d}, True)"),
    ]
    return rng.choice(texts)


def reduction_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    d, keep = _dim(rng, t), rng.random() < 0.5
    texts = [
        f"{name}.sum({d}, {keep})",
        f"{name}.sum()",
        f"{name}.sum((0, -1))",
        f"{name}.sum({d}, dtype=torch.float64)",
    ]
    texts += [
        f"{name}.any({d}, {keep})",
        f"{name}.all()",
        f"{name}.cumsum({d})",
        f"{name}.count_nonzero({d})",
    ]
    if t.dtype is not torch.bool:
        texts += [
            f"{name}.amax({d}, {keep})",
            f"{name}.amin()",
            f"{name}.max({d}, {keep})[0]",
            f"{name}.min({d})[1]",
        ]
        texts += [
            f"{name}.argmax({d})",
            f"{name}.argmin({d}, {keep})",
            f"{name}.argmax()",
            f"{name}.cummax({d})[0]",
        ]
        texts += [
            f"{name}.sign().prod({d})",
            f"{name}.sign().cumprod({d})",
            f"{name}.cummin({d})[1]",
            f"{name}.aminmax()[0]",
        ]
        texts += [
            f"{name}.sort({d}, stable=True)[0]",
            f"F.max_pool1d({name}.double()[None], 2, 1, 1)[0]",
            f"{name}.diff(dim={d})",
        ]
    return rng.choice(texts)


def convert_line(rng: random.Random, t: Tensor, name: str) -> str | None:
    dtype = rng.choice(DTYPES)
    return f"{name}.to({dtype})"


def pair_line(rng: random.Random, t: Tensor, name: str, other: str) -> str | None:
    texts = [
        f"{name} + {other}",
        f"{name} * {other}",
        f"{name} == {other}",
        f"{name} < {other}",
        f"{name} != {other}",
    ]
    texts += [
        f"torch.maximum({name}, {other})",
        f"torch.where({name} > {other}, {name}, {other})",
        f"{name} >= {other}",
    ]
    texts += [
        f"torch.where({name} != 0, {other}, 1)",
        f"{name}.masked_fill({other} != 0, 2)",
        f"torch.minimum({name}, {other})",
    ]
    texts += [
        f"torch.logical_and({name}, {other})",
        f"torch.cat([{name}, {other}], -1)",
        f"torch.cat([{name}, {other}])",
    ]
    texts += [
        f"torch.gather({name}, -1, ({other} != 0).long())",
        f"{name}[({other} == 0).long()]",
        f"torch.copysign({name}, {other})",
    ]
    if t.dtype is not torch.bool:
        texts += [f"{name} - {other}", f"torch.add({name}, {other}, alpha=2)", f"torch.fmax({name}, {other})"]
        texts += [
            f"torch.remainder({name}, ({other}.abs() + 1))",
            f"torch.stack([{name}, {other}], -1)",
            f"torch.fmin({name}, {other})",
        ]
        texts += [
            f"torch.addcmul({name}, {other}, {other})",
            f"torch.floor_divide({name}, {other}.abs() + 1)",
        ]
    return rng.choice(texts)


def write_line(rng: random.Random, t: Tensor, name: str, other: str | None) -> str | None:
    texts = [
        f"{name}.fill_(1)",
        f"{name}.zero_()",
        f"{name}.add_(1)",
        f"{name}.mul_(2)",
        f"{name}[..., 0].zero_()",
    ]
    texts += [
        f"{name}[..., 1:].add_(1)",
        f"{name}.t().add_(1)",
        f"{name}.select(0, 0).fill_(3)",
        f"{name}[::2].neg_()",
    ]
    if other is not None:
        texts += [
            f"{name}.copy_({other})",
            f"{name}.add_({other})",
            f"{name}[..., :1].copy_({other}[..., :1])",
        ]
        texts += [
            f"{name}.masked_fill_({other} != 0, 2)",
            f"{name}.mul_({other})",
            f"{name}.diagonal().add_(1)",
        ]
    return rng.choice(texts)
