"""Calls of functions on other processes: programs of several workers, faults, and agents of one process."""

from __future__ import annotations

import gc
import json
import math
import os
import random
import re
import socket
import time
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest
from distributed.test_sockets import processes

import ampkit
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.distributed import DistError, rpc
from ampkit.distributed.rpc import codec, registry
from ampkit.distributed.rpc.agent import ANSWER, GROUP, HELLO, REQUEST, Agent, WorkerInfo
from ampkit.distributed.rpc.operations import serve
from ampkit.distributed.rpc.references import sent
from ampkit.distributed.rpc.threads import Threads
from ampkit.distributed.sockets.messages import Mailbox

pytestmark = pytest.mark.no_gpu


def test_workers_call_each_other_and_count_references():
    codes, out, errors = processes(3, "rpc_program.py")
    assert codes == [0, 0, 0], errors
    assert out.count("right") == 3


def test_a_script_for_pytorch_trains_embeddings_on_a_server_as_one_process_would():
    codes, out, errors = processes(3, "-m", "ampkit.as_torch", "embedding_server.py")
    assert codes == [0, 0, 0], errors
    assert "right" in out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("died", r"rpc_sync\(__main__.die\), at rpc_faults_program.py:\d+: needs an answer of b, got the end of"),
        ("error", "needs an answer of b, got ValueError: something of the script's own"),
        ("name", "needs another name for each worker, got 'same' on ranks 0, 1"),
    ],
)
def test_a_fault_of_one_worker_ends_calls_of_the_others(fault, said):
    codes, _, errors = processes(2, "rpc_faults_program.py", fault)
    assert codes[0] == 1
    assert re.search(said, errors[0]), errors[0]


# one worker


@rpc.register
def repeated(value, times=1):
    return [value] * times


@pytest.fixture
def alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    rpc.init_rpc("alone")
    yield
    rpc.shutdown()


