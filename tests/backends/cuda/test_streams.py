"""The order of work between streams, what a capture forbids, and what the steps of models do of both."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator, memory, streams

import ampkit
from ampkit import models, nn, ops, optim
from ampkit.data import prefetch
from ampkit.models.resnet import BasicBlock

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
rng = np.random.default_rng(0)
TOKENS, IMAGES = rng.integers(1, 64, (2, 17)), rng.normal(size=(2, 3, 16, 16)).astype("f")
TEXT = TOKENS[:, :-1].copy(), TOKENS[:, 1:].copy()
PICTURES = IMAGES, np.array([1, 2])
GPT = {"vocab_size": 64, "block_size": 16, "n_layer": 2, "n_head": 2, "n_embd": 32}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.cells, self.head = nn.Embedding(64, 16), nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 64)

    def forward(self, tokens):
        return self.head(self.cells(self.read(tokens))[0])


def pooled():
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)


BERT = {"preset": "tiny", "vocab_size": 64}
STEPS = {
    "mlp": (lambda: models.mlp(hidden=[32], dropout=0.1), (rng.normal(size=(8, 64)).astype("f"), np.arange(8))),
    "gpt": (lambda: models.gpt(**GPT, dropout=0.1), TEXT),
    "bert": (lambda: models.bert(**BERT), TEXT),
    "lstm": (Recurrent, TEXT),
    "cnn": (lambda: models.cnn(width=8), (rng.normal(size=(2, 1, 8, 8)).astype("f"), np.arange(2))),
    "vit": (lambda: models.vit(num_layers=1), (rng.normal(size=(2, 3, 32, 32)).astype("f"), np.arange(2))),
    "convmixer": (lambda: models.convmixer(depth=2), PICTURES),
    "residual": (lambda: nn.Sequential(BasicBlock(3, 8, downsample=nn.Conv2d(3, 8, 1)), *pooled()), PICTURES),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_recorded_step_of_a_model_is_ordered_and_keeps_what_it_uses(name, device):
    build, batch = STEPS[name]
    ampkit.manual_seed(0)
    model = build().to("cuda")
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-3), ampkit.GradScaler(init_scale=256.0)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    del model, optimizer, scaler

    def step(x, y):
        model, optimizer, scaler = parts.values()
        with ampkit.autocast("cuda", dtype=ampkit.float16):
            loss = ops.cross_entropy(model(x).flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    compiled, seen = ampkit.compile(step), []
    call = compiled
    given = [tuple(ampkit.from_numpy(part.copy()) for part in batch)] * 7
    with streams.races() as found:
        for number, (x, y) in enumerate(prefetch(given, "cuda")):
            loss = call(x, y)
            device.call_when_ready([loss.array], seen.append)
            if number == 4:  # which the launch does not look at
                (kind,) = compiled._variants.values()
                call = lambda *given, kind=kind: kind(given, {}, list(given))  # noqa: E731
                parts.clear()
                gc.collect()
        device.synchronize()
    assert not found
    assert len(seen) == 7
    assert np.isfinite(seen).all()


# order between streams


def test_the_emulation_finds_work_of_two_streams_that_nothing_orders(device):
    xp = device.xp
    array, other = xp.zeros((64,), np.float32), xp.cuda.Stream(non_blocking=True)
    with streams.races() as found:
        array.fill(1)
        with other:
            array.fill(2)
        assert found
        count = len(found)
        xp.cuda.get_current_stream().wait_event(other.record())
        array.fill(3)
    assert len(found) == count


def test_the_emulation_raises_what_cuda_does_in_a_capture(device):
    xp = device.xp
    stream, other = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    before = other.record()

    def spoils(name, act):
        with stream:
            stream.begin_capture()
            with pytest.raises(memory.CUDARuntimeError, match=name):
                act()
            with pytest.raises(memory.CUDARuntimeError, match="Invalidated"):
                stream.end_capture()

    spoils("StreamCaptureUnsupported", stream.synchronize)
    spoils("StreamCaptureUnsupported", xp.cuda.Device(0).synchronize)
    spoils("CapturedEvent", lambda: stream.record().synchronize())
    spoils("CapturedEvent", lambda: stream.record().done)
    spoils("CapturedEvent", lambda: xp.cuda.get_elapsed_time(before, stream.record()))
    spoils("StreamCaptureIsolation", lambda: stream.wait_event(before))
    with stream:
        stream.begin_capture()
        other.wait_event(stream.record())
        with other:
            xp.zeros((4,), np.float32)
        with pytest.raises(memory.CUDARuntimeError, match="Unjoined"):
            stream.end_capture()


def test_a_copy_to_the_host_arrives_when_the_host_has_waited(device):
    array, buffer = device.asarray(np.arange(4.0)), np.zeros(4)
    stream = device.xp.cuda.get_current_stream()
    array.get(out=buffer, blocking=False)
    assert np.isnan(buffer).all()
    stream.synchronize()
    assert buffer.tolist() == [0, 1, 2, 3]


def test_memory_of_the_host_that_changes_under_a_copy_is_found(device):
    pinned = device.xp.cuda.alloc_pinned_memory(32)
    buffer, stream = np.frombuffer(pinned, np.float64), device.xp.cuda.Stream(non_blocking=True)
    array = device.empty((4,), np.dtype(np.float64))
    buffer[...] = 1.0
    array.set(buffer, stream=stream)
    buffer[...] = 2.0
    with pytest.raises(RuntimeError, match="still read it"):
        stream.synchronize()
    assert emulated_cupy.waits[0] > 0


# values that the host reads later


def test_synchronize_waits_for_copies_of_every_stream_before_it_reads_them(device):
    seen, values = [], ampkit.full((3,), 7.0, device="cuda").array
    device.synchronize()
    stream = emulated_cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(emulated_cupy.cuda.get_current_stream().record())
    with stream:  # which the current one does not wait for
        device.call_when_ready([values], lambda read: seen.append(read.tolist()))
    device.synchronize()
    assert seen == [[7.0, 7.0, 7.0]]


def test_labels_that_another_stream_checks_raise_nothing_before_they_have_arrived(device):
    x, y = ampkit.zeros(4, 5, device="cuda"), ampkit.tensor([0, 1, 2, 3], device="cuda")
    for _ in range(2):
        ops.cross_entropy(x, y)
        ampkit.cuda.synchronize()
    stream = emulated_cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(emulated_cupy.cuda.get_current_stream().record())
    with stream:
        ops.cross_entropy(x, y)
    ampkit.cuda.synchronize()


def test_memory_of_copies_that_an_error_made_useless_is_kept_until_they_have_arrived(device, monkeypatch):
    def fail(value):
        raise ampkit.StateError("a check", "0", str(value))

    value = ampkit.full((1,), 3.0, device="cuda").array
    with monkeypatch.context() as patch:
        patch.setattr(device, "call_ready", lambda: None)
        device.call_when_ready([value], fail)
        first = device._waiting[0][0]
        stream = emulated_cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(emulated_cupy.cuda.get_current_stream().record())
        with stream:  # the second copy comes later
            device.call_when_ready([value], fail)
    first.synchronize()
    with pytest.raises(ampkit.StateError):
        [device.call_ready() for _ in range(2)]
    gc.collect()
    # as small batches on their way take
    batches = [np.frombuffer(emulated_cupy.cuda.alloc_pinned_memory(value.nbytes), np.float32) for _ in range(9)]
    for batch in batches:
        batch[...] = 5.0
    stream.synchronize()
    assert {float(batch[0]) for batch in batches} == {5.0}
    device.synchronize()
    assert not device._waiting


def test_an_error_of_an_earlier_step_leaves_a_recorded_step_undone_and_whole(device):
    weight = nn.Parameter(ampkit.ones(3, 5, device="cuda"))
    optimizer = optim.SGD([weight], lr=0.1)

    @ampkit.compile
    def step(x, y):
        loss = (x @ weight).sum()
        ops.cross_entropy(x @ weight.detach(), y)  # a check that changes nothing
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x, good, bad = ampkit.ones(2, 3, device="cuda"), *(ampkit.tensor([0, n], device="cuda") for n in (1, 9))
    for _ in range(5):
        step(x, good)
    device.synchronize()
    step(x, bad)
    before = raised = None
    for _ in range(3):
        before, version = weight.numpy(force=True).copy(), weight._version
        try:
            step(x, good)
        except ampkit.AmpkitError:
            raised = True
            break
    assert raised
    assert weight._version == version
    np.testing.assert_array_equal(weight.numpy(force=True), before)
    step(x, good)
    assert weight._version > version
    device.synchronize()
