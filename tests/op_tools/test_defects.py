"""Fourteen defects seen in the operator tools that existed before, one test each: none of them is ours."""

from __future__ import annotations

import csv
import io
import os
import pickle
import signal
import threading
import zipfile

import pytest
import torch
import torch.nn.functional as F
from forked_python import run_python

import op_tools
import torch_dipu  # noqa: F401  registers the device
from dicore.settings import SettingError
from op_tools.engine import ENGINE

pytestmark = pytest.mark.device
DEVICE = "dipu"


@pytest.fixture(autouse=True)
def results_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "results"))
    yield
    assert ENGINE.tools == ()


def rows(tmp_path, folder: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for path in sorted((tmp_path / "results" / folder).glob("*.csv")):
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


def on_device(*shape: int, **kwargs) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(0), **kwargs).to(DEVICE)


def adamw_losses(steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    x, losses = on_device(5, 6), []
    for _ in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "tool",
    [op_tools.OpFallback, lambda: op_tools.OpDtypeCast(dict="torch.float32->torch.float64")],
    ids=["fallback", "cast"],
)
def test_01_in_place_out_view_and_setitem_writes_are_kept(tool):
    expected = adamw_losses()
    with tool():
        assert adamw_losses() == pytest.approx(expected, rel=1e-5)
        x = torch.zeros(2, 3, device=DEVICE)
        x.add_(1)
        x[0, 1] = 7.0
        x[1].mul_(3)
        x.view(-1)[5:].fill_(9.0)
        out = torch.empty(0, device=DEVICE)
        torch.add(x, x, out=out)
        y = x.t()
        y += 1
    assert expected[-1] < expected[0]
    assert x.cpu().tolist() == [[2.0, 8.0, 2.0], [4.0, 4.0, 10.0]]
    assert out.cpu().tolist() == [[2.0, 14.0, 2.0], [6.0, 6.0, 18.0]]


def test_02_fallback_keeps_dtype_graph_and_named_tuples():
    x = on_device(4, 5).half().requires_grad_()
    bare = torch.special.i0e(x.float()).half()
    with op_tools.OpFallback():
        y = F.gelu(x)
        z = torch.special.i0e(x)
        values = x.sort(dim=1)
        top = torch.topk(x, 2)
    assert y.dtype == torch.float16 and z.dtype == torch.float16 and y.requires_grad and z.requires_grad
    assert type(values) is torch.return_types.sort and type(top) is torch.return_types.topk
    torch.testing.assert_close(values.values, x.sort(dim=1).values, rtol=0, atol=0)
    torch.testing.assert_close(z, bare, rtol=5e-3, atol=1e-3)
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float16 and x.grad.abs().sum() > 0


def test_03_autocompare_leaves_the_random_states_alone():
    def draw() -> tuple[list[float], list[float], list[float]]:
        torch.manual_seed(5)
        x = torch.ones(200, device=DEVICE)
        dropped = F.dropout(x, 0.4)
        noise = torch.randn(5, device=DEVICE)
        return dropped.cpu().tolist(), noise.cpu().tolist(), torch.rand(5).tolist()

    expected = draw()
    with op_tools.OpAutoCompare() as compare:
        assert draw() == expected
    assert compare.counts.get("fail", 0) == 0 and sum(compare.counts.values()) > 0


def test_04_special_returns_and_special_tensors_do_not_disturb(capfd):
    x = on_device(6, 4).requires_grad_()
    meta = torch.empty(3, device="meta")
    sparse = torch.eye(4).to_sparse().to(DEVICE) if _has_sparse() else torch.eye(4).to_sparse()
    for make in (
        op_tools.OpAutoCompare,
        op_tools.OpCapture,
        op_tools.OpObserve,
        op_tools.OpTimeMeasure,
        op_tools.OpOverflowCheck,
    ):
        x.grad = None
        with make():
            parts = [*x.chunk(3), *x.split(2), *x.unbind(1), *torch.var_mean(x, dim=0)]
            sum(part.sum() for part in parts).backward()
            out = torch.empty(6, 4, device=DEVICE)
            torch.exp(x.detach(), out=out)
            assert (meta + 1).shape == (3,)
            assert torch.sparse.sum(sparse.cpu()).item() == 4.0
            small = x.detach().to(torch.float8_e4m3fn)
            assert small.to(torch.float32).shape == (6, 4)
            assert torch.empty(0, 3, device=DEVICE).sum().item() == 0.0
        assert x.grad is not None
        torch.testing.assert_close(out, x.detach().exp())
    assert "could not handle" not in capfd.readouterr().err


def _has_sparse() -> bool:
    try:
        torch.eye(2).to_sparse().to(DEVICE)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def test_04b_an_operator_that_only_the_device_has_runs(tmp_path):
    library = torch.library.Library("only_on_device", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "PrivateUse1")
    x = on_device(3)
    for make in (op_tools.OpAutoCompare, op_tools.OpFallback, op_tools.OpCapture):
        with make():
            assert torch.equal(torch.ops.only_on_device.twice(x).cpu(), (x + x).cpu())
    skipped = [row for row in rows(tmp_path, "op_autocompare_result") if row["verdict"] == "skipped"]
    assert any("twice" in row["name"] for row in skipped)


