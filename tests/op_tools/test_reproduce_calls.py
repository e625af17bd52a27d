"""Calls of many kinds as files: results and gradients that are wrong fail, right ones pass."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from torch import Tensor
from torch.nn import functional as F

import op_tools
from op_tools.replay import find_items
from op_tools.reproduce import ReproduceOptions, Reproduction, find_call, write
from op_tools.reproduce.write import is_wrong
from op_tools.storage import CallInfo, CaptureStore

# The device that stands for a wrong one: the CPU under a second name.
OTHER = "cpu:0"


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def spoiled(value: Any) -> Any:
    """The first result with one element that is off."""
    if isinstance(value, list | tuple):
        items = [spoiled(value[0]), *value[1:]]
        return type(value)(items)
    if not isinstance(value, Tensor):
        return value + 1
    flat = value.detach().reshape(-1).clone()
    if value.dtype.itemsize == 1 and value.is_floating_point():
        flat.view(torch.uint8)[0] ^= 64
    elif value.dtype == torch.bool:
        flat[0] = ~flat[0]
    else:
        flat[flat.numel() // 2] += 1
    return flat.reshape(value.shape)


def made(folder: Path, **options: Any) -> tuple[Reproduction, dict[str, Any]]:
    """Write the file of a captured call; it and its names."""
    (item,) = find_items(folder)
    file = write(ReproduceOptions(item, folder.parent / "repro.py", **{"verify": False, **options}))
    return file, names_of(file.path)


def names_of(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "reproduction", "__file__": str(path)}
    exec(path.read_text(), names)
    return names


def exit_code(names: dict[str, Any], device: str, call: Callable[..., Any] | None = None, *words: str) -> int:
    case = names["CASE"] if call is None else names["CASE"]._replace(call=call)
    memory = names["unpacked"](names["DATA"])
    arguments, sys.argv = sys.argv, ["repro.py", "--device", device, *words]
    try:
        return int(names["main"](case, memory))
    finally:
        sys.argv = arguments


def wrong_results(names: dict[str, Any]) -> Callable[..., Any]:
    right = names["CASE"].call
    return lambda x, device: spoiled(right(x, device)) if device == torch.device(OTHER) else right(x, device)


def wrong_gradients(names: dict[str, Any]) -> Callable[..., Any]:
    right = names["CASE"].call

    def call(x: list[Tensor], device: torch.device) -> Any:
        for tensor in x if device == torch.device(OTHER) else ():
            if tensor.requires_grad:
                tensor.register_hook(spoiled)
        return right(x, device)

    return call


HALF, BRAIN = torch.float16, torch.bfloat16
FORWARD: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "linear": (F.linear, (random(4, 8), random(5, 8), random(5)), {}, "linear(x[0], x[1], x[2])"),
    "layer_norm": (F.layer_norm, (random(4, 8), (8,), random(8)), {}, "layer_norm(x[0], (8,), x[1])"),
    "attention": (
        F.scaled_dot_product_attention, tuple(random(1, 2, 4, 8, seed=s) for s in range(3)), {"is_causal": True},
        "scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True)",
    ),
    "conv2d": (F.conv2d, (random(2, 3, 8, 8), random(4, 3, 3, 3)), {"padding": 1}, "conv2d(x[0], x[1], padding=1)"),
    "index_put_": (
        Tensor.index_put_, (random(6, 3), (torch.tensor([0, 2, 2]),), random(3, 3)), {"accumulate": True},
        "torch.Tensor.index_put_(x[0], (x[1],), x[2], accumulate=True)",
    ),
    "cat": (torch.cat, ([random(2, 3), random(4, 3)],), {"dim": 0}, "torch.cat([x[0], x[1]], dim=0)"),
    "einsum": (torch.einsum, ("ij,jk->ik", random(4, 5), random(5, 6)), {}, "einsum('ij,jk->ik', x[0], x[1])"),
    "max": (torch.max, (random(4, 9), 1), {}, "torch.max(x[0], 1)"),
    "argmax": (torch.argmax, (random(4, 9),), {}, "torch.argmax(x[0])"),
    "pool": (F.max_pool2d, (random(1, 2, 8, 8), 2), {"return_indices": True}, "return_indices=True"),
    "add_": (Tensor.add_, (random(4, 9), random(4, 9, seed=1)), {"alpha": 2}, "torch.Tensor.add_(x[0], x[1], alpha=2)"),
    "out": (torch.add, (random(4, 9), 1.5), {"out": torch.zeros(4, 9)}, "torch.add(x[0], 1.5, out=x[1])"),
    "views": (torch.mul, (random(8, 16)[::2, 3:9], random(6, 4).t()), {}, "torch.mul(x[0], x[1])"),
    "expanded": (torch.mul, (random(1, 6).expand(4, 6), 2.5), {}, "torch.mul(x[0], 2.5)"),
    "twice": (torch.mul, (SAME := random(4, 6), SAME), {}, "torch.mul(x[0], x[0])"),
    "bfloat16": (torch.matmul, (random(8, 16, dtype=BRAIN), random(16, 4, dtype=BRAIN)), {}, "torch.matmul(x[0], x[1])"),
    "dtype": (torch.softmax, (random(8, 16, dtype=HALF), -1), {"dtype": torch.float32}, "dtype=torch.float64)"),
    "complex": (torch.mul, (random(4, 5).to(torch.complex64) * 1j, random(4, 5)), {}, "torch.mul(x[0], x[1])"),
    "float8": (Tensor.to, (random(4, 8), torch.float8_e4m3fn), {}, "torch.Tensor.to(x[0], torch.float8_e4m3fn)"),
    "integers": (torch.div, (torch.arange(1, 9), torch.arange(2, 10)), {}, "torch.div(x[0], x[1])"),
    "slices": (Tensor.__getitem__, (random(4, 8), (slice(1, 3), ..., None)), {}, "(slice(1, 3, None), ..., None)"),
    "infinity": (torch.clamp, (random(40),), {"min": float("-inf"), "max": 0.5}, 'min=float("-inf")'),
    "bool": (torch.eq, (random(4, 8), 0.0), {}, "torch.eq(x[0], 0.0)"),
    "number": (Tensor.item, (torch.tensor(3.5),), {}, "torch.Tensor.item(x[0])"),
    "statistics": (F.batch_norm, (random(4, 3, 5), torch.zeros(3), torch.ones(3)), {"training": True}, "batch_norm"),
    "factory": (torch.arange, (0, 1, 0.1), {"device": "cpu"}, "torch.arange(0, 1, 0.1, device='cpu')"),
    "overload": (torch.ops.aten._softmax.default, (random(4, 8), -1, False), {}, "torch.ops.aten._softmax.default("),
    "lists": (torch._foreach_add, ([random(3), random(4)], [random(3), random(4)]), {}, "([x[0], x[1]], [x[2], x[3]])"),
    "empty": (torch.cat, ([random(0, 3), random(4, 3)],), {}, "torch.cat([x[0], x[1]])"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_a_wrong_result_fails_and_a_right_one_passes(name: str, tmp_path: Path) -> None:
    func, args, kwargs, source = FORWARD[name]
    file, names = made(capture(tmp_path, func, args, kwargs, change=spoiled))
    assert source in file.path.read_text()
    assert exit_code(names, OTHER) == 0
    assert exit_code(names, OTHER, wrong_results(names)) == 1


GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "linear": (F.linear, (random(4, 8), random(5, 8), random(5)), {}),
    "layer_norm": (F.layer_norm, (random(4, 8), (8,), random(8), random(8, seed=1)), {}),
    "attention": (F.scaled_dot_product_attention, tuple(random(1, 2, 4, 8, seed=s) for s in range(3)), {}),
    "conv2d": (F.conv2d, (random(2, 3, 8, 8), random(4, 3, 3, 3)), {"stride": 2}),
    "mul_": (Tensor.mul_, (random(4, 9), random(4, 9, seed=1)), {}),
    "index_put_": (
        Tensor.index_put_,
        (random(6, 3), (torch.tensor([0, 2, 2]),), random(3, 3)),
        {"accumulate": True},
    ),
    "cat": (torch.cat, ([random(2, 3), random(4, 3)],), {}),
    "max": (torch.max, (random(4, 9), 1), {}),
    "half": (torch.softmax, (random(8, 16, dtype=BRAIN), -1), {}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_wrong_gradient_fails_and_a_right_one_passes(name: str, tmp_path: Path) -> None:
    func, args, kwargs = GRADIENTS[name]
    folder = gradient_capture(tmp_path, func, args, kwargs)
    file, names = made(folder)
    assert [text.partition(":")[0] for text in file.wrong] == ["grad[0]"]
    assert exit_code(names, OTHER) == 0
    assert exit_code(names, OTHER, wrong_gradients(names)) == 1


def gradient_capture(
    root: Path, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Path:
    """A capture whose outputs are right and whose first gradient is not."""
    info = CallInfo(op_tools.names.name_of(func), 1, device="cpu")
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    wanted = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    with CaptureStore(root) as store:
        store.put(info, "input", args, kwargs)
        in_place = op_tools.names.name_of(func).endswith("_")
        given = torch.utils._pytree.tree_map(
            lambda v: v.clone() if isinstance(v, Tensor) and in_place else v, args
        )
        result = func(*given, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        incoming = [random(*out.shape, dtype=out.dtype) if out.requires_grad else None for out in outputs]
        roots = [out for out in outputs if out.requires_grad]
        grads = torch.autograd.grad(roots, wanted, [grad for grad in incoming if grad is not None])
        by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, [spoiled(grads[0]), *grads[1:]], strict=True)}
        store.put(info, "output", tuple(outputs))
        store.put(info, "grad_outputs", tuple(incoming))
        store.put(info, "grad_inputs", tuple(by_leaf.get(id(leaf)) for leaf in leaves))
    (path,) = root.glob("op_capture_results/*/*/1/*/input.pth")
    return path.parent


@contextlib.contextmanager
def wrong_kernel(name: str) -> Iterator[None]:
    """The device's kernel, one percent off."""
    overload = getattr(torch.ops.aten, name).default

    def kernel(*args: Any, **kwargs: Any) -> Any:
        near = [value.cpu() if isinstance(value, Tensor) else value for value in args]
        return (overload(*near, **kwargs) * 1.01).to("dipu")

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, "PrivateUse1", allow_override=True)
    yield
    library._destroy()