def test_one_worker_calls_itself_and_gets_copies(alone):
    x = ampkit.ones(3)
    found = rpc.rpc_sync("alone", repeated, args=(x,), kwargs={"times": 2})
    x += 1
    found[0] += 3  # writable
    assert [each.tolist() for each in found] == [[4, 4, 4], [1, 1, 1]]
    assert rpc.get_worker_info() == rpc.get_worker_info("alone") == WorkerInfo("alone", 0)
    with pytest.raises(StateError, match=r"rpc.shutdown\(\) first"):
        rpc.init_rpc("again")


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: rpc.rpc_sync("nobody", repeated), ArgumentError, "one of the workers alone, got 'nobody'"),
        (lambda: rpc.rpc_sync(True, repeated), ArgumentError, "one of the workers alone, got True"),
        (lambda: rpc.rpc_sync(0, repeated, args=3), ArgumentError, r"args=\(...\), kwargs=\{...\}, got a int"),
        (lambda: rpc.rpc_sync(0, repeated, args=({1},)), DTypeError, "needs None, bools, .* got a set"),
        (lambda: rpc.rpc_sync(0, repeated, args=(1,), timeout=-2), ArgumentError, "a timeout in seconds, 0 for none"),
        (lambda: rpc.rpc_sync(0, lambda: 1), ArgumentError, "a function that has a name in its module, got .*<lambda>"),
        (lambda: rpc.rpc_sync(0, {}.get), ArgumentError, "a name in its module, got dict.get"),
        (lambda: rpc.rpc_sync(0, ampkit.nn.Linear(1, 1).forward), ArgumentError, "got a method of an object"),
        (lambda: rpc.rpc_sync(0, repeated, args=(1,), kwargs={"times": "x"}), TypeError, "test_rpc.repeated. on alone"),
        (lambda: rpc.rpc_sync(0, "builtins.eval", args=("1",)), ArgumentError, "declared, got 'builtins.eval'"),
        (lambda: rpc.rpc_sync(0, "nn.init"), ArgumentError, "declared, got 'nn.init'"),
        (lambda: rpc.RRef([1]).rpc_sync().append(2), ArgumentError, "got 'append' of a list"),
        (lambda: rpc.RRef(1).__reduce__(), StateError, "an argument or a result of a call, got a pickle"),
    ],
)
def test_bad_calls_raise_one_line(alone, call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_before_and_after_its_time_a_call_says_so():
    with pytest.raises(StateError, match=r"rpc.rpc_sync: needs rpc.init_rpc\(\) before"):
        rpc.rpc_sync("a", repeated)
    with pytest.raises(ArgumentError, match="a name of letters"):
        rpc.init_rpc("a name")
    with pytest.raises(ArgumentError, match="a rank from 0 to world_size - 1, got rank=2, world_size=2"):
        rpc.init_rpc("a", rank=2, world_size=2)


def test_one_thread_runs_several_functions_one_after_the_other():
    threads, heard = Threads(1, "test"), []
    threads.submit(heard.append, 1)
    threads.submit(heard.append, 2)
    while len(heard) < 2:
        time.sleep(0.01)
    threads.close()
    assert heard == [1, 2]


# names


def test_only_what_is_declared_is_found():
    assert registry.found("ops.add") is ampkit.ops.add
    assert registry.found("nn.Linear") is ampkit.nn.Linear
    for name in ("os.system", "ops.np", "nn.utils", "nn.Module.__init__", "distributed.test_rpc.alone", "json.loads"):
        with pytest.raises(ArgumentError, match="a function that this worker has declared"):
            registry.found(name)


def test_a_module_declares_what_it_defines_and_not_what_it_imports(monkeypatch):
    monkeypatch.setattr(registry, "_declared", {})
    rpc.register(json)
    assert registry.found("json.dumps") is json.dumps
    with pytest.raises(ArgumentError):
        registry.found("json.JSONDecoder")  # of json.decoder


def test_two_functions_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(registry, "_declared", {})
    monkeypatch.setattr(registry, "_names", {})
    rpc.register(repeated, name="one")
    with pytest.raises(ArgumentError, match="a name for each function, got 'one' twice"):
        rpc.register(math.sin, name="one")
    with pytest.raises(DTypeError, match="a function, a class or a module, got a int"):
        rpc.register(3)


# bytes


def same(a, b):
    if isinstance(a, (ampkit.Tensor, np.ndarray)):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def through(value):
    data = codec.encoded("test", value, lambda value: None)
    return codec.decoded(memoryview(bytearray(data)), lambda found: None)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**70), 0.1, float("inf"), float("nan"), "text \ud800 \u00e9", b"\x00\xff", (), [[], ()],
        (1, [2.5, None]), ampkit.float16, np.arange(6, dtype=">i4").reshape(2, 3)[:, ::2], np.array(2.5, np.float32),
        np.zeros((0, 3), np.uint16),
    ],
)  # fmt: skip
def test_values_arrive_as_they_were(value):
    found = through(value)
    if isinstance(value, np.ndarray):
        value = value.astype(value.dtype.newbyteorder("="))
    assert same(value, found), found


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "bool", "float8_e4m3fn"])
def test_tensors_of_every_dtype_arrive_with_their_bits(dtype):
    x = ampkit.tensor([[0, 1, 0], [1, 1, 0]]).to(getattr(ampkit, dtype)).T
    found = through({"x": x, 3: [x[:0], x[1, 1]]})
    assert found["x"].dtype is x.dtype
    assert [found["x"].float().tolist(), found[3][1].float().item()] == [x.float().tolist(), 1.0]
    assert found[3][0].shape == (0, 2)


def test_what_contains_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ArgumentError, match="a list or dict that contains itself"):
        through(endless)
    with pytest.raises(DTypeError, match="got a ndarray"):
        through(np.array([object()]))


@pytest.mark.parametrize(
    "text",
    ['["array","O",[1]]', '["array","|V3",[1]]', '["array","<f4",[-1]]', '["tensor","float32",[9],"cpu"]', '["os"]',
     "[]", "[[]]", '["dict",[1]]', '["dtype","object"]', "x"],
)  # fmt: skip
def test_bytes_of_nothing_that_was_sent_raise(text):
    def unpack(found):
        raise ArgumentError("test", "another", "thing")

    data = codec.LENGTH.pack(len(text)) + text.encode() + bytes(8)
    with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
        codec.decoded(memoryview(data), unpack)


# agents of one process


