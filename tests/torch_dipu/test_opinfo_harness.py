"""The sweep is only worth something if it finds what is wrong: operators with planted faults must be caught.

A planted operator is two-faced: the sweep calls the CPU's side first and the device's second, so every second
call of `Twofaced` takes the other function. That needs no device.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from torch_dipu.testing.opinfo import Pair, State, Sweep, plan
from torch_dipu.testing.opinfo.cli import app
from torch_dipu.testing.opinfo.judge import Judge, is_factory
from torch_dipu.testing.opinfo.model import Options, Outcome, Selection
from torch_dipu.testing.opinfo.pool import Pool, StartError

# planted operators


class Twofaced:
    """The CPU's side is right, the device's is not."""

    def __init__(self, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
        self.sides = right, wrong
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.sides[(self.calls - 1) % 2](*args, **kwargs)


class HalfGradient(torch.autograd.Function):
    """A right answer with a wrong derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def raises(*_: Any) -> Any:
    raise RuntimeError("refused")


def crash(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(*_: Any) -> Any:
    time.sleep(60)


def off_by_little(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1e-3


def two_samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
    for size in ((), (2, 3)):
        yield SampleInput(torch.ones(size, device=device, dtype=dtype).requires_grad_(requires_grad))


def one_wrong_input(op: Any, device: str, **_: Any) -> Any:
    yield ErrorInput(
        SampleInput(torch.ones(2, device=device)), error_type=RuntimeError, error_regex="refused"
    )


def planted(name: str, right: Callable[..., Any], wrong: Callable[..., Any], **settings: Any) -> OpInfo:
    settings = {
        "dtypes": (torch.float32,),
        "sample_inputs_func": two_samples,
        "supports_autograd": False,
        "supports_out": False,
        **settings,
    }
    return OpInfo(f"planted_{name}", op=Twofaced(right, wrong), **settings)


PLANTED = [
    planted("right", torch.sin, torch.sin),
    planted("values", torch.sin, off_by_little),
    planted("crash", torch.sin, crash),
    planted("after", torch.cos, torch.cos),
]
HANGING = [planted("hang", torch.sin, hang), planted("after", torch.cos, torch.cos)]
ONLY_RIGHT = PLANTED[:1]
ONLY_RAISING = [planted("raising", torch.sin, raises)]


def judged(op: Any, sweep: Sweep = Sweep.FORWARD, dtype: str = "float32", **options: Any) -> Outcome:
    return Judge(op, Pair(sweep, op.full_name, dtype), Options(device="cpu", **options), True).run()


# what the judge must find


def test_right_operator_passes_with_all_samples() -> None:
    outcome = judged(planted("right", torch.sin, torch.sin))
    assert (outcome.state, outcome.samples, outcome.problems) == (State.PASS, 2, [])


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (torch.sin, off_by_little, r"1 of 1 elements differ, max abs 0.001, max rel 0.0011"),
        (torch.sin, lambda x: torch.sin(x).double(), "dtype torch.float64 instead of torch.float32"),
        (torch.sin, lambda x: torch.sin(x)[None], "shape torch.Size([1]) instead of torch.Size([])"),
        (torch.sin, lambda x: torch.sin(x).to("meta"), "is on meta, not on cpu"),
        (torch.sin, lambda x: (torch.sin(x),), "structure"),
        (torch.sin, lambda x: 0.84, "float instead of Tensor"),
        (torch.Tensor.item, lambda x: 2.0, "2.0 instead of 1.0"),
        (lambda x: x.view(-1), lambda x: x.view(-1).clone(), "a new tensor instead of a view"),
        (lambda x: x.clone(), lambda x: x, "a view instead of a new tensor"),
        (torch.Tensor.to_sparse, lambda x: (2 * x).to_sparse(), "_values(): 1 of 1 elements differ"),
        (raises, torch.sin, "accepted, but the CPU raises RuntimeError: refused"),
    ],
)
def test_wrong_answer_fails_and_says_why(right: Any, wrong: Any, said: str) -> None:
    outcome = judged(planted("wrong", right, wrong), max_samples=1)
    assert outcome.state is State.FAIL
    assert said in outcome.message


def test_exception_on_the_device_is_an_error_with_its_traceback() -> None:
    outcome = judged(planted("raising", torch.sin, raises))
    assert (outcome.state, len(outcome.problems)) == (State.ERROR, 2)
    assert outcome.message == "sample 0: RuntimeError: refused"
    assert "in raises" in outcome.problems[0].detail


def test_an_error_outweighs_a_wrong_answer() -> None:
    op = planted("mixed", torch.sin, lambda x: raises() if x.dim() else torch.cos(x))
    outcome = judged(op)
    assert outcome.state is State.ERROR
    assert outcome.message.startswith("sample 1: RuntimeError")


