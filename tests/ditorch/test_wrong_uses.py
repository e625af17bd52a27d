"""Programs that use ditorch wrongly, or in an unusual way: each works or says clearly what is wrong.

A program that ends with an error must end with one of the named texts as its last line; the others print what they
saw. Each runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from forked_programs import Program, needs_no_card, run_all, without_cards
from forked_python import run_python

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("run_python"), needs_no_card]


@dataclass(frozen=True)
class Use:
    """A program, and what it must print: texts of its output, or of its last line of error when it fails."""

    code: str
    says: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def complaint(self, ended: subprocess.CompletedProcess[str]) -> str:
        """What is not as it must be; empty if all is."""
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        missing = [text for text in self.says if text not in ended.stdout]
        missing += [text for text in self.fails if text not in last]
        missing += [text for text in self.warns if text not in ended.stderr]
        if not self.warns and not self.fails and ended.stderr:
            missing.append("silence on stderr")
        if ended.returncode == int(bool(self.fails)) and not missing:
            return ""
        return f"code {ended.returncode}, missing {missing}\n{ended.stdout}\n{ended.stderr}"


_USE = 'import torch, ditorch\nprint("on", torch.ones(2, device="cuda").device)\n'

ON_DIPU = {
    "a device type that does not exist": Use(
        'import torch, ditorch\ntorch.zeros(1, device="gpu")',
        fails=("device type at start of device string: gpu",),
    ),
    "a device index that does not exist": Use(
        'import torch, ditorch\ntorch.zeros(1, device="cuda:7")',
        fails=("device index 7 does not exist: this machine has 2 devices (dipu:0 to dipu:1)",),
    ),
    "set_device with an index that does not exist": Use(
        "import torch, ditorch\ntorch.cuda.set_device(9)", fails=("device index 9 does not exist",)
    ),
    "DITORCH_DEVICE is unknown, with a near name": Use(
        "import torch, ditorch",
        fails=(
            "DITORCH_DEVICE='npv' is no device",
            "Did you mean 'npu'?",
            "Known: cuda, dipu, mlu",
            "unset it",
        ),
        settings={"DITORCH_DEVICE": "npv"},
    ),
    "DITORCH_DEVICE is unknown, with no near name": Use(
        "import torch, ditorch",
        fails=("DITORCH_DEVICE='abacus' is no device that ditorch knows. Known:",),
        settings={"DITORCH_DEVICE": "abacus"},
    ),
    "DITORCH_DEVICE is blank": Use(_USE, says=("on dipu:0",), settings={"DITORCH_DEVICE": "  "}),
    "DITORCH_DEVICE is none": Use(
        """
        import sys, torch, ditorch
        print([ditorch.framework, ditorch.start(), ditorch.enabled(), torch.device("cuda"), torch.cuda.is_available()])
        import torch_dipu
        print(torch.device("cuda"), torch.ones(2, device="dipu").sum().item())
        """,
        says=("['', '', False, device(type='cuda'), False]\ncuda 2.0",),
        settings={"DITORCH_DEVICE": "None"},
    ),
    "DITORCH_DEVICE is none, and the mapping is asked for": Use(
        "import torch, ditorch\nditorch.disable()\nditorch.enable()",
        fails=("DITORCH_DEVICE=none: ditorch chooses no framework", "or unset it"),
        settings={"DITORCH_DEVICE": "none"},
    ),
    "DITORCH_DEVICE names a package that is not installed": Use(
        "import torch, ditorch",
        fails=(
            "DITORCH_DEVICE=npu asks for torch_npu, which is not installed. To do: install CANN",
            "doctor",
        ),
        settings={"DITORCH_DEVICE": "npu"},
    ),
    "DITORCH_DEVICE names a device torch was not built for": Use(
        "import torch, ditorch",
        fails=("ditorch chose torch (DITORCH_DEVICE=xpu)", "was built without xpu"),
        settings={"DITORCH_DEVICE": "xpu"},
    ),
    "a folder has the name of a package": Use(
        'import os, sys\nos.mkdir("torch_npu")\nsys.path.insert(0, "")\n' + _USE, says=("on dipu:0",)
    ),
    "tensors were made before the import": Use(
        """
        import torch
        x, cpu = torch.ones(2, device="dipu"), torch.ones(2)
        import ditorch
        print(x.is_cuda, cpu.is_cuda, x.cuda() is x, (x + cpu.cuda()).tolist(), x.device == torch.device("cuda:0"))
        """,
        says=("True False True [2.0, 2.0] True",),
    ),
    "functions were imported by name before ditorch": Use(
        "import torch\nfrom torch.cuda import synchronize\nimport ditorch\nsynchronize()",
        fails=("imported by name before ditorch is not mapped. Import ditorch first",),
    ),
    "functions are held while the mapping goes": Use(
        """
        import torch, ditorch
        from torch.cuda import synchronize, memory_allocated
        zeros = torch.zeros
        ditorch.disable()
        synchronize()
        print(zeros(2, device="cuda").device, memory_allocated("cuda:0") >= 0, torch.device("cuda"))
        """,
        says=("dipu:0 True cuda",),
    ),
    "double import": Use(
        "import importlib\nimport ditorch as a\nimport ditorch as b\nc = importlib.import_module('ditorch')\n"
        "print(a is b is c)",
        says=("True",),
    ),
    "reload": Use(
        """
        import importlib, torch
        real, zeros = torch.device, torch.zeros
        import ditorch
        again = importlib.reload(ditorch)
        print(again.framework, torch.ones(1).cuda().device, again.enabled())
        again.disable()
        print(torch.device is real, torch.zeros is zeros)
        """,
        says=("(host) dipu:0 True", "True True"),
    ),
    "a purge of sys.modules": Use(
        """
        import sys, torch
        real = torch.device
        import ditorch
        for name in [name for name in sys.modules if name.partition(".")[0] in ("ditorch", "_ditorch")]:
            del sys.modules[name]
        import ditorch as again
        print(again is not ditorch, again.enabled(), torch.ones(1).cuda().device)
        again.disable()
        print(torch.device is real, ditorch.enabled())
        """,
        says=("True True dipu:0", "True False"),
    ),
    "reload of a module of torch": Use(
        """
        import importlib, torch, ditorch
        importlib.reload(torch.cuda.random)
        torch.cuda.manual_seed(3)
        print(torch.cuda.initial_seed(), torch.ones(1).cuda().device)
        ditorch.disable()
        """,
        says=("3 dipu:0",),
        warns=("torch.cuda.random.manual_seed", "patched by another library after ditorch"),
    ),
    "import in several threads at once": Use(
        """
        import threading, torch
        def use():
            import ditorch
            seen.append(str(torch.ones(1).cuda().device))
        seen = []
        threads = [threading.Thread(target=use) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(seen, torch.zeros(1, device="cuda").device)
        """,
        says=("['dipu:0', 'dipu:0', 'dipu:0', 'dipu:0'] dipu:0",),
    ),
    "enable and disable twice": Use(
        """
        import torch
        real = torch.device
        import ditorch
        mapped = torch.device
        ditorch.enable(); ditorch.enable()
        print(torch.device is mapped, ditorch.enabled())
        ditorch.disable(); ditorch.disable()
        print(torch.device is real, ditorch.enabled())
        """,
        says=("True True", "True False"),
    ),
    "a child process without ditorch": Use(
        """
        import pickle, subprocess, sys, torch, ditorch
        code = "import sys, pickle, torch; d = pickle.load(sys.stdin.buffer); print('child', d, torch.device('cuda'))"
        given = pickle.dumps(torch.device("cuda:1"))
        print(subprocess.run([sys.executable, "-c", code], input=given, capture_output=True).stdout.decode())
        """,
        says=("child dipu:1 cuda\n",),
    ),
    "a device pickled without ditorch": Use(
        """
        import pickle, torch
        given = pickle.dumps({"device": torch.device("cuda:1")})
        import ditorch
        print(pickle.loads(given), torch.ones(1, device=pickle.loads(given)["device"]).device)
        """,
        says=("{'device': device(type='dipu', index=1)} dipu:1",),
    ),
    "DITORCH_DISABLE_MOCK with a program for cuda": Use(
        'import torch, ditorch\ntorch.zeros(1, device="cuda")',
        fails=(
            "Torch not compiled with CUDA enabled"
            if torch.version.cuda is None
            else "No CUDA GPUs are available",
        ),
        settings={"DITORCH_DISABLE_MOCK": "1"},
    ),
    "a switch that says neither yes nor no": Use(
        _USE,
        says=("on dipu:0",),
        warns=("DITORCH_DISABLE_MOCK: expected 1 or 0, got 'maybe'; it is ignored",),
        settings={"DITORCH_DISABLE_MOCK": "maybe"},
    ),
    "a notebook": Use(
        """
        import sys
        sys.argv = []
        cell = {"__name__": "__main__"}
        exec("import torch, ditorch", cell)
        exec("x = torch.ones(2, device='cuda')", cell)
        print(cell["x"].device)
        """,
        says=("dipu:0",),
    ),
    "CUDA_VISIBLE_DEVICES on a device that cannot follow it": Use(
        "import torch, ditorch\nprint(torch.cuda.device_count())",
        says=("2",),
        warns=("CUDA_VISIBLE_DEVICES=1 has no effect on torch_dipu: all its devices are visible",),
        settings={"CUDA_VISIBLE_DEVICES": "1"},
    ),
    "a torch that was not tested": Use(
        "import torch\ntorch.__version__ = '2.5.1'\n" + _USE,
        says=("on dipu:0",),
        warns=("this torch is 2.5.1; this ditorch was tested with 2.11 to 2.13",),
    ),
    "a fork after the device was used": Use(
        """
        import os, torch, ditorch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork
        x = torch.ones(2, device="cuda") + 1
        torch.cuda.synchronize()
        pid = os.fork()
        if pid == 0:
            print("child", (x * 2).tolist(), flush=True)
            os._exit(7)
        print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.tolist())
        """,
        says=("child [4.0, 4.0]", "parent 7 [2.0, 2.0]"),
    ),
    "another package is imported after ditorch": Use(
        "import torch, ditorch\nimport torch_npu",
        fails=("RuntimeError", "has already been set! Current backend: dipu"),
        settings={"DITORCH_DEVICE": "dipu"},
        packages=("torch_npu",),
    ),
}
if (
    torch.backends.cuda.is_built()
):  # its bindings are all there, and torch's own error says that there is no card
    del ON_DIPU["functions were imported by name before ditorch"]

ON_STANDINS = {
    "two packages with devices": Use(
        _USE, says=("torch_npu:2.1.0.post3", "on npu:0"), packages=("torch_mlu", "torch_npu")
    ),
    "the setting names a broken package": Use(
        "import torch, ditorch",
        fails=("ditorch chose torch_npu (DITORCH_DEVICE=npu), which cannot be imported: libdriver.so",),
        settings={"DITORCH_DEVICE": "npu", "STANDIN_BROKEN": "torch_npu"},
        packages=("torch_npu",),
    ),
    "a fork after the vendor's device was used": Use(
        """
        import os, torch, ditorch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork
        x = torch.ones(2, device="cuda")
        torch.cuda.synchronize()
        print("before", torch.cuda._is_in_bad_fork(), flush=True)
        pid = os.fork()
        if pid == 0:
            print("child", torch.cuda._is_in_bad_fork(), flush=True)
            torch.cuda.synchronize()
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        says=("before False", "child True"),
        fails=("Cannot re-initialize NPU in forked subprocess", "'spawn' start method"),
        settings={"DITORCH_DEVICE": "npu"},
        packages=("torch_npu",),
    ),
    "ditorch after the vendor's package": Use(
        "import torch, torch_musa\nx = torch.ones(2).musa()\n" + _USE + "print(x.is_cuda)",
        says=("on musa:0", "True"),
        packages=("torch_musa",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uses", "autoload"), [(ON_DIPU, True), (ON_STANDINS, False)], ids=["dipu", "packages"]
)
def test_each_works_or_says_what_is_wrong(uses: dict[str, Use], autoload: bool) -> None:
    programs = {name: Program(use.code, use.settings, use.packages) for name, use in uses.items()}
    ended = run_all(programs, autoload=autoload)
    complaints = {name: use.complaint(ended[name]) for name, use in uses.items()}
    assert {name: text for name, text in complaints.items() if text} == {}


def test_there_are_enough_of_them() -> None:
    assert len(ON_DIPU) + len(ON_STANDINS) >= 25


_SPAWN = """
import ditorch
import torch
import torch.multiprocessing as mp

def work(rank, results):
    x = torch.full((2,), float(rank + 1), device=f"cuda:{rank}")
    results[rank] = x.sum().cpu()

if __name__ == "__main__":
    torch.ones(1).cuda()
    results = torch.zeros(2).share_memory_()
    mp.spawn(work, (results,), nprocs=2)
    print("sums", results.tolist())
"""


@pytest.mark.slow
def test_spawned_processes_and_ditorch_before_torch(tmp_path: Path) -> None:
    """A file of its own, because spawned processes import it again; ditorch is its first import."""
    program = tmp_path / "spawning.py"
    program.write_text(_SPAWN)
    done = subprocess.run(
        [sys.executable, str(program)],
        env=without_cards(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ditorch.framework:") == 1
    assert "sums [2.0, 4.0]" in done.stdout


@pytest.mark.slow
def test_a_vendor_library_that_is_broken(tmp_path: Path) -> None:
    """The import works, as with torch_dipu alone; the first use names the library and what is wrong with it."""
    library = tmp_path / "libbroken.so"
    library.write_text("no library")
    code = 'import torch, ditorch\ntorch.zeros(1, device="cuda")'
    done = run_python("-c", code, env=without_cards(DIPU_DEVICE=str(library)), timeout=200)
    assert done.returncode == 1
    assert "no vendor: see `dipu doctor`" in done.stdout
    assert f"cannot load the vendor library {library}" in done.stderr.strip().splitlines()[-1]
