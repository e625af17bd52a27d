"""Streams, events and the asynchronous mode of the simulated chip."""

from __future__ import annotations

import os
import textwrap

import torch
from forked_python import run_python

import torch_dipu  # noqa: F401


def run(code: str, **environment: str) -> str:
    done = run_python(
        "-c", textwrap.dedent(code), timeout=180, env={**os.environ, "DIPU_HOST_ASYNC": "1", **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_unsynchronised_read_is_wrong_every_time_and_right_with_a_wait() -> None:
    out = run(
        """
        import torch
        wrong = right = 0
        for i in range(20):
            target = torch.full((64,), -1.0).pin_memory()
            x = torch.full((64,), float(i), device="dipu") * 2
            target.copy_(x, non_blocking=True)
            wrong += bool((target == -1.0).all())
            torch.dipu.synchronize()
            right += bool((target == 2.0 * i).all())
        print(wrong, right)
        """,
        DIPU_HOST_DELAY_US="30000",
    )
    assert out.split() == ["20", "20"]


def test_blocking_reads_wait_by_themselves() -> None:
    out = run(
        """
        import torch
        x = torch.ones(8, device="dipu")
        for _ in range(5):
            x = x * 2
        print(x.sum().item(), x.cpu()[0].item(), x.tolist()[3])
        """,
        DIPU_HOST_DELAY_US="1000",
    )
    assert out.split() == ["256.0", "32.0", "32.0"]


def test_a_kernel_error_surfaces_at_the_next_synchronisation_with_its_name() -> None:
    out = run(
        """
        import torch
        table, wrong = torch.randn(4, 3, device="dipu"), torch.tensor([9], device="dipu")
        torch.dipu.synchronize()
        y = torch.nn.functional.embedding(wrong, table)   # queued: no error yet
        print("queued")
        try:
            torch.dipu.synchronize()
        except RuntimeError as error:
            print("raised", "diopiEmbedding" in str(error), "index" in str(error))
        torch.dipu.synchronize()                          # once
        z = torch.zeros(4, dtype=torch.int64, device="dipu")
        z.put_(torch.tensor([7], device="dipu"), torch.tensor([1], device="dipu"))   # by alias
        try:
            torch.dipu.current_stream().synchronize()
        except RuntimeError as error:
            print("raised", "put_" in str(error))
        print((table * 0).sum().item())
        """,
        DIPU_HOST_DELAY_US="2000",
    )
    assert out.split() == ["queued", "raised", "True", "True", "raised", "True", "0.0"]


def test_streams_order_by_events_only() -> None:
    out = run(
        """
        import torch
        side, x = torch.dipu.Stream(), torch.zeros(256, device="dipu")
        torch.dipu.synchronize()
        for _ in range(10):
            x.add_(1)
        with torch.dipu.stream(side):
            side.wait_stream(torch.dipu.default_stream())
            y = x * 2
            x.record_stream(side)
        torch.dipu.current_stream().wait_stream(side)
        print((y + 0).sum().item())
        start, end = torch.dipu.Event(enable_timing=True), torch.dipu.Event(enable_timing=True)
        start.record(); x.add_(1); x.add_(1); end.record()
        print(end.query())
        end.synchronize()
        print(end.query(), start.elapsed_time(end) >= 4)
        """,
        DIPU_HOST_DELAY_US="20000",
    )
    assert out.split() == ["5120.0", "False", "True", "True"]


def test_an_event_recorded_on_two_streams_is_ready_when_the_later_recording_is() -> None:
    out = run(
        """
        import torch
        busy, idle = torch.dipu.Stream(), torch.dipu.Stream()
        x = torch.zeros(8, device="dipu")
        torch.dipu.synchronize()
        event = torch.dipu.Event()
        with torch.dipu.stream(busy):
            for _ in range(5):
                x.add_(1)
            event.record()
        with torch.dipu.stream(idle):
            event.record()
        torch.dipu.synchronize()
        event.synchronize()
        print(event.query())
        """,
        DIPU_HOST_DELAY_US="3000",
    )
    assert out.split() == ["True"]


def test_a_copy_to_another_device_does_not_meet_work_queued_there() -> None:
    out = run(
        """
        import torch
        a = torch.full((256,), 3.0, device="dipu:0")
        for _ in range(3):
            torch.empty(256, device="dipu:1").fill_(7)     # freed at once, still queued
        b = a.to("dipu:1")
        print(b.cpu().unique().tolist())
        """,
        DIPU_HOST_DELAY_US="20000",
    )
    assert out.split() == ["[3.0]"]


def test_what_lives_on_the_cpu_may_be_read_and_changed_after_the_call() -> None:
    out = run(
        """
        import torch
        x = torch.full((64,), 1 + 2j, device="dipu")
        host = torch.zeros(64, dtype=torch.complex64)
        host.copy_(x.conj())
        print(host[0].item())
        rows, index = torch.zeros(4, 2, device="dipu"), torch.tensor([1])
        rows.index_put_((index,), torch.ones(1, 2, device="dipu"))
        index.fill_(2)
        print(rows.sum(1).tolist())
        source = torch.ones(3, dtype=torch.complex64)
        y = torch.zeros(3, dtype=torch.complex64, device="dipu")
        y.copy_(source.conj())
        source.fill_(9)
        print(y.real.sum().item())
        """,
        DIPU_HOST_DELAY_US="5000",
    )
    assert out.splitlines() == ["(1-2j)", "[0.0, 2.0, 0.0, 0.0]", "3.0"]


def test_results_by_alias_are_freed_by_the_stream_without_waiting_for_itself() -> None:
    out = run(
        """
        import torch
        x = torch.arange(4096, device="dipu")
        for _ in range(30):
            y = torch.bitwise_xor(x, x)
            y.bitwise_xor_(x)
            del y
        torch.dipu.synchronize()
        torch.dipu.empty_cache()
        print(torch.dipu.memory_allocated() == x.numel() * 8)
        """,
        DIPU_HOST_DELAY_US="500",
    )
    assert out.split() == ["True"]


def test_memory_freed_while_in_use_elsewhere_is_not_handed_out() -> None:
    out = run(
        """
        import torch
        side = torch.dipu.Stream()
        good = 0
        for i in range(5):
            x = torch.full((1024,), float(i), device="dipu")
            torch.dipu.synchronize()
            with torch.dipu.stream(side):
                for _ in range(5):
                    torch.zeros(1, device="dipu").add_(1)   # keeps the stream busy
                y = x + 1
            x.record_stream(side)
            del x
            trash = torch.full((1024,), -99.0, device="dipu")
            side.synchronize()
            good += y.sum().item() == (i + 1) * 1024
        print(good)
        """,
        DIPU_HOST_DELAY_US="2000",
    )
    assert out.split() == ["5"]


def test_training_is_the_same_as_synchronous() -> None:
    code = """
        import torch
        torch.manual_seed(0)
        from torch import nn
        net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to("dipu")
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        x, y = torch.randn(64, 16).to("dipu"), torch.randint(0, 4, (64,)).to("dipu")
        for _ in range(10):
            loss = torch.nn.functional.cross_entropy(net(x), y)
            opt.zero_grad(); loss.backward(); opt.step()
        print(loss.item().hex())
    """
    assert run(code, DIPU_HOST_DELAY_US="20") == run(code, DIPU_HOST_ASYNC="0")


def test_a_forked_process_refuses_the_device_instead_of_waiting_for_ever() -> None:
    out = run(
        """
        import os, signal, torch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork

        def fork(*uses):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                for use in uses:
                    try:
                        print(use(), flush=True)
                    except RuntimeError as error:
                        print("refused", "'spawn'" in str(error), flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

        fork(lambda: torch.ones(2, device="dipu").tolist())
        x = torch.ones(2, device="dipu") + 1
        event = torch.dipu.Event()
        event.record()
        fork(
            lambda: x + 1, x.tolist, torch.dipu.synchronize, torch.dipu.current_stream().query,
            event.synchronize, event.record, event.query, torch.ones(2).sum,
        )
        print("parent", x.tolist())
        """
    )
    assert out.splitlines() == ["[1.0, 1.0]", *["refused True"] * 7, "tensor(2.)", "parent [2.0, 2.0]"]


def test_synchronous_streams_and_events_work_too() -> None:
    side = torch.dipu.Stream()
    assert side.device == torch.device("dipu:0")
    with torch.dipu.stream(side):
        assert torch.dipu.current_stream() == side
        x = torch.ones(4, device="dipu") + 1
    assert torch.dipu.current_stream() != side
    event = torch.dipu.Event(enable_timing=True)
    event.record()
    later = torch.dipu.Event(enable_timing=True)
    later.record()
    assert event.elapsed_time(later) >= 0
    assert x.sum().item() == 8