@pytest.mark.parametrize(
    "make", [op_tools.OpAutoCompare, op_tools.OpFallback, op_tools.OpDtypeCast, op_tools.OpTimeMeasure]
)
def test_05_the_users_exception_comes_out_unchanged_and_once(make):
    a, b = on_device(2, 3), on_device(4, 5)
    with pytest.raises(RuntimeError) as bare:
        torch.mm(a, b)
    with make():
        with pytest.raises(RuntimeError) as watched:
            torch.mm(a, b)
        assert torch.mm(a, a.t()).shape == (2, 2)  # later calls are fine
        with pytest.raises(TypeError):
            torch.mm(a)
    assert type(watched.value) is type(bare.value)
    assert str(watched.value) == str(bare.value)


def _wrong_kernel(name: str, wrong):
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, wrong, "PrivateUse1")
    return library


def test_06_a_wrong_backward_kernel_is_found(tmp_path):
    def wrong(grad_output, output, dim, input_dtype):
        return grad_output - output.exp() * grad_output.sum(dim, keepdim=True) * 1.01

    library = _wrong_kernel("_log_softmax_backward_data", wrong)
    try:
        x = on_device(8, 10).requires_grad_()
        target = torch.zeros(8, dtype=torch.long, device=DEVICE)
        with op_tools.OpAutoCompare() as compare:
            F.cross_entropy(x, target).backward()
    finally:
        library._destroy()
    failed = [row for row in rows(tmp_path, "op_autocompare_result") if row["verdict"] == "fail"]
    assert compare.counts["fail"] >= 1
    inside = [row for row in failed if row["name"].startswith("aten._log_softmax_backward_data")]
    assert inside and inside[0]["forward_name"] == "torch.nn.functional.cross_entropy"
    assert "F.cross_entropy(x, target).backward()" in inside[0]["call_site"]
    assert any(row["name"].startswith("torch.nn.functional.cross_entropy grad") for row in failed)


def test_06b_custom_backward_and_checkpoint_recomputation_are_seen(tmp_path):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return torch.mul(grad, 2)

    x = on_device(4, 4).requires_grad_()
    with op_tools.OpObserve():
        Twice.apply(x).sum().backward()
        torch.utils.checkpoint.checkpoint(
            lambda t: torch.tanh(torch.sin(t)), x, use_reentrant=False
        ).sum().backward()
    seen = [(row["name"], row["phase"]) for row in rows(tmp_path, "op_observe_result")]
    assert ("torch.mul", "backward") in seen
    assert ("torch.sin", "forward") in seen and ("torch.sin", "backward") in seen


