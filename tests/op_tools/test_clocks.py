"""What the compiled part does for measured calls: the same rows as without it, and no Python in backward."""

from __future__ import annotations

import csv
import enum
import functools
import gc
import io
import math
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import op_tools
from op_tools import describe
from op_tools.engine import ENGINE, native, site
from op_tools.results import Results
from op_tools.storage import views

D = "dipu"
pytestmark = pytest.mark.unit


@pytest.fixture
def without_compiled_part(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def switch_off() -> None:
        monkeypatch.setenv("OP_TOOLS_NATIVE", "0")
        monkeypatch.setattr(native, "read_site", None)
        monkeypatch.setattr(native, "csv_lines", None)
        monkeypatch.setattr(describe, "_native_brief", None)
        monkeypatch.setattr(describe, "_native_brief_call", None)

    return switch_off


# -- rows ------------------------------------------------------------------------------------------------------


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=D).requires_grad_()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.mul(2)


def a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(
            model(torch.ones(3, 8, device=D)), torch.zeros(3, dtype=torch.long, device=D)
        ).backward()
        optimizer.step()


def one_input_twice() -> None:
    x = leaf(4, 4)
    torch.add(x @ x, x).sum().backward()


def computed_inputs() -> None:
    x = leaf(4, 4) * 2
    torch.cat([x, x.t(), x], dim=1).sum().backward()


def transposed_gradients() -> None:
    x, w = leaf(3, 4), leaf(5, 4)
    (x @ w.t()).t().square().mean(dim=1).sum().backward()


def in_place_and_views() -> None:
    x = leaf(4, 4) * 1
    x[0].mul_(3)
    x.add_(x.detach())
    view = x.view(16)
    view.relu_()
    x.narrow(0, 1, 2).sum().backward()


def outputs_nobody_uses() -> None:
    first, _, third = leaf(6, 2).split(2)
    values, _ = (first + third).topk(1)
    values.sum().backward()


def several_nodes() -> None:
    x, weight = leaf(3, 1, 4), leaf(12, 4)
    out, _ = F.multi_head_attention_forward(
        x, x, x, 4, 2, weight, leaf(12), None, None, False, 0.0, leaf(4, 4), leaf(4), training=False
    )
    out.sum().backward()


def some_gradients_only() -> None:
    x, weight = leaf(3, 1, 4), leaf(12, 4)
    out, _ = F.multi_head_attention_forward(
        x, x, x, 4, 2, weight, leaf(12), None, None, False, 0.0, leaf(4, 4), leaf(4), training=False
    )
    torch.autograd.grad(out.sum(), weight)


