"""OpAutoCompare: every operator against a reference, while the program trains, forward and backward.

Forward: the call is run again on the CPU (or another device) from copies of its inputs. Backward: the gradients a call
gives to its inputs are recomputed as a whole, and each ATen call inside backward is judged by itself, so that a wrong
kernel is named even when no API call owns it. Random operators are judged by their distribution; a call that has
randomness inside is opened up and judged at ATen level.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch

from dicore.settings import flag, setting
from op_tools.categories import category_of, is_random
from op_tools.comparison import calls, printing
from op_tools.comparison.background import Background
from op_tools.comparison.deferred import Deferred, wait_for_host_results
from op_tools.comparison.earlier_draws import EarlierDraws, States, generator_states
from op_tools.comparison.findings import Findings
from op_tools.engine import ENGINE, Call, native, private
from op_tools.engine.call import device_types, signature_of
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.results import COMPARISON_CSV_COLUMNS, LOCATION_COLUMNS
from op_tools.settings import ToolSettings
from op_tools.storages import storage_id
from op_tools.transfer import Transfer
from op_tools.trees import flat_results, tensors_of
from op_tools.verdict import NoiseCache, Verdict, judge_all, tolerance_for
from op_tools.verdict.distribution import judge_random, knows_distribution


@dataclasses.dataclass(frozen=True)
class AutoCompareSettings(ToolSettings):
    """Settings of OpAutoCompare."""

    list: str = setting(".*", "OP_AUTOCOMPARE_LIST", str, "operators to compare")
    disable_list: str = setting("", "OP_AUTOCOMPARE_DISABLE_LIST", str, "operators to leave out")
    mode: str = setting(
        "every", "OP_AUTOCOMPARE_MODE", calls.mode, "which calls: `every`, `sampled` or `changed`"
    )
    rate: float = setting(0.005, "OP_AUTOCOMPARE_RATE", float, "share of the calls that a sample compares")
    refresh: int = setting(
        500, "OP_AUTOCOMPARE_REFRESH", int, "steps after which a sample compares a signature again"
    )
    reference: str = setting("cpu", "OP_AUTOCOMPARE_REFERENCE", str, "device that computes the reference")
    backward: bool = setting(
        True, "OP_AUTOCOMPARE_BACKWARD", flag, "compare gradients, and what runs in backward"
    )
    save_failures: int = setting(
        20,
        "OP_AUTOCOMPARE_SAVE_FAILURES",
        int,
        "failing calls whose tensors are saved for replay; as many with a label",
    )


# Nothing is computed in these, or it cannot be computed again.
_NOT_COMPARED = frozenset({"communication", "uninitialised"})


# So many random calls of a signature are judged by all tests, and then one in as many: a mask is drawn in every layer.
_THOROUGH = 8
# Random signatures that are counted.
_SIGNATURES = 10_000
# Of a sample, calls and bytes that may wait to be judged before the program waits.
_WAITING, _WAITING_BYTES = 256, 1 << 30


class OpAutoCompare(Findings):
    """Judges calls and keeps a row for each compared tensor."""

    section = "autocompare"
    command_name = "autocompare"
    feature = "autocompare"
    order = 10
    hook_name = "OpAutoCompareHook"
    report_section = "operators"
    # Seconds that stop() waits for what is still to be judged; None: as long as it takes.
    patience: ClassVar[float | None] = None
    # Whether what the devices do for it is measured.
    has_budget: ClassVar[bool] = False
    judges = True
    gives_labels = True
    takes_operators_below = True
    schema: ClassVar[type[ToolSettings]] = AutoCompareSettings
    result_folder = "op_autocompare_result"
    result_file = "op_autocompare_info"
    columns: ClassVar[tuple[str, ...]] = (
        *COMPARISON_CSV_COLUMNS, "verdict", "reason", "error_over_bound", *LOCATION_COLUMNS, "forward_name", "level",
    )  # fmt: skip

    @property
    def uses_aten(self) -> bool:  # type: ignore[override]
        return True

    @property
    def uses_api(self) -> bool:  # type: ignore[override]
        return not self._samples_kernels

    def read_settings(self) -> None:
        super().read_settings()
        settings = self.settings
        # A sample of everything is decided below Python, call by call: then calls go by the names of kernels.
        everything = settings.list == ".*" and not settings.disable_list and self.only is None
        self._samples_kernels = settings.mode != "every" and everything and ENGINE.has_native()

    @property
    def wants_backward(self) -> bool:  # type: ignore[override]
        return bool(self.settings.backward)

    def opened(self) -> None:
        super().opened()
        self.sampler = calls.Sampler(self.settings.mode, self.settings.rate, self.settings.refresh)
        self.declines = self._declines if self.settings.mode != "every" and self.only is None else None
        self.native_sampler = None
        self._background: Background | None = None
        if self._samples_kernels:
            self._open_background()
        self.noise = NoiseCache()
        self._random_inside: set[Any] = set()
        self._draws = EarlierDraws()
        self._random_calls: Counter[Any] = Counter()

    def _open_background(self) -> None:
        """What decides about calls below Python, and what judges them while the program goes on."""
        refresh = self.settings.refresh if self.settings.mode == "sampled" else 0
        self.native_sampler = native.sampler(self.sampler.every if refresh else 0, refresh)
        self._background = Background(_WAITING, _WAITING_BYTES, waits=True)

    # -- which calls -----------------------------------------------------------------------------------------

    def wants_aten(self, name: str, func: Any) -> bool:
        return category_of(func, name) not in _NOT_COMPARED | {"view"}

    def applies(self, call: Call) -> bool:
        if call.level == "aten":
            if not self._wants_inside(call):
                return False
        elif not super().applies(call) or category_of(call.func, call.name) in _NOT_COMPARED:
            return False
        if self.settings.mode == "every" or call.subscription.sampler is not None:
            return True
        if call.parent is not None and call.parent.decomposed and self in call.parent.tools:
            return True  # the call it is part of was taken, to be judged by its parts
        if self.native_sampler is not None:  # other tools see the call too, so it was not asked before
            return bool(self.native_sampler.takes(hash(call.signature()) % (1 << 64)))
        return self.sampler.takes(call.signature(), call.step)

    def _declines(self, name: str, args: Any, kwargs: Any, step: int) -> bool:
        """Most calls are not in the sample: that is seen from the first tensor's device and the signature."""
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor) or not self.covers({first.device.type}):
            return False
        try:
            return not self.sampler.would_take(signature_of(name, args, kwargs), step)
        except Exception:  # an argument without a signature: the guarded way finds out and reports it
            return False

    def _wants_inside(self, call: Call) -> bool:
        if call.parent is None and call.in_backward and not self.settings.backward:
            return False
        if call.parent is not None and self in call.parent.tools and not call.parent.decomposed:
            return False  # judged as a whole; another tool wanted to see inside
        if self.only is not None:
            owner = call.parent.tools if call.parent is not None else ()
            return self in owner or (call.origin is not None and self in call.origin.marks)
        return self.names.match(*call.names())

    # -- forward ---------------------------------------------------------------------------------------------

    def before(self, call: Call) -> None:
        if any(tensor.is_meta for tensor in call.tensors()):
            return
        if call.level == "api":
            self.say_applied(call.name)
            call.decomposed = self._must_be_decomposed(call)
            if call.decomposed:
                return
        deferred = None
        if self._background is not None and call.observed:
            deferred = Deferred.of(call, self._background, self.settings.reference, timed=self.has_budget)
            if deferred is None:
                return
        # A view computes nothing: that it shows the right part of its input needs no values.
        view = category_of(call.func, call.name) == "view"
        if is_random(call.func, call.name, call.args, call.kwargs):
            call.notes[self, "generators"] = generator_states(call)
        if deferred is not None:
            call.notes[self] = deferred.copy_inputs(call)
            call.notes[self, "deferred"] = deferred
        else:
            call.notes[self] = Transfer(self.settings.reference, values=not view).call(call.args, call.kwargs)
        if call.level == "api" and self.only is not None:
            call.as_origin().marks[self] = True

    def _must_be_decomposed(self, call: Call) -> bool:
        """Whether a call cannot be judged as a whole, but what it calls inside can."""
        # What autocast turns into which dtype is the device's own business; below it every dtype is fixed.
        if any(torch.is_autocast_enabled(kind) for kind in device_types(call.tensors()) - {"meta"}):
            return category_of(call.func, call.name) not in {"view", "movement", "index"}
        if call.func in self._random_inside or is_random(call.func, call.name, call.args, call.kwargs):
            return not _is_elementary(call)
        return False

    def failed(self, call: Call) -> None:
        call.notes.pop(self, None)
        call.notes.pop((self, "generators"), None)
        deferred = call.notes.pop((self, "deferred"), None)
        if deferred is not None:
            deferred.ended()

    def after(self, call: Call, result: Any) -> None:
        inputs = call.notes.pop(self, None)
        if inputs is None:
            return
        if any(tensor.is_meta for tensor in tensors_of(result)):  # there are no values to compare
            self.failed(call)
            return
        deferred = call.notes.pop((self, "deferred"), None)
        if category_of(call.func, call.name) == "view":
            self._judge_view(call, result, *inputs)
            return
        drawn = is_random(call.func, call.name, call.args, call.kwargs)
        states = (call.notes.pop((self, "generators"), None), generator_states(call) if drawn else None)
        if deferred is not None:
            values, left = deferred.copy_results(call, result)
            judge = (
                partial(self._judge_draws, call, inputs, values, states)
                if drawn
                else partial(self._judge_results, call, tuple(values), inputs, values, left.__getitem__)
            )
            deferred.submit(self, call, inputs, judge)
            return
        wait_for_host_results(call, result)
        home = Transfer(self.settings.reference)
        results = [home.tree(value) for value in flat_results(result)]
        if drawn:
            self._judge_draws(call, inputs, results, states)
            return
        tensors = call.tensors()
        self._judge_results(call, result, inputs, results, lambda index: home.tensor(tensors[index]))

    def _judge_draws(
        self, call: Call, inputs: tuple[Any, Any], results: list[Any], states: tuple[States, States]
    ) -> None:
        if call.parent is not None:
            self._random_inside.add(call.parent.func)
        seen = self._draws.seen(call.name, *states)
        signature = hash(call.signature())
        judged = self._random_calls[signature]
        if len(self._random_calls) > _SIGNATURES:
            self._random_calls.clear()
        self._random_calls[signature] += 1
        thorough = judged < _THOROUGH or judged % _THOROUGH == 0
        verdicts = judge_random(call.name, *inputs, results, seen=seen, thorough=thorough)
        self._rows(call, "output", verdicts)
        if self._failing.wants(call, verdicts):
            args, kwargs = inputs
            told = {key: value for key, value in kwargs.items() if not isinstance(value, torch.Generator)}
            self._failing.save(call, (args, told), results, None, str(call.device))

    def _judge_results(
        self,
        call: Call,
        result: Any,
        copies: tuple[Any, Any],
        results: list[Any],
        input_after: Callable[[int], torch.Tensor],
    ) -> None:
        """`input_after`: what the call has left of an input that it wrote to, by its index among the tensors."""
        reference = Recomputation(call.func, *copies, reference=self.settings.reference)
        if not self._is_computed(call, "output", reference):
            return
        results += [input_after(index) for index in reference.written]
        verdicts = self._judge(call, results, reference)
        self._conclude(call, result, copies, reference, verdicts)
        if self._failing.wants(call, verdicts):
            self._failing.save(call, copies, results, reference, str(call.device))

    def _conclude(
        self,
        call: Call,
        result: Any,
        inputs: tuple[Any, Any],
        reference: Recomputation,
        verdicts: list[Verdict],
    ) -> None:
        """What a forward call comes to: its rows, the printed table, and what its backward will need."""
        # Nothing where the reference has a result is a row too.
        outputs = len(flat_results(result)) or min(1, len(verdicts) - len(reference.written))
        self._rows(call, "output", verdicts, outputs)
        if self.settings.verbose:
            self._show(call, printing.forward(self, call, result, inputs, reference, verdicts))
        # Where the device picked other positions of equal values, or another order, gradients go elsewhere too.
        picked_others = category_of(call.func, call.name) == "index" and any(
            v.status == "pass" for v in verdicts
        )
        if call.level == "api" and self.wants_backward and not picked_others:
            self._keep_for_backward(call, inputs, reference)

    def _judge_view(self, call: Call, result: Any, args: Any, kwargs: Any) -> None:
        """Shape, strides and offset of a view; where the device made a copy instead, its values."""
        strided = [tensor for tensor in call.tensors() if tensor.layout == torch.strided]
        memories = {storage_id(tensor) for tensor in strided}
        outputs = tensors_of(result)
        aliases = all(t.layout == torch.strided and storage_id(t) in memories for t in outputs)
        if not aliases:
            args, kwargs = Transfer(self.settings.reference).call(call.args, call.kwargs)
        reference = Recomputation(call.func, args, kwargs, reference=self.settings.reference)
        if not self._is_computed(call, "output", reference):
            return
        results = flat_results(result)
        if aliases and len(results) == len(reference.own()):
            bases = (strided, tensors_of((args, kwargs)))
            pairs = zip(results, reference.own(), strict=True)
            verdicts = [
                calls.judge_view(mine, own, bases, tolerance_for(call.name, getattr(mine, "dtype", float)))
                for mine, own in pairs
            ]
        else:
            copies = [Transfer(self.settings.reference).tree(value) for value in results]
            verdicts = self._judge(call, copies, reference)
        self._conclude(call, result, (args, kwargs), reference, verdicts)

    def _judge(
        self, call: Call, results: list[Any], reference: Recomputation, key: Any = None
    ) -> list[Verdict]:
        dtype = next((value.dtype for value in results if isinstance(value, torch.Tensor)), None)
        return judge_all(
            results,
            reference,
            category=category_of(call.func, call.name),
            tolerance=tolerance_for(call.name, dtype if dtype is not None else float),
            noise=self.noise,
            key=key or (call.signature(), ""),
        )

    # -- backward --------------------------------------------------------------------------------------------

    def _keep_for_backward(self, call: Call, inputs: tuple[Any, Any], reference: Recomputation) -> None:
        """What is needed to compute the gradients again: the inputs, not copied unless the call overwrote them."""
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in call.tensors()):
            return
        if private.saving_is_hooked():
            return  # checkpointing and offloading exist to free these inputs; the ATen calls are judged
        kept = calls.Held() if not reference.mutated() else None
        if kept is not None:
            inputs = (kept.tree(call.args), kept.tree(call.kwargs))
        call.notes[self] = (kept, inputs, call.signature(), str(call.device))

    def gradients_mixed(self, call: Call, inputs: list[int]) -> None:
        if call.notes.get(self) is not None:
            which = ", ".join(f"grad[{index}]" for index in inputs)
            why = f"{which} holds more than this call's part of it, or was changed by a hook; judged at ATen level only"
            self._note(call, "grad", why)

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        if call.notes.get(self) is None:
            return
        # A graph that is not run again must not hold inputs any longer: the loss may live on.
        held, (args, kwargs), key, device = call.notes[self] if ENGINE.graphs_kept else call.notes.pop(self)
        if held is not None:
            if held.changed():
                why = "an input was changed in place after the call; judged at ATen level only"
                self._note(call, "grad", why)
                return
            args, kwargs = Transfer(self.settings.reference).call(args, kwargs)
        home = Transfer(self.settings.reference)
        wanted = [index for index, grad in enumerate(grad_inputs) if grad is not None]
        if not wanted:
            return
        reference = Recomputation(
            call.func, args, kwargs, grad_outputs=home.tree(grad_outputs), wants_grad=wanted,
            reference=self.settings.reference,
        )  # fmt: skip
        if not self._is_computed(call, "grad", reference):
            return
        results = [home.tensor(grad_inputs[index]) for index in wanted]
        verdicts = self._judge(call, results, reference, (key, "grad"))
        inputs = tensors_of((args, kwargs))
        indices = printing.differentiable(inputs)
        names = dict(zip(indices, printing.grad_names(call.name, inputs), strict=True))
        self._rows(call, "grad", verdicts, names=[names[index] for index in wanted], inputs=(args, kwargs))
        if self.settings.verbose:
            grads = (grad_inputs, home.tree(grad_outputs))
            by_index = dict(zip(wanted, verdicts, strict=True))
            self._show(call, printing.backward(self, call, inputs, grads, reference, by_index))
        if self._failing.wants(call, verdicts):
            self._failing.save(call, (args, kwargs), results, reference, device, home.tree(grad_outputs))

    def _is_computed(self, call: Call, what: str, reference: Recomputation) -> bool:
        """Whether there is something to compare with; if not, why is noted."""
        try:
            reference.own()
        except RecomputeError as error:
            cause = str(error.__cause__ or error).splitlines()[0].split(". ")[0][:200]
            self._note(call, what, f"not compared: {cause}")
            return False
        return True

    def stepped(self, step: int) -> None:
        if self.native_sampler is not None:
            self.native_sampler.stepped()
        if self._background is not None:
            self._background.look()

    def after_fork(self) -> None:
        super().after_fork()
        if self._background is not None:  # the thread, and what waits for it, are the parent's
            self._background = self._background.anew()
        self.noise = NoiseCache()  # a thread of the parent's may hold its lock

    def closed(self) -> None:
        if self._background is None:
            self._conclude_run()
            return
        try:
            self._background.close(self.patience)
        finally:  # the user may end the wait
            self._conclude_run()


def _is_elementary(call: Call) -> bool:
    """Whether a random call is one operator that judge_random knows, and not a composite."""
    if call.name.startswith("torch.Tensor.") and call.name.endswith("_"):
        return True
    return knows_distribution(call.name) and "dropout" not in call.name
