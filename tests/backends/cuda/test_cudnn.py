"""The bindings of cuDNN: why it cannot be used, and how it is called."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy

import ampkit
from ampkit.backends.cuda.libs import cudnn as bindings
from ampkit.backends.cuda.libs import cudnn_graphs
from ampkit.backends.cuda.libs.cudnn_graphs import Convolution
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.ops.nn.conv_geometry import conv_geometry

# why not


def frontend(version: Any = 92000, starts: bool = True) -> types.ModuleType:
    """A module with the names of cuDNN's frontend, whose graphs write down what is done with them."""
    module = types.ModuleType("cudnn")

    def backend_version():
        if version is None:
            raise RuntimeError("Unable to find symbol cudnnGetVersion")
        return version

    def create_handle():
        if not starts:
            raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED\nand more")
        return 77

    streams: list[Any] = []
    module.backend_version, module.create_handle, module.destroy_handle = backend_version, create_handle, id
    module.set_stream = lambda handle, stream: streams.append((handle, stream))
    module.streams, module.cudnnGraphNotSupportedError = streams, type("Refusal", (Exception,), {})
    return module


@pytest.fixture
def gpu(monkeypatch):
    """What stands for CuPy, with an allocator that counts, and streams that can be chosen."""
    workspaces: list[int] = []
    xp = types.SimpleNamespace(workspaces=workspaces, stream=11)

    def alloc(size):
        workspaces.append(size)
        return types.SimpleNamespace(ptr=4096)

    xp.cuda = types.SimpleNamespace(
        alloc=alloc,
        get_current_stream=lambda: types.SimpleNamespace(ptr=xp.stream),
        runtime=types.SimpleNamespace(getDevice=lambda: 0, runtimeGetVersion=lambda: 13000),
        nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
    )
    return xp


