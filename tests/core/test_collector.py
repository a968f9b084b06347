"""Contexts that the garbage collector ends, in the middle of other work."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from contextlib import ExitStack
from contextvars import Context, copy_context

import pytest

import ampkit
from ampkit import autocast, bfloat16, nn, no_grad
from ampkit.core import dispatch, policy
from ampkit.core.autograd import saved_hooks
from ampkit.nn.utils import parametrize

pytestmark = pytest.mark.cpu
# A child process, since CPython 3.11 would die of what this does to context variables. The collector ends a suspended
# generator at each allocation of another piece of code in turn.
SCRIPT = """
import gc, sys
from contextvars import ContextVar
import numpy as np
import ampkit
from ampkit.core import dispatch, policy
from ampkit.core.autograd import saved_hooks
from ampkit.nn.utils import parametrize

KINDS = {
    "autocast": lambda: ampkit.autocast(dtype=ampkit.bfloat16), "no_grad": ampkit.no_grad,
    "inference_mode": ampkit.inference_mode, "set_grad_enabled": lambda: ampkit.set_grad_enabled(False),
    "reference_only": ampkit.reference_only, "cached": parametrize.cached,
    "saved_tensors_hooks": lambda: ampkit.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "disable_saved_tensors_hooks": lambda: ampkit.autograd.graph.disable_saved_tensors_hooks("off"),
}
others = [ContextVar(str(i)) for i in range(40)]  # so that the mapping of the context is a tree
for variable in others:
    variable.set(0)
x = ampkit.ones(2)

def set_another():
    others[3].reset(others[3].set(object()))

def errstate():
    with np.errstate(all="ignore"):
        pass

def block(kind):
    def run():
        with KINDS[kind]():
            pass
    return run

WORK = {"set": set_another, "errstate": errstate, "op": lambda: x + x}

class Batches:  # a cycle, which the collector alone ends
    def __init__(self, kind):
        self.items = self.read(kind)

    def read(self, kind):
        with KINDS[kind]():
            yield 1

VARIABLES = (dispatch._reference_only, saved_hooks._stack, saved_hooks._refusal, parametrize._cache)

def state():
    return (policy.region(), ampkit.is_grad_enabled(), ampkit.is_inference_mode_enabled(), list(saved_hooks.packing),
            *(variable.scope().value for variable in VARIABLES))

x + x
gc.collect()
gc.freeze()  # so that collections are short
wrong, expected = [], state()
sys.unraisablehook = lambda error: wrong.append(repr(error.exc_value))
for kind in KINDS:
    for name, work in {**WORK, kind: block(kind), "no_grad": block("no_grad"), "autocast": block("autocast")}.items():
        for allocations in range(int(sys.argv[1])):
            gc.disable()
            gc.collect()
            next(Batches(kind).items)
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            work()
            gc.disable()
            gc.collect()
            if state() != expected:
                wrong.append(f"{kind} ended in {name}, after {allocations} allocations")
print(*wrong[:10], sep="\\n")
"""


def test_a_block_that_the_collector_ends_at_any_allocation_of_other_code_has_ended():
    done = subprocess.run([sys.executable, "-c", SCRIPT, "40"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr[-2000:]


class Suspended:
    """A generator inside of these blocks, in a cycle: the collector ends it."""

    def __init__(self, *blocks):
        self.items = self.read(blocks)
        next(self.items)

    def read(self, blocks):
        with ExitStack() as stack:
            for block in blocks:
                stack.enter_context(block)
            yield


BLOCKS = {
    "autocast": (lambda: autocast(dtype=bfloat16), policy.region, lambda found: found is not None),
    "no_grad": (no_grad, ampkit.is_grad_enabled, lambda found: not found),
    "inference_mode": (ampkit.inference_mode, ampkit.is_inference_mode_enabled, bool),
    "reference_only": (ampkit.reference_only, lambda: dispatch._reference_only.scope().value, bool),
    "cached": (parametrize.cached, lambda: parametrize._cache.scope().value, lambda found: found is not None),
    "saved_tensors_hooks": (
        lambda: ampkit.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        lambda: saved_hooks._stack.scope().value,
        lambda found: found is not None,
    ),
}


@pytest.fixture(params=BLOCKS)
def kind(request):
    gc.collect()
    make, read, is_open = BLOCKS[request.param]
    yield make, lambda: is_open(read())
    assert not is_open(read())
    assert not saved_hooks.packing


def test_a_block_that_is_left_by_a_collection_inside_of_another_restores_what_was_before_both(kind):
    make, is_open = kind
    Suspended(make())
    with make():
        gc.collect()
        assert is_open()


def test_blocks_that_one_collection_ends_have_all_ended_whatever_the_order(kind):
    make, is_open = kind
    for order in (1, -1):
        made = [Suspended(make()) for _ in range(4)][::order]
        made[0].others = made
        del made
        assert is_open()
        gc.collect()
        assert not is_open()


def test_code_around_two_suspended_blocks_gets_back_what_it_had(kind):
    make, is_open = kind
    with make():
        Suspended(make())
        with make():
            Suspended(make())
            gc.collect()
            assert is_open()
        assert is_open()


def test_a_block_that_a_collection_ends_in_another_thread_or_context_ends_where_it_was_opened(kind):
    make, is_open = kind
    Suspended(make())
    Context().run(gc.collect)
    assert not is_open()
    Suspended(make())
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert not is_open()


def test_a_collection_does_not_change_blocks_of_the_context_in_which_it_happens_to_run(kind):
    make, is_open = kind
    context = copy_context()
    context.run(Suspended, make())
    with make():
        gc.collect()
        assert is_open()
    assert not context.run(is_open)


def test_tasks_keep_the_block_in_which_they_were_made(kind):
    make, is_open = kind

    async def both():
        with make():
            inside = asyncio.create_task(asyncio.sleep(0, is_open()))
            later = asyncio.create_task(_read(is_open))
        return await inside, await later, is_open()

    assert asyncio.run(both()) == (True, True, False)


async def _read(is_open):
    await asyncio.sleep(0)
    return is_open()


def test_suspended_blocks_leave_nothing_behind():
    for _ in range(50):
        Suspended(autocast(dtype=bfloat16), no_grad())
        gc.collect()
    with no_grad():
        pass
    with autocast(dtype=bfloat16):
        scope, length = policy.scope(), 0
        while scope is not None:
            scope, length = scope.below, length + 1
    assert length <= 3


def test_a_finalizer_may_run_ops_in_a_block_of_its_own():
    found = []

    class Last:
        def __init__(self):
            self.me = self

        def __del__(self):
            with no_grad(), autocast(dtype=bfloat16):
                out = nn.functional.linear(ampkit.ones(2, 2, requires_grad=True), ampkit.ones(2, 2))
                found.append((out.dtype, out.requires_grad))

    Last()
    gc.collect()
    assert found == [(bfloat16, False)]
    assert (policy.region(), ampkit.is_grad_enabled()) == (None, True)