@contextmanager
def agents(count):
    """Agents that connected pairs of sockets join; the names are a, b, c."""
    ends = {rank: {} for rank in range(count)}
    for low in range(count):
        for high in range(low + 1, count):
            ends[low][high], ends[high][low] = socket.socketpair()
    made = [Agent(rank, count, Mailbox(ends[rank]), 4, 20.0) for rank in range(count)]
    for agent in made:
        agent.workers = [WorkerInfo("abc"[rank], rank) for rank in range(count)]
        serve(agent)
    yield made
    for agent in made:
        agent.close()
        agent.mail.close()


def call(agent, to, function, *args, how="rpc_sync"):
    return sent(agent, agent.workers[to], how, "test()", -1, "call", registry.name_of("test", function), args, {})


@rpc.register
def identity(value):
    return value


def test_a_call_that_comes_before_all_names_are_known_waits_for_them():
    one, other, third = ends = [{}, {}, {}]
    for low, high in ((0, 1), (0, 2), (1, 2)):
        ends[low][high], ends[high][low] = socket.socketpair()
    early, late = Mailbox(one), Agent(1, 3, Mailbox(other), 2, 20.0)
    serve(late)
    hello = codec.encoded("test", "a", lambda value: None, bytes(8))
    early.send(1, GROUP, HELLO, hello)
    early.send(1, GROUP, REQUEST, codec.encoded("test", ("call", "ops.ones", (2,), {}), lambda value: None, bytes(8)))
    time.sleep(0.3)
    assert early.has(GROUP, lambda message: message.kind != HELLO) is None
    last = Mailbox(third)
    last.send(1, GROUP, HELLO, codec.encoded("test", "c", lambda value: None, bytes(8)))
    late.meet("b", 20.0)
    assert early.wait_until(lambda: early.has(GROUP, lambda message: message.kind == ANSWER) is not None, 20.0)
    late.close()
    for mail in (early, late.mail, last):
        mail.close()


def test_references_that_pass_at_random_are_all_counted():
    draw = random.Random(0)
    with agents(3) as several:
        held = [[] for _ in several]
        for _ in range(300):
            here, to = draw.randrange(3), draw.randrange(3)
            if draw.random() < 0.3 or not held[here]:
                held[here].append(call(several[here], to, identity, [float(to)], how="remote"))
            elif draw.random() < 0.6:  # there and back, and again by another one
                reference = call(several[here], to, identity, draw.choice(held[here]))
                held[here].append(reference)
            else:
                held[here].pop(draw.randrange(len(held[here])))
        assert all(each.to_here() == [float(each.owner().id)] for each in chain(*held))
        assert sum(len(agent.values) for agent in several) > 3
        held.clear()
        del reference
        gc.collect()
        deadline = time.monotonic() + 20
        while any(len(agent.values) for agent in several) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [len(agent.values) for agent in several] == [0, 0, 0]


def test_a_message_that_cannot_be_read_is_answered_with_an_error():
    with agents(2) as (one, other):
        future = one.request(one.workers[1], "test()", 5, "fetch")
        with pytest.raises(TypeError):  # no reference to fetch
            future.wait()
        other.mail.send(0, GROUP, REQUEST, bytes(8) + b"\xff" * 4)
        assert call(one, 1, identity, 3) == 3  # and both go on
        assert call(other, 0, identity, 4) == 4


def test_calls_that_wait_end_with_the_agent():
    with agents(2) as (one, _):
        future = one.request(one.workers[1], "test()", 0, "method", rpc.references.reference(
            one, one.workers[1], (1, 77), None, 0), "x", (), {})  # of a value that never comes  # fmt: skip
        one.close()
        with pytest.raises(StateError, match=r"needs an answer of b, got rpc.shutdown\(\)"):
            future.wait()
        with pytest.raises(StateError, match="rpc.shutdown"):
            call(one, 1, identity, 3)


def test_an_answer_that_does_not_come_in_time_raises():
    with agents(2) as (one, _):
        future = one.request(one.workers[1], "test()", 0.1, "method", rpc.references.reference(
            one, one.workers[1], (1, 78), None, 0), "x", (), {})  # fmt: skip
        with pytest.raises(DistError, match=r"needs an answer of b within 0.1 s, got none"):
            future.wait()