def test_07_keyword_calls_and_user_threads_are_seen(tmp_path):
    x = on_device(3)
    go = threading.Barrier(2)

    def work(function) -> None:
        go.wait()
        for _ in range(20):
            function(input=x)

    with op_tools.OpObserve():
        torch.neg(input=x)
        threads = [threading.Thread(target=work, args=(f,)) for f in (torch.abs, torch.sin)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = [row["name"] for row in rows(tmp_path, "op_observe_result")]
    assert names.count("torch.neg") == 1 and names.count("torch.abs") == 20 and names.count("torch.sin") == 20


def test_08_no_false_alarms_and_no_missed_small_gradients(tmp_path):
    torch.dipu.configure(numerics="reordered")
    try:
        with op_tools.OpAutoCompare() as compare:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                x = on_device(32, 64).to(dtype).requires_grad_()
                weight = on_device(16, 64).to(dtype).requires_grad_()
                F.linear(x, weight).sum().backward()
                F.softmax(x, -1)
                F.dropout(x, 0.3)
            torch.tensor([0, 1], dtype=torch.uint8, device=DEVICE).sub(
                torch.ones(2, dtype=torch.uint8, device=DEVICE)
            )
    finally:
        torch.dipu.configure(numerics="plain")
    assert compare.counts.get("fail", 0) == 0
    library = _wrong_kernel("silu_backward", lambda grad, x: torch.zeros_like(x))
    try:
        x = on_device(16, 16).to(torch.bfloat16).requires_grad_()
        with op_tools.OpAutoCompare() as compare:
            (F.silu(x) * 1e-5).sum().backward()
    finally:
        library._destroy()
    assert compare.counts["fail"] >= 1


def test_09_tolerance_variables_apply_and_lists_are_trimmed(tmp_path, monkeypatch):
    monkeypatch.setenv("EXP_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "0.25,0.5")
    monkeypatch.setenv("OP_AUTOCOMPARE_LIST", " torch.sin , torch.exp")
    with op_tools.OpAutoCompare():
        torch.exp(on_device(3))
        torch.cos(on_device(3))
    [row] = rows(tmp_path, "op_autocompare_result")
    assert row["name"].startswith("torch.exp") and (float(row["atol"]), float(row["rtol"])) == (0.25, 0.5)
    monkeypatch.setenv("OP_AUTOCOMPARE_LIST", "*add*")
    with pytest.raises(SettingError, match=r"OP_AUTOCOMPARE_LIST.*'\*add\*'.*\.\*add\.\*"):
        op_tools.OpAutoCompare().start()


def test_10_features_keep_self_survive_two_calls_take_objects_and_come_off(tmp_path):
    feature = op_tools.apply_feature(torch.Tensor.mul, "autocompare", lambda a, b: a.dim() == 2)
    x = on_device(3, 3).requires_grad_()
    y, z = x.mul(x), x.mul(x)  # two calls before backward
    (y.sum() + z.sum()).backward()
    torch.ones(3, device=DEVICE).mul(2.0)  # the condition does not hold
    assert feature.tool.counts["same"] >= 4
    torch.testing.assert_close(x.grad, 4 * x.detach())
    feature.remove()
    counts = dict(feature.tool.counts)
    x.detach().mul(x.detach())
    assert feature.tool.counts == counts


def test_11_replay_runs_no_code_and_goes_on_after_a_bad_item(tmp_path):
    with op_tools.OpCapture():
        torch.add(on_device(3), on_device(3))
    root = tmp_path / "results" / "op_capture_results"
    [good] = [path.parent for path in root.rglob("input.pth")]
    proof = tmp_path / "proof"
    evil = root / "evil" / "1" / "1" / "t"
    evil.mkdir(parents=True)

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {proof}",)

    with zipfile.ZipFile(evil / "input.pth", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Evil()))
        archive.writestr("archive/version", "3\n")
    named = root / "os.system" / "1" / "1" / "t"
    named.mkdir(parents=True)
    torch.save({"args": (f"touch {proof}",), "kwargs": {}}, named / "input.pth")
    command = ["-m", "op_tools.run_op_from_data", str(root), "--acc_check"]
    done = run_python(*command, cwd=tmp_path, timeout=120)
    assert not proof.exists()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "refused" in done.stdout.lower()
    assert "torch.add output" in done.stdout  # the good item was run and compared
    assert good.exists()


def test_12_storage_saves_what_is_shown_within_limits_under_its_own_name(tmp_path):
    base = torch.zeros(1024, 1024, device=DEVICE)
    with op_tools.OpCapture():
        torch.add(base[3, :8], 1)
        if (child := os.fork()) == 0:
            try:
                signal.alarm(30)  # a child that hangs must not take the test with it
                torch.mul(base[0, :4], 2)
                ENGINE.tools[0].stop()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        torch.sub(base[1, :4], 2)
    root = tmp_path / "results" / "op_capture_results"
    [saved] = (root / "torch.add").rglob("input.pth")
    assert saved.stat().st_size < 8192
    assert f"/{os.getpid()}/" in str(saved)
    assert torch.load(saved, weights_only=True)["args"][0].shape == (8,)
    assert [path for path in (root / "torch.sub").rglob("input.pth") if f"/{os.getpid()}/" in str(path)]
    assert [path for path in (root / "torch.mul").rglob("input.pth") if f"/{child}/" in str(path)]
    assert not [path for path in root.rglob("*") if path.suffix == ".tmp"]
    for path in root.glob("*.csv"):
        assert path.read_text().count("forward_id,name") == 1
    with op_tools.OpCapture(max_calls_per_signature=2, results=str(tmp_path / "limited")):
        for _ in range(6):
            torch.exp(base[0])
    assert len(list((tmp_path / "limited" / "op_capture_results" / "torch.exp").rglob("input.pth"))) == 2


def test_13_compile_gives_the_same_graphs_with_a_tool():
    graphs: list[int] = []

    def backend(graph, _):
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    def function(x):
        return torch.relu(x).mul(2).sum()

    x = on_device(4)
    torch._dynamo.reset()
    expected = torch.compile(function, backend=backend, fullgraph=True)(x)
    bare = list(graphs)
    for make in (
        op_tools.OpTimeMeasure,
        op_tools.OpAutoCompare,
        op_tools.OpOverflowCheck,
        op_tools.OpCapture,
    ):
        torch._dynamo.reset()
        graphs.clear()
        with make():
            assert torch.equal(torch.compile(function, backend=backend, fullgraph=True)(x), expected)
        assert graphs == bare


def test_14_a_tool_without_its_hooks_is_noticed(tmp_path, monkeypatch):
    """The tests above must not pass with hooks that do nothing: with them, no row is written."""
    output = io.StringIO()
    for hook in ("before", "after"):
        monkeypatch.setattr(op_tools.OpObserve, hook, lambda *_: None)
    with op_tools.OpObserve():
        torch.neg(on_device(2))
    assert rows(tmp_path, "op_observe_result") == [] and output.getvalue() == ""
    monkeypatch.undo()
    with op_tools.OpObserve(results=str(tmp_path / "results")):
        torch.neg(on_device(2))
    assert [row["name"] for row in rows(tmp_path, "op_observe_result")] == ["torch.neg"]
