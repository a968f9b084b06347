"""Tensors in matplotlib and pandas, as arrays are; and what `help` and an editor see of a tensor."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ampkit


@pytest.fixture
def plt():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_matplotlib_draws_tensors(plt, dtype):
    x = (ampkit.arange(12) % 5).to(getattr(ampkit, dtype))
    (line,) = plt.plot(x)
    assert np.asarray(line.get_ydata()).astype(np.float32).tolist() == x.float().tolist()
    plt.hist(x)
    plt.boxplot(x)
    plt.violinplot(x.float())
    plt.imshow(x.reshape(3, 4))
    plt.axhline(x.float().mean())
    plt.plot([*x.float()])


@pytest.mark.cpu
def test_matplotlib_of_a_tensor_on_a_tape_says_what_to_do(plt):
    y = ampkit.ones(3, requires_grad=True) * 2
    with pytest.raises(ampkit.StateError, match=r"use .detach\(\).numpy\(\)"):
        plt.plot(y)


@pytest.mark.cpu
def test_pandas_takes_tensors_and_gives_them():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    x = ampkit.arange(6.0).reshape(3, 2)
    frame = pandas.DataFrame(x, columns=["a", "b"])
    assert [str(kind) for kind in frame.dtypes] == ["float32", "float32"]
    assert str(pandas.Series(x[:, 0]).dtype) == "float32"
    assert ampkit.tensor(frame).tolist() == x.tolist()


@pytest.mark.parametrize("wanted", [TypeError, ampkit.ShapeError])
def test_a_scalar_has_no_length(wanted):
    with pytest.raises(wanted):
        len(ampkit.tensor(1.0))


def test_a_method_has_the_signature_of_its_function():
    x = ampkit.ones(2)
    assert list(inspect.signature(x.sum).parameters)[:2] == ["dim", "keepdim"]
    assert inspect.signature(x.softmax).parameters["dim"].name == "dim"
    assert {"sum", "relu", "to", "backward", "numpy"} <= set(dir(x))
