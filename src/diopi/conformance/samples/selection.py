"""Samples of selection by mask, by index, and of rows of a table.

Where two elements are written to one position the result is undefined, so those indices are permutations.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples


def _number(make: Maker) -> float:
    return -2.5 if make.floating else 1


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


_MASKED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((2, 3, 4, 5), (3, 1, 5)),
    ((), ()),
    ((4,), ()),
    ((0, 3), (0, 3)),
    ((67, 71), (67, 71)),
)


@samples("diopiMaskedFillScalar")
def masked_fill_scalar(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape), "mask": make.mask(*mask), "value": _number(make)}
    yield {"input": make(3, 1), "mask": make.mask(3, 4), "value": 0}


@samples("diopiMaskedFillInpScalar")
def masked_fill_scalar_in_place(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape, written=True), "mask": make.mask(*mask), "value": _number(make)}


@samples("diopiMaskedFill")
def masked_fill(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape), "mask": make.mask(*mask), "value": make()}
    yield {"input": make(3, 1), "mask": make.mask(3, 4), "value": make()}


@samples("diopiMaskedFillInp")
def masked_fill_in_place(make: Maker) -> Iterator[Sample]:
    for shape, mask in _MASKED:
        yield {"input": make(*shape, written=True), "mask": make.mask(*mask), "value": make()}


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


def _indices(make: Maker) -> Iterator[tuple[tuple[int, ...], list[torch.Tensor | None]]]:
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


def _picked(shape: tuple[int, ...], indices: list[torch.Tensor | None]) -> torch.Size:
    return torch.empty(shape)[tuple(slice(None) if i is None else i for i in indices)].shape


@samples("diopiIndexPut", "diopiIndexPutInp")
def index_put(make: Maker) -> Iterator[Sample]:
    in_place = make.function.endswith("Inp")
    for shape, indices, values, accumulate in _put(make):
        yield {
            "input": make(*shape, written=in_place),
            "values": values,
            "indices": indices,
            "indices_counts": len(indices),
            "accumulate": accumulate,
        }


def _put(
    make: Maker,
) -> Iterator[tuple[tuple[int, ...], list[torch.Tensor | None], torch.Tensor, bool]]:
    for shape, indices in _indices(make):
        yield shape, indices, make(*_picked(shape, indices)), True
    yield (5, 4, 3), [make.permutation(5)[:3]], make(3, 4, 3), False
    yield (5, 4, 3), [None, make.permutation(4)], make(3), False
    yield (5, 4, 3), [make.permutation(4)[:3] - 4, make.permutation(3)], make(3, 1), False
    mask = make.mask(5, 4)
    yield (5, 4, 3), [mask], make(int(mask.sum()), 3), False
    yield (5, 4, 3), [make.mask(5, 4, 3)], make(), False
    yield (71, 67), [make.permutation(71)[:40]], make(67), False


_ALONG: tuple[tuple[tuple[int, ...], int, int], ...] = (
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


@samples("diopiIndexFillScalar", "diopiIndexFillInpScalar")
def index_fill_scalar(make: Maker) -> Iterator[Sample]:
    for shape, dim, count in _ALONG:
        source, index = make(*shape, written="Inp" in make.function), make.index(count, high=shape[dim])
        yield {"input": source, "dim": dim, "index": index, "value": _number(make)}


@samples("diopiIndexFill", "diopiIndexFillInp")
def index_fill(make: Maker) -> Iterator[Sample]:
    for shape, dim, count in _ALONG:
        source, index = make(*shape, written="Inp" in make.function), make.index(count, high=shape[dim])
        yield {"input": source, "dim": dim, "index": index, "value": make()}


_GATHERED: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = (
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
        yield {
            "input": make(*shape),
            "dim": dim,
            "index": make.index(*picked, high=shape[dim] if shape else 1),
        }


@samples("diopiGatherBackward")
def gather_backward(make: Maker) -> Iterator[Sample]:
    for shape, dim, picked in _GATHERED:
        index = make.index(*picked, high=shape[dim] if shape else 1)
        yield {"grad_output": make(*picked), "input": make(*shape), "dim": dim, "index": index}


@samples("diopiScatter", "diopiScatterInp")
def scatter(make: Maker) -> Iterator[Sample]:
    in_place = make.function.endswith("Inp")
    for shape, dim, index, reduce in _scattered(make):
        source = make(*index.shape)
        yield {
            "input": make(*shape, written=in_place),
            "dim": dim,
            "src": source,
            "index": index,
            "reduce": reduce,
        }
    longer = make(6, 9)
    yield {
        "input": make(5, 7, written=in_place),
        "dim": 1,
        "src": longer,
        "index": _rows(make, 5, 7),
        "reduce": "",
    }


@samples("diopiScatterScalar", "diopiScatterInpScalar")
def scatter_scalar(make: Maker) -> Iterator[Sample]:
    in_place = "Inp" in make.function
    for shape, dim, index, reduce in _scattered(make):
        source = make(*shape, written=in_place)
        yield {"input": source, "dim": dim, "value": _number(make), "index": index, "reduce": reduce}


def _rows(make: Maker, rows: int, columns: int, kept: int | None = None) -> torch.Tensor:
    """Each row a permutation, so that no position is written twice."""
    return torch.stack([make.permutation(columns)[:kept] for _ in range(rows)])


def _scattered(make: Maker) -> Iterator[tuple[tuple[int, ...], int, torch.Tensor, str]]:
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


@samples("diopiEmbedding")
def embedding(make: Maker) -> Iterator[Sample]:
    for rows, width, shape, padding in _LOOKED_UP:
        yield {
            "weight": make(rows, width),
            "indices": make.index(*shape, high=rows),
            "padding_idx": padding,
            "scale_grad_byfreq": False,
            "sparse": False,
        }
    indices = make.index(4, high=10, dtype=torch.int32)
    yield {
        "weight": make(10, 4),
        "indices": indices,
        "padding_idx": -1,
        "scale_grad_byfreq": True,
        "sparse": False,
    }


@samples("diopiEmbeddingBackward")
def embedding_backward(make: Maker) -> Iterator[Sample]:
    for rows, width, shape, padding in _LOOKED_UP:
        for by_frequency in (False, True):
            yield {
                "grad": make(*shape, width),
                "indices": make.index(*shape, high=rows),
                "num_weights": rows,
                "padding_idx": padding,
                "scale_grad_byfreq": by_frequency,
                "sparse": False,
            }


_LOOKED_UP: tuple[tuple[int, int, tuple[int, ...], int], ...] = (
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
        table = make(rows, width, low=-2, high=2, written=True)
        yield {"inout": table, "indices": make.index(*shape, high=rows), "max_norm": most, "norm_type": kind}
