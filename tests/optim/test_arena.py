import ml_dtypes
import numpy as np
import pytest

from ampkit import Tensor, optim
from ampkit.base.errors import StateError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.nn import Parameter

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)


def parameter(*shape, dtype=np.float32):
    return Parameter(RNG.standard_normal(shape).astype(dtype))


def give(p, value=None):
    p.grad = Tensor(np.broadcast_to(np.float32(1.0 if value is None else value), p.shape).copy())


def test_slots_start_on_256_byte_boundaries_of_one_block():
    ps = [parameter(3, 5), parameter(), parameter(100), parameter(0, 4), parameter(7)]
    _optimizer = optim.SGD(ps)
    assert len({id(p._arena_segment.arena) for p in ps}) == 1
    for p in ps:
        assert p._arena_segment.start * 4 % 256 == 0
        assert p.array.size == 0 or p.array.ctypes.data % 256 == 0
        assert np.shares_memory(p.array, p._arena_segment.arena.master) or p.array.size == 0


def test_values_versions_and_gradients_survive_adoption():
    p = parameter(4, 3)
    values, version = p.array.copy(), p._version_counter
    p.changed()
    give(p, 2.0)
    gradient, tag = p.grad, object()
    gradient._scale_tag = tag
    _optimizer = optim.SGD([p])
    assert np.array_equal(p.array, values)
    assert p._version_counter is version
    assert version[0] > 0
    assert p.grad is gradient
    assert p.grad._scale_tag is tag
    assert np.array_equal(p.grad.array, np.full((4, 3), 2.0))
    assert np.shares_memory(p.grad.array, p._arena_segment.arena.gradient)


def test_each_group_and_master_dtype_has_a_block():
    ps = [parameter(3), parameter(3, dtype=np.float64), parameter(3, dtype=F16), parameter(3, dtype=BF16)]
    optimizer = optim.SGD([{"params": ps}, {"params": [parameter(3)]}])
    assert [[b.dtype.name for b in g.arenas] for g in optimizer.param_groups] == [["float32", "float64"], ["float32"]]
    assert [p.array.dtype.name for p in ps] == ["float32", "float64", "float16", "bfloat16"]


def test_a_16_bit_parameter_has_a_float32_master_that_small_updates_move():
    p = Parameter(np.ones(4, BF16))
    optimizer = optim.SGD([p], lr=1.0)
    for _ in range(8):
        give(p, 2.0**-10)
        optimizer.step()
    assert p.grad.dtype == np.float32
    assert np.array_equal(p.array.astype(np.float32), np.full(4, 1 - 2.0**-7, np.float32))


def test_values_written_to_a_16_bit_parameter_reach_its_master():
    p = Parameter(np.ones(4, F16))
    optimizer = optim.SGD([p], lr=1.0)
    with no_grad():
        p.fill_(3.0)
    give(p, 1.0)
    optimizer.step()
    assert np.array_equal(p.array, np.full(4, 2.0, F16))


def test_a_new_optimizer_keeps_the_float32_master_of_a_16_bit_parameter():
    p = Parameter(np.ones(4, BF16))
    give(p, 2.0**-10)
    first = optim.SGD([p], lr=1.0)
    first.step()
    _second = optim.SGD([p], lr=1.0)
    assert np.array_equal(p._arena_segment.master_weights(), np.full(4, 1 - 2.0**-10, np.float32))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_copy_is_cast_once_and_rewritten_by_the_update(dtype):
    p, q = parameter(70, 1000), parameter(5)
    optimizer = optim.AdamW([p, q], lr=0.1)
    first = p.copy_in(dtype, True)
    assert np.array_equal(first, p.array.astype(dtype))
    assert np.shares_memory(first, p._arena_segment.arena.copies[dtype])
    give(p), give(q)
    optimizer.step()
    assert p._cast_copies[dtype][0] == p._arena_segment._copy_versions[dtype] == p._version_counter[0]
    assert np.array_equal(p.copy_in(dtype, True), p.array.astype(dtype))
    assert np.array_equal(q.copy_in(dtype, False), q.array.astype(dtype))
    assert p.copy_in(dtype, True).ctypes.data == first.ctypes.data


def test_no_cast_is_reported_after_an_update():
    from ampkit.base import observe

    p = parameter(5)
    optimizer = optim.SGD([p])
    p.copy_in(F16, True)
    give(p)
    optimizer.step()
    seen = []
    with observe.watch(lambda name, inputs, output: seen.append(name)):
        p.copy_in(F16, True)
    assert not seen


def test_a_written_parameter_is_cast_anew():
    p = parameter(5)
    optim.SGD([p])
    p.copy_in(F16, True)
    with no_grad():
        p.fill_(0.5)
    assert np.array_equal(p.copy_in(F16, True), np.full(5, 0.5, F16))
    p.data = Tensor(np.full(5, 0.25, np.float32))
    assert np.array_equal(p.copy_in(F16, False), np.full(5, 0.25, F16))


