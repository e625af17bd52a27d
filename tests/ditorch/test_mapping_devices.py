"""torch.device, Generator, Stream and Event under the mapping."""

from __future__ import annotations

import copy
import functools
import io
import json
import pickle

import pytest
import torch

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("mapped")]

RealDevice = type(torch.empty(0).device)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (("cuda",), {}, "dipu"),
        (("cuda:1",), {}, "dipu:1"),
        (("cuda", 1), {}, "dipu:1"),
        ((), {"type": "cuda", "index": 0}, "dipu:0"),
        (("dipu:1",), {}, "dipu:1"),
        (("cpu",), {}, "cpu"),
        (("meta",), {}, "meta"),
        ((1,), {}, "dipu:1"),
    ],
)
def test_every_notation_of_a_device(args: tuple, kwargs: dict, expected: str) -> None:
    assert str(torch.device(*args, **kwargs)) == expected


def test_a_device_object_is_translated_too() -> None:
    real_cuda = RealDevice("cuda", 1)
    assert torch.device(real_cuda) == RealDevice("dipu", 1)
    assert torch.zeros(2, device=real_cuda).device == RealDevice("dipu", 1)


def test_wrong_devices_still_raise_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        torch.device("nonsense")
    with pytest.raises(RuntimeError, match="cuda"):
        torch.device("cuda:x")
    # Names that only begin like cuda are none of our business.
    with pytest.raises(RuntimeError, match="cudax"):
        torch.zeros(1, device="cudax")


def test_the_class_answers_for_the_real_one() -> None:
    device = torch.device("cuda")
    assert isinstance(device, torch.device)
    assert isinstance(device, torch.device | None)
    assert not isinstance("cuda", torch.device)
    assert issubclass(type(device), torch.device)
    assert not issubclass(str, torch.device)
    assert type(device) is RealDevice
    assert type(device) == torch.device  # noqa: E721 -- programs compare like this
    assert torch.device in {RealDevice: 1}
    assert repr(torch.device) == "<class 'torch.device'>"
    assert torch.device.type.__get__(device) == "dipu"
    assert repr(device) == "device(type='dipu')"


def test_single_dispatch_by_the_class() -> None:
    @functools.singledispatch
    def kind(value: object) -> str:
        return "other"

    kind.register(torch.device, lambda value: "device")
    assert kind(torch.device("cuda")) == "device"
    assert kind("cuda") == "other"


def test_devices_are_copied_and_pickled_as_before() -> None:
    device = torch.device("cuda", 1)
    assert copy.copy(device) == copy.deepcopy(device) == device
    assert pickle.loads(pickle.dumps(device)) == device
    assert pickle.loads(pickle.dumps(torch.device)) is torch.device
    assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros
    buffer = io.BytesIO()
    torch.save({"device": device}, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == {"device": device}


@pytest.mark.parametrize("archive", [True, False])
def test_the_name_of_a_device_is_plain_text_in_files(archive: bool) -> None:
    name = torch.device("cuda").type
    assert (name, name) == ("cuda", "dipu")
    buffer = io.BytesIO()
    torch.save({"device": name, name: 1}, buffer, _use_new_zipfile_serialization=archive)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert repr(loaded) == "{'device': 'cuda', 'cuda': 1}"
    pickled = [pickle.loads(pickle.dumps(name, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    plain = [loaded["device"], *loaded, *pickled, copy.copy(name), copy.deepcopy(name), str(name), f"{name}"]
    assert {type(text) for text in plain} == {str}
    assert set(plain) == {"cuda", "device"}
    assert json.dumps({name: name}) == '{"cuda": "cuda"}'


def test_a_pickle_from_a_cuda_machine_leads_here() -> None:
    from_cuda = b"ctorch\ndevice\n(S'cuda'\nI1\ntR."
    assert str(pickle.loads(from_cuda)) == "dipu:1"


def test_device_as_context_and_default() -> None:
    with torch.device("cuda:1"):
        assert str(torch.ones(1).device) == "dipu:1"
        assert str(torch.tensor([1]).device) == "dipu:1"
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).device.type == "dipu"
        assert str(torch.get_default_device()) == "dipu:0"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_generator() -> None:
    generator = torch.Generator("cuda").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert generator.device.type == "dipu"
    first = torch.rand(9, device="cuda", generator=generator)
    second = torch.rand(9, device="cuda", generator=torch.Generator(device="cuda").manual_seed(5))
    assert torch.equal(first.cpu(), second.cpu())
    assert first.unique().numel() > 1
    assert torch.Generator().device.type == "cpu"
    states = [
        made.get_state()
        for made in (generator, copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)))
    ]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_streams_and_events() -> None:
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(stream, torch.Stream)
    x = torch.arange(8.0).cuda()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        y = x * 2
        done = torch.cuda.Event(enable_timing=True)
        done.record()
    torch.cuda.current_stream().wait_event(done)
    done.synchronize()
    assert done.query()
    assert done.cuda_event == done.event_id != 0
    assert torch.equal(y.cpu(), torch.arange(8.0) * 2)
    assert torch.Stream("cuda:1").device == torch.device("dipu:1")
    assert torch.Event("cuda").device.type == "dipu"


def test_subclasses_inherit_from_the_real_class() -> None:
    class Named(torch.Stream):
        name = "mine"

    stream = Named(device=torch.device("cuda"))
    assert stream.name == "mine"
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("dipu:0")
    assert Named.__mro__[1] == torch.Stream
