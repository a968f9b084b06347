"""What distributed/nccl.py takes for granted of CuPy's NCCL and of the library itself, neither of which needs a GPU."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from cuda_on_cpu import emulated_nccl

import ampkit.distributed.nccl

MISSING = "CuPy or NCCL is not installed: extra gpu-checks"
nccl = pytest.importorskip("cupy.cuda.nccl", reason=MISSING)
if not hasattr(nccl, "NcclCommunicator"):  # CuPy, without the library
    pytest.skip(MISSING, allow_module_level=True)
CALLS = ("send", "recv", "broadcast", "check_async_error", "abort", "destroy", "size", "rank_id", "device_id")


def parameters(function):
    """The names of a compiled function's parameters, from the first line of its docstring."""
    said = re.search(r"\((.*?)\)", function.__doc__)[1]
    return [part.split("=")[0].split()[-1] for part in said.split(", ") if part and part != "self"]


def test_every_attribute_of_nccl_that_ampkit_uses_is_there():
    """Of its module and of a communicator, by name, as the sources have them."""
    tree = ast.parse(Path(ampkit.distributed.nccl.__file__).read_text())
    used = {(ast.unparse(node.value), node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    of_module = {name for owner, name in used if owner == "self.library"}
    of_communicator = {name for owner, name in used if owner == "self.communicator"}
    assert of_module == {"NCCL_UINT8", "NcclCommunicator", "get_unique_id", "groupEnd", "groupStart"}
    assert of_communicator <= set(CALLS)
    assert not {name for name in of_module if not hasattr(nccl, name)}


@pytest.mark.parametrize("name", CALLS)
def test_a_communicator_takes_the_parameters_of_its_emulation(name):
    emulated = list(inspect.signature(getattr(emulated_nccl.NcclCommunicator, name)).parameters)[1:]
    assert parameters(getattr(nccl.NcclCommunicator, name)) == emulated


def test_a_communicator_is_made_of_a_size_a_number_and_a_rank():
    emulated = list(inspect.signature(emulated_nccl.NcclCommunicator).parameters)
    assert parameters(nccl.NcclCommunicator) == emulated == ["ndev", "commId", "rank", "config"]


def test_the_constants_are_those_of_the_emulation():
    named = [name for name in dir(emulated_nccl) if name.startswith("NCCL_")]
    assert len(named) == 10
    assert {name: getattr(nccl, name) for name in named} == {name: getattr(emulated_nccl, name) for name in named}


def test_the_library_has_messages_between_ranks_and_in_graphs():
    assert nccl.get_version() >= 20900  # NCCL 2.9: groups of send and recv in a captured stream


def test_numbers_of_communicators_are_128_bytes_and_differ():
    first, second = nccl.get_unique_id(), nccl.get_unique_id()
    assert type(first) is type(second) is bytes
    assert len(first) == len(second) == 128
    assert first != second


def test_a_group_without_calls_needs_no_gpu():
    nccl.groupStart()
    nccl.groupEnd()


def test_a_refused_call_is_an_nccl_error_by_name():
    for code in (nccl.NcclCommunicator, emulated_nccl.NcclCommunicator):
        with pytest.raises(Exception, match="NCCL_ERROR") as found:
            code(1, nccl.get_unique_id()[:127], 0) if code is not nccl.NcclCommunicator else nccl.check_status(4)
        assert type(found.value).__name__ == "NcclError"