def test_a_parameter_without_a_gradient_stays_untouched():
    ps = [parameter(5) for _ in range(3)]
    optimizer = optim.AdamW(ps, lr=0.1, weight_decay=0.5)
    before = ps[1].array.copy()
    give(ps[0]), give(ps[2])
    optimizer.step()
    assert np.array_equal(ps[1].array, before)
    assert ps[1]._version_counter[0] == 0
    assert ps[0]._version_counter[0] > 0
    assert ps[2]._version_counter[0] > 0
    assert set(optimizer.state) == {ps[0], ps[2]}
    assert optimizer.param_groups[0].arenas[0].steps.tolist() == [1, 0, 1]


def test_slots_with_one_history_are_one_run_and_others_part():
    ps = [parameter(5) for _ in range(4)]
    optimizer = optim.Adam(ps)

    def spans(*present):
        optimizer.zero_grad()
        for i in present:
            give(ps[i])
        found = [(r.first, r.last) for r in optimizer.present()]
        optimizer.step()
        return found

    assert spans(0, 1, 2, 3) == [(0, 4)]
    assert spans(0, 1, 3) == [(0, 2), (3, 4)]
    assert spans(0, 1, 2, 3) == [(0, 2), (2, 3), (3, 4)]
    assert spans(2) == [(2, 3)]


def test_gaps_between_slots_stay_zero():
    ps = [parameter(5), parameter(70)]
    optimizer = optim.AdamW(ps, lr=0.1)
    for _ in range(3):
        give(ps[0]), give(ps[1])
        optim.clip_grad_norm_(ps, 1.0)
        optimizer.step()
    arena = ps[0]._arena_segment.arena
    for flat in (arena.master, arena.gradient, *arena.moments.values()):
        assert not flat[5:64].any()
        assert not flat[134:].any()


def test_tied_parameters_are_one_slot():
    p = parameter(3)
    with pytest.warns(UserWarning, match=r"SGD.*a parameter of shape \(3,\) comes twice, and counts once"):
        optimizer = optim.SGD([p, p], lr=1.0)
    before = p.array.copy()
    give(p)
    optimizer.step()
    assert optimizer.param_groups[0]["params"] == [p]
    assert np.array_equal(p.array, before - 1)


def test_the_newest_optimizer_adopts_and_the_older_one_raises():
    p = parameter(3)
    p._dotted_name = "layers.0.weight"
    older = optim.SGD([p])
    newer = optim.SGD([p])
    give(p)
    with pytest.raises(StateError, match=r"'layers.0.weight' \[3\], which a newer optimizer holds"):
        older.step()
    newer.step()


def test_an_optimizer_follows_a_parameter_into_other_memory_and_leaves_the_old_one_as_it_is():
    p, q = parameter(3), parameter(2)
    optimizer = optim.SGD([p, q], lr=1.0, momentum=0.5)
    give(p), give(q)
    optimizer.step()
    before, other = p.data, Tensor(np.full(3, 5.0, np.float32))
    values = before.tolist()
    p.data = other
    optimizer.step()  # the buffer is 1.5 by now
    assert p.data.array is other.array
    assert other.tolist() == [3.5] * 3
    assert before.tolist() == values
    p.data = before
    optimizer.step()
    assert before.tolist() == pytest.approx([value - 1.75 for value in values])
    assert other.tolist() == [3.5] * 3


def test_a_parameter_of_another_shape_needs_a_new_optimizer_if_it_has_a_state():
    p = parameter(3)
    plain = optim.SGD([p], lr=1.0)
    p.data = Tensor(np.full(2, 5.0, np.float32))
    give(p)
    plain.step()
    assert p.tolist() == [4.0, 4.0]
    adam = optim.Adam([p])
    adam.step()
    p.data = Tensor(np.zeros(1, np.float32))
    adam.zero_grad()
    give(p)
    with pytest.raises(StateError, match=r"Adam: needs parameters in the shape.*\nhelp: make the optimizer anew"):
        adam.step()


def test_add_param_group_appends_a_block_and_moves_nothing():
    p, q = parameter(3), parameter(4)
    optimizer = optim.SGD([p], lr=1.0)
    memory = p.array
    optimizer.add_param_group({"params": [q], "lr": 0.5})
    assert p.array is memory
    assert q._arena_segment.arena is not p._arena_segment.arena
    assert q._arena_segment.number == 1
    before = q.array.copy()
    give(q)
    optimizer.step()
    assert np.array_equal(q.array, before - np.float32(0.5))


def test_the_first_gradient_replaces_what_the_slot_held_and_later_ones_add():
    p = parameter(3)
    optimizer = optim.SGD([p])
    give(p, 5.0)
    optimizer.zero_grad()
    assert p.grad is None
    p.accumulate(np.full(3, 2.0, np.float32))
    p.accumulate(np.full(3, 1.0, np.float32))
    assert np.array_equal(p.grad.array, np.full(3, 3.0))
