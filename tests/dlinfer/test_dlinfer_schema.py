"""Declarations, torch's view of the operators, and the page of documentation agree."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import torch
from torch import Tensor

from dlinfer.commands.table import markdown_page
from dlinfer.conformance.samples import SAMPLES, make
from dlinfer.interface import OPERATORS, Operator
from dlinfer.interface.kernels import Kernels
from dlinfer.interface.registry import OVERLOADS
from dlinfer.ops.calling import derived
from dlinfer.reference import KERNELS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
# What the serving frameworks call.
PROMISED = [
    "add_rms_norm",
    "rms_norm",
    "apply_rotary_pos_emb",
    "prefill_attention",
    "paged_prefill_attention",
    "paged_decode_attention",
    "incre_flash_attention",
    "fill_kv_cache",
    "fill_contiguous_kvcache",
    "get_cache_len",
    "fused_attention",
    "silu_and_mul",
    "linear",
    "weight_quant_matmul",
    "dynamic_quant",
    "linear_w8a8",
    "rms_norm_w8a8",
    "add_rms_norm_w8a8",
    "moe_gating_topk_softmax",
    "fused_moe",
    "transdata",
    "apply_rotary_pos_emb_interleaved",
    "lightning_indexer",
    "sparse_flash_attention",
    "fused_moe_w8a8",
    "linear_w8a8_static",
]


def arguments_of(name: str, number: int = 0) -> list[Any]:
    operator = OPERATORS[name]
    return list(operator.bound((), make(name, number).arguments).values())


def test_every_promised_operator_is_there() -> None:
    from dlinfer import ops

    assert set(OPERATORS) == set(PROMISED) == set(SAMPLES) == set(KERNELS)
    assert set(PROMISED) <= set(ops.__all__)


@pytest.mark.parametrize("name", PROMISED)
def test_every_argument_of_the_schema_is_explained(name: str) -> None:
    operator = OPERATORS[name]
    assert list(operator.shapes) and set(operator.shapes) == set(operator.arguments)
    assert set(operator.indices) <= set(operator.arguments)


def _named_by(function: Callable[..., Any]) -> set[str]:
    """The arguments that a function needs, those of its groups too."""
    hints = get_type_hints(function)
    fields = [getattr(hints[name], "_fields", (name,)) for name in inspect.signature(function).parameters]
    return {name for group in fields for name in group}


@pytest.mark.parametrize("name", PROMISED)
def test_functions_of_a_declaration_name_what_they_need_and_leave_defaults_to_the_schema(name: str) -> None:
    operator = OPERATORS[name]
    for function in (operator.check, operator.fake, operator.values):
        parameters = inspect.signature(function).parameters.values()
        assert all(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    assert bool(operator.indices) == bool(_named_by(operator.values))
    assert set(operator.indices) <= _named_by(operator.values)


def _declared(check: Callable[..., None]) -> Operator:
    schema = "(Tensor x, int size, float scale=0.5, Tensor? bias=None) -> Tensor"
    return Operator("sketch", schema, "", {}, "", check, lambda x: x, "exact")


def test_a_declared_function_gets_its_arguments_from_any_call() -> None:
    seen: list[tuple[object, ...]] = []
    operator = _declared(lambda scale, x, bias: seen.append((scale, x, bias)))
    operator.check("x", 3)
    operator.check("x", 3, 0.25)
    operator.check("x", size=3, bias="b")
    operator.check("x", 3, 1.0, "b")
    assert seen == [(0.5, "x", None), (0.25, "x", None), (0.5, "x", "b"), (1.0, "x", "b")]
    assert operator.fake("x", 3) == "x"
    assert operator.values("x", 3) is None


class _Pair(NamedTuple):
    scale: float
    absent: str = "kept"


def test_arguments_that_travel_together_may_be_one_parameter() -> None:
    def check(x: str, pair: _Pair) -> None:
        seen.append((x, pair))

    seen: list[tuple[str, _Pair]] = []
    operator = _declared(check)
    operator.check("x", 3)
    operator.check("x", 3, 0.25)
    operator.check("x", size=3, scale=2.0)
    assert seen == [("x", _Pair(0.5)), ("x", _Pair(0.25)), ("x", _Pair(2.0))]


def test_kernels_are_registered_once_and_for_operators_that_exist() -> None:
    kernel = Kernels()

    @kernel("rms_norm")
    def without_epsilon(weight: Tensor, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        return weight, hidden_states

    assert kernel["rms_norm"]("hidden", "weight", 1e-6) == ("weight", "hidden")
    assert without_epsilon("w", "h") == ("w", "h")  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(ValueError, match=r"rms_norm has a kernel already: .*without_epsilon"):
        kernel("rms_norm")
    with pytest.raises(ValueError, match=r"no operator .rms_nrom.\. Did you mean .rms_norm."):
        kernel("rms_nrom")


def test_a_derived_call_form_must_say_what_the_schema_says() -> None:
    def rms_norm(hidden_states: Tensor, weight: Tensor, eps: float) -> None: ...

    def silu_and_mul(input_tensor: Tensor, dim: int = 0) -> None: ...

    for wrong in (rms_norm, silu_and_mul):
        with pytest.raises(TypeError, match=f"{wrong.__name__}.* is not derived from its schema"):
            derived(wrong)


def test_a_declared_function_cannot_ask_for_what_the_schema_has_not() -> None:
    with pytest.raises(TypeError, match="takes width: not in the schema of sketch"):
        _declared(lambda x, width: None)


@pytest.mark.parametrize("name", PROMISED)
def test_opcheck(name: str) -> None:
    """torch's own checks: the schema tells the truth about writes and aliases, fakes about shapes, graphs about both."""
    for number in (0, 7):
        torch.library.opcheck(OVERLOADS[name], tuple(arguments_of(name, number)))


@pytest.mark.parametrize("name", PROMISED)
def test_fakes_agree_with_kernels_on_every_tenth_case(name: str) -> None:
    from torch._subclasses import FakeTensorMode

    for number in range(0, SAMPLES[name].count, 10):
        arguments = arguments_of(name, number)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
            promised = OVERLOADS[name](*fakes)
        real = OVERLOADS[name](*arguments)
        one, other = (r if isinstance(r, tuple) else (r,) for r in (promised, real))
        for fake, value in zip(one, other, strict=True):
            if isinstance(value, Tensor):
                assert fake.shape == value.shape and fake.dtype == value.dtype
            else:
                assert fake == value


def test_float64_stays_float64() -> None:
    arguments = [
        a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments_of("rms_norm")
    ]
    assert OVERLOADS["rms_norm"](*arguments).dtype == torch.float64


def test_the_page_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/dlinfer-operators.md").read_text(encoding="utf-8")
    assert page == markdown_page(), "run: dlinfer table --markdown > docs/dlinfer-operators.md"
    assert all(f"### {name}\n" in page for name in OPERATORS)


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, dlinfer; assert 'torch' not in sys.modules; import dlinfer.ops; assert 'typer' not in sys.modules"
    environment = {"PYTHONPATH": str(ROOT / "src"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_names_that_lmdeploy_imports() -> None:
    from dlinfer.utils.type_annotation import MoECommType, MoeMetadata

    metadata = MoeMetadata(moe_comm_type=MoECommType.ALLGATHER)
    assert (
        metadata.ep_size == 1 and metadata.router_n_groups == -1 and metadata.expert_ids_per_ep_rank is None
    )