def test_nothing_compared_is_not_a_pass() -> None:
    assert (
        judged(planted("empty", torch.sin, torch.sin, sample_inputs_func=lambda *a, **k: [])).state
        is State.ERROR
    )
    outcome = judged(planted("raising", raises, raises))
    assert outcome.state is State.ERROR
    assert outcome.message == "both sides refuse all 2 samples: RuntimeError: refused"


def test_wrong_gradient_is_found_although_the_result_is_right() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    wrong = planted("gradient", double, HalfGradient.apply, supports_autograd=True)
    right = planted("gradient", double, double, supports_autograd=True)
    assert judged(wrong, Sweep.FORWARD).state is State.PASS
    outcome = judged(wrong, Sweep.GRADIENT)
    assert outcome.state is State.FAIL
    assert "gradient: 1 of 1 elements differ" in outcome.message
    assert judged(right, Sweep.GRADIENT).state is State.PASS


def test_missing_gradient_is_found() -> None:
    op = planted("detached", lambda x: x * 2, lambda x: x.detach() * 2 + 0 * x.sum(), supports_autograd=True)
    assert judged(op, Sweep.GRADIENT).state is State.FAIL
    op = planted("constant", lambda x: x * 2, lambda x: x.detach() * 2, supports_autograd=True)
    assert judged(op, Sweep.GRADIENT).state is State.FAIL


def test_inputs_that_must_be_refused() -> None:
    def other(*_: Any) -> Any:
        raise NotImplementedError("no such operator")

    def op(right: Any, wrong: Any) -> OpInfo:
        return planted("refuse", right, wrong, error_inputs_func=one_wrong_input)

    assert judged(op(raises, raises), Sweep.REFUSE, "-").state is State.PASS
    assert "accepted, but" in judged(op(raises, torch.sin), Sweep.REFUSE, "-").message
    assert judged(op(raises, other), Sweep.REFUSE, "-").state is State.FAIL


def test_same_seed_for_both_sides_and_form_only_without_it() -> None:
    op = planted("random", torch.rand_like, torch.rand_like)
    assert judged(op).state is State.PASS
    other = planted("random", torch.rand_like, lambda x: torch.rand_like(x) / 2)
    assert judged(other).state is State.FAIL
    pair = Pair(Sweep.FORWARD, other.full_name, "float32")
    assert Judge(other, pair, Options(device="cpu"), bit_equal_rng=False).run().state is State.PASS
    shape = planted("random", torch.rand_like, lambda x: torch.rand_like(x)[None])
    assert Judge(shape, pair, Options(device="cpu"), bit_equal_rng=False).run().state is State.FAIL


def test_undefined_values_are_compared_by_form() -> None:
    op = planted("empty", torch.zeros_like, torch.ones_like)
    assert judged(op).state is State.FAIL
    assert judged(op, undefined_values=frozenset({op.full_name})).state is State.PASS


def test_operator_that_writes_to_its_argument_is_compared_from_the_same_start() -> None:
    op = planted("writing", lambda x: x.add_(1).clone(), lambda x: x.add_(1).clone())
    assert judged(op).state is State.PASS


