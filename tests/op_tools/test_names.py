"""Names go both ways, and what a hostile capture might name is not found."""

from __future__ import annotations

import functools
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions

from op_tools.names import RefusedName, function_named, name_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (torch.Tensor.add, "torch.Tensor.add"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__"),
        (torch.Tensor.new_zeros, "torch.Tensor.new_zeros"),
        (torch.add, "torch.add"),
        (torch.mm, "torch.mm"),
        (torch.norm, "torch.functional.norm"),
        (torch.rand, "torch.rand"),
        (torch._foreach_add_, "torch._foreach_add_"),
        (F.linear, "torch.nn.functional.linear"),
        (F.scaled_dot_product_attention, "torch.nn.functional.scaled_dot_product_attention"),
        (F.dropout, "torch.nn.functional.dropout"),
        (torch.nn.init.normal_, "torch.nn.init.normal_"),
        (torch.linalg.qr, "torch.linalg.qr"),
        (torch.fft.rfft, "torch.fft.rfft"),
        (torch.special.expit, "torch.special.expit"),
        (torch.Tensor.T.__get__, "torch.Tensor.T.__get__"),
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.aten.native_layer_norm.default, "aten.native_layer_norm.default"),
    ],
)
def test_a_name_leads_back_to_its_function(func, name) -> None:
    assert name_of(func) == name
    assert function_named(name) == func


