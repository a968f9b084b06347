"""`grad`, `vjp`, `jvp` and `linearize`: products of a function's Jacobian with vectors, on either side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from .. import ops
from ..base.errors import ArgumentError, DTypeError, ShapeError
from ..core.arguments import shown
from ..core.nested import with_tensors
from ..ops.argument_checks import check_all
from .call import Call, Structure, matching, need_structure, positions

__all__ = ["grad", "grad_and_value", "jvp", "linearize", "vjp"]

Argnums = int | Sequence[int]


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of `func` for its arguments `argnums`, and its value.

    func returns a Tensor of one element; with has_aux, that and further tensors, and the value is (value, aux).
    argnums: a position gives one gradient of the argument's structure, a tuple of positions a tuple of such.
    Raises DTypeError for an argument without float Tensors, ShapeError for a result of more than one element.
    """
    numbers = positions("grad", argnums)

    @wraps(func)
    def derived(*args: Any, **kwargs: Any) -> Any:
        call = Call("grad", func, numbers, args, kwargs, has_aux)
        if len(call.outs) != 1 or call.out is not call.outs[0]:
            cure = "jacrev differentiates others"
            raise DTypeError("grad", "a function that returns one Tensor", shown(call.out), cure)
        if call.out.numel() != 1:
            got = f"one of shape {list(call.out.shape)}"
            raise ShapeError("grad", "a function that returns a tensor of one element", got, "reduce it, or use jacrev")
        found = call.by_argument(call.gradients([ops.ones_like(call.out)], retain=False))
        value = call.result()
        return found[0] if isinstance(argnums, int) else tuple(found), (value, call.aux) if has_aux else value

    return derived


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of `func`; with has_aux, the pair (gradient, aux). See `grad_and_value`."""
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def derived(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return derived


def vjp(func: Callable[..., Any], *primals: Structure, has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), vjp_fn), with has_aux (output, vjp_fn, aux): reverse mode.

    vjp_fn(cotangents) takes the structure of the output and returns a tuple, per primal v^T J in its structure. It may
    be called several times; the graph lives as long as it does.
    """
    call = Call("vjp", func, None, primals, {}, has_aux)

    def vjp_fn(*cotangents: Structure, retain_graph: bool = True, create_graph: bool | None = None) -> tuple[Any, ...]:
        given = cotangents[0] if len(cotangents) == 1 else cotangents
        return tuple(call.by_argument(call.gradients(matching("vjp", "cotangents", call.out, given), retain_graph)))

    return (call.result(), vjp_fn, call.aux) if has_aux else (call.result(), vjp_fn)


def jvp(
    func: Callable[..., Any],
    primals: tuple[Structure, ...],
    tangents: tuple[Structure, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """(func(*primals), J v), with has_aux (output, J v, aux): forward mode.

    primals and tangents are tuples of the same structure and shapes; J v has the structure of the output. The function
    runs once, and then a pass over its ops from the inputs to the outputs. Raises ArgumentError for what is no tuple,
    ShapeError where tangents do not fit, and with strict=True StateError for an output that depends on no primal.
    """
    need_structure("jvp", "tangents", _tuple("jvp", "primals", primals), _tuple("jvp", "tangents", tangents))
    call = Call("jvp", func, None, primals, {}, has_aux)
    directions = call.like_inputs(tangents, "tangents")
    found = with_tensors(call.out, iter(call.tangents(directions, strict)))
    return (call.result(), found, call.aux) if has_aux else (call.result(), found)


def linearize(func: Callable[..., Any], *primals: Structure) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), jvp_fn): jvp_fn(*tangents) is J v, computed from what the call of the function recorded."""
    call = Call("linearize", func, None, primals, {})

    def jvp_fn(*tangents: Structure) -> Structure:
        return with_tensors(call.out, iter(call.tangents(call.like_inputs(tangents, "tangents"))))

    return call.result(), jvp_fn


def _tuple(where: str, what: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, tuple) or not given:
        raise ArgumentError(where, f"{what} as a tuple, one per argument of the function", shown(given))
    return tuple(given)


check_all(globals())
