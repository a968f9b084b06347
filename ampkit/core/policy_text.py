"""A policy from its text: a dtype, or the expression that `repr` of a Policy gives."""

from __future__ import annotations

import ast
from typing import Any

from ..base.errors import ConfigError
from .policy import Policy

_NEEDS = 'float16, bfloat16 or an expression such as Policy("float16", softmax="low", modules={"head": "float32"})'


def parse_policy(text: str) -> Policy:
    """The policy that `text` says: float16, bfloat16, Policy("float16", gelu="float32"), Policy.fast("float16").

    Nothing is evaluated but literals. Raises ConfigError for another text, DTypeError or ConfigError for what the
    policy itself refuses.
    """
    if text.isidentifier():
        return Policy(text)
    try:
        call: Any = ast.parse(text, mode="eval").body
        make = {"Policy": Policy, "Policy.fast": Policy.fast}[ast.unparse(call.func)]
        arguments = [ast.literal_eval(argument) for argument in call.args]
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, KeyError, AttributeError, TypeError, RecursionError, MemoryError):
        raise ConfigError("policy", _NEEDS, repr(text[:200])) from None
    if len(arguments) > 1 or None in words or any(type(a) is not str for a in arguments):
        raise ConfigError("policy", _NEEDS, repr(text[:200]))
    return make(*arguments, **words)