def test_other_spellings_of_operators() -> None:
    assert function_named("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert function_named("aten::add.Tensor") is torch.ops.aten.add.Tensor
    packet = function_named("aten.add")
    assert torch.equal(packet(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert function_named("torch.norm") is torch.norm
    assert function_named("torch.conv2d") is torch.conv2d


def test_most_of_what_pytorch_lets_override_is_run() -> None:
    functions = {func for found in get_overridable_functions().values() for func in found}
    run = 0
    for func in functions:
        try:
            run += function_named(name_of(func)) == func
        except RefusedName:
            continue
    assert run > 1200


def test_functions_without_an_entry_still_have_a_name() -> None:
    def local() -> None: ...

    class Caller:
        def __call__(self) -> None: ...

    class Unhashable(Caller):
        __hash__ = None  # type: ignore[assignment]

    assert name_of(local) == f"{__name__}.{local.__qualname__}"
    assert name_of(Caller()).endswith("Caller")
    assert name_of(Unhashable()).endswith("Unhashable")
    assert name_of(functools.partial(torch.add, alpha=2)) == "torch.add"
    assert name_of(torch.Tensor.grad.__set__) == "torch.Tensor.grad.__set__"
    assert name_of(torch.Tensor.data.__set__) == "torch.Tensor.data.__set__"
    assert name_of(torch.ops.aten.add) == "aten.add"


REFUSED = [
    # code and processes
    "os.system",
    "posix.system",
    "builtins.eval",
    "builtins.exec",
    "subprocess.Popen",
    "shutil.rmtree",
    "importlib.import_module",
    "torch.os.system",
    "torch.sys.exit",
    "torch.Tensor.__class__",
    "torch.Tensor.add.__class__",
    "torch.Tensor.__init_subclass__",
    "torch.nn.functional.torch.load",
    "torch.utils.cpp_extension.load",
    "torch.utils.cpp_extension.load_inline",
    "torch.hub.load",
    "torch.jit.load",
    "torch.compile",
    "torch.autocast",
    "torch.classes.load_library",
    # files
    "torch.load",
    "torch.save",
    "torch.from_file",
    "aten.from_file",
    "aten.from_file.default",
    "torch.ops.aten.from_file.default",
    "torch.ops.load_library",
    "aten.save",
    "torch.UntypedStorage.from_file",
    # hooks, serialisation, raw memory
    "torch.Tensor.register_hook",
    "torch.Tensor.register_post_accumulate_grad_hook",
    "torch.Tensor.apply_",
    "torch.Tensor.map_",
    "torch.Tensor.__reduce_ex__",
    "torch.Tensor.__setstate__",
    "torch.Tensor.backward",
    "torch.Tensor.set_",
    "torch.Tensor.resize_",
    "torch.Tensor.data_ptr",
    "torch.Tensor.share_memory_",
    "torch.Tensor.untyped_storage",
    "torch.Tensor._cdata.__get__",
    "aten.set_.source_Storage",
    "aten.set_.source_Tensor",
    "aten.resize_.default",
    "aten._resize_output_.default",
    "aten._reshape_alias.default",
    "aten._sparse_coo_tensor_unsafe.default",
    "aten._sparse_csr_tensor_unsafe.default",
    "torch.fbgemm_linear_fp16_weight",
    "aten.fbgemm_pack_gemm_matrix_fp16.default",
    # other namespaces, and names that are none
    "torch.ops.c10d.allreduce_.default",
    "torch.ops.quantized.linear_prepack.default",
    "torch.ops.profiler._record_function_enter.default",
    "torch.distributed.all_reduce",
    "torch._C._nn.linear",
    "torch",
    "torch.",
    "",
    "aten",
    "aten.no_such_operator.default",
    "aten.manual_seed",
    "aten.__class__",
    "aten.add.__call__",
    "aten.add.__init__",
    "../../torch.add",
    "torch.add()",
    "torch.add\n",
    "torch.Tensor.add; import os",
    "x" * 100_000,
]


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name[:40])
def test_refused(name: str) -> None:
    with pytest.raises(RefusedName):
        function_named(name)


@pytest.mark.parametrize("package", ["os", "builtins", "subprocess", "torch", "sys", "op_tools", "posix"])
def test_some_packages_cannot_be_allowed(package: str) -> None:
    for name in (
        "os.system",
        "builtins.eval",
        "torch.load",
        "posix.system",
        "sys.exit",
        "op_tools.names.name_of",
    ):
        with pytest.raises(RefusedName):
            function_named(name, allow=(package,))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "fused_ops_for_test").mkdir()
    (tmp_path / "fused_ops_for_test" / "__init__.py").write_text(
        textwrap.dedent(
            """
            import os
            from os import system
            import torch

            def double(x):
                return x * 2

            class Square(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x * x

            class Widget:
                pass
            """
        )
    )
    (tmp_path / "fused_ops_for_test" / "deep.py").write_text("def triple(x):\n    return x * 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "fused_ops_for_test"
    for name in [name for name in sys.modules if name.startswith("fused_ops_for_test")]:
        del sys.modules[name]


def test_an_allowed_package_is_run_and_not_left(package: str) -> None:
    with pytest.raises(RefusedName, match=f"--allow {package}"):
        function_named(f"{package}.double")
    x = torch.arange(3.0)
    assert torch.equal(function_named(f"{package}.double", allow=(package,))(x), x * 2)
    assert torch.equal(function_named(f"{package}.deep.triple", allow=(package,))(x), x * 3)
    assert torch.equal(function_named(f"{package}.Square.apply", allow=(package,))(x), x * x)
    for name in (
        "os.system",
        "system",
        "torch.load",
        "Widget",
        "no_such",
        "deep",
        "double.__globals__",
        "os",
    ):
        with pytest.raises(RefusedName):
            function_named(f"{package}.{name}", allow=(package,))


def test_operators_that_a_package_registered(package: str) -> None:
    with torch.library._scoped_library("fused_ops_for_test", "DEF") as library:
        library.define("halve(Tensor x) -> Tensor")
        library.impl("halve", lambda x: x / 2, "CompositeExplicitAutograd")
        func = torch.ops.fused_ops_for_test.halve.default
        assert name_of(func) == "fused_ops_for_test.halve.default"
        with pytest.raises(RefusedName):
            function_named(name_of(func))
        assert function_named(name_of(func), allow=(package,)) is func
