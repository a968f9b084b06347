"""Text as the numbers of bytes or tokens: a corpus, its split into training and validation, windows to predict.

data = text.corpus()
train, validation = text.split(data)
starts = text.random_starts(train, context=128, count=12, draw=random.generator(seed, step))
inputs, targets = text.windows(train, starts, context=128)
"""

from .files import (
    LIMIT,
    STRETCH,
    VOCABULARY,
    corpus,
    even_starts,
    load_splits,
    random_starts,
    split,
    windows,
)
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "LIMIT",
    "STRETCH",
    "VOCABULARY",
    "Tokenizer",
    "corpus",
    "even_starts",
    "load_splits",
    "load_tokenizer",
    "random_starts",
    "split",
    "windows",
]