ON_DEVICE: dict[str, tuple[Callable[[], Tensor], str, str]] = {
    "gelu_backward": (lambda: F.gelu(on_device(4, 8)), "torch.nn.functional.gelu", "grad[0]"),
    "addmm": (
        lambda: F.linear(on_device(4, 8), on_device(5, 8), on_device(5)),
        "torch.nn.functional.linear",
        "output",
    ),
    "_softmax": (lambda: torch.softmax(on_device(4, 8).bfloat16(), -1), "torch.softmax", "output"),
    "_log_softmax": (
        lambda: F.cross_entropy(on_device(4, 8), torch.arange(4).to("dipu")),
        "cross_entropy",
        "output",
    ),
}


def on_device(*shape: int) -> Tensor:
    return random(*shape).to("dipu").requires_grad_()


@pytest.mark.parametrize("kernel", ON_DEVICE)
@pytest.mark.parametrize("autocast", [False, True])
def test_captured_on_the_device_with_and_without_autocast(
    kernel: str, autocast: bool, tmp_path: Path
) -> None:
    call, name, value = ON_DEVICE[kernel]
    state = torch.autocast("dipu", dtype=torch.bfloat16, enabled=autocast)
    with wrong_kernel(kernel), op_tools.OpCapture(results=str(tmp_path / "run")), state:
        call().float().square().sum().backward()
    item = find_call("first", tmp_path / "run", is_wrong)
    file = write(ReproduceOptions(item, tmp_path / "repro.py", verify=False))
    assert file.operator.endswith(name)
    assert file.wrong[0].startswith(value)
    names = names_of(file.path)
    assert exit_code(names, "dipu") == 0
    assert exit_code(names, "cpu") == 0
    with wrong_kernel(kernel):
        assert exit_code(names, "dipu") == 1
    if autocast:
        assert "LOW = torch.bfloat16" in file.path.read_text()


