"""What a file must not reach: every use of these is noted in `sprung`."""

from __future__ import annotations

from typing import Any

from ampkit import nn

sprung: list[str] = []


def function(*values: Any) -> None:
    sprung.append("function")


class Class:
    def __new__(cls, *values: Any) -> Any:
        sprung.append("__new__")
        return object.__new__(cls)

    def __init__(self, *values: Any):
        sprung.append("__init__")

    def __setstate__(self, state: Any) -> None:
        sprung.append("__setstate__")


class Layer(nn.Module):
    """A module of the program, which a file may name: it is made without a call."""

    def __init__(self, *values: Any):
        sprung.append("Layer.__init__")
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        sprung.append("Layer.__setstate__")

    def __setattr__(self, name: str, value: Any) -> None:
        sprung.append("Layer.__setattr__")
