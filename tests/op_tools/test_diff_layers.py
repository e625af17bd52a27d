"""One iteration on two devices, module by module: what is recorded, what is blamed and what is not."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_llama import LENGTH, VOCABULARY, Llama
from small_trainings import TRAININGS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dicore.settings import SettingError
from op_tools.diff.layer_growth import Measured, grown, measured_growth
from op_tools.diff.layer_values import (
    Difference,
    LayerCall,
    LayerValues,
    difference,
    read_layers,
    read_values,
)
from op_tools.diff.layers import LayerReport, compare_layers, print_layers
from op_tools.runs import BadInput, open_run
from op_tools.tools.layers import OpLayers

pytestmark = pytest.mark.device

# In forward the first block has the first wrong call, in backward the last one.
BLAMED = {
    "mm": ("wrong", "blocks.0.attention.query", "output"),
    "embedding": ("wrong", "tokens", "output"),
    "silu": ("suspect", "blocks.0", "input of down"),
    "_softmax": ("suspect", "blocks.0.attention", "input of out"),
    "rsqrt": ("suspect", "blocks.0.norm_attention", "output"),
    "silu_backward": ("suspect", "blocks.1", "grad_output of gate"),
    "embedding_dense_backward": ("wrong", "tokens", "grad_weight:weight"),
    "_log_softmax_backward_data": ("suspect", "(outside)", "grad_output of Llama"),
}
RECORD_WRONG = """
import sys
sys.path.insert(0, {folder!r})
import torch, torch_dipu
import torch.distributed as dist
from small_llama import train
from wrong_kernels import install
from op_tools.tools.layers import OpLayers

torch.set_num_threads(1)
torch.dipu.configure(numerics="reordered")
for name in sys.argv[1:]:
    library = install(name)
    with OpLayers(results=name):
        train("dipu", 1)
    library._destroy()
with OpLayers(results="right"):
    train("dipu", 1)

dist.init_process_group("gloo", init_method="file://" + sys.path[-1] + "/group", rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Tanh()))
with OpLayers(results="parallel"):
    torch.nn.parallel.DistributedDataParallel(model)(torch.ones(2, 3)).sum().backward()
"""


@pytest.fixture
def numerics() -> Iterator[Callable[[str], None]]:
    """Switch the order of summation on the device; the test leaves it as it was."""
    yield lambda name: torch.dipu.configure(numerics=name)
    torch.dipu.configure(numerics="plain")


def iteration(device: str = "dipu", seed: int = 0, data: int = 0) -> None:
    """One step of the small llama."""
    torch.manual_seed(seed)
    model = Llama().to(device)
    tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(data))
    tokens = tokens.to(device)
    logits = model(tokens[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def record(results: str, run: Callable[[], Any], **settings: Any) -> str:
    with OpLayers(results=results, **settings):
        run()
    return results


def compare(a: str, b: str) -> LayerReport:
    return compare_layers(open_run(a), open_run(b))


def recorded(results: str) -> dict[str, LayerValues]:
    return {call.label: read_values(call) for call in read_layers(open_run(results)).calls.values()}


# -- what is recorded -----------------------------------------------------------------------------------------


def test_a_recorded_training_is_bit_identical(capfd: pytest.CaptureFixture[str]) -> None:
    expected = TRAININGS["transformer"].run(3)
    with OpLayers(steps="all") as tool:
        watched = TRAININGS["transformer"].run(3)
    assert watched.differences(expected) == []
    assert tool.recorded == 3 * 21
    assert "could not handle" not in capfd.readouterr().err


class Pair(nn.Module):
    """One layer used twice, another inside a block that may be checkpointed; the scale is a keyword."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(inplace=True))
        self.reentrant = reentrant

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        x = self.twice(x)
        kept = self.reentrant is None
        y = self.block(x) if kept else checkpoint(self.block, x, use_reentrant=self.reentrant)
        return {"y": (self.twice(y) + x) * scale}


