"""Inputs of the wrong kind, and what they lead to: one line that names them."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, inference_mode, ops, special, tensor
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, RangeError, ShapeError
from ampkit.core.autograd.tape import grad

STRAYS = [5, 2.5, True, "x", None, [1.0, 2.0], np.ones(3), [tensor([1.0])], 1j, object()]
UNCASED = {
    "allclose": 2, "equal": 2, "contiguous": 1, "detach": 1, "bernoulli": 1, "multinomial": 1, "one_hot": 1,
    "empty_like": 1, "zeros_like": 1, "ones_like": 1, "rand_like": 1, "randn_like": 1, "where": 1,
}  # fmt: skip


@pytest.mark.parametrize("stray", STRAYS, ids=lambda stray: type(stray).__name__)
@pytest.mark.parametrize(("name", "count"), UNCASED.items())
def test_functions_that_are_no_ops_refuse_what_is_no_tensor(name, count, stray):
    for position in range(count):
        given = [tensor([1.0])] * count
        given[position] = stray
        with pytest.raises(DTypeError, match=rf"^{name}: needs a Tensor for `\w+`, got \w+(\nhelp: wrap it.*)?$"):
            getattr(ops, name)(*given, *((2,) if name == "multinomial" else ()))


def test_an_input_given_by_keyword_is_checked_too():
    with pytest.raises(DTypeError, match="^masked_select: needs a Tensor for `mask`, got list\nhelp: wrap it"):
        ops.masked_select(tensor([1.0]), mask=[True])
    with pytest.raises(DTypeError, match="^batch_norm: needs a Tensor for `running_mean`, got int"):
        ops.batch_norm(tensor([[1.0], [2.0]]), 0, None)
    with pytest.raises(DTypeError, match="^embedding: needs a Tensor for `input`, got int\nhelp: wrap it"):
        ops.embedding(2, tensor([[1.0]]))


ZERO, POINT, NINE = tensor(0), tensor(3.0), ops.zeros(9, dtype="int64")
ROW, TABLE = tensor([1.0, 2.0, 4.0]), tensor([[1.0, 2.0], [3.0, 4.0]])
ODD = {
    "a format that is an array": (lambda: ROW.byte(memory_format=np.ones(3)), "to: needs memory_format as one of "),
    "a size that is True": (lambda: ROW.new(True), "Tensor: needs values, or sizes from 0, got (True,)"),
    "one src of many indices": (
        lambda: ops.scatter_reduce(ROW, 0, NINE, POINT, "prod"),
        "scatter_reduce: needs src that covers index's shape (9,), got ()",
    ),
    "an output that is a number": (
        lambda: grad((2**62,), ROW, is_grads_batched=True),
        "grad: needs a Tensor or a sequence of them as outputs, got an object of type int",
    ),
    "a gradient that is a number": (
        lambda: grad(tensor(1.0, requires_grad=True), ROW, (2**62,), is_grads_batched=True),
        "grad: needs Tensors as grad_outputs, got an object of type int",
    ),
    "a class in a region": (
        lambda: inference_mode(tuple),
        "inference_mode: needs a function, a generator or a coroutine, got the class tuple\nhelp: decorate its methods",
    ),
}


@pytest.mark.parametrize(("call", "says"), ODD.values(), ids=ODD)
def test_odd_arguments_are_named_in_one_line(call, says):
    with pytest.raises(AmpkitError) as caught:
        call()
    assert str(caught.value).startswith(says)


def test_a_momentum_may_be_a_large_integer():
    mean, var = tensor([0.0]), tensor([1.0])
    ops.batch_norm(tensor([[1.0], [3.0]]), mean, var, training=True, momentum=-(2**63))
    assert mean.tolist() == [-(2.0**64)]


# what PyTorch takes

BYTES, BITS, WHOLE = tensor([0, 7], "uint8"), tensor([True, False]), tensor([2, 3])
NONE = tensor([], "float32")

TAKEN = {
    "gather of a number": (lambda: POINT.gather(0, ZERO), 3.0),
    "scatter into a number": (lambda: POINT.scatter(0, ZERO, tensor(5.0)), 5.0),
    "scatter_add into a number": (lambda: POINT.scatter_add(-1, ZERO, tensor(5.0)), 8.0),
    "index_select of a number": (lambda: POINT.index_select(0, tensor([0])), 3.0),
    "index_add into a number": (lambda: POINT.index_add(0, ZERO, tensor(5.0)), 8.0),
    "take_along_dim of a number": (lambda: ops.take_along_dim(POINT, ZERO, 0), 3.0),
    "topk of a number": (lambda: POINT.topk(1, 0).values, 3.0),
    "sort of a number": (lambda: POINT.sort(0).indices, 0),
    "cumsum of a number": (lambda: POINT.cumsum(-1), 3.0),
    "where of a number": (lambda: ops.where(tensor(True))[0], [0]),
    "pad of a number": (lambda: ops.pad(POINT, ()), 3.0),
    "a src larger than the index": (lambda: ROW.scatter(0, tensor([2]), tensor([8.0, 9.0])), [1, 2, 8]),
    "a sum of a larger src": (lambda: TABLE.scatter_add(1, tensor([[0, 0]]), TABLE), [[4, 2], [3, 4]]),
    "index_select by a number": (lambda: TABLE.index_select(1, tensor(1)), [[2.0], [4.0]]),
    "cat with an empty one": (lambda: ops.cat([NONE, TABLE], 1), [[1, 2], [3, 4]]),
    "chunks of nothing": (lambda: tensor([len(NONE.chunk(3))]), [3]),
    "split of nothing by 0": (lambda: NONE.split(0)[0], []),
    "samples of no row": (lambda: ops.multinomial(Tensor(np.ones((0, 3))), 2), []),
    "a mask larger than the input": (lambda: tensor([1.0]).masked_fill(BITS, 5.0), [5, 1]),
    "flip of no axis": (lambda: ROW.flip(()), [1, 2, 4]),
    "squeeze of no axis": (lambda: tensor([[1.0]]).squeeze(()), [[1]]),
    "any over no axis": (lambda: BITS.any(()), [True, False]),
    "all over no axis": (lambda: BITS.all(dim=()), [True, False]),
    "classes in bytes": (lambda: ops.one_hot(tensor([1], "uint8")), [[0, 1]]),
    "relu of bytes": (lambda: tensor([-3, 5], "int8").relu(), [0, 5]),
    "sign of bool": (lambda: BITS.sign(), [True, False]),
    "round of bool": (lambda: BITS.round(), [True, False]),
    "hardtanh of bytes": (lambda: ops.hardtanh(BYTES), [0, 1]),
    "normalize of nothing": (lambda: ops.normalize(NONE, dim=0), []),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", TAKEN)
def test_what_pytorch_takes_is_taken(name):
    call, want = TAKEN[name]
    assert call().tolist() == want


@pytest.mark.parametrize("op", [lambda x: x.var(), lambda x: x.std(0), lambda x: x.T.var(1)])
def test_the_variance_of_nothing_is_nan_without_a_warning(op):
    assert np.isnan(op(Tensor(np.ones((0, 2), np.float32))).array).all()


DTYPES = {
    "hardtanh of integers": (lambda: ops.hardtanh(WHOLE), "int64"),
    "relu6 of integers": (lambda: ops.relu6(tensor([7], "int16")), "int16"),
    "the square of bool": (lambda: BITS.square(), "int64"),
    "bool squared": (lambda: BITS**2, "int64"),
    "bool to the power of bool": (lambda: BITS**BITS, "bool"),
    "a power of narrow integers": (lambda: tensor([2], "int8") ** tensor(2), "int8"),
    "any of bytes": (lambda: BYTES.any(), "uint8"),
    "all of bytes": (lambda: BYTES.all(0), "uint8"),
    "any of integers": (lambda: WHOLE.any(), "bool"),
    "where of two bools": (lambda: ops.where(BITS, True, False), "bool"),
    "where of a bool and a number": (lambda: ops.where(BITS, True, 2), "int64"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_pytorchs(name):
    call, want = DTYPES[name]
    assert call().dtype.name == want


REFUSED = {
    "minus of bool": (lambda: -BITS, DTypeError, "^neg: needs numbers, got bool\nhelp: cast it"),
    "a difference of bools": (lambda: BITS - BITS, DTypeError, "^sub: needs numbers, got bool\nhelp: cast it"),
    "a negative power": (lambda: WHOLE ** tensor([1, -1]), ArgumentError, "^pow: needs .*, got -1 at position"),
    "a number too large": (lambda: BYTES + 300, ArgumentError, "^add: needs a number that uint8 holds, got 300\nhelp"),
    "alpha too large": (lambda: BYTES.add(BYTES, alpha=300), ArgumentError, "^add: needs a number that uint8 holds"),
    "a broken alpha": (lambda: WHOLE.add(WHOLE, alpha=0.5), ArgumentError, "a whole alpha for integers, got 0.5"),
    "a fill too large": (lambda: BYTES.masked_fill(BITS, -1), ArgumentError, "a number that uint8 holds, got -1"),
    "a choice too large": (lambda: ops.where(BITS, BYTES, 300), ArgumentError, "a number that uint8 holds, got 300"),
    "padding too large": (lambda: ops.pad(BYTES, (1, 1), value=300), ArgumentError, "a number that uint8 holds"),
    "a filling too large": (
        lambda: ops.full((2,), 300, dtype="uint8"),
        ArgumentError,
        "^full: needs a number that uint8",
    ),
    "a part of a byte": (lambda: ops.full_like(BYTES, 0.5), ArgumentError, "^full: needs a whole number, for uint8"),
    "an integer var": (lambda: WHOLE.var(), DTypeError, "^var: needs a floating-point tensor, got int64\nhelp: cast"),
    "an integer std": (lambda: WHOLE.std(), DTypeError, "^std: needs a floating-point tensor, got int64\nhelp: cast"),
    "an integer gelu": (lambda: ops.gelu(WHOLE), DTypeError, "^gelu: needs a floating-point tensor, got int64"),
    "integer logits": (lambda: ops.cross_entropy(WHOLE, ZERO), DTypeError, "needs a floating-point tensor, got int64"),
    "integer rows": (lambda: ops.rms_norm(WHOLE, 2), DTypeError, "^rms_norm: needs a floating-point tensor, got int64"),
    "a shape in floats": (lambda: ops.layer_norm(ROW, 3.0), DTypeError, r"^layer_norm: needs a shape of integers, got"),
    "samples of nothing": (
        lambda: ops.multinomial(NONE, 1),
        ArgumentError,
        "^multinomial: needs rows of finite weights",
    ),
    "two of one number": (lambda: POINT.index_select(0, tensor([0, 0])), ShapeError, "one index for a 0-d tensor"),
    "an axis of a number": (lambda: POINT.argmax(1), RangeError, "^argmax: needs dim from -1 to 0, got 1$"),
    "the axes of a number": (lambda: POINT.max(dim=(0,)), DTypeError, r"^max: needs dim as an integer, got \(0,\)$"),
    "an array for an axis": (lambda: ops.max(ROW, np.ones(2)), DTypeError, "^max: needs dim as an integer, got array"),
    "a part of a number": (lambda: POINT.narrow(0, 0, 1), ShapeError, "^narrow: needs a tensor with at least one axis"),
    "unflatten a number": (lambda: POINT.unflatten(0, (1,)), ShapeError, "^unflatten: needs a tensor with at least"),
    "a mask that misfits": (lambda: ROW.masked_select(BITS), ShapeError, "^masked_select: needs shapes that broadcast"),
    "indices of other axes": (lambda: ops.take_along_dim(TABLE, tensor([0]), 0), ShapeError, "indices of 2 axes"),
    "a negative tolerance": (lambda: ops.isclose(ROW, ROW, -1.0), ArgumentError, "isclose: needs rtol and atol from 0"),
    "a negative closeness": (lambda: ops.allclose(ROW, ROW, 0, -1), ArgumentError, "isclose: needs rtol and atol from"),
    "bounds in no order": (lambda: ops.hardtanh(ROW, 2, 1), ArgumentError, "hardtanh: needs min_val up to max_val"),
    "a negative shrinkage": (lambda: ops.softshrink(ROW, -1), ArgumentError, "^softshrink: needs lambd from 0, got -1"),
    "an alpha of 0": (lambda: ops.celu(ROW, 0), ArgumentError, "^celu: needs an alpha other than 0"),
    "an axis named twice": (lambda: ops.gradient(TABLE, dim=(0, 0)), ShapeError, "^gradient: needs each dim once"),
    "factors of integers": (lambda: ops.linalg_svd(TABLE[:1].long()), DTypeError, "^svd: needs a floating-point"),
    "a pool of bools": (lambda: ops.max_pool2d(BITS.reshape(1, 1, 2), 1), DTypeError, "needs numbers, got bool"),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_or_gets_wrong_is_refused_in_one_line(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, AmpkitError)
    assert str(raised.value).partition("\nhelp: ")[0].count("\n") == 0


@pytest.mark.parametrize("function", [ops.scatter, ops.scatter_add])
def test_the_part_of_src_that_is_not_read_gets_no_gradient(function):
    src = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    out = function(tensor([[1.0, 1.0]]), 1, tensor([[1]]), src)
    assert grad((out * tensor([[5.0, 7.0]])).sum(), src)[0].tolist() == [[7, 0], [0, 0]]


NAN, INF = np.nan, np.inf
SLOPES = {
    "relu6": (lambda x: ops.relu6(x), [0.0, 3.0, 6.0, 7.0, NAN], [0, 1, 0, 0, 1]),
    "hardtanh": (lambda x: ops.hardtanh(x), [-1.0, 0.0, 1.0], [0, 1, 0]),
    "clamp between numbers": (lambda x: x.clamp(0, 6), [0.0, 3.0, 6.0, 7.0, NAN], [1, 1, 1, 0, 0]),
    "clamp from a number": (lambda x: x.clamp(min=0), [0.0, 3.0, -1.0, INF, NAN], [1, 1, 0, 1, 0]),
    "clamp_max": (lambda x: x.clamp_max(6), [6.0, 7.0, -INF], [1, 0, 1]),
    "logit": (lambda x: x.logit(), [2.0, -1.0, 0.5, 0.0, INF], [NAN, NAN, 4, INF, NAN]),
    "logit with eps": (lambda x: x.logit(0.25), [2.0, 0.1, 0.5, NAN], [0, 0, 4, NAN]),
    "entr": (lambda x: special.entr(x), [0.0, 1.0, -1.0, INF], [INF, -1, NAN, -INF]),
    "quantile beside NaN": (lambda x: ops.quantile(x.reshape(2, 2), 0.5, 0), [2.0, 1.0, 4.0, NAN], [0.5, 0, 0.5, 1]),
    "the median of a number": (lambda x: ops.quantile(x, tensor([0.5, 1.0]), 0), 3.0, 2),
    "abs": (lambda x: x.abs(), [-2.0, 0.0, NAN, INF], [-1, 0, 0, 1]),
    "max": (lambda x: x.max(), [1.0, NAN, NAN, 2.0], [0, 0.5, 0.5, 0]),
    "min": (lambda x: x.min(), [INF, -INF, -INF], [0, 0.5, 0.5]),
    "max along an axis": (lambda x: x.max(0).values, [1.0, 2.0, 2.0], [0, 1, 0]),
    "the norm of zeros": (lambda x: x.norm(), [0.0, 0.0], [0, 0]),
    "the largest size, NaN": (lambda x: x.norm(INF), [NAN, 1.0], [0, 0]),
    "the largest size, twice": (lambda x: x.norm(INF), [-3.0, 3.0, 1.0], [-0.5, 0.5, 0]),
    "the sum of sizes": (lambda x: x.norm(1), [NAN, -1.0, 0.0], [0, -1, 0]),
    "the half norm with a zero": (lambda x: x.norm(0.5), [1.0, 1.0, 0.0], [2, 2, 0]),
    "l1_loss": (lambda x: ops.l1_loss(x, x.detach() * 0, reduction="sum"), [NAN, 2.0, 0.0], [0, 1, 0]),
    "hinge_embedding_loss at its margin": (
        lambda x: ops.hinge_embedding_loss(x, x.detach() * 0 - 1, reduction="sum"),
        [1.0, 0.0, 2.0],
        [-1, -1, 0],
    ),
    "margin_ranking_loss at its margin": (
        lambda x: ops.margin_ranking_loss(x, x.detach() * 0 + 1, x.detach() * 0 + 1, reduction="sum"),
        [1.0, 0.0, 2.0],
        [-1, -1, 0],
    ),
    "the angle of the origin": (lambda x: ops.atan2(x, x.detach() * 0 + tensor([0.0, 1.0])), [0.0, 0.0], [0, 1]),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_at_corners_ties_and_nan_are_pytorchs(name):
    function, at, want = SLOPES[name]
    x = tensor(at, requires_grad=True)
    assert grad(function(x).sum(), x)[0].tolist() == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ((1.0, 1.0, 2.0), (1, 0, 0)),
        ((2.0, 1.0, 2.0), (1, 0, 0)),
        ((1.0, 1.0, 1.0), (1, 0, 0)),
        ((0.0, 1.0, 2.0), (0, 1, 0)),
        ((1.5, 2.0, 1.0), (0, 0, 1)),
        ((1.0, 3.0, 3.0), (0, 0, 0)),
        ((5.0, 3.0, 3.0), (0, 0, 1)),
        ((NAN, 1.0, 2.0), (0, 0, 0)),
        ((1.0, NAN, 2.0), (0, 0, 0)),
        ((1.0, 1.0, None), (1, 0)),
        ((0.0, 1.0, None), (0, 1)),
        ((2.0, None, 2.0), (1, 0)),
        ((1.0, None, NAN), (0, 0)),
    ],
)
def test_of_a_bound_that_is_met_the_gradient_is_inputs_as_in_pytorch(values, want):
    tensors = [None if v is None else tensor([v], requires_grad=True) for v in values]
    out = ops.clamp(*tensors)
    assert tuple(g.item() for g in grad(out.sum(), [t for t in tensors if t is not None])) == want


@pytest.mark.parametrize("function", [ops.fmax, ops.fmin])
def test_of_equal_numbers_fmax_and_fmin_pass_the_gradient_to_the_first(function):
    x, y = tensor([1.0, NAN, 3.0, NAN], requires_grad=True), tensor([1.0, 2.0, NAN, NAN], requires_grad=True)
    assert [g.tolist() for g in grad(function(x, y).sum(), (x, y))] == [[1, 0, 1, 1], [0, 1, 0, 0]]


def test_the_gradients_of_products_with_logarithms_at_zero_are_pytorchs():
    x, y = tensor([0.0, 0.0, 1.0], requires_grad=True), tensor([2.0, -1.0, -1.0], requires_grad=True)
    gradients = [g.tolist() for g in grad(special.xlog1py(x, y).sum(), (x, y))]
    assert gradients[0] == [pytest.approx(np.log(3)), 0, -INF]
    assert gradients[1] == pytest.approx([0, NAN, INF], nan_ok=True)


@pytest.mark.parametrize("function", [ops.quantile, ops.nanquantile])
def test_the_share_of_a_quantile_has_a_gradient(function):
    x, q = tensor([1.0, 5.0, 2.0, 7.0]), tensor([0.3, 0.5], requires_grad=True)
    assert grad(function(x, q).sum(), q)[0].tolist() == [3, 9]
    assert grad(function(tensor([[1.0, 4.0], [2.0, NAN]]), q[0], 0).sum(), q)[0].tolist() == [1, 0]


def test_the_larger_of_a_number_and_nan_passes_the_gradient_to_both():
    x, y = tensor([1.0, NAN, 3.0], requires_grad=True), tensor([NAN, 2.0, 3.0], requires_grad=True)
    for function in (ops.maximum, ops.minimum):
        assert [g.tolist() for g in grad(function(x, y).sum(), (x, y))] == [[1, 1, 0.5], [1, 1, 0.5]]


# arguments that are no tensors

STRANGE = {
    "norm": lambda: TABLE.norm("x"),
    "std": lambda: TABLE.std(correction="x"),
    "round": lambda: TABLE.round(decimals=1.5),
    "tril": lambda: TABLE.tril("x"),
    "topk": lambda: TABLE.topk(1.5),
    "split": lambda: TABLE.split("x"),
    "chunk": lambda: TABLE.chunk("x"),
    "narrow": lambda: TABLE.narrow(0, "x", 1),
    "unflatten": lambda: TABLE.unflatten(0, 5),
    "masked_fill": lambda: TABLE.masked_fill(TABLE > 1, None),
    "normal_": lambda: TABLE.clone().normal_("x"),
    "isclose": lambda: TABLE.isclose(TABLE, "x"),
    "arange": lambda: ops.arange("x"),
    "linspace": lambda: ops.linspace(0, 1, 1.5),
    "eye": lambda: ops.eye("x"),
    "cat": lambda: ops.cat(5),
    "stack": lambda: ops.stack(None),
}


@pytest.mark.parametrize("name", STRANGE)
def test_an_argument_of_a_strange_type_is_named_in_one_line(name):
    with pytest.raises(DTypeError, match=rf"^{name}: needs \w+ as .*, got ('x'|1.5|5|None)$"):
        STRANGE[name]()


def test_a_call_with_other_names_is_pythons_matter():
    with pytest.raises(TypeError, match="unexpected keyword argument 'dimension'") as raised:
        ops.flatten(TABLE, dimension=1)
    assert not isinstance(raised.value, AmpkitError)


def test_an_axis_that_size_does_not_find_is_refused():
    for dim in (2, -3, "x"):
        with pytest.raises(RangeError, match="^size: needs dim as an integer from -2 to 1, got"):
            TABLE.size(dim)


def test_a_source_of_copy_is_a_tensor():
    with pytest.raises(DTypeError, match="^copy_: needs a Tensor for `src`, got int"):
        TABLE.clone().copy_(5)


# NumPy


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (lambda: np.mean(TABLE), 2.5),
        (lambda: np.max(TABLE, axis=0), [3, 4]),
        (lambda: np.exp(TABLE - TABLE), [[1, 1], [1, 1]]),
        (lambda: np.add(TABLE, TABLE), [[2, 4], [6, 8]]),
        (lambda: np.add.reduce(TABLE), [4, 6]),
        (lambda: np.concatenate([ROW, ROW[:1]]), [1, 2, 4, 1]),
        (lambda: np.clip(ROW, a_min=ROW[1], a_max=None), [2, 2, 4]),
    ],
)
def test_a_function_of_numpy_gets_the_values_and_gives_an_array(call, want):
    out = call()
    assert isinstance(out, (np.ndarray, np.generic))
    assert out.tolist() == want


@pytest.mark.parametrize("call", [np.mean, np.exp, np.ptp])
def test_a_function_of_numpy_does_not_get_what_is_on_the_tape(call):
    with pytest.raises(AmpkitError, match=r"^numpy\(\): needs a tensor that requires no grad"):
        call(tensor([1.0], requires_grad=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a * TABLE,
        lambda a: a / TABLE,
        lambda a: a @ TABLE,
        lambda a: a < TABLE,
        lambda a: np.maximum(TABLE, a),
    ],
)
def test_an_array_beside_a_tensor_is_refused(call):
    with pytest.raises(DTypeError, match="^[a-z_]+: needs Tensors and numbers, got ndarray\nhelp: wrap arrays"):
        call(np.ones((2, 2)))


@pytest.mark.parametrize("number", [np.float64(2), np.float32(2), np.int64(2)])
def test_a_scalar_of_numpy_is_a_number_on_either_side(number):
    for out in (number * TABLE, TABLE * number, number + TABLE - TABLE + number - 2):
        assert isinstance(out, Tensor)
        assert out.dtype.name == "float32"
    assert (number / TABLE).tolist() == [[2, 1], [pytest.approx(2 / 3), 0.5]]
    assert (number < TABLE).tolist() == [[False, False], [True, True]]


def test_whether_a_tensor_holds_a_value():
    assert 1 in TABLE
    assert 9 not in TABLE
    assert TABLE in TABLE
    with pytest.raises(DTypeError, match="^eq: needs Tensors and numbers, got str"):
        assert "x" in TABLE
    with pytest.raises(DTypeError, match="^div: needs Tensors and numbers, got list"):
        [1.0, 2.0] / TABLE


def test_changes_in_place_that_pytorch_has():
    x = tensor([1.0, 2.0])
    assert x.conj_physical_() is x
    assert x.polygamma_(1) is x
    assert x.tolist() == pytest.approx([np.pi**2 / 6, np.pi**2 / 6 - 1])
    assert ops.zero_(x) is x
    assert x.tolist() == [0, 0]