def test_strides_and_sharing_are_as_captured(tmp_path: Path) -> None:
    source = random(8, 16)
    args = (source[::2, 3:9], random(6, 4).t(), random(1, 6).expand(4, 6))
    _, names = made(capture(tmp_path, torch.addcmul, args, change=spoiled))
    memory = names["unpacked"](names["DATA"])
    read = [names["read"](saved, memory) for saved in names["CASE"].inputs]
    assert [tensor.stride() for tensor in read] == [(32, 1), (1, 4), (0, 1)]
    assert all(torch.equal(mine, given) for mine, given in zip(read, args, strict=True))


def test_equal_values_at_other_positions_are_right(tmp_path: Path) -> None:
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 4.0, 5.0, 0.0]])
    folder = capture(tmp_path, torch.argmax, (values, 1), change=lambda index: index + 1)
    _, names = made(folder)
    answers = {(2, 2): 0, (1, 0): 0, (3, 0): 1, (1, 1): 1, (9, 0): 1}
    right = names["CASE"].call
    for answer, code in answers.items():
        found = exit_code(
            names,
            OTHER,
            lambda x, device, answer=answer: torch.tensor(answer) if device.index == 0 else right(x, device),
        )
        assert found == code, answer


def truncated(exact: Tensor) -> Tensor:
    """float32 values that were cut off and not rounded."""
    nearest = exact.float()
    return torch.where(nearest.double().abs() > exact.abs(), nearest.nextafter(torch.zeros(())), nearest)