def run_pair(reentrant: bool | None = None) -> tuple[Pair, Tensor]:
    torch.manual_seed(0)
    model, x = Pair(reentrant), torch.randn(3, 4, requires_grad=True)
    model(x, scale=torch.full((1,), 2.0))["y"].square().sum().backward()
    return model, x


def test_values_are_those_of_the_call_and_gradients_its_own_share() -> None:
    with OpLayers(results="A"):
        model, x = run_pair()
    found = recorded("A")
    assert list(found) == ["Pair", "twice", "block", "block.0", "block.1", "twice (call 2)"]
    first, second, inner = found["twice"], found["twice (call 2)"], found["block.0"]
    assert torch.equal(first.inputs[0], x) and torch.equal(first.weights["weight"], model.twice.weight)
    assert torch.equal(first.outputs[0], model.twice(x)) and torch.equal(inner.inputs[0], first.outputs[0])
    assert [tuple(value.shape) for value in found["Pair"].inputs] == [(3, 4), (1,)]
    # In place: what went in is from before, what came out from after.
    before, after = found["block.1"].inputs[0], found["block.1"].outputs[0]
    assert bool((before < 0).any()) and torch.equal(after, before.relu())
    # The layer that is used twice gets its gradient in two shares.
    shares = first.grad_weights["weight"] + second.grad_weights["weight"]
    torch.testing.assert_close(shares, model.twice.weight.grad)
    assert torch.equal(inner.grad_weights["weight"], model.block[0].weight.grad)
    assert torch.equal(found["Pair"].grad_inputs[0], x.grad)
    torch.testing.assert_close(second.grad_inputs[0], second.grad_outputs[0] @ model.twice.weight)
    assert torch.equal(found["block"].grad_outputs[0], second.grad_inputs[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_recorded_once(reentrant: bool) -> None:
    record("A", run_pair)
    with OpLayers(results="B") as tool:
        run_pair(reentrant)
    assert tool.recorded == 6
    report = compare("A", "B")
    assert report.exit_code == 0
    assert set(report.counts()) == {"same"}, report.counts()
    assert print_layers(report).startswith(
        "no module is wrong or suspect: the two runs are the same bit for bit"
    )
    assert isinstance(recorded("B")["block.0"].grad_weights["weight"], Tensor)


def test_a_compiled_module_is_one_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(Pair(), backend="eager", fullgraph=True))
    x, scale = torch.ones(2, 4), torch.ones(1)
    expected = model[1](model[0](x), scale=scale)["y"]

    def run() -> Tensor:
        y = model[1](model[0](x), scale=scale)["y"]
        y.sum().backward()
        return y

    with OpLayers(results="A"), pytest.warns(UserWarning, match="global hooks"):
        assert torch.equal(run(), expected)
    found = recorded("A")
    assert list(found) == ["Linear", "Pair"]
    assert torch.equal(found["Pair"].outputs[0], expected)


def test_a_module_that_raises_does_not_disturb_the_others() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(5, 1), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                self.bad(x)
            return self.good(x)

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            nn.Sequential(nn.Tanh(), Stops())(torch.ones(1))
        Tries()(torch.ones(3, 4))

    record("A", run)
    assert list(recorded("A"))[-2:] == ["Tries", "good"]


def test_settings_choose_modules_steps_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    record("A", run, list="0|1", disable_list="1", steps="1-2", store="files")
    calls = read_layers(open_run("A")).calls
    assert [(key[1], call.name) for key, call in calls.items()] == [(1, "0"), (2, "0")]
    assert not list(Path("A").rglob("blobs"))
    monkeypatch.setenv("OP_LAYERS_STEPS", "2")
    record("B", run)
    assert {key[1] for key in read_layers(open_run("B")).calls} == {2}
    with pytest.raises(SettingError, match="expected 5, 0,3, 10-20 or all"):
        OpLayers(steps="first")
    with pytest.raises(SettingError, match="expected files or blobs"):
        OpLayers(store="disk")


# -- what is blamed -------------------------------------------------------------------------------------------


def test_other_orders_of_summation_are_nobodys_fault(numerics: Callable[[str], None]) -> None:
    record("A", iteration)
    numerics("reordered")
    record("B", iteration)
    report = compare("A", "B")
    assert (report.exit_code, report.compared, report.first) == (0, 26, None)
    assert set(report.counts()) == {"same", "rounding"}
    assert report.counts()["rounding"] > 50
    lines = print_layers(report).splitlines()
    assert lines[0].startswith("no module is wrong or suspect")
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", ["transformer", "convolutions", "lstm"])
@pytest.mark.parametrize("kind", ["bfloat16", "autocast"])
def test_low_precision_is_nobodys_fault(name: str, kind: str, numerics: Callable[[str], None]) -> None:
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    for results in ("plain", "reordered"):
        numerics(results)
        record(results, lambda: TRAININGS[name].run(1, kind == "autocast", dtype=dtype))
    report = compare("plain", "reordered")
    assert report.exit_code == 0, print_layers(report)
    assert report.counts()["rounding"] > 3


def test_wrong_kernels_are_found_in_the_module_that_calls_them(run_python: Callable[..., str]) -> None:
    folder = str(Path(__file__).resolve().parent)
    script = RECORD_WRONG.format(folder=folder).replace("sys.path[-1]", repr(os.getcwd()))
    run_python(script, *BLAMED)
    record("plain", iteration_of_train)
    assert compare("plain", "right").exit_code == 0  # the wrong kernels were taken out again
    for name, expected in BLAMED.items():
        report = compare("plain", name)
        first = report.first
        assert first is not None, name
        assert (first.judgement, first.module, first.part) == expected
        assert first.side == ("B" if first.judgement == "wrong" else "")
        assert report.exit_code == 1
        lines = print_layers(report).splitlines()
        assert expected[1].strip("()") in lines[0] and expected[2] in lines[0]
        assert max(len(line) for line in lines if line.startswith(("|", "+"))) <= 100
        if name == "silu":
            assert "return x + self.down(F.silu(self.gate(y)) * self.up(y))" in lines[1]
        json.dumps(report.as_dict(), allow_nan=False)
    assert compare("mm", "plain").first.side == "A"  # type: ignore[union-attr]
    # Two runs that agree may both be wrong.
    both = compare("embedding", "embedding").first
    assert both is not None and (both.module, both.side) == ("tokens", "both")
    assert list(recorded("parallel")) == ["Sequential", "0", "1", "1.0"]


def iteration_of_train() -> None:
    from small_llama import train

    train("dipu", 1)


def test_other_weights_or_other_data_are_said_first() -> None:
    record("A", iteration)
    record("seed", lambda: iteration(seed=1))
    record("data", lambda: iteration(data=1))
    weights = compare("A", "seed")
    assert weights.exit_code == 1
    assert print_layers(weights).startswith(
        "weights differ at the start: not the same checkpoint or seed. tokens (Embedding) weight:weight is the first"
    )
    assert set(weights.counts()) == {"differs"}
    data = compare("A", "data")
    assert print_layers(data).startswith("inputs differ at the start: not the same data")
    assert [finding.module for finding in data.findings] == ["Llama"]


def test_dropout_is_chance_and_a_missing_module_is_listed() -> None:
    def run(seed: int, extra: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64))
        if extra:
            model.append(nn.Identity())
        torch.manual_seed(seed)
        model(torch.linspace(-1, 1, 512).view(8, 64)).square().sum().backward()

    record("A", lambda: run(1, False))
    record("B", lambda: run(2, True))
    report = compare("A", "B")
    assert (report.exit_code, report.only_in_a, report.only_in_b) == (0, [], ["3"])
    assert any("dropout is on" in note for note in report.notes)
    assert report.counts()["random"] == 1
    assert "1 only in B: 3" in print_layers(report)


