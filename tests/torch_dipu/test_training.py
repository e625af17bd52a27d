"""What makes it a PyTorch device: autograd, AMP, RNG, modules, optimisers, checkpoints, compile, data loading."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_dipu  # noqa: F401

DEVICES = ("cpu", "dipu")


def train(
    make, inputs, loss_of, optimiser, steps: int = 4, **options
) -> dict[str, list[float] | dict[str, torch.Tensor]]:
    """The same training on both devices: losses and weights by device."""
    results: dict = {}
    for device in DEVICES:
        torch.manual_seed(0)
        net = make().to(device)
        opt = optimiser(net.parameters(), **options)
        losses = []
        for step in range(steps):
            torch.manual_seed(step)
            loss = loss_of(net, *[x.to(device) for x in inputs])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        results[device] = (losses, {k: v.cpu() for k, v in net.state_dict().items()})
    return results


def same(results: dict, **tolerance: float) -> None:
    torch.testing.assert_close(torch.tensor(results["dipu"][0]), torch.tensor(results["cpu"][0]), **tolerance)
    for name, weight in results["cpu"][1].items():
        torch.testing.assert_close(results["dipu"][1][name], weight, **tolerance)
    assert results["cpu"][0][0] != results["cpu"][0][-1]


EXACT = {"rtol": 0.0, "atol": 0.0}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.1, batch_first=True, norm_first=True, activation="gelu"
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x)))


def tokens_loss(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(x).flatten(0, 1), x.flatten())


def image_loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(x), y)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2), nn.GroupNorm(4, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


TOKENS = (torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(1)),)
IMAGES = (
    torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(2)),
    torch.randint(0, 5, (6,), generator=torch.Generator().manual_seed(3)),
)


@pytest.mark.parametrize("foreach", [False, True])
def test_transformer_with_dropout_trains_bit_for_bit_like_the_cpu(foreach: bool) -> None:
    same(train(Transformer, TOKENS, tokens_loss, torch.optim.AdamW, foreach=foreach), **EXACT)


@pytest.mark.parametrize("fused", [False, True])
def test_convnet(fused: bool) -> None:
    same(train(convnet, IMAGES, image_loss, torch.optim.SGD, lr=0.1, momentum=0.9, fused=fused), **ROUNDING)


@pytest.mark.parametrize("optimiser", ["Adam", "AdamW"])
def test_fused_optimisers(optimiser: str) -> None:
    same(train(Transformer, TOKENS, tokens_loss, getattr(torch.optim, optimiser), fused=True), **ROUNDING)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent(kind: str, bidirectional: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(10, 12, num_layers=2, batch_first=True, bidirectional=bidirectional)
            self.head = nn.Linear(12 * (1 + bidirectional), 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    inputs = (torch.randn(5, 7, 10), torch.randint(0, 3, (5,)))
    same(train(Net, inputs, image_loss, torch.optim.SGD, lr=0.1), **ROUNDING)


def test_recurrent_cells_and_gradcheck() -> None:
    for made in (nn.LSTMCell(3, 4), nn.GRUCell(3, 4)):
        cell = made.double().to("dipu")
        x = torch.randn(2, 3, dtype=torch.float64, device="dipu", requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda t, c=cell: c(t)[0] if isinstance(c, nn.LSTMCell) else c(t), (x,), nondet_tol=1e-9
        )


@pytest.mark.parametrize("conv", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_convolutions_of_every_kind(conv: type[nn.Module]) -> None:
    dims = int(conv.__name__[-2])
    layer, x = conv(4, 6, 3, stride=2, padding=1), torch.randn(2, 4, *[7] * dims, requires_grad=True)
    expected = layer(x)
    grads = torch.autograd.grad(expected.sin().sum(), [x, *layer.parameters()])
    layer, y = layer.to("dipu"), x.detach().to("dipu").requires_grad_()
    got = layer(y)
    torch.testing.assert_close(got.cpu(), expected, **ROUNDING)
    for g, e in zip(torch.autograd.grad(got.sin().sum(), [y, *layer.parameters()]), grads, strict=True):
        torch.testing.assert_close(g.cpu(), e, **ROUNDING)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_attention(causal: bool, mask: bool) -> None:
    if causal and mask:
        pytest.skip("torch allows one of both")
    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    bias = torch.randn(9, 9) if mask else None
    results = {}
    for device in DEVICES:
        leaves = [t.detach().to(device).requires_grad_() for t in (q, k, v)]
        out = F.scaled_dot_product_attention(
            *leaves, attn_mask=bias.to(device) if mask else None, is_causal=causal
        )
        grads = torch.autograd.grad(out.square().sum(), leaves)
        results[device] = [t.cpu() for t in (out, *grads)]
    for got, expected in zip(results["dipu"], results["cpu"], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    net, x = nn.Linear(8, 8).to("dipu"), torch.randn(4, 8, device="dipu")
    with torch.autocast("dipu", dtype=dtype):
        y = net(x)
        assert y.dtype == dtype
        assert torch.softmax(y, -1).dtype == torch.float32
        assert (x + x).dtype == torch.float32
        with pytest.raises(RuntimeError, match="binary_cross_entropy"):
            F.binary_cross_entropy(torch.sigmoid(y), torch.rand_like(y))
    assert net(x).dtype == torch.float32
    y.sum().backward()
    assert net.weight.grad.dtype == torch.float32


def test_grad_scaler_skips_a_step_with_inf() -> None:
    w = nn.Parameter(torch.ones(3, device="dipu"))
    opt, scaler = torch.optim.SGD([w], lr=1.0), torch.amp.GradScaler("dipu", init_scale=8.0)
    for factor, moved in ((1.0, True), (float("inf"), False)):
        before = w.detach().cpu().clone()
        opt.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        assert torch.equal(w.detach().cpu(), before) != moved
    assert scaler.get_scale() == 4.0


def test_seeds_give_the_same_numbers_as_on_the_cpu() -> None:
    for draw in (
        lambda d: torch.randn(7, device=d),
        lambda d: torch.rand(3, 3, device=d),
        lambda d: torch.randint(0, 99, (20,), device=d),
        lambda d: torch.randperm(12, device=d),
        lambda d: F.dropout(torch.ones(50, device=d), 0.3),
        lambda d: torch.bernoulli(torch.full((30,), 0.4, device=d)),
        lambda d: torch.multinomial(torch.ones(9, device=d), 4),
        lambda d: torch.empty(6, device=d).exponential_(),
    ):
        drawn = []
        for device in DEVICES:
            torch.manual_seed(123)
            drawn.append(draw(device).cpu())
        assert torch.equal(*drawn)
        assert not torch.equal(drawn[1], draw("dipu").cpu())  # the state moved on


def test_generators_and_states() -> None:
    g = torch.Generator("dipu").manual_seed(5)
    a = torch.randn(4, generator=g, device="dipu")
    assert torch.equal(a.cpu(), torch.randn(4, generator=torch.Generator().manual_seed(5)))
    state = torch.dipu.get_rng_state()
    first = torch.rand(5, device="dipu")
    torch.dipu.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="dipu"), first)
    cpu_state = torch.get_rng_state()
    torch.rand(5, device="dipu")
    F.dropout(torch.ones(9, device="dipu"))
    assert torch.equal(torch.get_rng_state(), cpu_state)  # the CPU's stream is not touched
    with torch.random.fork_rng(devices=[0], device_type="dipu"):
        inside = torch.rand(5, device="dipu")
    assert torch.equal(torch.rand(5, device="dipu"), inside)


def test_generators_are_copied_and_pickled() -> None:
    for device in ("dipu:1", "cpu"):
        generator = torch.Generator(device).manual_seed(5)
        torch.rand(3, device=device, generator=generator)
        copies = [copy.copy(generator), copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
        drawn = [torch.rand(4, device=device, generator=made).tolist() for made in (generator, *copies)]
        assert drawn == drawn[:1] * 4
        assert {(made.device, made.initial_seed()) for made in copies} == {(torch.device(device), 5)}


def test_dropout_rate_and_scale() -> None:
    y = F.dropout(torch.ones(100_000, device="dipu"), 0.25).cpu()
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((y == 0).float().mean().item() - 0.25) < 0.01


def test_checkpoint_recomputes_the_same_with_dropout() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).to("dipu")
    grads = []
    for use in (False, True):
        torch.manual_seed(7)
        x = torch.ones(4, 8, device="dipu", requires_grad=True)
        y = checkpoint(net, x, use_reentrant=False) if use else net(x)
        grads.append(torch.autograd.grad(y.sum(), [x, *net.parameters()]))
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a.cpu(), b.cpu())


def test_backward_runs_on_the_right_device() -> None:
    x = torch.ones(3, device="dipu:1", requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.device == torch.device("dipu:1")
    assert x.grad.cpu().tolist() == [2, 2, 2]
    moved = torch.ones(2, requires_grad=True)
    (moved.to("dipu:1").to("dipu:0") * 3).sum().backward()
    assert moved.grad.tolist() == [3, 3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x @ w), (5,)).sum(0)

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    leaf = w.to("dipu").requires_grad_()
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    got = compiled(x.to("dipu"), leaf)
    torch.testing.assert_close(got.cpu(), f(x, w), **ROUNDING)
    got.square().sum().backward()
    reference = w.clone().requires_grad_()
    f(x, reference).square().sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), reference.grad, **ROUNDING)


def _squares(i: int) -> torch.Tensor:
    return torch.tensor([float(i), float(i * i)])


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        return _squares(i)


def test_data_loader_with_workers_and_pinned_memory() -> None:
    torch.zeros(1, device="dipu")  # the device is in use before the workers are forked
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=True)
    seen = []
    for batch in loader:
        assert batch.is_pinned()
        seen.append(batch.to("dipu", non_blocking=True))
    assert torch.equal(torch.cat(seen).cpu(), torch.stack([_squares(i) for i in range(10)]))


def test_pinned_memory() -> None:
    x = torch.arange(8.0).pin_memory()
    assert x.is_pinned()
    assert x[2:].is_pinned()
    assert not torch.arange(8.0).is_pinned()
    assert torch.equal(x.to("dipu", non_blocking=True).cpu(), torch.arange(8.0))


def test_every_thread_has_its_own_current_device() -> None:
    seen = {}

    def work(index: int) -> None:
        torch.dipu.set_device(index)
        seen[index] = [torch.ones(2, device="dipu").device.index for _ in range(50)]

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == {0: [0] * 50, 1: [1] * 50}


def test_accelerator_interface_and_default_device() -> None:
    assert torch.accelerator.current_accelerator().type == "dipu"
    assert torch.accelerator.device_count() == 2
    torch.accelerator.synchronize()
    torch.set_default_device("dipu")
    try:
        assert torch.ones(2).device.type == "dipu"
        assert nn.Linear(2, 2).weight.device.type == "dipu"
    finally:
        torch.set_default_device(None)


def test_inference_mode_and_functional_transforms() -> None:
    x = torch.randn(4, 3)
    with torch.inference_mode():
        y = x.to("dipu") * 2
    assert torch.equal(y.cpu(), x * 2)
    jac = torch.func.jacrev(lambda t: t.sin().sum(-1))(x.to("dipu"))
    torch.testing.assert_close(jac.cpu(), torch.func.jacrev(lambda t: t.sin().sum(-1))(x))
    mapped = torch.func.vmap(lambda t: t @ t)(x.to("dipu"))
    torch.testing.assert_close(mapped.cpu(), torch.func.vmap(lambda t: t @ t)(x))


def test_memory_statistics() -> None:
    size = 2**26  # large enough for a segment that no other tensor shares
    torch.dipu.empty_cache()
    before = torch.dipu.memory_allocated()
    x = torch.empty(size, dtype=torch.uint8, device="dipu")
    assert torch.dipu.memory_allocated() - before == size
    address = x.data_ptr()
    del x
    assert torch.dipu.memory_allocated() == before
    reserved = torch.dipu.memory_reserved()
    y = torch.empty(size, dtype=torch.uint8, device="dipu")
    assert y.data_ptr() == address  # from the cache
    assert torch.dipu.memory_reserved() == reserved
    blocks = [block for segment in torch.dipu.memory_snapshot() for block in segment["blocks"]]
    assert any(b["size"] == size and b["state"] == "active_allocated" for b in blocks)
    del y
    torch.dipu.empty_cache()
    assert torch.dipu.memory_reserved() < reserved
    assert "held by tensors" in torch.dipu.memory_summary()


def test_operators_run_through_diopi_and_are_counted() -> None:
    x = torch.randn(8, 8, device="dipu")
    torch.dipu.reset_op_counts()
    _ = x + x, x @ x, torch.relu(x), torch.bitwise_xor(x.int(), x.int())
    counts = torch.dipu.op_counts()
    assert counts["aten::add.Tensor"] == {"diopi": 1, "alias": 0, "copy": 0}
    assert counts["aten::mm"]["diopi"] == 1
    assert counts["aten::relu"]["diopi"] == 1
    assert counts["aten::bitwise_xor.Tensor"] == {"diopi": 0, "alias": 1, "copy": 0}
    torch.dipu.configure(alias=0)
    try:
        torch.bitwise_xor(x.int(), x.int())
    finally:
        torch.dipu.configure(alias=1)
    assert torch.dipu.op_counts()["aten::bitwise_xor.Tensor"]["copy"] == 1


def test_a_transformer_step_runs_mostly_through_diopi() -> None:
    net, x = Transformer().to("dipu"), TOKENS[0].to("dipu")
    opt = torch.optim.AdamW(net.parameters())
    torch.dipu.reset_op_counts()
    tokens_loss(net, x).backward()
    opt.step()
    counts = torch.dipu.op_counts()
    total = sum(sum(ways.values()) for ways in counts.values())
    assert sum(ways["diopi"] for ways in counts.values()) > 0.8 * total


def test_the_exit_waits_until_autograd_is_idle() -> None:
    from torch_dipu import shutdown

    x = torch.ones(2, device="dipu", requires_grad=True)
    x.sum().backward()
    shutdown._wait_for_autograd()
    threads = shutdown._autograd_threads()
    assert len(threads) >= torch.dipu.device_count()
    assert shutdown._idle(threads, threads)
    assert not shutdown._idle({}, threads)
    assert not shutdown._idle(threads, {"1": "State:\tR (running)"})
