"""Ranks that sockets connect: rendezvous, faults, strangers, and programs on processes without MPI."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks, sockets

from ampkit import distributed as dist
from ampkit.base.errors import ArgumentError, ConfigError, StateError
from ampkit.distributed.environment import first_host, meeting_point
from ampkit.distributed.process_group import ProcessGroup
from ampkit.distributed.reduction import ReduceOp
from ampkit.distributed.sockets import launcher, rendezvous
from ampkit.distributed.sockets.handshake import connected
from ampkit.distributed.sockets.launcher import free_port
from ampkit.distributed.sockets.rendezvous import Meeting, key_of, meet
from ampkit.distributed.transport import Call, call_site

pytestmark = pytest.mark.no_gpu
HERE = Path(__file__).parent
CALL = Call("test()", "test.py:1")
LAUNCHERS = ("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")


def processes(ranks, *words, **variables):
    """Run a program of this folder on ranks with torchrun's variables. -> the codes of the ranks, what they print."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    found = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}
    started = [
        subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE,
                         env={**others, **common, **found, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables})
        for rank in range(ranks)
    ]  # fmt: skip
    with ThreadPoolExecutor(ranks) as threads:
        said = list(threads.map(lambda process: process.communicate(timeout=100), started))
    return [process.returncode for process in started], "".join(out for out, _ in said), [err for _, err in said]


@pytest.mark.parametrize(
    ("ranks", "programs"),
    [(2, ["collectives_program", "data_parallel_program", "zero_program"]), (4, ["mesh_program", "tensor_program"])],
)
def test_collectives_and_training_without_mpi_give_what_one_process_computes(ranks, programs):
    codes, out, errors = processes(ranks, "programs.py", *programs, "sockets")
    assert codes == [0] * ranks, errors
    assert out.count("right") == len(programs) * ranks


def test_a_script_for_pytorch_runs_on_ranks_by_the_variables_of_torchrun(tmp_path):
    codes, out, errors = processes(2, "-m", "ampkit.as_torch", "pytorch_script.py", str(tmp_path / "model.pt"))
    assert codes == [0, 0], errors
    assert re.search(r"accuracy (0\.9|1\.0)\d+ on all ranks: True", out), out


# What fsdp_script.py prints with PyTorch 2.13: torchrun --nproc-per-node 2 fsdp_script.py FOLDER float32
FSDP2 = {
    "float32": (
        [1.7196518, 0.0705742, 1.7196257, 0.0635100, 1.7189019, 0.0614314, 1.7201889, 0.0548045, 1.7161839, 0.0591944,
         1.7131836, 0.0556658, 1.7187637, 0.0640410, 1.7163079, 0.0564909],
        [46.677620, 1.149438, 1.445185, 107.866248, 5.829861, 107.574499, 1.837508, 1.614453, 1.344521, 107.815506,
         5.955457, 107.430292, 1.211143, 1.479812, 1.821612, 108.045907, 5.821626, 107.922004, 1.708397, 1.305616,
         1.022445, 46.173457],
        1e-6,
    ),
    "bfloat16": (
        [1.7196183, 0.0704999, 1.7196114, 0.0634758, 1.7189283, 0.0614589, 1.7201777, 0.0547885, 1.7161980, 0.0592002,
         1.7131811, 0.0556649, 1.7187614, 0.0640434, 1.7162719, 0.0565478],
        [46.677599, 1.149306, 1.444470, 107.866351, 5.825394, 107.569245, 1.837489, 1.613809, 1.344690, 107.815967,
         5.951842, 107.424187, 1.212482, 1.481490, 1.823056, 108.047789, 5.817131, 107.921708, 1.706265, 1.308828,
         1.021727, 46.174240],
        2e-3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FSDP2)
def test_a_script_for_fsdp2_gives_pytorchs_numbers_and_resumes_with_its_own_bits(tmp_path, dtype):
    codes, out, errors = processes(2, "-m", "ampkit.as_torch", "fsdp_script.py", str(tmp_path), dtype)
    assert codes == [0, 0], errors
    said = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    losses, sums, tolerance = FSDP2[dtype]
    assert said["resumed"] == ["True", "True"]
    np.testing.assert_allclose(np.array(said["losses"], float), losses, rtol=tolerance, atol=2e-7)
    np.testing.assert_allclose(np.array(said["sums"], float), sums, rtol=tolerance)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("error", "the same call on every rank, got ValueError: something of the script's own on rank 1"),
        ("end", "needs the same call on every rank, got the end of its program on rank 1"),
    ],
)
def test_a_fault_of_one_rank_ends_those_that_wait_for_it(fault, said):
    codes, _, errors = processes(2, "faults_program.py", fault, "sockets")
    assert all(codes), codes
    assert re.search(said, errors[0]), errors[0]