# -- bad input ------------------------------------------------------------------------------------------------


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    record("A", lambda: nn.Linear(2, 2)(torch.ones(2)))
    record("other", lambda: nn.Sequential(nn.Bilinear(2, 2, 2), nn.Tanh())[1](torch.ones(2)))
    record("both", lambda: [nn.Tanh()(torch.ones(2)), nn.Softplus()(torch.ones(2))])
    with pytest.raises(
        BadInput, match="have no module in common: recordings of two different models"
    ) as error:
        compare("A", "both")
    assert error.value.code == 5
    import op_tools

    with op_tools.OpObserve(results="observed"):
        torch.ones(2, device="dipu") + 1
    with pytest.raises(
        BadInput, match=r"observed has no recording of layers\. It has results of: observe"
    ) as error:
        compare("A", "observed")
    assert error.value.code == 5
    with pytest.raises(BadInput, match="does not exist"):
        compare("A", "nowhere")
    file = next(Path("A").rglob("output.pth"))
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    with pytest.raises(BadInput, match=r"output\.pth"):
        compare("A", "A")
    file.unlink()
    with pytest.raises(BadInput, match="no module call is complete on disk"):
        compare("A", "A")


def test_recordings_of_different_steps_are_said() -> None:
    def run() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            model(torch.ones(2)).sum().backward()
            optimizer.step()

    record("A", run)
    record("B", run, steps=1)
    with pytest.raises(BadInput, match=r"recorded the steps \[0\], B the steps \[1\]: no step is in both"):
        compare("A", "B")