def test_without_the_frontend_it_says_what_to_install(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert "no nvidia-cudnn-frontend" in bindings.Cudnn(gpu).unavailable_reason()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (frontend(version=None), "no libcudnn.so.9: pip install nvidia-cudnn-cu13"),
        (frontend(version=8904), "cuDNN 8904, and ampkit needs 90000"),
        (frontend(starts=False), "cuDNN 92000 does not start: CUDNN_STATUS_NOT_INITIALIZED"),
    ],
    ids=["no library", "too old", "no device"],
)
def test_what_is_missing_is_said_in_one_line(found, says, gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", found)
    said = bindings.Cudnn(gpu).unavailable_reason()
    assert said.startswith(says)
    assert "\n" not in said


def test_what_is_installed_here_either_works_or_says_why_not():
    trouble = bindings.Cudnn(emulated_cupy).unavailable_reason()
    assert isinstance(trouble, str)
    assert "\n" not in trouble


# calls


@pytest.fixture
def started(gpu, monkeypatch):
    """A Cudnn whose plans are made by a planner that counts, and run by graphs that write down their calls."""
    module = frontend()
    monkeypatch.setitem(sys.modules, "cudnn", module)
    made, ran = [], []

    class Graph:
        def _execute(self, addresses, workspace, handle):
            ran.append((addresses, workspace, handle))

    def plan(self, what):
        made.append(what)
        if what.kind == "kernels":
            raise module.cudnnGraphNotSupportedError("no engine\nat all")
        return cudnn_graphs.GraphPlan(Graph(), 512 if what.kind == "images" else 0)

    monkeypatch.setattr(cudnn_graphs.Planner, "plan", plan)
    found = bindings.Cudnn(gpu)
    assert found.unavailable_reason() == ""
    return types.SimpleNamespace(cudnn=found, made=made, ran=ran, module=module, gpu=gpu)


W = conv_geometry("conv2d", (3, 3), 1, 1, 1, (6, 6))


def images(shape=(2, 8, 6, 6), dtype=float16):
    n, c, h, w = shape
    return emulated_cupy.empty((n, h, w, c), dtype).transpose(0, 3, 1, 2)


def test_a_plan_is_made_once_per_signature(started):
    x, k, y = images(), images((8, 8, 3, 3)), images()
    for _ in range(3):
        assert started.cudnn.conv_forward(x, k, None, y, W)
    assert started.cudnn.conv_forward(x, k, images((1, 8, 1, 1)), y, W)
    assert started.cudnn.conv_forward(images(), k, None, images(dtype=float32), W)
    assert len(started.made) == 3
    assert len(started.ran) == 5


def test_a_call_passes_the_addresses_in_the_order_of_the_plan(started):
    x, k, y, bias = images(), images((8, 8, 3, 3)), images(), emulated_cupy.empty((8,), float16)
    started.cudnn.conv_forward(x, k, bias, y, W)
    started.cudnn.conv_data(y, k, None, x, W)
    numbered = [{i: a.data.ptr for i, a in enumerate(arrays, 1)} for arrays in ((x, k, bias, y), (k, y, x))]
    assert started.ran == [(numbered[0], 0, 77), (numbered[1], 4096, 77)]
    assert started.gpu.workspaces == [512], "workspace through CuPy, and only where it is needed"


def test_a_call_goes_to_the_stream_that_is_current(started):
    x, k, y = images(), images((8, 8, 3, 3)), images()
    for stream in (11, 11, 12, 11):
        started.gpu.stream = stream
        started.cudnn.conv_forward(x, k, None, y, W)
    assert started.module.streams == [(77, 11), (77, 12), (77, 11)]


def test_a_refusal_is_remembered_with_its_reason(started):
    x, k, y = images(), images((8, 8, 3, 3)), images()
    assert not started.cudnn.conv_weight(x, y, k, W)
    assert not started.cudnn.conv_weight(x, y, k, W)
    assert len(started.made) == 1
    assert list(started.cudnn.refused.values()) == ["no engine"]


def test_tf32_is_a_question_of_float32_alone(started):
    for dtype in (float32, float16):
        x, k, y = images(dtype=dtype), images((8, 8, 3, 3), dtype), images(dtype=dtype)
        for tf32 in (True, False):
            started.cudnn.conv_forward(x, k, None, y, W, tf32=tf32)
    assert [(what.dtype, what.tf32) for what in started.made] == [(float32, True), (float32, False), (float16, False)]
    assert ["TENSOR_CORE" in cudnn_graphs.excluded_notes(what) for what in started.made] == [False, True, False]


def test_whether_equal_calls_give_equal_bits_is_part_of_a_signature(started):
    x, k, y = images(), images((8, 8, 3, 3)), images()
    heads = [emulated_cupy.empty((2, 4, 5, 8), float16) for _ in range(8)]
    lse, made = emulated_cupy.empty((2, 4, 5, 1), float32), []
    started.cudnn._plan = lambda device, what: made.append(what)
    for mode in (True, False):
        ampkit.use_deterministic_algorithms(mode)
        try:
            started.cudnn.conv_forward(x, k, None, y, W)
            call = bindings.AttentionArrays(
                *heads[:3], None, None, heads[3], lse, False, 1.0, heads[4], tuple(heads[5:])
            )
            started.cudnn.attention_backward(call)
        finally:
            ampkit.use_deterministic_algorithms(True)
    assert [what.deterministic for what in made] == [True, True, False, False]
    assert ["NONDETERMINISTIC" in cudnn_graphs.excluded_notes(what) for what in made] == [True, True, False, False]


class Node:
    """A tensor of a graph: what it was made with or set to."""

    def __init__(self, role="", **given):
        self.role, self.given = role, given

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda value: self.given.update({name[4:]: value}) or self


class Graph:
    """A graph that remembers its tensors, under the names by which they are passed on."""

    def __init__(self, **how):
        self.tensors = []

    def tensor(self, **given):
        self.tensors.append(Node(**given))
        return self.tensors[-1]

    def _run(self, gives, **operands):
        for role, value in operands.items():
            parts = value if isinstance(value, tuple) else (value,)
            for i, part in enumerate(p for p in parts if isinstance(p, Node)):
                part.role = f"{role} {i}" if isinstance(value, tuple) else role
        self.tensors += [Node(role) for role in gives]
        return self.tensors[-len(gives) :]

    def conv_fprop(self, **operands):
        return self._run(["maps"], **operands)[0]

    def conv_dgrad(self, **operands):
        return self._run(["images"], **operands)[0]

    def conv_wgrad(self, **operands):
        return self._run(["kernels"], **operands)[0]

    def bias(self, **operands):
        return self._run([f"{operands['input'].role} + bias"], bias=operands["bias"])[0]

    def sdpa(self, **operands):
        return self._run(["out", "lse"], **operands)

    def sdpa_backward(self, use_deterministic_algorithm, **operands):
        self.deterministic = use_deterministic_algorithm
        return self._run(["dq", "dk", "dv"], **operands)

    def get_workspace_size(self):
        return 0

    def __getattr__(self, name):
        return lambda *given: None


@pytest.fixture
def recorded(gpu, monkeypatch):
    """A Cudnn over graphs that remember their tensors, and its last call: the graph and the addresses."""
    module, passed, names = frontend(), [], types.SimpleNamespace
    module.pygraph = Graph
    module.data_type = names(FLOAT=float32, HALF=float16, BFLOAT16=bfloat16)
    module.heur_mode, module.build_plan_policy = names(A=0, FALLBACK=1), names(HEURISTICS_CHOICE=0)
    exact = Convolution("maps", (), (), (), W, float32, float32)
    module.numerical_note = names(**{note: note for note in cudnn_graphs.excluded_notes(exact)})
    module.diagonal_alignment = names(TOP_LEFT=0)
    monkeypatch.setitem(sys.modules, "cudnn", module)
    monkeypatch.setattr(Graph, "_execute", lambda self, at, workspace, handle: passed.append((self, at)), raising=False)
    return names(cudnn=bindings.Cudnn(gpu), passed=passed)


def attention(*arrays):
    return (bindings.AttentionArrays(*arrays[:7], True, 0.5, *arrays[7:]),)


def roles(recorded, method, arrays, *more, arguments=lambda *arrays: arrays):
    """{what a tensor is to the graph: the name of the array given for it}; how they lie is compared on the way."""
    assert getattr(recorded.cudnn, method)(*arguments(*arrays.values()), *more)
    (graph, addresses), flat, found = recorded.passed[-1], {}, {}
    for name, value in arrays.items():
        flat |= {f"{name} {i}": a for i, a in enumerate(value)} if isinstance(value, tuple) else {name: value}
    tensors = {t.given["uid"]: t for t in graph.tensors if "uid" in t.given}
    for number, address in addresses.items():
        (name,) = [n for n, a in flat.items() if a.data.ptr == address]
        tensor, array = tensors.pop(number), flat[name]
        if array.ndim == 4:
            assert (tuple(tensor.given["dim"]), tuple(tensor.given["stride"])) == bindings.layout(array)[:2], name
        assert tensor.given["data_type"] == array.dtype, name
        found[tensor.role] = name
    assert not tensors, "a tensor of the graph got no array"
    return found


def test_each_array_of_a_convolution_goes_where_the_graph_reads_or_writes_it(recorded):
    w = conv_geometry("conv2d", (3, 2), 1, 0, 1, (6, 7))
    x, k, y = images((2, 8, 6, 7)), images((16, 8, 3, 2)), images((2, 16, 4, 6))
    wide_x, wide_k, wide_y = (images(a.shape, float32) for a in (x, k, y))
    found = roles(recorded, "conv_forward", {"x": x, "k": k, "b": emulated_cupy.empty((16,), float16), "y": wide_y}, w)
    assert found == {"image": "x", "weight": "k", "bias": "b", "maps + bias": "y"}
    found = roles(recorded, "conv_data", {"y": y, "k": k, "b": emulated_cupy.empty((8,), float16), "x": wide_x}, w)
    assert found == {"loss": "y", "filter": "k", "bias": "b", "images + bias": "x"}
    found = roles(recorded, "conv_weight", {"x": x, "y": y, "k": wide_k}, w)
    assert found == {"image": "x", "loss": "y", "kernels": "k"}


def test_each_array_of_attention_goes_where_the_graph_reads_or_writes_it(recorded):
    def new(*shape, dtype=float16):
        return emulated_cupy.empty(shape, dtype)

    arrays = {"q": new(2, 4, 5, 8), "k": new(2, 2, 7, 8), "v": new(2, 2, 7, 16), "bias": new(2, 1, 1, 7)}
    arrays |= {"drop": (new(2, 4, 5, 7), new(1, dtype=float32), new(1, dtype=float32))}
    arrays |= {"out": new(2, 4, 5, 16), "lse": new(2, 4, 5, 1, dtype=float32)}
    want = {"q": "q", "k": "k", "v": "v", "bias": "bias", "dropout 0": "drop 0", "dropout 1": "drop 1"}
    found = roles(recorded, "attention_forward", arrays, arguments=attention)
    assert found == {**want, "out": "out", "lse": "lse"}
    arrays |= {"dout": new(2, 5, 4, 16).transpose(0, 2, 1, 3), "d": tuple(new(*arrays[n].shape) for n in "qkv")}
    want |= {"dropout 2": "drop 2", "o": "out", "stats": "lse", "dO": "dout", "dq": "d 0", "dk": "d 1", "dv": "d 2"}
    assert roles(recorded, "attention_backward", arrays, arguments=attention) == want
    assert recorded.passed[-1][0].deterministic is True


def test_an_axis_of_one_element_has_no_step_of_its_own():
    array = emulated_cupy.empty((2, 5, 1, 8), float16)
    transposed = array.transpose(0, 2, 1, 3)
    assert bindings.layout(transposed).strides == (40, 40, 8, 1)
    odd = np.lib.stride_tricks.as_strided(np.zeros(16, np.float16), (1, 1, 2, 8), (999, 2, 16, 2))
    assert bindings.layout(emulated_cupy.ndarray(odd)).strides == (16, 16, 8, 1)
