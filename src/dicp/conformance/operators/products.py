"""Matrix products, convolutions, attention."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import FLOATING, GRIDS, IMAGES, Size, operator

aten = torch.ops.aten

CUBES = (Size((3, 5, 7), (3, 5, 7)), Size((2, 9, 7), (4, 9, 7)))
HEADS = (Size((1, 2, 8, 16), (2, 2, 8, 16)), Size((2, 4, 5, 16), (2, 4, 5, 16)))

operator(aten.mm.default, lambda d: d(d.normal(), d.normal(d.shape[1], 5)), GRIDS)
operator(aten.mm.default, lambda d: d(d.normal(), d.normal(5, d.shape[1]).t()), GRIDS)
operator(aten.bmm.default, lambda d: d(d.normal(), d.normal(d.shape[0], d.shape[2], 6)), CUBES)
operator(aten.addmm.default, lambda d: d(d.normal(5), d.normal(), d.normal(d.shape[1], 5)), GRIDS)
operator(
    aten.addmm.default,
    lambda d: d(d.normal(d.shape[0], 5), d.normal(), d.normal(d.shape[1], 5), beta=0.5, alpha=2),
    GRIDS[:1],
)
operator(
    aten.baddbmm.default,
    lambda d: d(d.normal(d.shape[0], 1, 6), d.normal(), d.normal(d.shape[0], d.shape[2], 6), beta=0.5),
    CUBES,
    (torch.float32,),
)
operator(aten.matmul.default, lambda d: d(d.normal(), d.normal(d.shape[2], 4)), CUBES)
operator(aten.mv.default, lambda d: d(d.normal(), d.normal(d.shape[1])), GRIDS, (torch.float32,))
operator(aten.dot.default, lambda d: d(d.normal(d.shape[1]), d.normal(d.shape[1])), GRIDS, (torch.float32,))
operator(aten.linear.default, lambda d: d(d.normal(), d.normal(6, d.shape[2]), d.normal(6)), CUBES)

operator(
    aten.convolution.default,
    lambda d: d(d.normal(), d.normal(6, 4, 3, 3), d.normal(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    IMAGES,
    (torch.float32, torch.bfloat16),
)
operator(
    aten.convolution.default,
    lambda d: d(d.normal(), d.normal(8, 2, 3, 3), None, [2, 2], [1, 0], [1, 2], False, [0, 0], 2),
    IMAGES,
    (torch.float32,),
)
operator(
    aten.convolution.default,
    lambda d: d(d.normal(), d.normal(4, 3, 2, 2), d.normal(3), [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
    IMAGES,
    (torch.float32,),
)
operator(
    aten.convolution.default,
    lambda d: d(d.normal(*d.shape[:3]), d.normal(6, 4, 3), d.normal(6), [1], [1], [1], False, [0], 1),
    IMAGES,
    (torch.float32,),
)
operator(
    aten.convolution_backward.default,
    lambda d: d(
        d.normal(d.shape[0], 6, d.shape[2], d.shape[3]), d.normal(), d.normal(6, 4, 3, 3), [6],
        [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True],
    ),
    IMAGES,
    (torch.float32,),
)  # fmt: skip
operator(
    aten.scaled_dot_product_attention.default,
    lambda d: d(d.normal(), d.normal(), d.normal()),
    HEADS,
    FLOATING[:2],
)
operator(
    aten.scaled_dot_product_attention.default,
    lambda d: d(d.normal(), d.normal(), d.normal(), None, 0.0, True),
    HEADS,
    (torch.float32,),
)
operator(
    aten.scaled_dot_product_attention.default,
    lambda d: d(d.normal(), d.normal(), d.normal(), d.normal(d.shape[2], d.shape[2]), scale=0.3),
    HEADS,
    (torch.float32,),
)