def test_variants_find_a_wrong_in_place_and_a_wrong_out_form() -> None:
    in_place = planted(
        "inplace", torch.sin, torch.sin, inplace_variant=Twofaced(torch.Tensor.sin_, torch.Tensor.cos_)
    )
    assert judged(in_place).state is State.PASS
    assert "in place: 1 of 1" in judged(in_place, variants=True).message

    def wrong_out(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.sin(x) if out is None else torch.cos(x, out=out)

    out = OpInfo(
        "planted_out",
        op=Twofaced3(torch.sin, wrong_out),
        dtypes=(torch.float32,),
        sample_inputs_func=two_samples,
    )
    assert "out=: 1 of 1" in judged(out, variants=True, max_samples=1).message


class Twofaced3(Twofaced):
    """With ``out=`` there are four calls a sample: CPU, device, CPU for the shape of out, CPU, device."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.sides[self.calls == 5](*args, **kwargs)


def test_factories_are_recognised_by_their_schema() -> None:
    assert all(is_factory(name) for name in ("arange", "linspace", "logspace", "eye", "zeros", "randint"))
    assert not any(
        is_factory(name) for name in ("add", "zeros_like", "new_full", "normal", "resize_", "no_such")
    )


# processes


def test_a_crash_costs_one_pair_and_the_sweep_goes_on() -> None:
    with Pool(Options(device="cpu", op_db=f"{__name__}:PLANTED"), jobs=1, timeout=60) as pool:
        pairs = pool.plan(Selection(sweeps=(Sweep.FORWARD,)))
        outcomes = {outcome.pair.op: outcome for outcome in pool.run(pairs)}
    assert [pair.op for pair in pairs] == list(outcomes)
    states = [outcome.state for outcome in outcomes.values()]
    assert states == [State.PASS, State.FAIL, State.ERROR, State.PASS]
    assert outcomes["planted_crash"].message == "crashed (signal 11, SIGSEGV)"
    assert "in crash" in outcomes["planted_crash"].problems[0].detail


def test_a_hang_is_ended() -> None:
    with Pool(Options(device="cpu", op_db=f"{__name__}:HANGING"), jobs=1, timeout=2) as pool:
        outcomes = list(pool.run(pool.plan(Selection(sweeps=(Sweep.FORWARD,)))))
    assert [outcome.state for outcome in outcomes] == [State.ERROR, State.PASS]
    assert outcomes[0].message == "timed out after 2 s"


def test_a_worker_that_cannot_start_is_reported_at_once() -> None:
    options = Options(device="cpu", op_db=f"{__name__}:NO_SUCH_LIST")
    with Pool(options, jobs=2, timeout=60) as pool, pytest.raises(StartError, match="NO_SUCH_LIST"):
        pool.plan(Selection())


# the command


ENTRY = """
[[device.cpu]]
sweep = "forward"
op = "{op}"
kind = "{kind}"
reason = "planted"
match = "{match}"
"""


def run_cli(database: str, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(
        app,
        [
            "--device",
            "cpu",
            "--jobs",
            "1",
            "--json",
            str(tmp_path / "r.json"),
            "--op-db",
            f"{__name__}:{database}",
            *arguments,
        ],
    )
    file = tmp_path / "r.json"
    return result.exit_code, json.loads(file.read_text()) if file.exists() else {}, result.output


def test_exit_code_json_and_summary(tmp_path: Path) -> None:
    code, report, text = run_cli("ONLY_RAISING", tmp_path)
    assert code == 1
    assert report["counts"] == {"forward": {"error": 1}}
    (row,) = report["pairs"]
    assert (row["op"], row["dtype"], row["samples"], row["failing"]) == ("planted_raising", "float32", 2, 2)
    assert "RuntimeError: refused" in text.replace("\n", " ")
    assert max(map(len, text.splitlines())) <= 100


def test_a_listed_failure_does_not_fail_the_sweep(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ENTRY.format(op="planted_raising", kind="refusal", match="refused"))
    code, report, text = run_cli("ONLY_RAISING", tmp_path, "--expected", str(path))
    assert (code, report["counts"]) == (0, {"forward": {"refusal": 1}})
    assert "planted" in text
    code, report, text = run_cli("ONLY_RIGHT", tmp_path, "--expected", str(path))
    assert (code, report["unused_entries"]) == (0, ["forward:planted_raising:*"])


def test_what_was_found_before_the_workers_ran_out_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run = Pool.run

    def short_run(pool: Pool, pairs: list[Pair]) -> Any:
        yield from whole_run(pool, pairs[:1])
        raise StartError("the library is gone")

    monkeypatch.setattr(Pool, "run", short_run)
    code, report, text = run_cli("PLANTED", tmp_path)
    assert (code, report["counts"]) == (3, {"forward": {"pass": 1}})
    assert report["not_run"][0] == "forward:planted_after:float32"
    assert "the library is gone" in text
    assert "3 pairs were not run" in text


def test_nothing_selected_and_bad_usage_have_their_own_exit_codes(tmp_path: Path) -> None:
    assert run_cli("ONLY_RIGHT", tmp_path, "--ops", "no_such_operator")[0] == 5
    assert run_cli("ONLY_RIGHT", tmp_path, "--dtypes", "f33")[0] == 2
    assert run_cli("ONLY_RIGHT", tmp_path, "--ops", "(")[0] == 2


def test_missing_expecttest_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "expecttest", None)
    code, _, text = run_cli("ONLY_RIGHT", tmp_path)
    assert code == 2
    assert "pip install expecttest" in text


# the real database


def test_every_operator_dtype_pair_is_planned() -> None:
    ops = plan.operators(Options.op_db)
    pairs = plan.build(ops.values(), Selection())
    counts = {sweep: sum(pair.sweep is sweep for pair in pairs) for sweep in Sweep}
    assert len(set(pairs)) == len(pairs)
    assert counts[Sweep.FORWARD] == sum(len(op.dtypes) for op in ops.values())
    differentiable = [op for op in ops.values() if op.supports_autograd]
    with_dtype = [
        op for op in differentiable if any(d.is_floating_point or d.is_complex for d in op.backward_dtypes)
    ]
    assert counts[Sweep.GRADIENT] == len(with_dtype)
    if torch.__version__.startswith("2.13."):
        assert (len(ops), counts[Sweep.FORWARD], counts[Sweep.GRADIENT]) == (702, 6121, 543)
    quick = plan.build(ops.values(), Selection(sweeps=(Sweep.FORWARD,), one_dtype=True))
    assert {pair.op for pair in quick} == {pair.op for pair in pairs if pair.sweep is Sweep.FORWARD}
    assert len(quick) == len({pair.op for pair in quick})
