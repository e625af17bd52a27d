"""Samples of selection by mask, by index, of rows of a table, and by order.

Where two elements are written to one position the result is undefined, so those indices are permutations.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, number, samples, table
from diopi.conformance.samples.elementwise import both_forms, operand, scalar_forms, written

# ---- by mask ----


@samples("diopiWhere")
def where(make: Maker) -> Iterator[Sample]:
    for condition, first, second in (
        ((3, 5), (3, 5), (3, 5)),
        ((3, 1), (5,), (3, 5)),
        ((2, 3, 4, 5), (3, 1, 5), ()),
        ((), (4,), (4,)),
        ((0, 3), (1, 3), (0, 3)),
        ((67, 71), (67, 71), (71,)),
    ):
        yield {"condition": make.mask(*condition), "input": make(*first), "other": make(*second)}


Shape = tuple[int, ...]
_MASKED: tuple[tuple[Shape, Shape], ...] = (
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((2, 3, 4, 5), (3, 1, 5)),
    ((), ()),
    ((4,), ()),
    ((0, 3), (0, 3)),
    ((67, 71), (67, 71)),
)


@samples(*scalar_forms("diopiMaskedFill"))
def masked_fill_scalar(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": operand(make, *shape), "mask": make.mask(*mask), "value": number(make)}
    if not written(make):
        yield {"input": make(3, 1), "mask": make.mask(3, 4), "value": 0}


@samples(*both_forms("diopiMaskedFill"))
def masked_fill(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED if written(make) else (*_MASKED, ((3, 1), (3, 4))):
        yield {"input": operand(make, *shape), "mask": make.mask(*mask), "value": make()}


@samples("diopiMaskedScatter")
def masked_scatter(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape), "mask": make.mask(*mask), "source": make(*shape)}
    yield {"input": make(3, 5), "mask": make.mask(3, 5, rate=0.2), "source": make(40)}


@samples("diopiMaskedSelect")
def masked_select(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape), "mask": make.mask(*mask)}
    yield {"input": make(3, 1), "mask": make.mask(4)}
    yield {"input": make(5, 3), "mask": make.mask(5, 3, rate=0.0)}


@samples("diopiMaskedSelectBackward")
def masked_select_backward(make: Maker) -> Iterator[Sample]:
    for shape, mask_shape in _MASKED:
        source, mask = make(*shape), make.mask(*mask_shape)
        grad = make(int(mask.expand(source.shape).sum()))
        yield {"grad_output": grad, "input": source, "mask": mask}


@samples("diopiNonzero")
def nonzero(make: Maker) -> Iterator[Sample]:
    for shape in ((3, 5), (7,), (2, 3, 4, 5), (), (0, 3), (67, 71)):
        yield {"input": make(*shape, low=-1, high=1)}
    yield {"input": make.laid_out((torch.arange(60).reshape(5, 12) % 7 == 3).to(make.dtype))}
    yield {"input": make.laid_out(torch.zeros(4, 3, dtype=make.dtype))}


# ---- by index ----


def _indices(make: Maker) -> Iterator[tuple[Shape, list[torch.Tensor | None]]]:
    yield (5, 4, 3), [make.index(6, high=5)]
    yield (5, 4, 3), [make.index(2, 3, high=5, low=-5), make.index(3, high=4)]
    yield (5, 4, 3), [None, make.index(7, high=4)]
    yield (5, 4, 3), [make.index(2, 1, high=5), None, make.index(3, high=3, dtype=torch.int32)]
    yield (5, 4, 3), [make.mask(5, 4)]
    yield (5, 4, 3), [None, make.mask(4), None]
    yield (9,), [make.index(0, high=9)]
    yield (71, 67), [make.index(50, high=71)]


@samples("diopiIndex")
def index(make: Maker) -> Iterator[Sample]:
    for shape, indices in _indices(make):
        yield {"input": make(*shape), "indices": indices, "nums": len(indices)}


@samples("diopiIndexBackward")
def index_backward(make: Maker) -> Iterator[Sample]:
    for shape, indices in _indices(make):
        zeros = make.laid_out(torch.zeros(shape, dtype=make.dtype), written=True)
        grad = make(*_picked(shape, indices))
        yield {"zeros_like_input": zeros, "indices": indices, "nums": len(indices), "grad_output": grad}


def _picked(shape: Shape, indices: list[torch.Tensor | None]) -> torch.Size:
    return torch.empty(shape)[tuple(slice(None) if i is None else i for i in indices)].shape


@samples(*both_forms("diopiIndexPut"))
def index_put(make: Maker) -> Iterator[Sample]:
    for shape, indices, values, accumulate in _put(make):
        given = {"indices": indices, "indices_counts": len(indices), "accumulate": accumulate}
        yield {"input": operand(make, *shape), "values": values, **given}


def _put(make: Maker) -> Iterator[tuple[Shape, list[torch.Tensor | None], torch.Tensor, bool]]:
    for shape, indices in _indices(make):
        yield shape, indices, make(*_picked(shape, indices)), True
    yield (5, 4, 3), [make.permutation(5)[:3]], make(3, 4, 3), False
    yield (5, 4, 3), [None, make.permutation(4)], make(3), False
    yield (5, 4, 3), [make.permutation(4)[:3] - 4, make.permutation(3)], make(3, 1), False
    mask = make.mask(5, 4)
    yield (5, 4, 3), [mask], make(int(mask.sum()), 3), False
    yield (5, 4, 3), [make.mask(5, 4, 3)], make(), False
    yield (71, 67), [make.permutation(71)[:40]], make(67), False


_ALONG: tuple[tuple[Shape, int, int], ...] = (
    ((5, 3), 0, 7),
    ((5, 3), 1, 2),
    ((2, 3, 4), -2, 5),
    ((9,), 0, 4),
    ((2, 3, 4, 5), 3, 3),
    ((4, 3), 0, 0),
    ((71, 67), -1, 50),
)


@samples("diopiIndexSelect")
def index_select(make: Maker) -> Iterator[Sample]:
    for shape, dim, count in _ALONG:
        yield {"input": make(*shape), "dim": dim, "index": make.index(count, high=shape[dim])}
    yield {"input": make(5, 3), "dim": 0, "index": make.index(4, high=5, dtype=torch.int32)}


@samples("diopiIndexSelectBackward")
def index_select_backward(make: Maker) -> Iterator[Sample]:
    for shape, dim, count in _ALONG:
        sizes = list(shape)
        sizes[dim] = count
        index = make.index(count, high=shape[dim])
        yield {"grad": make(*sizes), "input_sizes": list(shape), "dim": dim, "index": index}


@samples(*scalar_forms("diopiIndexFill"), *both_forms("diopiIndexFill"))
def index_fill(make: Maker) -> Iterator[Sample]:
    for shape, dim, count in _ALONG:
        source, index = operand(make, *shape), make.index(count, high=shape[dim])
        value = number(make) if "Scalar" in make.function else make()
        yield {"input": source, "dim": dim, "index": index, "value": value}


_GATHERED: tuple[tuple[Shape, int, Shape], ...] = (
    ((5, 3), 0, (4, 3)),
    ((5, 3), 1, (5, 6)),
    ((2, 3, 4), -1, (1, 2, 5)),
    ((9,), 0, (4,)),
    ((2, 3, 4, 5), 1, (2, 2, 4, 5)),
    ((), 0, ()),
    ((4, 3), 0, (0, 3)),
    ((71, 67), -2, (40, 67)),
)


@samples("diopiGather")
def gather(make: Maker) -> Iterator[Sample]:
    for shape, dim, picked in _GATHERED:
        source = make(*shape)
        yield {"input": source, "dim": dim, "index": make.index(*picked, high=shape[dim] if shape else 1)}


@samples("diopiGatherBackward")
def gather_backward(make: Maker) -> Iterator[Sample]:
    for shape, dim, picked in _GATHERED:
        index = make.index(*picked, high=shape[dim] if shape else 1)
        yield {"grad_output": make(*picked), "input": make(*shape), "dim": dim, "index": index}


@samples(*both_forms("diopiScatter"))
def scatter(make: Maker) -> Iterator[Sample]:
    for shape, dim, index, reduce in _scattered(make):
        where = {"dim": dim, "index": index, "reduce": reduce}
        yield {"src": make(*index.shape), "input": operand(make, *shape), **where}
    longer = {"src": make(6, 9), "input": operand(make, 5, 7)}
    yield {**longer, "dim": 1, "index": _rows(make, 5, 7), "reduce": ""}


@samples(*scalar_forms("diopiScatter"))
def scatter_scalar(make: Maker) -> Iterator[Sample]:
    for shape, dim, index, reduce in _scattered(make):
        where = {"dim": dim, "index": index, "reduce": reduce}
        yield {"input": operand(make, *shape), "value": number(make), **where}


def _rows(make: Maker, rows: int, columns: int, kept: int | None = None) -> torch.Tensor:
    """Each row a permutation, so that no position is written twice."""
    return torch.stack([make.permutation(columns)[:kept] for _ in range(rows)])


def _scattered(make: Maker) -> Iterator[tuple[Shape, int, torch.Tensor, str]]:
    yield (5, 7), 1, _rows(make, 5, 7, 4), ""
    yield (5, 7), 0, _rows(make, 7, 5).T, ""
    yield (3, 9), -1, _rows(make, 2, 9, 5), ""
    yield (9,), 0, make.permutation(9), ""
    yield (), 0, torch.tensor(0), ""
    yield (4, 3), 0, make.index(0, 3, high=4), ""
    yield (67, 71), 1, _rows(make, 67, 71, 33), ""
    if make.dtype != torch.bool:
        yield (5, 7), 0, make.index(6, 7, high=5), "add"
        yield (2, 3, 4), -1, make.index(2, 3, 9, high=4), "add"
        yield (5, 7), 1, make.index(5, 3, high=7), "multiply"


@samples("diopiOneHot")
def one_hot(make: Maker) -> Iterator[Sample]:
    for shape, classes in (((6,), 5), ((2, 3), 7), ((), 4), ((5, 3), -1), ((0, 3), 5), ((200,), 23)):
        high = classes if classes > 0 else 6
        yield {"input": make.index(*shape, high=high, dtype=make.dtype), "num_classes": classes}


# ---- rows of a table ----


def _lookup(padding: int, by_frequency: bool) -> Sample:
    return {"padding_idx": padding, "scale_grad_byfreq": by_frequency, "sparse": False}


@samples("diopiEmbedding")
def embedding(make: Maker) -> Iterator[Sample]:
    for rows, width, shape, padding in _LOOKED_UP:
        weight, indices = make(rows, width), make.index(*shape, high=rows)
        yield {"weight": weight, "indices": indices, **_lookup(padding, False)}
    indices = make.index(4, high=10, dtype=torch.int32)
    yield {"weight": make(10, 4), "indices": indices, **_lookup(-1, True)}


@samples("diopiEmbeddingBackward")
def embedding_backward(make: Maker) -> Iterator[Sample]:
    for rows, width, shape, padding in _LOOKED_UP:
        for by_frequency in (False, True):
            grad, indices = make(*shape, width), make.index(*shape, high=rows)
            yield {"grad": grad, "indices": indices, "num_weights": rows, **_lookup(padding, by_frequency)}


_LOOKED_UP: tuple[tuple[int, int, Shape, int], ...] = (
    (10, 4, (3, 5), -1),
    (10, 4, (7,), 2),
    (5, 3, (), -1),
    (6, 3, (0,), -1),
    (53, 33, (6, 17), 0),
)


@samples("diopiEmbeddingRenorm_")
def embedding_renorm(make: Maker) -> Iterator[Sample]:
    for rows, width, shape, most, kind in (
        (10, 4, (3, 5), 1.0, 2.0),
        (10, 4, (7,), 1.5, 1.0),
        (6, 5, (4,), 0.75, float("inf")),
        (5, 3, (2,), 100.0, 2.0),
        (53, 33, (6, 7), 2.0, 2.0),
    ):
        weight = make(rows, width, low=-2, high=2, written=True)
        yield {"inout": weight, "indices": make.index(*shape, high=rows), "max_norm": most, "norm_type": kind}


# ---- by order ----

_SORTED: tuple[tuple[Shape, int, bool], ...] = (
    ((3, 7), 1, False),
    ((3, 7), 0, True),
    ((2, 3, 4), -2, False),
    ((9,), 0, True),
    ((), 0, False),
    ((0, 3), 1, False),
    ((2, 3, 4, 5), 2, True),
    ((7, 501), -1, False),
)


@samples("diopiSort")
def sort(make: Maker) -> Iterator[Sample]:
    for position, (shape, dim, descending) in enumerate(_SORTED):
        stable = (None, True, False)[position % 3]
        yield {"input": make(*shape), "dim": dim, "descending": descending, "pStable": stable}
    ties = make.index(4, 33, high=3, dtype=make.dtype)
    yield {"input": ties, "dim": 1, "descending": True, "pStable": True}


@samples("diopiArgsort")
def argsort(make: Maker) -> Iterator[Sample]:
    for position, (shape, dim, descending) in enumerate(_SORTED):
        yield {"input": make(*shape), "stable": position % 2 == 0, "dim": dim, "descending": descending}
    yield {"input": make(4, 33), "stable": True, "dim": None, "descending": False}
    ties = make.index(4, 33, high=3, dtype=make.dtype)
    yield {"input": ties, "stable": True, "dim": 1, "descending": False}


@samples("diopiSortBackward")
def sort_backward(make: Maker) -> Iterator[Sample]:
    for rows, columns in ((3, 7), (1, 1), (5, 0), (13, 101)):
        indices = torch.stack([make.permutation(columns) for _ in range(rows)])
        of = {"dim": 1, "indices": indices, "sizes": [rows, columns], "keepdim": True}
        yield {"grad_output": make(rows, columns), **of}
    picked = make.index(5, high=7)
    yield {"grad_output": make(5), "dim": 1, "indices": picked, "sizes": [5, 7], "keepdim": False}
    picked = make.index(1, 4, high=6)
    yield {"grad_output": make(1, 4), "dim": -2, "indices": picked, "sizes": [6, 4], "keepdim": True}


table(
    "diopiTopk",
    "input k dim largest sorted",
    ((3, 7), 3, 1, True, True),
    ((3, 7), 2, 0, False, True),
    ((2, 3, 9), 9, -1, True, True),
    ((9,), 1, 0, False, False),
    ((), 1, 0, True, True),
    ((3, 5), 0, 1, True, True),
    ((7, 501), 20, -1, True, True),
    ((4, 6), 1, 1, True, False),
)


@samples("diopiUnique")
def unique(make: Maker) -> Iterator[Sample]:
    for shape, dim, ordered, counted, indexed in (
        ((7, 9), None, True, True, True),
        ((31,), None, True, False, False),
        ((4, 5, 3), None, True, False, True),
        ((40, 2), 0, True, True, True),
        ((2, 40), -1, True, False, True),
        ((), None, True, True, True),
        ((0,), None, True, True, True),
        ((71, 67), None, True, True, True),
    ):
        inverse = shape if dim is None else (shape[dim],)
        values = make.index(*shape, high=5, dtype=make.dtype)
        sample: Sample = {"input": values, "dim": dim, "sorted": ordered, "return_counts": counted}
        yield sample | ({"indices": make.out(*inverse, dtype=torch.int64)} if indexed else {})
    # without order only a single value has a position that is determined
    equal = make.laid_out(torch.ones(6, dtype=make.dtype))
    yield {"input": equal, "sorted": False, "return_counts": True, "indices": make.out(6, dtype=torch.int64)}
