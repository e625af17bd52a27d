"""Factories and methods of tensors and modules under the mapping."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]

# Functions with an argument `device` that is no place for a new tensor.
_NOT_FACTORIES = {
    "Generator",
    "_assert_tensor_metadata",
    "_cudnn_init_dropout_state",
    "_make_dep_token",
    "_resize_output_",
}


def _functions_with_a_device() -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    names = {
        schema.name.removeprefix("aten::")
        for schema in schemas
        if schema.name.startswith("aten::")
        and any(argument.name == "device" for argument in schema.arguments)
    }
    return {name for name in names if hasattr(torch._C._VariableFunctions, name)} - _NOT_FACTORIES


def test_every_function_of_torch_that_takes_a_device_is_wrapped() -> None:
    names = _functions_with_a_device()
    assert len(names) > 40
    untouched = {name for name in names if getattr(torch, name) is getattr(torch._C._VariableFunctions, name)}
    assert untouched == set()


FACTORY_CALLS = {
    "arange": lambda device: torch.arange(4, device=device),
    "as_tensor": lambda device: torch.as_tensor([1, 2], device=device),
    "asarray": lambda device: torch.asarray([1, 2], device=device),
    "empty": lambda device: torch.empty(2, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 2), (2, 1), device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "full": lambda device: torch.full((2,), 3.0, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 5, device=device),
    "logspace": lambda device: torch.logspace(0, 1, 5, device=device),
    "ones": lambda device: torch.ones(2, device=device),
    "rand": lambda device: torch.rand(2, device=device),
    "randint": lambda device: torch.randint(0, 9, (4,), device=device),
    "randn": lambda device: torch.randn(2, device=device),
    "randperm": lambda device: torch.randperm(6, device=device),
    "scalar_tensor": lambda device: torch.scalar_tensor(2.5, device=device),
    "sparse_coo_tensor": lambda device: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=device),
    "tensor": lambda device: torch.tensor([1.0, 2.0], device=device),
    "tril_indices": lambda device: torch.tril_indices(3, 3, device=device),
    "triu_indices": lambda device: torch.triu_indices(3, 3, device=device),
    "zeros": lambda device: torch.zeros(2, device=device),
    "empty_like": lambda device: torch.empty_like(torch.ones(3), device=device),
    "full_like": lambda device: torch.full_like(torch.ones(3), 2.0, device=device),
    "ones_like": lambda device: torch.ones_like(torch.ones(3), device=device),
    "rand_like": lambda device: torch.rand_like(torch.ones(3), device=device),
    "randint_like": lambda device: torch.randint_like(torch.ones(3), 9, device=device),
    "randn_like": lambda device: torch.randn_like(torch.ones(3), device=device),
    "zeros_like": lambda device: torch.zeros_like(torch.ones(3), device=device),
    "hann_window": lambda device: torch.hann_window(5, device=device),
    "fft.fftfreq": lambda device: torch.fft.fftfreq(5, device=device),
    "signal.windows.hann": lambda device: torch.signal.windows.hann(5, device=device),
    "new_zeros": lambda device: torch.ones(1).new_zeros(3, device=device),
    "new_ones": lambda device: torch.ones(1).new_ones(3, device=device),
    "new_full": lambda device: torch.ones(1).new_full((3,), 2.0, device=device),
    "new_empty": lambda device: torch.ones(1).new_empty(3, device=device),
    "new_tensor": lambda device: torch.ones(1).new_tensor([3.0], device=device),
}
_UNINITIALISED = ("empty", "empty_strided", "empty_like", "new_empty")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", FACTORY_CALLS)
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("dipu", 1), 1])
def test_factories(name: str, device: object) -> None:
    torch.manual_seed(3)
    made = FACTORY_CALLS[name](device)
    torch.manual_seed(3)
    expected = FACTORY_CALLS[name]("cpu")
    assert made.device == torch.device("dipu", 0 if device == "cuda" else 1)
    assert made.dtype == expected.dtype
    assert made.shape == expected.shape
    if name not in _UNINITIALISED:
        assert torch.equal(made.to_dense().cpu(), expected.to_dense())


def test_to_in_all_its_forms() -> None:
    x = torch.arange(6.0)
    assert x.to("cuda").device == torch.device("dipu:0")
    assert x.to("cuda:1", torch.float64).dtype == torch.float64
    assert x.to(device="cuda:1", dtype=torch.int32).device == torch.device("dipu:1")
    assert x.to(1).device == torch.device("dipu:1")
    assert x.to(torch.float16).device.type == "cpu"
    assert x.to(x.cuda(1)).device == torch.device("dipu:1")
    assert torch.equal(x.to("cuda", non_blocking=True, copy=True).cpu(), x)


def test_cuda_method_and_is_cuda() -> None:
    x = torch.arange(6.0)
    for on_device, index in (
        (x.cuda(), 0),
        (x.cuda(1), 1),
        (x.cuda("cuda:1"), 1),
        (x.cuda(device="cuda:0"), 0),
    ):
        assert on_device.is_cuda
        assert on_device.get_device() == index
        assert torch.equal(on_device.cpu(), x)
    assert not x.is_cuda
    assert x.cuda().untyped_storage().is_cuda
    assert not x.untyped_storage().is_cuda
    assert torch.UntypedStorage(4, device="cuda").device.type == "dipu"
    assert x.untyped_storage().cuda().device.type == "dipu"


def test_modules() -> None:
    reference = torch.nn.Linear(4, 2)
    x = torch.randn(3, 4)
    for module in (
        torch.nn.Linear(4, 2).cuda(),
        torch.nn.Linear(4, 2).to("cuda"),
        torch.nn.Linear(4, 2).to(device="cuda:0", dtype=torch.float32),
        torch.nn.Linear(4, 2, device="cuda"),
        torch.nn.Linear(4, 2, device="meta").to_empty(device="cuda"),
    ):
        module.load_state_dict(reference.state_dict())
        assert {parameter.device for parameter in module.parameters()} == {torch.device("dipu:0")}
        torch.testing.assert_close(module(x.cuda()).cpu(), reference(x))


def test_packed_sequences() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    assert packed.cuda().data.device == torch.device("dipu:0")
    assert packed.to("cuda:1").data.device == torch.device("dipu:1")
    assert packed.cuda().is_cuda


def test_legacy_tensor_types() -> None:
    x = torch.cuda.FloatTensor([1, 2])
    assert x.device == torch.device("dipu:0")
    assert x.tolist() == [1.0, 2.0]
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert torch.cuda.LongTensor(2, 3).dtype == torch.int64
    assert torch.cuda.ByteTensor().numel() == 0
    with pytest.raises(TypeError, match="colour"):
        torch.cuda.FloatTensor(2, colour="red")


def test_type_method() -> None:
    x = torch.arange(3.0)
    assert x.cuda().type() == "torch.cuda.FloatTensor"
    assert x.type() == "torch.FloatTensor"
    doubled = x.type("torch.cuda.DoubleTensor")
    assert (doubled.device.type, doubled.dtype) == ("dipu", torch.float64)
    assert doubled.tolist() == [0.0, 1.0, 2.0]
    assert x.type(torch.cuda.HalfTensor).dtype == torch.float16
    assert x.cuda().type(torch.float16).device.type == "dipu"


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.* is deprecated")
def test_default_tensor_type() -> None:
    try:
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = torch.zeros(2)
        assert (made.device.type, made.dtype) == ("dipu", torch.float64)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.zeros(2).device.type, torch.zeros(2).dtype) == ("cpu", torch.float32)


def test_pinned_memory() -> None:
    x = torch.arange(4.0).pin_memory()
    assert x.is_pinned()
    assert not torch.arange(4.0).is_pinned()
    assert torch.equal(x.to("cuda", non_blocking=True).cpu(), torch.arange(4.0))


def test_no_mode_is_pushed_and_names_stay() -> None:
    assert torch._C._len_torch_function_stack() == 0
    assert torch.zeros.__name__ == "zeros"
    assert torch.zeros.__doc__ == torch._C._VariableFunctions.zeros.__doc__
    assert torch.overrides.resolve_name(torch.Tensor.to) == "torch.Tensor.to"
    assert torch.overrides.resolve_name(torch.zeros) == "torch.zeros"
    # A function mode is given the original of a factory; it must have its name too.
    assert torch.overrides.resolve_name(torch._C._VariableFunctions.zeros) == "torch.zeros"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_scripting_still_knows_the_factories() -> None:
    def add_ones(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3) + torch.zeros_like(x)

    assert torch.jit.script(add_ones)(torch.arange(3.0)).tolist() == [1.0, 2.0, 3.0]


def test_function_modes_see_named_functions() -> None:
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(torch.overrides.resolve_name(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        moved = torch.zeros(2, device="cuda").to("cuda:1")
    assert moved.device == torch.device("dipu:1")
    assert seen[:2] == ["torch.zeros", "torch.Tensor.to"]