def test_truncation_is_found_although_no_element_is_far_off(tmp_path: Path) -> None:
    x, y = random(64, 64), random(64, 64, seed=1)
    cut_off = truncated(x.double() * y.double())
    assert float((cut_off - x * y).abs().max()) < 1e-6
    _, names = made(capture(tmp_path, torch.mul, (x, y), change=lambda _: cut_off))
    assert names["CASE"].checks[0].leans
    assert exit_code(names, OTHER) == 0
    assert exit_code(names, OTHER, lambda x, device: cut_off) == 1


def test_bounds_element_by_element_where_one_tolerance_would_hide_it(tmp_path: Path) -> None:
    """Rows of very different size, and an error in a small one that would be rounding in a large one."""
    x, y = random(16, 32) * torch.tensor([10.0, 0.1]).repeat(8)[:, None], random(32, 8)
    # A large row whose terms cancel: its rounding is large where its value is 0, so that one tolerance for all elements
    # must allow 2e-4. The small row may be off by 4e-6: 3e-5 lies far from both, whatever order a processor adds in.
    x[0, 1::2], y[1::2, 0] = -x[0, 0::2], y[0::2, 0]
    change = torch.zeros(16, 8)
    change[3, 0] = 3e-5
    _, names = made(capture(tmp_path, torch.mm, (x, y), change=lambda right: right + change))
    (check,) = names["CASE"].checks
    assert check.bounds is not None
    assert check.atol == 0.0
    right = names["CASE"].call
    assert exit_code(names, OTHER) == 0
    assert exit_code(names, OTHER, lambda x, device: right(x, device) + change) == 1
    assert exit_code(names, OTHER, lambda x, device: right(x, device) * (1 + 2e-7)) == 0


ON_OTHER_PROCESSORS = {
    "mm": (torch.mm, (random(32, 64), random(64, 32)), {}),
    "linear bf16": (F.linear, (random(24, 100, dtype=BRAIN), random(40, 100, dtype=BRAIN)), {}),
    "conv2d": FORWARD["conv2d"][:3],
    "conv2d fp16": (F.conv2d, (random(2, 3, 8, 8, dtype=HALF), random(4, 3, 3, 3, dtype=HALF)), {"padding": 1}),
    "attention": FORWARD["attention"][:3],
    "layer_norm": (F.layer_norm, (random(16, 100), (100,), random(100)), {}),
    "softmax bf16": (torch.softmax, (random(16, 100, dtype=BRAIN), -1), {}),
    "sum fp16": (torch.sum, (random(16, 1000, dtype=HALF), -1), {}),
    "exp": (torch.exp, (random(64, 33),), {}),
}  # fmt: skip
PROCESSORS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}
RUN_ALL = """
import contextlib, io, runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--device", "cpu"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(code, said.getvalue() if code else path)
"""


def test_a_file_holds_on_other_processors(tmp_path: Path) -> None:
    """What correct arithmetic may give is not what the processor gave on which the file was written."""
    paths = []
    for place, (func, args, kwargs) in enumerate(ON_OTHER_PROCESSORS.values()):
        file, _ = made(capture(tmp_path / str(place) / "run", func, args, kwargs, change=spoiled))
        paths.append(str(file.path))
    assert len(set(paths)) == len(ON_OTHER_PROCESSORS)
    for name, variables in PROCESSORS.items():
        clean = {key: value for key, value in os.environ.items() if key not in PROCESSORS["default"]}
        command = [sys.executable, "-c", RUN_ALL, *paths]
        done = subprocess.run(command, env=clean | variables, capture_output=True, text=True, check=False)
        said = done.stdout.splitlines()
        assert said == [f"0 {path}" for path in paths], f"{name}: {done.stdout}{done.stderr}"