# -- the arithmetic -------------------------------------------------------------------------------------------


def test_difference_measures_what_it_says() -> None:
    found = difference(torch.tensor([3.0, 4.0, math.inf]), torch.tensor([3.0, 4.5, math.inf]))
    assert found is not None
    assert found.max_abs_diff == 0.5
    assert found.rel_rms == pytest.approx(0.5 / math.hypot(3.0, 4.5))
    assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3.0, 4.5)))
    assert found.epsilon == torch.finfo(torch.float32).eps
    mixed = difference(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))
    assert mixed is not None and mixed.is_same and mixed.epsilon == torch.finfo(torch.bfloat16).eps
    broken = difference(torch.tensor([1.0, math.nan]), torch.ones(2))
    assert broken is not None and broken.rel_rms == math.inf and "1 elements are NaN" in broken.note
    shaped = difference(torch.ones(2), torch.ones(3))
    assert shaped is not None and shaped.note == "shapes differ: [2] and [3]"
    assert difference(None, None) is None


def layer(name: str, went_in: float, came_out: float, inside: tuple[Measured, ...] = ()) -> Measured:
    def off(by: float) -> Difference:
        return Difference(by, by, 1.0, 0.0, 1.0, 0.0, 1.0, 1e-7)

    call = LayerCall((0, 0, "Model", name, 0), 0, 0, name, "Layer", Path(), "")
    return Measured(call, {"input": off(went_in), "output": off(came_out)}, inside=list(inside))


def test_rounding_that_adds_up_over_many_layers_is_not_suspect() -> None:
    layers = [layer(f"{n}", 1e-7 * 1.5**n, 1e-7 * 1.5 ** (n + 1)) for n in range(30)]
    model = layer("", 0.0, layers[-1].worst("output"), tuple(layers))
    assert model.worst("output") > 1e-2
    assert grown(measured_growth([model])) == []


def test_what_stands_between_two_layers_is_blamed_on_the_module_around_them() -> None:
    first, second = layer("m.a", 1e-7, 2e-7), layer("m.b", 1e-3, 2e-3)
    model = layer("m", 1e-7, 2e-3, (first, second))
    found = grown(measured_growth([model]))
    assert [(growth.owner, growth.at, growth.part) for growth in found] == [(model, second, "input")]
    # Where some module computes with fewer bits, all may.
    assert grown(measured_growth([model], floor=2.0**-10)) == []
