"""`Tensor.untyped_storage`: which tensors share memory."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import nn, optim
from ampkit.core.storage import UntypedStorage


def same(a, b):
    a, b = a.untyped_storage(), b.untyped_storage()
    return (a.data_ptr(), a.nbytes()) == (b.data_ptr(), b.nbytes())


@pytest.mark.cpu
def test_views_have_the_storage_of_their_tensor_and_copies_their_own():
    x = ampkit.ones(4, 6)
    assert same(x, x[1:, 2:]) and same(x.t(), x.view(24)[5:])
    assert not same(x, x.clone())
    assert x.untyped_storage().nbytes() == 96 and x.untyped_storage().data_ptr() == x.data_ptr()


def test_parameters_in_an_arena_have_storages_of_their_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    model[1].weight = tied = nn.Parameter(ampkit.ones(4, 4))
    model.append(nn.Linear(4, 4))
    model[2].weight = tied
    optim.SGD(model.parameters(), lr=0.1)
    assert not same(model[0].weight, model[1].weight)
    assert same(model[1].weight, model[2].weight)
    assert model[1].weight.untyped_storage().nbytes() == 64


@pytest.mark.cpu
@pytest.mark.parametrize("width", [4, 300])  # small memory, and memory of the caching allocator
def test_what_a_state_dict_holds_of_an_arena_has_storages_of_its_own(width):
    model = nn.Linear(width, width)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    state = model.state_dict()  # off the tape, and so no parameters
    del optimizer
    for name, value in state.items():
        assert value.untyped_storage().nbytes() == value.nbytes, name
        assert same(value, value[..., 1:]) and same(value, model.get_parameter(name))
    assert not same(*state.values())


@pytest.mark.cpu
def test_a_storage_maps_a_file_without_changing_it(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(16)))
    held = UntypedStorage.from_file(path, nbytes=16)
    x = ampkit.asarray(held[4:12], dtype=ampkit.uint8)
    assert x.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    x.zero_()
    assert path.read_bytes() == bytes(range(16))
    with pytest.raises(ampkit.FileError, match="needs a file of 99 bytes"):
        UntypedStorage.from_file(tmp_path / "none", nbytes=99)


def test_a_tensor_without_elements_has_the_address_0():
    assert ampkit.empty(0).data_ptr() == 0
