"""torch.compile under the mapping: whole graphs, right values, in whichever order things are imported."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.device

_PROGRAM = """
def program(x):
    device = torch.device("cuda")
    y = torch.zeros(3, device="cuda") + torch.ones(3, device=device) + torch.full((3,), 2.0, device="cuda:0")
    z = x.to("cuda") * 2
    if z.is_cuda and torch.cuda.is_available() and torch.cuda.device_count() > 0:
        z = z + 1
    if isinstance(device, torch.device):
        z = z + 10
    return y + z + torch.zeros_like(x, device="cuda") + x.new_ones(3, device="cuda") + x.cuda()

expected = [15.0, 18.0, 21.0]

def check(backend):
    torch._dynamo.reset()
    result = torch.compile(program, backend=backend, fullgraph=True)(torch.arange(3.0))
    assert result.device == torch.device("dipu:0"), result.device
    assert result.tolist() == expected, result
"""


@pytest.mark.slow
def test_the_compiler_comes_after_the_mapping(run_python) -> None:
    result = run_python(
        "import sys, torch, ditorch\nassert 'torch._dynamo' not in sys.modules\n"
        + _PROGRAM
        + """
import inspect
import torch._dynamo
# The import hook leaves no trace on the module.
print("loader:", type(torch._dynamo.__spec__.loader).__name__, "import" in inspect.getsource(torch._dynamo))
assert program(torch.arange(3.0)).tolist() == expected
graphs = []
def keep(module, inputs):
    graphs.append(module.code)
    return module
check("eager"); check("aot_eager"); check(keep)
print("graphs:", len(graphs), "zeros(3, device = 'dipu')" in graphs[0])

def mixed(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x @ x
x = torch.eye(4, device="cuda")
print("autocast:", torch.compile(mixed, backend="aot_eager", fullgraph=True)(x).dtype)

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1)).cuda()
model(x).sum().backward()
eager = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()
same = all(torch.allclose(a, p.grad) for a, p in zip(eager, model.parameters()))
print("gradients:", same, eager[0].abs().sum().item() > 0)

ditorch.disable()
torch._dynamo.reset()
plain = torch.compile(lambda x: x + torch.ones(3), backend="aot_eager")
print("after disable:", plain(torch.zeros(3)).tolist())
ditorch.enable()
check("aot_eager")
"""
    )
    assert "loader: SourceFileLoader True" in result.stdout
    assert "graphs: 1 True" in result.stdout
    assert "autocast: torch.bfloat16" in result.stdout
    assert "gradients: True True" in result.stdout
    assert "after disable: [1.0, 1.0, 1.0]" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import torch, torch._dynamo, ditorch\n",
        "import torch, ditorch\nditorch.disable()\nimport torch._dynamo\nditorch.enable()\n",
    ],
    ids=["before the mapping", "while the mapping is off"],
)
def test_the_compiler_may_also_come(run_python, imports: str) -> None:
    run_python(imports + _PROGRAM + "check('aot_eager')\n")


@pytest.mark.slow
def test_the_default_backend_still_compiles_for_the_cpu(run_python) -> None:
    result = run_python(
        """
        import torch, ditorch
        f = torch.compile(lambda x: torch.sin(x) + torch.ones(3))
        print("compiled:", f(torch.zeros(3)).tolist())
        """
    )
    assert "compiled: [1.0, 1.0, 1.0]" in result.stdout
