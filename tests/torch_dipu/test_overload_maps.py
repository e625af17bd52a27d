"""One DIOPI function behind several overloads whose arguments mean different things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_ways import ways

import torch_dipu  # noqa: F401
from diopi.lowering import lower_call
from diopi.table import TableError, load
from diopi.table.reader import _entry


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 5
    return made.to(dtype)


def both(run: Callable[[str], torch.Tensor], overload: str) -> None:
    """By DIOPI, and with the CPU's result, dtype and strides."""
    expected = run("cpu")
    found: list[torch.Tensor] = []
    assert ways(overload, lambda: found.append(run("dipu"))) == (1, 0)
    assert found[0].dtype == expected.dtype
    assert found[0].stride() == expected.stride()
    torch.testing.assert_close(found[0].cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["trunc", "floor", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_division_with_a_rounding_mode(mode: str | None, dtype: torch.dtype) -> None:
    a, b = numbers(4, 5, dtype=dtype), numbers(5, dtype=dtype) + 20
    both(lambda d: torch.div(a.to(d), b.to(d), rounding_mode=mode), "div.Tensor_mode")
    both(lambda d: torch.div(a.to(d), 3, rounding_mode=mode), "div.Tensor_mode")
    result = torch.div(a, b, rounding_mode=mode).dtype
    given = lambda d: torch.empty(0, dtype=result, device=d)  # noqa: E731
    both(lambda d: torch.div(a.to(d), b.to(d), rounding_mode=mode, out=given(d)), "div.out_mode")
    if mode or dtype.is_floating_point:
        both(lambda d: a.to(d, copy=True).div_(b.to(d), rounding_mode=mode), "div_.Tensor_mode")
        both(lambda d: a.to(d, copy=True).div_(3, rounding_mode=mode), "div_.Tensor_mode")


def test_in_place_division_that_cannot_be_stored_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", "dipu"):
        with pytest.raises(RuntimeError):
            torch.tensor([7, 8]).to(device).div_(2.5, rounding_mode="floor")
        with pytest.raises(RuntimeError):
            torch.tensor([7, 8]).to(device).div_(2, rounding_mode=None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8,
                                   torch.int16, torch.int32, torch.int64, torch.bool])  # fmt: skip
@pytest.mark.parametrize(
    ("overload", "bounds"), [("random_", ()), ("random_.to", (2,)), ("random_.from", (0, 2))]
)
def test_random_integers_are_the_cpus(dtype: torch.dtype, overload: str, bounds: tuple[int, ...]) -> None:
    def draw(device: str) -> torch.Tensor:
        torch.manual_seed(5)
        return torch.zeros(999, dtype=dtype, device=device).random_(*bounds)

    if (dtype, overload) == (torch.int32, "random_"):  # the function would draw other numbers
        assert torch.equal(draw("dipu").cpu(), draw("cpu"))
        assert ways(overload, lambda: draw("dipu")) == (0, 1)
    else:
        both(draw, overload)
    assert draw("dipu").cpu().float().std() > 0


UPSAMPLED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "upsample_nearest1d": ((2, 3, 7), {"size": (11,), "mode": "nearest"}),
    "upsample_nearest2d": ((2, 3, 5, 6), {"scale_factor": 2, "mode": "nearest"}),
    "upsample_nearest3d": ((1, 2, 3, 4, 3), {"size": (5, 3, 6), "mode": "nearest"}),
    "upsample_linear1d": ((2, 3, 7), {"size": (4,), "mode": "linear", "align_corners": True}),
    "upsample_bilinear2d": ((2, 3, 5, 6), {"size": (9, 4), "mode": "bilinear", "align_corners": False}),
    "upsample_bicubic2d": ((2, 3, 5, 6), {"size": (9, 4), "mode": "bicubic", "align_corners": True}),
    "upsample_trilinear3d": ((1, 2, 3, 4, 3), {"scale_factor": 3, "mode": "trilinear"}),
}


@pytest.mark.parametrize("overload", UPSAMPLED)
def test_images_are_resized_by_diopi_forward_and_backward(overload: str) -> None:
    shape, how = UPSAMPLED[overload]
    x = numbers(*shape)
    both(lambda d: F.interpolate(x.to(d), **how), overload)

    def gradient(device: str) -> torch.Tensor:
        leaf = x.to(device, copy=True).requires_grad_()
        out = F.interpolate(leaf, **how)
        out.backward(numbers(*out.shape).to(device))
        assert leaf.grad is not None
        return leaf.grad

    both(gradient, f"{overload}_backward")


def test_a_scale_that_sizes_do_not_tell_falls_back() -> None:
    x = numbers(1, 1, 5)
    for device in ("cpu", "dipu"):
        assert F.interpolate(x.to(device), scale_factor=1.3, mode="linear").shape == (1, 1, 6)
    run = lambda: F.interpolate(x.to("dipu"), scale_factor=1.3, mode="linear")  # noqa: E731
    assert ways("upsample_linear1d", run) == (0, 1)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batch", [True, False])
def test_padding_by_reflection_and_repetition(mode: str, dims: int, batch: bool) -> None:
    x = numbers(*((2,) if batch else ()), 3, *(4, 5, 6)[:dims])
    kind = "reflection" if mode == "reflect" else "replication"
    both(lambda d: F.pad(x.to(d), (1, 2, 0, 3, 2, 1)[: 2 * dims], mode=mode), f"{kind}_pad{dims}d")


def test_a_padding_that_is_too_wide_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", "dipu"):
        with pytest.raises(RuntimeError, match="Padding size should be less than"):
            F.pad(numbers(1, 3, 4, 4).to(device), (4, 0, 0, 0), mode="reflect")


# ---- the table ----


def test_each_overload_has_the_arguments_of_its_map() -> None:
    served = load().by_overload()
    (entry,) = (e for e in served["div.Tensor_mode"] if e.name == "diopiDiv")
    (plain,) = (e for e in served["div.Tensor"] if e.name == "diopiDiv")
    assert entry.args["rounding_mode"] == "round_mode(rounding_mode)"
    assert plain.args["rounding_mode"] == "RoundModeNone"
    assert load().entries["diopiDiv"].overloads == (
        "div.Tensor",
        "div.out",
        "div.Tensor_mode",
        "div.out_mode",
    )
    x = numbers(4)
    call = lower_call("div.Tensor_mode", {"self": x, "other": x, "rounding_mode": "floor"})
    assert (call.function, call.arguments["rounding_mode"]) == ("diopiDiv", 2)
    call = lower_call("random_.to", {"self": x, "to": 7, "generator": None})
    assert (call.arguments["from"], call.arguments["to"]) == (0, 7)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"aten": ["add.Tensor"], "maps": [{"aten": ["add.Tensor"]}]}, "named twice"),
        ({"maps": [{"args": {}}]}, "must name its overloads"),
        ({"maps": [{"aten": ["x"], "args": {"nothing": "self"}}]}, "args names"),
        ({"maps": [{"aten": ["x"], "tolerance": "exact"}]}, "unknown keys"),
        ({"maps": [{"aten": ["x"], "dtypes": "what"}]}, "unknown dtype groups"),
        ({"maps": [{"aten": ["x"], "when": "a b"}]}, "is not a Python expression"),
    ],
)
def test_a_wrong_map_is_named_with_its_fault(given: dict[str, Any], complaint: str) -> None:
    defaults = {"category": "elementwise", "dtypes": "fp", "tolerance": "ulp"}
    with pytest.raises(TableError, match=f"some.toml: diopiAdd: .*{complaint}"):
        _entry("some.toml", load().functions["diopiAdd"], defaults, given)
