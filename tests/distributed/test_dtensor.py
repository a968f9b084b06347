"""DTensors on meshes of ranks that are threads: moves, operations and gradients are those of the whole tensors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from distributed.thread_ranks import ThreadMesh, on_mesh

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

pytestmark = pytest.mark.no_gpu
RNG = np.random.default_rng(8)
R, P = Replicate(), Partial()


def values(*shape):
    return ampkit.tensor(RNG.standard_normal(shape))


def placed(mesh, whole, placements):
    """A DTensor of `whole`; where it is of terms, the first rank's is all but some of it."""
    parts = [R if isinstance(each, Partial) else each for each in placements]
    local = distribute_tensor(whole, mesh, parts).to_local()
    place = [i for i, each in zip(mesh.get_coordinate(), placements, strict=True) if isinstance(each, Partial)]
    if place:
        share = 0.25 * (-1) ** sum(place) if any(place) else 1.0
        total = sum(
            0.25 * (-1) ** sum(at) if any(at) else 1.0
            for at in np.ndindex(*(mesh.size(d) for d, e in enumerate(placements) if isinstance(e, Partial)))
        )
        local = local * (share / total)
    return DTensor.from_local(local, mesh, placements, shape=whole.shape)


PLACEMENTS = [R, P, Shard(0), Shard(1)]


@pytest.mark.parametrize("shape", [(2, 2), (3,)])
def test_every_placement_becomes_every_other_with_its_gradient(shape):
    whole, weights = values(5, 6), values(5, 6)

    def program(world, *groups):
        mesh = ThreadMesh(world, *groups)
        pairs = list(product(product(PLACEMENTS, repeat=mesh.ndim), repeat=2))
        for source, target in pairs[:: 1 if mesh.ndim == 1 else 5]:
            x = placed(mesh, whole, source)
            leaf = DTensor.from_local(x.to_local().detach().requires_grad_(), mesh, source, shape=whole.shape)
            if any(isinstance(t, Partial) and s != t for s, t in zip(source, target, strict=True)):
                with pytest.raises(ArgumentError, match=r"targets Replicate\(\) or Shard\(dim\), got Partial"):
                    leaf.redistribute(placements=target)
                continue
            moved = leaf.redistribute(mesh, target)
            assert moved.placements == target and moved.shape == (5, 6)
            if P not in target:
                assert (
                    moved.to_local()
                    .detach()
                    .equal(distribute_tensor(moved.full_tensor().detach(), mesh, target).to_local())
                )
            np.testing.assert_allclose(moved.full_tensor().numpy(force=True), whole, rtol=1e-12)
            (moved * distribute_tensor(weights, mesh)).sum().backward()
            np.testing.assert_allclose(leaf.grad.full_tensor().numpy(), weights, rtol=1e-12)

    on_mesh(shape, program)


def close(found, expected, said):
    values = found.full_tensor().numpy(force=True), expected.numpy(force=True)
    np.testing.assert_allclose(*values, 1e-6, 1e-6, err_msg=str(said))