# ranks as threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends a process with its parent")
def test_ranks_end_with_a_launcher_that_is_killed():
    rank = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)"
    command = [sys.executable, launcher.__file__, "-n", "2", sys.executable, "-c", rank]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        process.kill()
    deadline = time.monotonic() + 10
    while (left := [each for each in ranks if Path(f"/proc/{each}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left


def test_a_call_of_no_script_is_named_without_a_place():
    assert (Call("all_reduce(SUM)", "a.py:3").place, Call("all_reduce(SUM)", "").place) == (
        "all_reduce(SUM), at a.py:3", "all_reduce(SUM)"
    )  # fmt: skip
    where = {"__name__": "runpy", "call_site": call_site}
    exec(compile("found = call_site()", "<frozen runpy>", "exec"), where)
    assert where["found"].startswith("test_sockets.py:")


@pytest.mark.parametrize("tcp", [False, True])
def test_sums_have_the_bits_of_another_transport(tcp, monkeypatch):
    if tcp:  # as between machines
        monkeypatch.setattr(rendezvous, "machine", lambda: "")
    values = np.random.default_rng(0).standard_normal((4, 300_001)).astype(np.float32)

    def program(group):
        array, half = values[group.rank()].copy(), values[group.rank()].astype(np.float16)
        group.all_reduce_array(array, ReduceOp.AVG, np.dtype(np.float16))
        group.all_reduce_array(half)
        return array, half

    for mine, theirs in zip(on_ranks(4, program), on_ranks(4, program, by="sockets"), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_groups_and_messages_are_kept_apart():
    def program(transport):
        halves = [transport.split([[0, 1], [2]]) for _ in range(2)]
        total = [np.full(5, transport.rank + number, np.float32) for number in range(3)]
        for each, array in zip([*halves, transport.copy()], total, strict=True):
            if each is not None and each.size > 1:
                ProcessGroup(range(each.size), each).all_reduce_array(array)
        other = (transport.rank + 1) % 3
        sent = [transport.send(CALL, np.full(9, tag + transport.rank, np.float32), other, tag) for tag in (1, 2)]
        found = [np.zeros(9, np.float32), np.zeros(9, np.float32)]
        sources = [transport.receive(CALL, found[i], [None, (other + 1) % 3][i], 2 - i)() for i in range(2)]
        for finish in sent:
            finish()
        return [each[0] for each in total], [each[0] - each[-1] + each[4] for each in found], sources

    with sockets(3) as transports, ThreadPoolExecutor(3) as threads:
        sums, received, sources = zip(*threads.map(program, transports), strict=True)
    assert sums == ([1, 3, 9], [1, 3, 9], [2, 3, 9])
    assert received == ([4, 3], [2, 1], [3, 2])
    assert sources == ([2, 2], [0, 0], [1, 1])


def test_a_large_message_needs_no_receiver_to_leave():
    def program(transport):
        other = 1 - transport.rank
        array = np.full(3_000_000, transport.rank, np.float32)
        transport.send(CALL, array, other, 0)()  # both send first
        transport.receive(CALL, array, other, 0)()
        return array[0], array[-1]

    with sockets(2) as transports, ThreadPoolExecutor(2) as threads:
        assert list(threads.map(program, transports)) == [(1, 1), (0, 0)]


def test_a_rank_that_disconnects_is_named_with_its_reason():
    def program(transport):
        if transport.rank == 1:
            transport.peers.close("MemoryError: too little")
            return "closed"
        with pytest.raises(dist.DistError, match="got MemoryError: too little on rank 1") as first:
            transport.barrier(CALL)
        with pytest.raises(dist.DistError) as again:  # what is under way belongs to the first
            transport.barrier(CALL)
        assert again.value is first.value
        with pytest.raises(dist.DistError, match="too little on rank 1"):
            transport.receive(CALL, np.zeros(3), 1, 0)()
        return "raised"

    with sockets(2) as transports, ThreadPoolExecutor(2) as threads:
        assert list(threads.map(program, transports)) == ["raised", "closed"]


# rendezvous


def met(meetings, timeout=1.0):
    """What each of the meetings comes to: addresses, or an error."""

    def one(meeting):
        try:
            return meet(meeting, 1000 + meeting.rank, timeout)
        except dist.DistError as error:
            return error

    with ThreadPoolExecutor(len(meetings)) as threads:
        return list(threads.map(one, meetings))


def meetings_of(*ranks, size=3, key=b"k" * 32):
    port = free_port()
    return [Meeting(rank, size, "127.0.0.1", port, key) for rank in ranks]


def test_all_ranks_learn_where_each_can_be_reached():
    found = met(meetings_of(0, 1, 2), 20)
    assert found[0] == found[1] == found[2]
    assert [address[:2] for address in found[0]] == [("127.0.0.1", 1000 + rank) for rank in range(3)]


def test_every_rank_that_comes_names_one_that_does_not():
    for found in met(meetings_of(0, 2)):
        assert "needs every rank within 1 s, got nothing from rank 1\n" in str(found)
    assert "got nothing from rank 0\n" in str(met(meetings_of(1))[0])


def test_ranks_with_other_numbers_are_refused_on_all():
    several = meetings_of(0, 1)
    for found in met([several[0], several[1]._replace(size=2)], 20):
        assert "needs the same number of ranks on all, got 3 on rank 0, 2 on rank 1" in str(found)
    several = meetings_of(0, 1, 1)
    assert all("needs ranks 0 to 2, each once, got rank 1 twice" in str(found) for found in met(several, 20))


def test_a_rank_that_ends_before_all_have_come_is_named():
    host, early = meetings_of(0, 1)

    def come_and_go():
        for _ in range(200):
            with suppress(OSError):
                connection = connected(early.host, early.first_port, early.key, 1.0)
                rendezvous.write_text(connection, {"rank": 1, "size": 3, "port": 1, "machine": ""})
                connection.close()
                return
            time.sleep(0.01)

    threading.Thread(target=come_and_go).start()
    assert "got the end of its program on rank 1" in str(met([host], 20)[0])


def test_strangers_are_kept_out_and_disturb_nobody(monkeypatch):
    monkeypatch.setattr(rendezvous, "STRANGERS_SECONDS", 0.1)
    ranks = meetings_of(0, 1, 2)
    stranger = ranks[1]._replace(key=b"x" * 32)
    silent = []

    def disturb():
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, b"\x80\x04\x95" * 40):
            for _ in range(100):
                with suppress(OSError):
                    connection = socket.create_connection(("127.0.0.1", ranks[0].first_port), timeout=1)
                    connection.sendall(words)
                    silent.append(connection)
                    break
                time.sleep(0.01)

    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(met, ranks[:1], 20)
        disturb()
        refused = met([stranger], 5)[0]
        others = met(ranks[1:], 20)
        assert "needs rank 0 with this job's token, got another one at 127.0.0.1" in str(refused)
        assert late.result() == others[:1]
    for each in silent:
        each.close()


def test_two_jobs_with_one_port_find_their_own_ranks():
    one = meetings_of(0, 1, size=2)
    other = [meeting._replace(key=b"o" * 32) for meeting in one]
    found = met([one[0], other[0], other[1], one[1]], 20)
    assert found[0] == found[3]
    assert found[1] == found[2]
    assert not any(isinstance(each, Exception) for each in found)


def test_ports_that_others_have_are_said_on_rank_0():
    port = free_port()
    taken = []
    for number in range(rendezvous.PORTS):
        with suppress(OSError):
            taken.append(socket.create_server(("127.0.0.1", port + number)))
    with pytest.raises(StateError, match=f"needs a free port for rank 0, got none from {port} to"):
        meet(Meeting(0, 2, "127.0.0.1", port, b"k" * 32), 1000, 1.0)
    for each in taken:
        each.close()


def test_the_token_is_a_secret_or_what_the_launcher_says_of_the_job():
    secret = {"AMPKIT_RENDEZVOUS_TOKEN": "a"}
    assert key_of("h", 1, secret) == key_of("other", 2, secret | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert key_of("h", 1, secret) != key_of("h", 1, {"AMPKIT_RENDEZVOUS_TOKEN": "b"})
    assert key_of("h", 1, {}) != key_of("h", 1, {"TORCHELASTIC_RESTART_COUNT": "1"}) != key_of("h", 1, secret)
    assert key_of("h", 1, {"SLURM_JOB_ID": "7"}) == key_of("h", 1, {"SLURM_JOB_ID": "7"})


# what launchers say


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"MASTER_ADDR": "a"}, None),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, ("a", 29500)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}, ("a", 29501)),
        ({"SLURM_JOB_ID": "3", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n[07-9,12],m", "SLURM_NODELIST": "b"},
         ("n07", 20152)),
        ({"SLURM_JOB_ID": "3", "SLURM_NODELIST": "n1,n2", "MASTER_PORT": "1234"}, ("n1", 1234)),
        ({"SLURM_JOB_ID": "3", "SLURM_NODELIST": "n1,n2", "MASTER_ADDR": "b", "MASTER_PORT": "1234"}, ("b", 1234)),
    ],
)  # fmt: skip
def test_the_meeting_point_is_what_the_launcher_says(variables, expected):
    assert meeting_point(variables) == expected


