"""What a process does for others: run a function or a method, keep its result for references, send a value."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from ...base.errors import ArgumentError
from ...core.op import Op
from . import registry
from .agent import Agent
from .functions import called
from .futures import Future
from .references import RRef, unpacked
from .values import Value

FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, type, Op)


def serve(agent: Agent) -> None:
    """Let others ask `agent` for what is here."""
    agent.pack, agent.unpack = _pack, lambda found, missing: _unpack(agent, found, missing)
    agent.operations = {
        "call": _call,
        "method": _method,
        "fetch": lambda source, rref: _own(rref).future.wait(),
        "create": lambda source, *given: _create(agent, source, *given),
        "more": lambda source, rref: agent.values.give(rref._key, _own(rref)),
    }
    agent.notes = {
        "forget": lambda source, creator, number, exponent: agent.values.take_back((creator, number), exponent)
    }


def _pack(value: Any, to: int) -> list[Any] | None:
    if isinstance(value, RRef):
        return value.packed(to)
    return ["function", registry.name_of("rpc", value)] if isinstance(value, FUNCTIONS) else None


def _unpack(agent: Agent, found: list[Any], missing: list[Future[Any]]) -> Any:
    kind, *rest = found
    if kind == "rref":
        return unpacked(agent, missing, *rest)
    if kind == "function":
        return registry.found(rest[0])
    raise ArgumentError("rpc", "a message of this version of ampkit", repr(kind))


def _call(source: int, name: str, args: Any, kwargs: Any) -> Any:
    return called(registry.found(name), name, args, kwargs)


def _method(source: int, rref: RRef[Any], name: str, args: Any, kwargs: Any) -> Any:
    return called(registry.method_of(_own(rref).future.wait(), name), name, args, kwargs)


def _own(rref: RRef[Any]) -> Value:
    if rref._held is None:
        raise ArgumentError("rpc", "a reference to a value of this worker", repr(rref))
    return rref._held


def _create(agent: Agent, source: int, creator: int, number: int, operation: str, *given: Any) -> Any:
    """Run `operation`, and keep its result for the reference that `source` has. -> None, once it is there."""
    key = creator, number
    local = source == agent.rank  # where the reference itself keeps the value
    value = agent.values.at(key) if local else agent.values.create(key)
    try:
        result = agent.operations[operation](source, *given)
    except BaseException as error:
        value.future.set_exception(error)
        result = None
    else:
        if not isinstance(result, Future):
            value.future.set_result(result)
    if isinstance(result, Future):
        return result.then(lambda done: _settle(agent, value, key if local else None, done))
    if local:
        agent.values.take_back(key, 0)
    return None


def _settle(agent: Agent, value: Value, key: Any, done: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        value.future.set_result(done.value())
    else:
        value.future.set_exception(error)
    if key is not None:
        agent.values.take_back(key, 0)