OPERATIONS = {
    "x + y": (lambda x, y: x + y, [(5, 6), (5, 6)]),
    "2 - x / 3": (lambda x: 2 - x / 3, [(5, 6)]),
    "a row": (lambda x, y: x * y, [(5, 6), (6,)]),
    "a column": (lambda x, y: x - y, [(5, 6), (5, 1)]),
    "a number": (lambda x, y: x / y, [(5, 6), (1, 1)]),
    "gelu": (ops.gelu, [(5, 6)]),
    "methods": (lambda x: (-x).exp().float().double().clamp(min=0.5).clone(), [(5, 6)]),
    "where": (lambda x, y: ops.where(x > 0, x, y), [(5, 6), (5, 6)]),
    "x @ y": (lambda x, y: x @ y, [(5, 6), (6, 7)]),
    "of many": (lambda x, y: ops.matmul(x, y), [(4, 5, 6), (4, 6, 7)]),
    "with one": (lambda x, y: ops.matmul(x, y), [(4, 5, 6), (6, 7)]),
    "linear": (ops.linear, [(5, 6), (7, 6), (7,)]),
    "sum": (lambda x: x.sum(0, keepdim=True) + x.sum(1).sum(), [(5, 6)]),
    "mean": (lambda x: x.mean() * x.mean(dim=1), [(5, 6)]),
    "softmax": (lambda x: ops.log_softmax(x, -1) + ops.softmax(x, 0), [(5, 6)]),
    "norm": (lambda x, w, b: ops.layer_norm(x, (6,), w, b), [(5, 6), (6,), (6,)]),
    "axes": (lambda x: x.T.transpose(0, 1).permute(1, 0).unsqueeze(1), [(5, 6)]),
    "shapes": (lambda x: x.reshape(4, 2, 3).view(-1, 6).exp().reshape(24), [(4, 6)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_values_and_gradients_of_whole_tensors(name):
    function, shapes = OPERATIONS[name]
    wholes = [values(*shape) for shape in shapes]
    plain = [whole.clone().requires_grad_() for whole in wholes]
    expected = function(*plain)
    weights = ampkit.tensor(np.random.default_rng(1).standard_normal(expected.shape))
    (expected * weights).sum().backward()
    choices = [[p for p in PLACEMENTS[: 2 + len(shape)] if not isinstance(p, Shard) or p.dim < len(shape)]
               + ([Shard(2)] if len(shape) > 2 else []) for shape in shapes]  # fmt: skip
    if len(shapes) > 2:
        choices = [each[:4] for each in choices]

    def program(world, *groups):
        mesh, results = ThreadMesh(world, *groups), []
        for chosen in product(*choices):
            # One dimension of the mesh after the other; the other has each tensor cut by its last axis, or copies.
            others = [[R] * (mesh.ndim - 1), [Shard(len(shapes[0]) - 1)] * (mesh.ndim - 1)][: mesh.ndim]
            for other in others:
                placements = [[p, *(other if i == 0 else [R] * (mesh.ndim - 1))] for i, p in enumerate(chosen)]
                leaves = []
                for whole, placement in zip(wholes, placements, strict=True):
                    local = placed(mesh, whole, placement).to_local().detach().requires_grad_()
                    leaves.append(DTensor.from_local(local, mesh, placement, shape=whole.shape))
                found = function(*leaves)
                close(found, expected, placements)
                (found * distribute_tensor(weights, mesh)).sum().backward()
                for leaf, one in zip(leaves, plain, strict=True):
                    close(leaf.grad, one.grad, placements)
                results.append(found.placements)
        return results

    first, *others = on_mesh((2,), program)
    assert all(each == first for each in others)
    if name in ("x @ y", "x + y", "axes", "shapes"):
        on_mesh((2, 2), program)


def test_parameters_of_parts_are_operands():
    x, w = values(4, 6), values(8, 6)

    def program(world, *groups):
        mesh = ThreadMesh(world, *groups)
        weight = distribute_tensor(nn.Parameter(w.clone()), mesh, [Shard(0)])
        assert isinstance(weight, DTensor) and weight.shape == (4, 6) and weight.full_shape == (8, 6)
        y = ops.linear(distribute_tensor(x, mesh), weight)
        assert y.placements == (Shard(1),) and y.shape == (4, 8) and y.to_local().shape == (4, 4)
        (y * y).sum().backward()
        return weight.grad.full_tensor().numpy()

    for found in on_mesh((2,), program):
        np.testing.assert_allclose(found, (2 * (x @ w.T).T @ x).numpy(), rtol=1e-6)


def test_results_lie_as_pytorchs_do():
    def program(world, *groups):
        mesh = ThreadMesh(world, *groups)
        rows, columns, copies = (distribute_tensor(values(4, 4), mesh, [p]) for p in (Shard(0), Shard(1), R))
        terms = columns @ rows
        assert terms.placements == (terms + terms).placements == (terms * 2.0).placements == (P,)
        assert (rows @ copies).placements == (terms + rows).placements == (Shard(0),)
        assert (copies @ columns).placements == (Shard(1),)
        assert (terms + 1.0).placements == ops.relu(terms).placements == (R,)
        assert rows.sum().placements == (P,) and rows.sum(1).placements == (Shard(0),)
        assert rows.reshape(2, 8).placements == (Shard(0),) and columns.reshape(16).placements == (R,)
        assert rows.to(ampkit.bfloat16).dtype is ampkit.bfloat16
        with ampkit.autocast(dtype=ampkit.bfloat16):
            assert (rows.float() @ copies.float()).dtype is ampkit.bfloat16

    on_mesh((2,), program)


def test_terms_of_gradients_are_summed_where_to_local_says_so():
    def program(world, *groups):
        mesh = ThreadMesh(world, *groups)
        x = distribute_tensor(ampkit.ones(4), mesh).requires_grad_()
        assert x.is_leaf and x.requires_grad and x.grad is None
        part = slice(2 * world.rank(), 2 * world.rank() + 2)
        (x.to_local(grad_placements=[P])[part] * 3.0).sum().backward()
        assert x.grad.to_local().tolist() == [3.0] * 4
        with pytest.raises(ArgumentError, match="grad_placements that fit"):
            x.to_local(grad_placements=[Shard(0)])

    on_mesh((2,), program)


def failing(mesh):
    x, one = distribute_tensor(values(4, 6), mesh, [Shard(0)]), ThreadMesh.__new__(ThreadMesh)
    one._set("cpu", np.arange(1), None, [])
    return {
        "elsewhere": (lambda: ops.cumsum(x, 0), DTypeError, "cumsum: needs Tensors, got a DTensor, for which"),
        "in place": (lambda: x.add_(1.0), DTypeError, "add_: needs Tensors, got a DTensor"),
        "out": (lambda: ops.exp(x, out=values(4, 6)), ArgumentError, "exp: needs no out="),
        "mixed": (lambda: x + values(4, 6), DTypeError, "add: needs DTensors, got a Tensor beside one"),
        "item": (lambda: float(x.sum()), DTypeError, "a Tensor to read values of, got a DTensor"),
        "index": (lambda: x[0], DTypeError, "a Tensor to read values of"),
        "list": (lambda: x.tolist(), DTypeError, "tolist: needs Tensors"),
        "attribute": (lambda: x.nothing, AttributeError, "has no attribute 'nothing'"),
        "shape": (lambda: x @ x, ShapeError, "6 rows, as the first has columns"),
        "vector": (lambda: x @ x.sum(0), ShapeError, "two DTensors of at least 2 axes"),
        "reshape": (lambda: x.reshape(5, 5), ShapeError, "a shape of 24 elements"),
        "axis": (lambda: x.sum(2), ShapeError, "an axis from -2 to 1, got 2"),
        "terms": (lambda: x.redistribute(placements=[P]), ArgumentError, "targets Replicate"),
        "meshes": (lambda: x.redistribute(one), ArgumentError, "redistribute: needs the mesh"),
        "placements": (lambda: x.redistribute(placements=[R, R]), ArgumentError, "1 placements"),
        "local": (lambda: DTensor.from_local(values(4), mesh, [Shard(0)], shape=(9,)), ShapeError, r"\[5\] of \[9\]"),
        "reduce": (lambda: DTensor.from_local(values(4), mesh, [Partial("max")]), ArgumentError, "Partial..sum"),
        "mesh": (lambda: distribute_tensor(values(4), None), ArgumentError, "a DeviceMesh, got a NoneType"),
        "gradient": (lambda: x.backward(), ShapeError, "a tensor of one element, or a gradient"),
    }  # fmt: skip


def test_what_is_not_defined_is_one_line():
    def program(world, *groups):
        for name, (action, error, said) in failing(ThreadMesh(world, *groups)).items():
            if name == "local" and world.rank() == 1:  # which has four of nine
                continue
            with pytest.raises(error, match=said) as caught:
                action()
            assert str(caught.value).count("\n") <= 1, name

    on_mesh((2,), program)