@pytest.mark.parametrize(
    ("nodes", "host"), [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[02,5]-x,b", "n02-x"), ("r[1-2]c[3-4]", "r1c3")]
)
def test_the_first_machine_of_a_list_of_slurm_is_found(nodes, host):
    assert first_host(nodes) == host


@pytest.fixture
def alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    yield monkeypatch
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "variables", "error", "said"),
    [
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, StateError, "where rank 0 can be reached, got no MASTER_ADDR and"),
        ({"rank": 0, "world_size": 2}, {"MASTER_ADDR": "a", "MASTER_PORT": "x"}, ConfigError, "MASTER_PORT: needs"),
        ({"rank": 2, "world_size": 2}, {}, ArgumentError, "a rank from 0 to world_size - 1, got rank=2, world_size=2"),
        ({"world_size": 2}, {}, ArgumentError, "a rank beside world_size"),
        ({"init_method": "file:///x", "rank": 0, "world_size": 2}, {}, ArgumentError, "env:// or tcp://host:port"),
        ({"init_method": "tcp://a:99999", "rank": 0, "world_size": 2}, {}, ArgumentError, "env:// or tcp://host:port"),
    ],
)  # fmt: skip
def test_what_cannot_be_connected_is_said_at_once(arguments, variables, error, said, alone):
    for name, value in variables.items():
        alone.setenv(name, value)
    with pytest.raises(error, match=said):
        dist.init_process_group("gloo", **arguments)


def test_one_rank_needs_no_meeting_point(alone):
    dist.init_process_group("gloo", rank=0, world_size=1)
    assert dist.get_world_size() == 1


def test_ranks_meet_by_arguments_alone(alone):
    code = (
        "import sys, ampkit, ampkit.distributed as dist; dist.init_process_group("
        "'gloo', 'tcp://127.0.0.1:'+sys.argv[1], rank=int(sys.argv[2]), world_size=2);"
        "t = ampkit.ones(2); dist.all_reduce(t); print(dist.get_backend(), t.tolist())"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    command, port = [sys.executable, "-c", code], str(free_port())
    with ThreadPoolExecutor(2) as threads:
        run = lambda rank: subprocess.run([*command, port, str(rank)], capture_output=True, text=True, env=environment)  # noqa: E731
        found = list(threads.map(run, range(2)))
    assert [each.stdout.strip() for each in found] == ["sockets [2.0, 2.0]"] * 2, found
