"""Traces of a step without the other ranks, the model of time, and the formulas of memory."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

from ampkit import nn, ops, optim
from ampkit.distributed import world
from ampkit.nn.parallel import DistributedDataParallel
from scale import cluster, memory, simgrid
from scale.model import data_parallel, gpt, traced
from scale.trace import Exchange, exchanged

pytestmark = pytest.mark.cpu
SLOW = cluster.Cluster("slow", 4, 1e-3, 1e6, 1e-4, 1e8)


def parameters_of(model):
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_a_step_of_one_rank_among_many_sends_what_the_formula_says(ranks):
    model = gpt(2, 32)
    exchanges, bytes_of_state = traced(model, ranks, sharded=False)
    gradients = sum(sum(each.sent) for each in exchanges if "AVG" in each.says)
    count = 4 * parameters_of(model)
    assert gradients == pytest.approx(2 * count * (ranks - 1) / ranks, rel=0.03)  # the arena's slots are aligned
    formula = data_parallel(count // 4, ranks, 25 * 2**20)
    assert gradients == pytest.approx(sum(sum(each.sent) for each in formula), rel=0.03)
    assert bytes_of_state == pytest.approx(memory.state(count // 4, ranks, 0, autocast=False).total, rel=0.02)


def test_the_state_of_sharded_moments_is_the_formula_of_stage_1():
    model = gpt(2, 32)
    _, bytes_of_state = traced(model, 4, sharded=True)
    assert bytes_of_state == pytest.approx(memory.state(parameters_of(model), 4, 1, autocast=False).total, rel=0.03)


def test_the_trace_without_other_ranks_is_that_with_them():
    class Recorded:
        def __init__(self, transport):
            self.transport, self.trace = transport, []
            exchange = transport.exchange_others

            def recorded(call, sent, received):
                self.trace.append(exchanged(transport.rank, call, sent, received))
                exchange(call, sent, received)

            transport.exchange_others = recorded

    values = np.arange(40_003, dtype=np.float32)

    def program(group):
        recorded = Recorded(group.transport)
        group.all_reduce_array(values.copy(), world.ProcessGroup.all_reduce_array.__defaults__[0])
        return recorded.trace

    from scale.trace import one_of

    real = on_ranks(3, program)
    for rank in range(3):
        with one_of(3, rank) as trace:
            world.group.WORLD.all_reduce_array(values.copy())
            assert trace == real[rank]


def test_messages_and_bytes_take_time_within_and_between_machines():
    exchange = Exchange("x", (0, 1000, 1000, 1000, 1000, 0), (0, 0, 0, 0, 3000, 3000))
    assert SLOW.seconds(exchange) == pytest.approx(2e-3 + 6000 / 1e6)  # received from two of another machine
    assert SLOW.seconds(Exchange("x", (0, 1000), (0, 1000))) == pytest.approx(1e-4 + 1000 / 1e8)
    assert SLOW.seconds(Exchange("x", (0, 0), (0, 0))) == 0


def test_latency_and_bandwidth_are_found_again_from_times():
    known = cluster.Cluster("known", 8, 2e-4, 3e8, 2e-4, 3e8)
    each = [Exchange("x", (0,) + (n,) * ranks, (0,) + (n,) * ranks) for n in (1000, 10**5, 10**6) for ranks in (1, 3)]
    found = cluster.fitted([(exchange, known.seconds(exchange)) for exchange in each], 8)
    assert (found.latency, found.bandwidth) == (pytest.approx(2e-4), pytest.approx(3e8))


def test_communication_hides_behind_backward_as_far_as_it_can():
    halves = [Exchange("x", (0, 10**6), (0, 10**6))] * 2  # of 10 ms each, and a message's latency
    near = cluster.Cluster("near", 8, 0, 1e8, 0, 1e8)
    assert cluster.step(near, halves, 1.0, 1.0, 0.5).total == pytest.approx(2.51)  # the last one is left
    assert cluster.step(near, halves, 1.0, 1.0, 0.5).hidden == pytest.approx(0.5)
    assert cluster.step(near, halves, 1.0, 1.0, 0.5, work=near).total == pytest.approx(2.52)  # no core is left
    quick = cluster.Cluster("of the processor", 8, 0, 4e8, 0, 4e8)  # 2.5 of the 10 ms, and the last 10 are left
    assert cluster.step(near, halves, 1.0, 1.0, 0.5, work=quick).total == pytest.approx(2.5125)
    far = cluster.Cluster("far", 1, 0, 1e6, 0, 1e8)
    assert cluster.step(far, halves, 1.0, 1.0, 0.5).total == pytest.approx(1.5 + 2 + 0.5)  # from the middle of backward
    assert cluster.step(far, halves, 1.0, 1.0, 0.5).efficiency == pytest.approx(2.5 / 4)


def test_parameters_of_known_models():
    assert memory.gpt_parameters(48, 1600, 50257, 1024) == 1_557_611_200
    assert memory.llama_parameters(32, 4096, 11008, 32000) == 6_738_415_616
    assert memory.state(7 * 10**9, 1, 0).total == 18 * 7e9
    assert memory.state(1000, 4, 3, autocast=False, largest=0.1).total == 4000 + 800


def test_a_trace_for_simgrid_has_every_message_twice(tmp_path):
    exchanges, _ = traced(gpt(1, 16), 3, sharded=False)
    simgrid.write(tmp_path, SLOW, exchanges, 3, 0.5)
    lines = [(tmp_path / f"trace-{rank}.txt").read_text().splitlines() for rank in range(3)]
    sent = {(rank, *line.split()[2:5]) for rank in range(3) for line in lines[rank] if " isend " in line}
    received = {(int(line.split()[2]), str(rank), *line.split()[3:5]) for rank in range(3) for line in lines[rank] if
                " irecv " in line}  # fmt: skip
    assert sent == received and len(sent) > 3
    assert lines[0][:2] == ["0 init", "0 compute 500000000"]


def test_where_simgrid_is_absent_it_says_so_in_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert simgrid.found() is None
    assert simgrid.missing() == "SimGrid: needs smpirun, got no such program: apt-get install libsimgrid-dev"


def test_simgrid_and_the_formulas_agree_where_there_is_no_overlap(tmp_path):
    if simgrid.found() is None:
        pytest.skip(simgrid.missing())
    exchanges, _ = traced(gpt(1, 16), 4, sharded=False)
    flat = cluster.Cluster("flat", 1, 5e-5, 1.25e9, 5e-5, 1.25e9)
    simgrid.write(tmp_path, flat, exchanges, 4, 0.5)
    expected = 0.5 + sum(flat.seconds(each) for each in exchanges)
    assert simgrid.replayed(tmp_path, 4) == pytest.approx(expected, rel=0.2)


def test_a_run_of_one_process_is_left_as_it_was():
    traced(gpt(1, 16), 4, sharded=False)
    assert world.group.WORLD is None
    model = nn.Linear(3, 2)
    with pytest.raises(Exception, match="init_process_group"):
        DistributedDataParallel(model)
    ops.cross_entropy(model(ops.ones(2, 3)), ops.zeros(2).long()).backward()
    optim.SGD(model.parameters(), lr=0.1).step()
