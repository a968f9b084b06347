"""PyTorch's anomaly detection, which says where a NaN came from."""

import gc
import weakref

import pytest

import ampkit
from ampkit import autograd, nn
from ampkit.base import observe


def backward_through_nan():
    (nn.Parameter(ampkit.zeros(3)).sqrt() * 0).sum().backward()


def test_nothing_is_looked_at_unless_it_is_asked_for():
    assert not observe.observers
    backward_through_nan()


def test_a_block_raises_the_runtime_error_that_names_the_op():
    said = r"sqrt \(outside modules\), backward, gave 100 % NaN"
    with pytest.raises(RuntimeError, match=said), autograd.detect_anomaly():
        backward_through_nan()
    assert not observe.observers
    with autograd.detect_anomaly(check_nan=False):
        backward_through_nan()


def test_it_is_turned_on_and_off_for_good_or_for_a_block():
    autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(ampkit.NonFiniteError, match="sqrt"):
            backward_through_nan()
        with autograd.set_detect_anomaly(False):
            backward_through_nan()
        with pytest.raises(ampkit.NonFiniteError, match="sqrt"):
            backward_through_nan()
    finally:
        autograd.anomaly_mode.set_detect_anomaly(False)
    backward_through_nan()
    assert not observe.observers


def test_blocks_nest():
    with autograd.detect_anomaly(), autograd.detect_anomaly():
        assert len(observe.observers) == 1
    assert not observe.observers


def test_a_mode_in_quotation_marks_is_refused():
    with pytest.raises(ampkit.ArgumentError, match="mode True or False, got 'False'"):
        autograd.set_detect_anomaly("False")


@pytest.mark.parametrize("block", [autograd.detect_anomaly, ampkit.debug.detect_nonfinite])
@pytest.mark.parametrize("within", [False, True])
def test_a_model_that_was_looked_at_is_freed_at_once(block, within):
    def looked_at():
        model = nn.Linear(2, 2)
        model(ampkit.ones(1, 2)).sum().backward()
        return weakref.ref(model)

    gc.collect()
    gc.disable()
    try:
        with block() as entered:
            model = looked_at()
            assert not within or model() is None
        assert model() is None and entered is not None
    finally:
        gc.enable()