def twice_through_one_graph() -> None:
    x = leaf(3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()


def second_derivatives() -> None:
    x = leaf(3)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    gradient.square().sum().backward()


def recomputed() -> None:
    for reentrant in (False, True):
        checkpoint(lambda x: F.gelu(x * 2).square(), leaf(4), use_reentrant=reentrant).sum().backward()


def functions_of_the_program() -> None:
    Doubled.apply(leaf(3)).exp().sum().backward()


def calls_in_hooks() -> None:
    x = leaf(3)
    y = x.exp()
    y.register_hook(lambda grad: grad.clamp(max=0.5))
    y.sum().backward()


def without_gradients() -> None:
    x = leaf(3)
    with torch.no_grad():
        x.mul(2)
    x.detach().neg()
    (x * 2).relu()  # backward never comes
    with torch.inference_mode():
        x + 1


def sparse_gradients() -> None:
    weight = torch.ones(5, 2).requires_grad_()
    F.embedding(torch.tensor([1, 3]), weight, sparse=True).sum().backward()


def on_the_cpu() -> None:
    x = torch.ones(3).requires_grad_()
    (x.to(D) * 2).cpu().exp().sum().backward()


PROGRAMS = (
    a_model, one_input_twice, computed_inputs, transposed_gradients, in_place_and_views, outputs_nobody_uses, several_nodes,
    some_gradients_only, twice_through_one_graph, second_derivatives, recomputed, functions_of_the_program, calls_in_hooks,
    without_gradients, sparse_gradients, on_the_cpu,
)  # fmt: skip
TIMES = {"forward_elasped", "backward_elasped", "start_us", "backward_start_us"}


def measured(program: Callable[[], None]) -> list[dict[str, Any]]:
    """The rows, with which times there are instead of the times."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        extend = Results.extend
        patch.setattr(Results, "extend", lambda self, rows: (found.extend(rows), extend(self, rows)))
        with op_tools.OpTimeMeasure(device=f"{D},cpu") as tool:
            program()
    assert tool.wants_backward is not native.is_on()
    found.sort(key=lambda row: row["forward_id"])
    rows = []
    for row in found:
        assert row["forward_elasped"] >= 0 and row.get("backward_elasped", 0) >= 0
        times = {key: key in row for key in TIMES}
        rows.append({**row, **times, "forward_id": row["forward_id"] - found[0]["forward_id"], "step": 0})
    return rows


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_are_the_same_with_and_without_the_compiled_part(
    program: Callable[[], None], without_compiled_part: Callable[[], None]
) -> None:
    rows = measured(program)
    assert any(row["backward_elasped"] for row in rows) is (program is not without_gradients)
    without_compiled_part()
    assert not native.is_on()
    assert measured(program) == rows
    assert ENGINE.failures.seen == {}


def test_backward_runs_no_python_of_the_tool(monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    hooks: list[str] = []
    for name in ("backward_begins", "backward", "before", "after"):
        monkeypatch.setattr(
            op_tools.OpTimeMeasure, name, _noting(hooks, getattr(op_tools.OpTimeMeasure, name))
        )
    x = leaf(4)
    with op_tools.OpTimeMeasure():
        y = x.exp().sum()
        del hooks[:]
        y.backward()
        assert hooks == []
    times = {row["name"]: row["backward_elasped"] for row in rows("op_time_measure_result")}
    assert float(times["torch.Tensor.exp"]) > 0 and float(times["torch.Tensor.sum"]) > 0


def _noting(calls: list[str], function: Any) -> Any:
    @functools.wraps(function)
    def noting(*args: Any) -> Any:
        calls.append(function.__name__)
        return function(*args)

    return noting


def test_a_backward_of_several_nodes_lasts_to_the_last_of_them(rows: Any, quiet_device: None) -> None:
    x, weight = leaf(3, 1, 4), leaf(12, 4)
    arguments = (leaf(12), None, None, False, 0.0, leaf(4, 4), leaf(4))
    torch.dipu.synchronize()
    torch.dipu.configure(**{"async": 1, "delay_us": 2000})
    with op_tools.OpTimeMeasure(list="torch.nn.functional.multi_head_attention_forward,torch.Tensor.exp"):
        out, _ = F.multi_head_attention_forward(x, x, x, 4, 2, weight, *arguments, training=False)
        out.exp().sum().backward()
    attention, exp = (float(row["backward_elasped"]) for row in rows("op_time_measure_result"))
    assert 2 <= exp < attention and attention > 6 * 2  # each of its backward kernels takes 2 ms and more


def test_what_waits_for_backward_holds_no_tensor() -> None:
    with op_tools.OpTimeMeasure() as tool:
        x = leaf(3)
        y = x.exp()
        z = F.gelu(y * 2)
        alive = [weakref.ref(tensor) for tensor in (x, y, z)]
        assert sum(clock.waits for _, clock in tool._entries) == 3
        del x, y, z
        assert [one() for one in alive] == [None, None, None]
        assert sum(clock.waits for _, clock in tool._entries) == 3


def test_a_graph_that_outlives_its_tool_is_not_measured() -> None:
    with op_tools.OpTimeMeasure() as tool:
        y = leaf(3).exp()
        ((_, clock),) = [entry for entry in tool._entries if entry[0]["name"] == "torch.Tensor.exp"]
        del tool._entries[:]
    y.sum().backward()
    assert clock.read()[1] is None


def test_a_backward_that_could_not_be_measured_is_reported_and_the_row_is_kept(
    rows: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        waits, began_us, on_host = False, 1.0, False

        def read(self) -> tuple[float, str]:
            return 0.5, "no event is left"

    with op_tools.OpTimeMeasure() as tool:
        leaf(3).exp()
        tool._entries.append(({"name": "torch.exp", "call_site": "here"}, Broken()))
    times = {row["name"]: row["forward_elasped"] for row in rows("op_time_measure_result")}
    assert times["torch.exp"] == "0.5" and float(times["torch.Tensor.exp"]) > 0
    out, err = capfd.readouterr()
    assert (out + err).count("could not handle a call: RuntimeError: no event is left") == 1
    ENGINE.failures.seen.clear()


# -- call sites ------------------------------------------------------------------------------------------------


class Probe(torch.nn.Module):
    def forward(self, found: list[Any]) -> None:
        found += [read() for read in (site.read, functools.partial(site.read, True), site.read)]


def test_call_sites_are_those_that_python_reads() -> None:
    found: list[Any] = []
    models = Probe(), torch.nn.Sequential(Probe()), torch.nn.Sequential(torch.nn.Sequential(Probe()))
    for model in models:
        model(found)
    for compiled, plain, again in zip(*[iter(found)] * 3, strict=True):
        assert compiled is again and compiled is not plain
        assert (compiled.text(), compiled.module_path(), compiled.line) == (
            plain.text(),
            plain.module_path(),
            plain.line,
        )
        assert compiled.text().startswith(f"{__file__}:")
    assert [one.module_path() for one in found[::3]] == ["Probe", "Sequential.0", "Sequential.0.0"]


def test_a_new_module_where_a_freed_one_was_has_its_own_path() -> None:
    for number in range(50):
        found: list[Any] = []
        outer = torch.nn.Module()
        outer.add_module(f"child{number}", Probe())
        outer.forward = lambda found, outer=outer, name=f"child{number}": getattr(outer, name)(found)  # type: ignore[assignment]
        outer(found)
        assert found[0].module_path() == f"Module.child{number}"
        del outer, found
        gc.collect()


# -- texts -----------------------------------------------------------------------------------------------------


class Level(enum.IntEnum):
    LOW = 1


Pair = namedtuple("Pair", "first second")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -7, 2**63, -(2**70), 1.0, 0.1, -0.0, 1e22, 1e-7, math.nan, math.inf, -math.inf, 1j, "text", "x" * 99,
    "é\n", "\udc80", b"bytes", [], (), [1, (2.5, None)], list(range(20)), (1,), {"a": 1, 2: [3]}, {}, torch.Size([2, 3]),
    Pair(1, 2), Level.LOW, torch.float16, torch.device("cpu"), slice(1, None), torch.strided, Ellipsis,
)  # fmt: skip
TENSORS: tuple[Callable[[], Any], ...] = (
    lambda: torch.ones(2, 3, device=D), lambda: torch.ones(2, 3).t(), lambda: torch.ones(()), lambda: torch.ones(0, 3).t(),
    lambda: torch.ones(1, 4)[:, ::2], lambda: torch.ones(3).expand(2, 3), lambda: torch.nn.Parameter(torch.ones(2)),
    lambda: torch.ones(2, dtype=torch.bfloat16), lambda: torch.ones(2, dtype=torch.complex64, device="meta"),
    lambda: torch.ones(2, 2).to_sparse(), lambda: torch.ones(2, 2).to_sparse_csr(),
    lambda: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
)  # fmt: skip


@pytest.mark.parametrize("make", [*(lambda value=value: value for value in VALUES), *TENSORS])
def test_values_are_written_as_python_writes_them(
    make: Callable[[], Any], without_compiled_part: Callable[[], None]
) -> None:
    value = make()
    written = (
        describe.brief(value),
        describe.brief([value, value]),
        describe.brief_call((value, 1), {"k": value}),
    )
    without_compiled_part()
    plain = (
        describe.brief(value),
        describe.brief([value, value]),
        describe.brief_call((value, 1), {"k": value}),
    )
    assert written == plain
    assert describe.brief_call((), {}) == "()"


def test_a_sparse_tensor_is_written_with_its_layout(without_compiled_part: Callable[[], None]) -> None:
    value = torch.ones(2, 3).to_sparse()
    assert describe.brief(value) == "float32[2, 3] torch.sparse_coo@cpu"
    without_compiled_part()
    assert describe.brief(value) == "float32[2, 3] torch.sparse_coo@cpu"


def test_lines_of_a_table_are_as_the_csv_module_writes_them(
    without_compiled_part: Callable[[], None],
) -> None:
    columns = ("a", "b", "c", "none")
    rows = [
        {"a": 1, "b": 'say "x", y', "c": 0.1}, {"c": None, "a": "two\nlines", "other": 1}, {"a": (), "b": [1, "x"], "c": ""},
        {"a": 1e300, "b": math.nan, "c": True}, {"a": "é", "b": " space ", "c": Level.LOW},
    ]  # fmt: skip
    lines = views._csv_lines(rows, columns)
    with_return = views._csv_lines([{"a": "one\rtwo", "b": "x"}], columns)
    assert list(csv.reader(io.StringIO(with_return.decode(), newline=""))) == [["one\rtwo", "x", "", ""]]
    without_compiled_part()
    assert lines == views._csv_lines(rows, columns)
    assert lines.startswith(b'1,"say ""x"", y",0.1,\n"two\nlines",,,\n')
