"""torch.compile: one graph for code full of cuda's names, the same values as without it, no extra compilation."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.device, pytest.mark.slow]

# Each function is compiled whole (`fullgraph=True`) and compared with its eager run, values and device.
_FUNCTIONS = """
import warnings, torch, ditorch
warnings.simplefilter("ignore")
model = torch.nn.Linear(3, 2).cuda()
side_stream = torch.cuda.Stream()

def moves(x):
    y = x.to("cuda", torch.float64) + x.to(device=torch.device("cuda", 0), non_blocking=True)
    return y + x.cuda(0) + x.cuda("cuda:0")
def likes(x):
    y = torch.zeros_like(x, device="cuda") + torch.full_like(x, 2.0, device="cuda")
    return y + torch.empty_like(x, device="cuda").fill_(1)
def new(x): return x.new_zeros(3, device="cuda") + x.new_tensor([1.0, 2, 3], device="cuda") + x.new_full((3,), 2.0, device="cuda")
def factories(x):
    made = torch.tensor([1.0, 2, 3], device="cuda") + torch.arange(3, device="cuda") + torch.linspace(0, 1, 3, device="cuda")
    return made + torch.eye(3, device="cuda")[0] + torch.as_tensor([1, 2, 3], device="cuda") + x.cuda()
def old_types(x): return torch.cuda.FloatTensor([1, 2, 3]) + x.type(torch.cuda.FloatTensor) + x.type("torch.cuda.FloatTensor")
def questions(x):
    if torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_bf16_supported():
        x = x + torch.cuda.device_count() + torch.cuda.get_device_capability()[0] + len(torch.cuda.get_device_name(0))
    return x.cuda() + torch.cuda.current_device() + torch.cuda.get_device_properties(0).multi_processor_count
def capturing(x): return x.cuda() - (5 if torch.cuda.is_current_stream_capturing() else 0)
def flags(x): return x.cuda() + (1 if torch.backends.cuda.matmul.allow_tf32 else 2) + (4 if torch.backends.cudnn.benchmark else 8)
def names(x):
    y = x.cuda()
    return y + 1 if y.is_cuda and y.device.type == "cuda" and x.device.type != "cuda" else y - 1
def both_names(x): return x.cuda() + (1 if x.cuda().device.type in ("cuda", "xpu") else -1)
def same_device(x): return x.cuda() + (1 if x.cuda().device == torch.device("cuda:0") else -1) + x.cuda().get_device()
def module_of_device(x): return x.cuda() + (1 if torch.get_device_module(x.cuda().device).is_available() else 0)
def accelerator(x): return x.to(torch.accelerator.current_accelerator()) + 1
def mixed(x):
    y = torch.outer(x.cuda(), x.cuda())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return y @ y
def mixed_by_name(x):
    y = torch.outer(x.cuda(), x.cuda())
    with torch.autocast(y.device.type, dtype=torch.bfloat16):
        return y @ y
def old_mixed(x):
    y = torch.outer(x.cuda(), x.cuda())
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        return y @ y
def mixed_state(x): return x.cuda().to(torch.get_autocast_dtype("cuda")) if not torch.is_autocast_enabled("cuda") else x
def current_stream(x):
    with torch.cuda.stream(torch.cuda.current_stream()):
        return x.cuda() + 1
def other_stream(x):
    y = x.cuda()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        y = y * 2
    torch.cuda.current_stream().wait_stream(side_stream)
    return y
def new_stream(x):
    stream, y = torch.cuda.Stream(), x.cuda()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = y * 3
    torch.cuda.current_stream().wait_stream(stream)
    return y
def events(x):
    done, y = torch.cuda.Event(), x.cuda() + 1
    done.record()
    torch.cuda.current_stream().wait_event(done)
    return y
def synchronised(x):
    y = x.cuda() + 1
    torch.cuda.synchronize()
    return y * 2
def emptied(x):
    y = x.cuda() + 1
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return y
def other_device(x):
    with torch.cuda.device(1):
        return x.to("cuda:1") + 1
def device_of(x):
    y = x.cuda(1)
    with torch.cuda.device_of(y):
        return y + 1
