"""Process groups, meshes and data loading under the mapping."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("nccl", "dicl"),
        ("NCCL", "dicl"),
        ("gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,dipu:dicl"),
        ("cuda:nccl", "dipu:dicl"),
        (None, None),
    ],
)
def test_backend_names(mapped: ModuleType, given: str | None, expected: str | None) -> None:
    from _ditorch.mapping.parallel import _translate_backend
    from _ditorch.session import of_process

    assert _translate_backend(given, of_process().mapping.target, "dicl") == expected


@pytest.mark.usefixtures("mapped")
@pytest.mark.skipif(hasattr(torch.distributed, "ProcessGroupNCCL"), reason="this torch was built with nccl")
def test_the_class_of_nccl_is_missing_with_a_reason() -> None:
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        assert not hasattr(module, "ProcessGroupNCCL")
        with pytest.raises(
            AttributeError, match=r"'ProcessGroupNCCL'.*'nccl' means the backend 'dicl'.*leave pg_options"
        ):
            module.ProcessGroupNCCL.Options()
        with pytest.raises(AttributeError, match=r"no attribute 'ProcessGroupABC'$"):
            _ = module.ProcessGroupABC


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_process_group_of_one(run_python, tmp_path, backend: str) -> None:
    result = run_python(
        f"""
        import torch, torch.distributed as dist, ditorch
        device = torch.device("cuda:0") if {backend!r} == "nccl" else None
        dist.init_process_group(
            {backend!r}, init_method="file://{tmp_path}/store", rank=0, world_size=1, device_id=device
        )
        x = torch.arange(3.0, device="cuda")
        dist.all_reduce(x)
        group = dist.new_group([0], backend="nccl")
        dist.broadcast(x, 0, group=group)
        print(dist.get_backend(), x.tolist(), dist.is_nccl_available())
        print("as dicl", dist.get_backend() == "dicl", "as a key", dist.get_backend(group) in {{"nccl"}})
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).cuda(), device_ids=[0])
        model(x).sum().backward()
        print(next(model.parameters()).grad.cpu().tolist())
        dist.destroy_process_group()
        """
    )
    assert "[0.0, 1.0, 2.0] True" in result.stdout
    assert "as a key True" in result.stdout
    assert backend != "nccl" or ("nccl [" in result.stdout and "as dicl True" in result.stdout)
    assert "[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]" in result.stdout


def test_a_device_mesh(run_python, tmp_path) -> None:
    result = run_python(
        f"""
        import torch, torch.distributed as dist, ditorch
        from torch.distributed.device_mesh import DeviceMesh
        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        print(dist.init_device_mesh("cuda", (1,)).device_type, DeviceMesh("cuda", [0]).device_type)
        dist.destroy_process_group()
        """
    )
    assert result.stdout.endswith("dipu dipu\n")


@pytest.mark.filterwarnings("ignore:.*pin_memory_device.*")
def test_data_loader(mapped: ModuleType) -> None:
    loader = torch.utils.data.DataLoader(
        torch.arange(6.0), batch_size=3, pin_memory=True, pin_memory_device="cuda"
    )
    assert loader.pin_memory_device == "dipu"
    batches = [batch.cuda(non_blocking=True) for batch in loader]
    assert [batch.tolist() for batch in batches] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert all(batch.is_cuda for batch in batches)
