"""Tokenizers of language models, such as GPT-2's, by the package `tokenizers`.

docs/decisions/0037-tokenizers-by-their-own-package.md says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ConfigError, FileError
from ...base.files import reason
from ...models.weights import hub

NAMED = {"gpt2": "openai-community/gpt2"}  # short names of the hub's
_FILE, _VOCABULARY, _MERGES = "tokenizer.json", "vocab.json", "merges.txt"
_END = "<|endoftext|>"  # GPT-2's, before and after each document
_PART = 2**20  # characters that are encoded at once
# Where GPT-2's regular expression always ends a token, so that parts have the tokens of the whole.
_BORDER = re.compile(r"\n(?=\S)")


class Tokenizer:
    """Text to token numbers and back. made: a `tokenizers.Tokenizer`. name: for messages."""

    def __init__(self, made: Any, name: str):
        self._made, self.name = made, name
        made.no_truncation()
        made.no_padding()

    @classmethod
    def from_state(cls, state: str) -> Tokenizer:
        """The tokenizer of a `state`. Raises ConfigError without the package, FileError for other text."""
        return cls(_parsed(_package().Tokenizer.from_str, "the run's tokenizer", state), "the run's tokenizer")

    @property
    def state(self) -> str:
        """All of it, as the text of a tokenizer.json."""
        return str(self._made.to_str())

    @cached_property
    def size(self) -> int:
        """The token numbers, from 0: what `vocab_size` of a model must cover."""
        return max(self._made.get_vocab().values(), default=-1) + 1

    @property
    def end(self) -> int | None:
        """The number of <|endoftext|>, which a text begins after; None without one."""
        found: int | None = self._made.token_to_id(_END)
        return found

    def encode(self, text: str) -> NDArray[np.int32]:
        """The tokens of a text, without special ones at its ends. -> [n] int32."""
        found = self._made.encode_batch_fast(_parts(text), add_special_tokens=False)
        return np.concatenate([np.array(part.ids, np.int32) for part in found] or [np.zeros(0, np.int32)])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8, such as half a character at the end, become U+FFFD."""
        return str(self._made.decode([int(token) for token in tokens], skip_special_tokens=False))


def _parts(text: str) -> list[str]:
    found, start = [], 0
    while start < len(text):
        border = _BORDER.search(text, start + _PART)
        stop = len(text) if border is None else border.end()
        found.append(text[start:stop])
        start = stop
    return found


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a file tokenizer.json, of a vocab.json with its merges.txt, or of a folder with either.

    name: their path; or a model of the Hugging Face Hub, owner/model or "gpt2", whose tokenizer.json is taken. Raises
    ConfigError without the package `tokenizers`, FileError for a path or model that is not there, or is no tokenizer.
    """
    package, path, name = _package(), Path(name), str(name)
    if path.is_dir():
        path = path / (_FILE if (path / _FILE).exists() or not (path / _VOCABULARY).exists() else _VOCABULARY)
    if path.name in (_VOCABULARY, _MERGES):
        return Tokenizer(_of_merges(package, path.parent), name)
    if not path.exists():
        model = NAMED.get(name, name)
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
            needs = f"a {_FILE}, a folder with one or with {_VOCABULARY} and {_MERGES}, or a model of the hub"
            raise FileError("data.tokenizer", needs, f"{name!r}, which is not there")
        path = hub.file("data.tokenizer", model, _FILE)
    return Tokenizer(_parsed(package.Tokenizer.from_file, str(path), str(path)), name)


def _of_merges(package: Any, folder: Path) -> Any:
    """GPT-2's byte-level BPE of a vocabulary and its merges."""
    files = [str(folder / name) for name in (_VOCABULARY, _MERGES)]
    if missing := next((file for file in files if not Path(file).is_file()), None):
        raise FileError("data.tokenizer", f"{_VOCABULARY} and {_MERGES} beside each other", f"no {missing}")
    made = package.Tokenizer(_parsed(package.models.BPE.from_file, " and ".join(files), *files))
    made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = package.decoders.ByteLevel()
    if made.token_to_id(_END) is not None:
        made.add_special_tokens([_END])
    return made


def _parsed(read: Any, where: str, *arguments: str) -> Any:
    try:
        return read(*arguments)
    except Exception as error:  # the package raises this very class
        raise FileError(where, "a tokenizer of the package tokenizers", reason(error)) from None


def _package() -> ModuleType:
    try:
        import tokenizers
    except ImportError:
        needs, cure = "the package tokenizers", "pip install 'ampkit[text]'; without data.tokenizer a token is a byte"
        raise ConfigError("data.tokenizer", needs, "none", cure) from None
    found: ModuleType = tokenizers
    return found