def with_module(x): return model(x.cuda())
def script_style(x, device="cuda"):
    device = torch.device(device if torch.cuda.is_available() else "cpu")
    return x.to(device) + torch.ones(3, device=device)
def memory_error(x):
    try:
        return x.cuda() + 1
    except torch.cuda.OutOfMemoryError:
        return x
FUNCTIONS = [f for f in list(globals().values()) if callable(f) and getattr(f, "__module__", "") == "__main__"]
if torch.__version__ < "2.13":  # whose compiler breaks the graph at these for cuda too
    FUNCTIONS = [f for f in FUNCTIONS if f not in (synchronised, device_of, new_stream, other_stream, events, emptied)]
"""


def test_every_function_is_one_graph(run_python) -> None:
    result = run_python(
        _FUNCTIONS
        + """
import sys
assert "torch._dynamo" not in sys.modules
x, failed = torch.arange(3.0), []
for function in FUNCTIONS:
    torch._dynamo.reset()
    eager = function(x)
    try:
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    except Exception as error:
        failed.append((function.__name__, str(error)[:300]))
        continue
    if (eager.device, eager.dtype) != (compiled.device, compiled.dtype) or not torch.equal(eager.cpu(), compiled.cpu()):
        failed.append((function.__name__, eager, compiled))
print("functions:", len(FUNCTIONS), "failed:", failed)
"""
    )
    assert "failed: []" in result.stdout
    assert int(result.stdout.partition("functions: ")[2].split()[0]) >= 22


# The same work under the device's own name without the mapping, and under cuda's with it.
_COUNTED = """
import torch, torch._dynamo.testing, torch._dynamo.utils

def step(model, x, scale):
    x = x.to(DEVICE)
    if x.is_cuda == MAPPED and torch.accelerator.is_available():
        x = x + torch.ones(x.shape, device=DEVICE) * scale
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return model(x).float().sum() + torch.zeros((), device=torch.device(DEVICE))

def count():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to(DEVICE)
    compiled = torch.compile(step, backend=counter)
    for rows in (2, 2, 4, 5, 6):
        for scale in (1.0, 2.0):
            compiled(model, torch.ones(rows, 8), scale).backward()
    with torch.no_grad():
        compiled(model, torch.ones(3, 8), 1.0)
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print("counts:", counter.frame_count, counter.op_count > 0, breaks)
count()
"""


def test_nothing_is_compiled_more_often_than_without_the_mapping(run_python) -> None:
    without = run_python(
        "import torch_dipu\nDEVICE, MAPPED = 'dipu', False\n" + _COUNTED, DITORCH_DISABLE_MOCK="1"
    ).stdout
    mapped = run_python("import ditorch\nDEVICE, MAPPED = 'cuda', True\n" + _COUNTED).stdout
    (counts,) = [line for line in without.splitlines() if line.startswith("counts:")]
    assert counts in mapped.splitlines()
    assert counts.endswith("True 0")


def test_a_change_of_device_compiles_again_and_a_return_does_not(run_python) -> None:
    """Answers that may change are guarded: `current_device` read at compile time must not go stale."""
    result = run_python(
        """
        import torch, ditorch, torch._dynamo.testing
        counter = torch._dynamo.testing.CompileCounter()
        @torch.compile(backend=counter, fullgraph=True)
        def where(x):
            return x + torch.cuda.current_device()
        x, answers = torch.zeros(1), []
        for device in (0, 1, 0, 1):
            torch.cuda.set_device(device)
            answers.append(where(x).item())
        print("answers:", answers, counter.frame_count)
        """
    )
    assert "answers: [0.0, 1.0, 0.0, 1.0] 2" in result.stdout


def test_the_default_backend_is_left_alone(run_python) -> None:
    """inductor is imported with the mapping on, and reads the flags of torch's build."""
    result = run_python(
        """
        import torch
        def built(): return torch.backends.cuda.is_built(), torch.cuda._is_compiled()
        before = built()
        import ditorch
        import torch._inductor.cudagraph_trees
        print("as before:", built() == before)
        """
    )
    assert "as before: True" in result.stdout
