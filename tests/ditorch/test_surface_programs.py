"""What programs written for cuda do beside calling torch.cuda: flags, lazy layers, scripts, other libraries' protocols."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]


@pytest.mark.parametrize(
    ("module", "name", "values"),
    [
        ("cuda.matmul", "allow_tf32", (True, False)),
        ("cuda.matmul", "allow_fp16_reduced_precision_reduction", (False, True)),
        ("cuda.matmul", "allow_bf16_reduced_precision_reduction", (False, True)),
        ("cuda.matmul", "allow_fp16_accumulation", (True, False)),
        ("cuda.cufft_plan_cache", "max_size", (7, 4096)),
        ("cudnn", "benchmark", (True, False)),
        ("cudnn", "deterministic", (True, False)),
        ("cudnn", "allow_tf32", (False, True)),
        ("cudnn", "enabled", (False, True)),
        ("cudnn", "benchmark_limit", (3, 10)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_flag_gives_back_what_was_set(
    module: str, name: str, values: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's own testing modules, which other tests import, forbid it for the process.
    frozen = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(frozen, "__allow_nonbracketed_mutation_flag", True)
    owner = torch.backends
    for part in module.split("."):
        owner = getattr(owner, part)
    before = getattr(owner, name)
    try:
        for value in values:
            setattr(owner, name, value)
            assert getattr(owner, name) == value
    finally:
        setattr(owner, name, before)


def test_choices_among_libraries_are_kept() -> None:
    cuda = torch.backends.cuda
    assert cuda.preferred_linalg_library() == torch._C._LinalgBackend.Default
    assert cuda.preferred_linalg_library("cusolver") == torch._C._LinalgBackend.Cusolver
    assert cuda.preferred_linalg_library() == torch._C._LinalgBackend.Cusolver
    cuda.preferred_linalg_library("default")
    default = cuda.preferred_blas_library()  # a torch built for CUDA names what it would take
    assert cuda.preferred_blas_library("cublaslt") == torch._C._BlasBackend.Cublaslt != default
    assert cuda.preferred_blas_library("default") == default
    with pytest.raises(RuntimeError, match="Choose from"):
        cuda.preferred_linalg_library("nonsense")
    cuda.cufft_plan_cache["cuda:1"].max_size = 5
    assert cuda.cufft_plan_cache[1].max_size == 5 != cuda.cufft_plan_cache[0].max_size
    torch.fft.fft(torch.ones(8, device="cuda"))
    assert cuda.cufft_plan_cache.size == 0
    cuda.cufft_plan_cache.clear()
    with pytest.raises(RuntimeError, match="negative"):
        cuda.cufft_plan_cache.max_size = -1


def test_kinds_of_attention() -> None:
    cuda = torch.backends.cuda
    kinds = {
        "flash": (cuda.enable_flash_sdp, cuda.flash_sdp_enabled),
        "efficient": (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled),
        "math": (cuda.enable_math_sdp, cuda.math_sdp_enabled),
        "cudnn": (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled),
    }
    for enable, enabled in kinds.values():
        enable(False)
        assert enabled() is False
        enable(True)
        assert enabled() is True
    q = torch.randn(1, 2, 4, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = torch.nn.functional.scaled_dot_product_attention(q.cuda(), q.cuda(), q.cuda())
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (lambda: [torch.nn.LazyLinear(3)], (2, 5)),
        (lambda: [torch.nn.LazyConv2d(3, 3), torch.nn.LazyBatchNorm2d()], (2, 5, 8, 8)),
    ],
    ids=["linear", "convolution"],
)
@pytest.mark.parametrize("move", ["cuda", "to", "half"])
def test_lazy_layers_move_before_they_have_a_shape(layers: Callable, shape: tuple, move: str) -> None:
    model = torch.nn.Sequential(*layers())
    model = {"cuda": model.cuda, "to": lambda: model.to("cuda"), "half": lambda: model.cuda().half()}[move]()
    dtype = torch.float16 if move == "half" else torch.float32
    result = model(torch.randn(shape, device="cuda", dtype=dtype))
    assert result.dtype == dtype
    assert {parameter.device for parameter in model.parameters()} == {torch.device("cuda:0")}
    assert result.float().std().item() > 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_with_devices_in_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        place = torch.device("cuda:1")
        return x.to(place) + torch.ones(2, device="cuda:1")

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("cuda") + torch.zeros(2, device="cuda")

    scripted = torch.jit.script(function)
    assert scripted(torch.ones(2)).device == torch.device("cuda:1")
    assert scripted(torch.ones(2)).tolist() == [2.0, 2.0]
    assert torch.jit.script(torch.nn.Sequential(Module()))(torch.ones(2)).device == torch.device("cuda:0")
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    assert torch.jit.load(buffer, map_location="cuda")(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_finds_the_names_of_its_caller() -> None:
    @torch.jit.script
    class Pair:
        def __init__(self, x: int) -> None:
            self.x = x

    @torch.jit.script
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda") * Pair(2).x

    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_mixed_precision_treats_losses_as_cuda_does() -> None:
    """The loss is float32. Its log_softmax is not: torch's list for cuda, unlike the CPU's, has no cross_entropy."""
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::cross_entropy_loss", "AutocastCUDA")
    logits = torch.randn(4, 5, device="cuda", dtype=torch.bfloat16)
    target = torch.tensor([0, 1, 2, 3], device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(logits, target)
        product = logits @ logits.t()
    assert (loss.dtype, product.dtype) == (torch.float32, torch.bfloat16)
    expected = torch.nn.functional.cross_entropy(logits.float().cpu(), target.cpu())
    torch.testing.assert_close(loss.cpu(), expected, rtol=2.0**-7, atol=0)


def test_properties_can_be_copied() -> None:
    properties = torch.cuda.get_device_properties(0)
    assert copy.copy(properties).name == copy.deepcopy(properties).name == properties.name


def test_other_libraries_do_not_get_memory_that_they_cannot_read() -> None:
    x = torch.arange(3.0, device="cuda")
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(NotImplementedError, match=r"__cuda_array_interface__.*'dipu'.*x\.cpu\(\)"):
        _ = x.__cuda_array_interface__
    with pytest.raises(AttributeError, match="non-CUDA tensor"):
        _ = x.cpu().__cuda_array_interface__
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    shared = torch.from_dlpack(x)
    assert shared.device == x.device
    shared[0] = 9.0
    assert x.tolist() == [9.0, 1.0, 2.0]


def test_a_profile_of_cuda_records_the_device() -> None:
    activity = torch.profiler.ProfilerActivity
    assert activity.CUDA in torch.profiler.supported_activities()
    for arguments in ({"activities": [activity.CPU, activity.CUDA]}, {}):
        with torch.profiler.profile(**arguments) as profile:
            x = torch.ones(16, 16, device="cuda")
            (x @ x).sum().item()
        assert profile.profiler.use_device == "dipu"
        assert "aten::mm" in {event.key for event in profile.key_averages()}
        assert "aten::mm" in profile.key_averages().table(sort_by="cuda_time_total")
    with torch.autograd.profiler.profile(use_cuda=True) as old:
        torch.ones(2, device="cuda").add(1)
    assert old.use_device == "dipu"
    assert "aten::add" in {event.key for event in old.key_averages()}


def test_generators_loaders_and_pinned_memory() -> None:
    torch.set_default_device("cuda")
    try:
        loader = torch.utils.data.DataLoader(
            torch.arange(6),
            batch_size=3,
            shuffle=True,
            generator=torch.Generator(device="cuda").manual_seed(1),
        )
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(6))
    finally:
        torch.set_default_device(None)
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
    assert [batch.is_pinned("cuda") for batch in loader] == [True, True]
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_guards_of_torch_cuda_itself() -> None:
    with torch.cuda._DeviceGuard(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda._exchange_device(1) == 0
    assert torch.cuda._maybe_exchange_device(0) == 1
    assert torch.cuda._exchange_device(-1) == -1
    side = torch.cuda.Stream()
    torch.cuda._set_stream_by_id(side.stream_id, side.device_index, side.device_type)
    assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(torch.cuda.default_stream())


def test_switching_in_one_thread_while_others_work(mapped: ModuleType) -> None:
    """Functions taken before a switch keep working, and no thread ever meets a half-patched class."""
    stop, failures = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            try:
                x = torch.ones(4, device="dipu") + torch.zeros_like(torch.ones(4), device="dipu")
                assert x.sum().item() == 4
                assert isinstance(x.device, torch.device)
                assert x.device.type == "dipu"
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        mapped.disable()
        mapped.enable()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert mapped.enabled()
    assert torch._C._len_torch_function_stack() == 0


def test_a_shown_name_is_plain_text_to_others() -> None:
    name = torch.ones(1).cuda().device.type
    assert (str(name), f"{name}:1", name + ":1") == ("cuda", "cuda:1", "cuda:1")
    assert name == "cuda"
    assert name == "dipu"
    assert not (name != "cuda" or name != "dipu" or name == "cpu")
    assert name in ("cpu", "cuda")
    assert {"cuda": 1}[name] == 1
    assert type(pickle.loads(pickle.dumps(name))) is str
    assert torch.zeros(1, device=name).is_cuda
    assert getattr(torch, name) is torch.cuda
    assert torch.device("cpu").type == "cpu"
    # torch's own code reads the true name: what it prints and saves is the device's.
    assert "dipu:0" in repr(torch.ones(1).cuda())
    buffer = io.BytesIO()
    torch.save(torch.ones(1).cuda(), buffer)
    assert b"dipu:0" in buffer.getvalue()


def test_the_name_can_be_left_alone(run_python) -> None:
    code = """
        import torch, ditorch
        x = torch.ones(1).cuda()
        print("shown:", x.device.type, x.device.type == "cuda", x.is_cuda)
        ditorch.disable()
        print("after:", x.device.type, x.device.type == "cuda", type(x.device).type)
    """
    for setting, expected in (("1", "cuda True True"), ("0", "dipu False True"), ("off", "dipu False True")):
        out = run_python(code, DITORCH_SHOW_DEVICE_AS_CUDA=setting).stdout
        assert f"shown: {expected}" in out
        assert "after: dipu False <attribute 'type' of 'torch.device' objects>" in out
