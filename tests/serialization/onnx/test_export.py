"""ampkit.onnx.export: names, dynamic axes, changes in place, what is refused, and the file."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, FileError, StateError
from ampkit.core import random
from ampkit.core.op import Array, op
from ampkit.core.policy import Cast
from ampkit.serialization.onnx import registry, verify

onnx = pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra dev")


class Function(nn.Module):
    """A model that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *more):
        return self.function(x, *more)


def drawn(*shape):
    return ampkit.tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def exported(model, args, **options):
    file = io.BytesIO()
    ampkit.onnx.export(model if isinstance(model, nn.Module) else Function(model), args, file, **options)
    return onnx.load_from_string(file.getvalue())


def run(model, *args):
    """The outputs of a ModelProto."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {info.name: arg.numpy() for info, arg in zip(session.get_inputs(), args, strict=True)}
    return session.run(None, feed)


def dims(info):
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


def kinds(model):
    return [node.op_type for node in model.graph.node if node.op_type != "Identity"]


# names


def test_weights_have_their_names_and_tied_ones_are_stored_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    made = exported(model, drawn(2, 4))
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in made.graph.initializer}
    assert stored.keys() == {"0.weight", "0.bias"}
    np.testing.assert_array_equal(stored["0.weight"], model[0].weight.detach().numpy())


def test_inputs_are_named_by_the_parameters_of_forward_and_outputs_by_keys():
    made = exported(lambda x, y: {"sum": x + y, "product": x * y}, (drawn(2), drawn(2)), input_names=["a"])
    assert [info.name for info in made.graph.input] == ["a", "input_1"]
    assert [info.name for info in made.graph.output] == ["sum", "product"]


def test_keywords_and_lists_of_tensors_are_inputs_too():
    class Model(nn.Module):
        def forward(self, x, others, *, shift=None):
            return ops.cat([x, *others]) + shift

    args = (drawn(2), [drawn(3), drawn(1)])
    made = exported(Model(), args, kwargs={"shift": drawn(1)}, output_names=["joined"])
    assert [info.name for info in made.graph.input] == ["x", "others_0", "others_1", "shift"]
    (got,) = run(made, args[0], *args[1], drawn(1))
    np.testing.assert_allclose(got, np.concatenate([args[0], *args[1]]) + drawn(1).numpy(), rtol=1e-6)


def test_the_nodes_of_a_module_are_named_by_its_path():
    made = exported(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh())), drawn(3, 2))
    assert [node.name for node in made.graph.node] == ["0/linear/Gemm", "1.0/tanh/Tanh", "output"]


def test_an_output_that_is_an_input_or_the_same_twice_is_one_all_the_same():
    made = exported(lambda x: (x, y := x + 1, y), drawn(2))
    a, b, c = run(made, drawn(2))
    np.testing.assert_array_equal(a, drawn(2).numpy())
    np.testing.assert_array_equal(b, c)


def test_what_no_output_depends_on_is_left_out():
    model = Function(lambda x: (ampkit.linalg.matrix_exp(x), x + 1)[1])
    assert kinds(exported(model, drawn(2, 2))) == ["Add"]


def test_metadata_is_text_in_the_file():
    made = exported(lambda x: x + 1, drawn(2), metadata={"classes": '["a"]'})
    assert {each.key: each.value for each in made.metadata_props} == {"classes": '["a"]'}


def test_the_model_and_the_random_stream_are_afterwards_as_they_were():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    state = random.get_rng_state()
    x = drawn(3, 2)
    before = x.numpy().copy()
    exported(lambda x: model(x.add_(1)), x)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    np.testing.assert_array_equal(x.numpy(), before)
    assert str(random.get_rng_state()) == str(state)


# dynamic axes


def dynamic(function, shape, names, others, **options):
    """Export with dynamic axes of x, and compare on inputs of other shapes."""
    made = exported(function, drawn(*shape), dynamic_shapes={"x": names}, **options)
    for each in others:
        (got,) = run(made, x := drawn(*each))
        np.testing.assert_allclose(got, function(x).numpy(), rtol=1e-5, atol=1e-6)
    return made


SIZED = {
    "merged axes": lambda x: x.reshape(x.shape[0] * x.shape[1], -1),
    "split axes": lambda x: x.reshape(x.shape[0], x.shape[1], 2, 3).transpose(1, 2),
    "zeros": lambda x: x + ampkit.zeros(x.shape[0], x.shape[1], 1),
    "a product with the length": lambda x: x / (2 * x.shape[1]),
    "positions": lambda x: x * ops.arange(x.shape[1])[:, None],
    "a mask of positions": lambda x: x.mean(2).masked_fill(ops.arange(x.shape[1]) < 1, 0.0),
    "a causal mask": lambda x: (x @ x.mT) * ops.tril(ops.ones(x.shape[1], x.shape[1])),
    "repeated rows of a table": lambda x: (
        x + ampkit.tensor(np.ones((x.shape[0], 1, 6), np.float32) * [1, 2, 3, 4, 5, 6])
    ),
    "positions as floats": lambda x: x * ops.arange(x.shape[1]).float()[:, None],
    "a slice up to the length": lambda x: x + ops.arange(100)[: x.shape[1], None],
    "a sort": lambda x: x.sort(1).values,
    "the last element": lambda x: x[:, -1],
    "an expanded row": lambda x: ops.cat([ops.ones(1, 1, 6).expand(x.shape[0], -1, -1), x], 1),
}


@pytest.mark.parametrize("what", SIZED)
def test_what_follows_from_a_dynamic_axis_is_computed_in_the_file(what):
    dynamic(SIZED[what], (2, 4, 6), {0: "batch", 1: "length"}, [(2, 4, 6), (1, 7, 6), (5, 1, 6)])


def test_a_batch_of_one_can_be_dynamic():
    made = dynamic(lambda x: x.reshape(x.shape[0], -1), (1, 2, 3), {0: "batch"}, [(1, 2, 3), (4, 2, 3)])
    assert [dims(info) for info in (*made.graph.input, *made.graph.output)] == [["batch", 2, 3], ["batch", 6]]


@pytest.mark.parametrize(
    "given",
    [{"x": {0: "n"}}, ({0: "n"},), {"x": ("n", None)}, {"x": {0: type("n", (), {})}}, {"x": {-2: "n"}}],
    ids=["by name", "by place", "a tuple", "a class, as torch.export.Dim", "from the end"],
)
def test_dynamic_shapes_are_given_as_to_pytorch(given):
    made = exported(lambda x: x + 1, drawn(2, 3), dynamic_shapes=given)
    assert dims(made.graph.input[0]) == ["n", 3]


def test_dynamic_axes_are_the_older_name():
    axes = {"a": [0], "b": {0: "any"}}
    made = exported(lambda x: x + 1, drawn(2, 3), input_names=["a"], output_names=["b"], dynamic_axes=axes)
    assert dims(made.graph.input[0]) == dims(made.graph.output[0]) == ["a_dim_0", 3]


def test_two_inputs_share_a_size():
    shapes = {"x": {0: "n"}, "input_1": {0: "n"}}
    made = exported(lambda x, y: x + y, (drawn(2), drawn(2)), dynamic_shapes=shapes)
    (got,) = run(made, drawn(5), drawn(5))
    np.testing.assert_allclose(got, 2 * drawn(5).numpy())


def test_a_model_that_takes_only_shorter_inputs_can_be_dynamic():
    table = nn.Embedding(4, 2)
    made = exported(lambda x: x + table(ops.arange(x.shape[1])), drawn(2, 4, 2), dynamic_shapes={"x": {1: "length"}})
    assert run(made, drawn(2, 3, 2))[0].shape == (2, 3, 2)


# changes in place


def test_changes_in_place_of_whole_tensors_are_followed():
    def function(x):
        y = ops.relu(x)
        y += 1
        y.mul_(2)
        flat = y.reshape(-1)
        return flat.add_(x.reshape(-1))

    made = exported(function, drawn(3, 4))
    np.testing.assert_allclose(run(made, drawn(3, 4))[0], function(drawn(3, 4)).numpy(), rtol=1e-6)


def test_a_result_that_view_puts_in_row_major_order_is_followed():
    conv = nn.Conv2d(3, 4, 3, padding=1)

    def function(x):
        y = conv(x)
        return y.view(x.shape[0], -1).sum(1)[:, None, None, None] + y

    made = exported(function, x := drawn(2, 3, 8, 8))
    with ampkit.no_grad():
        np.testing.assert_allclose(run(made, x)[0], function(x).numpy(), rtol=1e-5, atol=1e-5)


def assigned(x):
    y = x + 1
    y[:, 0] = 0
    return y


def overwritten_view(x):
    y = x + 1
    first = y[0]
    y.mul_(2)
    return first


# conversions


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 0).float() * x,
        lambda x: (x * 3).long() + 1,
        lambda x: x.bool(),
        lambda x: ops.one_hot(x.argmax(-1), 4).double(),
    ],
    ids=["bool to float", "float to int", "float to bool", "one hot"],
)
def test_casts_between_kinds_of_dtypes_are_nodes(function):
    made = exported(function, x := drawn(3, 4))
    (got,) = run(made, x)
    np.testing.assert_array_equal(got, function(x).numpy())


# refusals

BRANCH = Function(lambda x: x * 2 if x.sum() > 0 else x)
REFUSALS = {
    "a branch on data": (lambda x: x * 2 if x.sum() > 0 else x, StateError, "got the result of gt in .*were read"),
    "an item": (lambda x: x * x.max().item(), StateError, "got the result of .* whose values were read"),
    "values in NumPy": (lambda x: x + ampkit.tensor(x.numpy()), StateError, "got the input x, whose values were read"),
    "an array behind ampkit's back": (
        lambda x: x + ampkit.tensor(np.sin(x.array)), ArgumentError, "a constant that changed with the inputs.*add in",
    ),
    "random numbers": (lambda x: x + ampkit.randn(2, 3), ArgumentError, "draws no random numbers.*add in"),
    "an op without a mapping": (
        nn.Sequential(nn.Identity(), Function(lambda x: ampkit.linalg.matrix_exp(x @ x.mT))), ArgumentError,
        r"needs ops that have a mapping to ONNX, got matrix_exp in 1\nhelp: write it .*onnx_op\('matrix_exp'\)",
    ),
    "a part assigned": (assigned, StateError, "got the output, which reads a tensor of which a part was overwritten"),
    "a view overwritten": (overwritten_view, StateError, "reads a view of a tensor that was overwritten"),
    "no tensor returned": (lambda x: 3, DTypeError, "needs a model that returns Tensors, got a int"),
    "a model that fails": (lambda x: x @ x, AmpkitError, "matmul"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_a_model_that_a_file_cannot_hold_is_refused_in_one_line(what):
    model, kind, said = REFUSALS[what]
    with pytest.raises(kind, match=said) as caught:
        exported(model, drawn(2, 3))
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x + 1 if x.shape[0] == 3 else x, "the same ops.* every size of n, got one that differs at add"),
        (
            lambda x: x * ampkit.tensor(np.linspace(0, 1, x.shape[0]))[:, None].float(),
            "constants that do not depend on n",
        ),
        (lambda x: x.reshape(2, 2), "a model that takes other lengths of n than 2, got one that refuses 3: reshape"),
    ],
    ids=["a branch on the size", "a table made for the size", "a fixed size"],
)
def test_a_model_whose_size_is_fixed_cannot_be_dynamic(function, said):
    with pytest.raises(ArgumentError, match=said):
        exported(function, drawn(2, 2), dynamic_shapes={"x": {0: "n"}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"opset_version": 11}, r"opset_version from 18 to \d+, got 11"),
        ({"input_names": ["a", "b"]}, "at most 1 input_names, of x, got 2"),
        ({"input_names": "a"}, "input_names as a list of names"),
        ({"output_names": ["x"]}, "output_names that differ"),
        ({"dynamic_shapes": {"y": {0: "n"}}}, "dynamic_shapes of x, got 'y'"),
        ({"dynamic_shapes": {"x": {2: "n"}}}, "an axis of x, which has 2, got 2"),
        ({"dynamic_shapes": {"x": {0: 5}}}, "the name of a dynamic axis"),
        ({"dynamic_shapes": {"x": {0: "n", 1: "n"}}}, "one length for n, got 2 in x, 3 in x"),
        ({"dynamic_shapes": {"x": 3}}, "dynamic axes such as"),
        ({"export_params": False}, "weights as constants"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises(ArgumentError, match=f"onnx.export: needs .*{said}"):
        exported(lambda x: x + 1, drawn(2, 3), **options)


@pytest.mark.parametrize(
    ("model", "args", "f", "said"),
    [
        (3, drawn(2), "m.onnx", "a module as `model`, got a int"),
        (Function(abs), (), "m.onnx", "a Tensor among args, got none"),
        (Function(abs), (np.zeros(2),), "m.onnx", "a Tensor among args, got none"),
        (Function(abs), drawn(2), None, "`f`, a path or a binary file object, got None"),
    ],
)
def test_the_model_its_arguments_and_the_path_are_checked(model, args, f, said):
    with pytest.raises(AmpkitError, match=f"onnx.export: needs {said}"):
        ampkit.onnx.export(model, args, f)


def test_a_path_that_cannot_be_written_is_refused_and_an_old_file_stays(tmp_path):
    model = Function(lambda x: x + 1)
    with pytest.raises(FileError, match="onnx.export: needs a file that can be written, got .*none/m.onnx"):
        ampkit.onnx.export(model, drawn(2), tmp_path / "none" / "m.onnx")
    path = tmp_path / "m.onnx"
    path.write_text("old")
    with pytest.raises(StateError):
        ampkit.onnx.export(BRANCH, drawn(2), path)
    assert path.read_text() == "old"
    ampkit.onnx.export(model, drawn(2), path)
    assert kinds(onnx.load(path)) == ["Add"]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FileError, match=r"needs the package onnx, got none\nhelp: pip install 'ampkit\[onnx\]'"):
        ampkit.onnx.export(BRANCH, drawn(2), "m.onnx")


# verify


def test_verify_compares_also_at_other_lengths():
    exported(lambda x: x.softmax(-1), drawn(2, 3), dynamic_shapes={"x": {0: "n"}}, verify=True)


def test_verify_finds_a_wrong_node(monkeypatch):
    monkeypatch.setitem(registry.MAPPINGS, "exp", registry.Mapping(lambda g, input: g.Sin(input), ()))
    with pytest.raises(StateError, match="needs output output of ONNX Runtime within 0.0001 of the largest value"):
        exported(lambda x: x.exp(), drawn(2), verify=True)


def test_verify_needs_onnx_runtime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FileError, match="needs the package onnxruntime, for verify=True, got none"):
        exported(lambda x: x + 1, drawn(2), verify=True)
    assert verify.TOLERANCE < verify.TOLERANCE_LOW


# ops of one's own


@op(cast=Cast.FP32)
def one_less_for_onnx(input: Array, by=1.0):
    """input - by."""
    return input - by


def test_an_op_of_ones_own_has_nodes_by_a_function_of_ones_own(monkeypatch):
    model = Function(one_less_for_onnx)
    with pytest.raises(ArgumentError, match="got one_less_for_onnx in "):
        exported(model, drawn(2))
    monkeypatch.setitem(registry.MAPPINGS, "one_less_for_onnx", None)  # takes the new entry away at the end

    @ampkit.onnx.onnx_op("one_less_for_onnx")
    def build(g, input, by):
        return g.Sub(input, g.constant(by))

    np.testing.assert_allclose(run(exported(model, drawn(2)), drawn(2))[0], drawn(2).numpy() - 1, rtol=1e-6)


def test_code_can_ask_whether_it_is_exported():
    asked = []
    exported(lambda x: (asked.append(ampkit.onnx.is_in_onnx_export()), x + 1)[1], drawn(2))
    assert set(asked) == {True}
    assert not ampkit.onnx.is_in_onnx_export()
