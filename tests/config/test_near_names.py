"""What a mistaken word probably meant: one letter off is found, another word is not taken for one."""

from __future__ import annotations

import pytest

from ampkit.base.near_names import did_you_mean
from ampkit.config.sections import SECTIONS

KEYS = {f"{part}.{name}": [*kind.model_fields] for part, named in SECTIONS.items() for name, kind in named.items()}
NAMES = {part: [*named] for part, named in SECTIONS.items() if "" not in named}


def slips(word):
    """The word with a letter in the middle dropped, doubled, mistyped, or swapped with the one before."""
    at = len(word) // 2
    yield from (word[:at] + word[at + 1 :], word[: at + 1] + word[at:], word[:at] + "q" + word[at + 1 :])
    yield word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]


@pytest.mark.parametrize("words", [*KEYS.values(), *NAMES.values()], ids=[*KEYS, *NAMES])
def test_a_word_with_one_letter_wrong_is_found(words):
    typed = {slip: word for word in words if len(word) > 3 for slip in slips(word) if slip not in words}
    found = {slip: did_you_mean(slip, words) for slip in typed}
    wrong = [slip for slip, word in typed.items() if found[slip] != f"did you mean {word!r}?"]
    assert None not in found.values()
    assert len(wrong) <= 0.05 * len(typed)  # of names that differ in one letter themselves


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("optim", SECTIONS, "optimizer"),
        ("sched", SECTIONS, "schedule"),
        ("batchSize", KEYS["data.digits"], "batch_size"),
        ("weightdecay", KEYS["optimizer.adamw"], "weight_decay"),
        ("resnet", NAMES["model"], "resnet18"),
        ("ResNet-50", NAMES["model"], "resnet50"),
        ("adam_w", NAMES["optimizer"], "adamw"),
        ("cosine_annealing", NAMES["schedule"], "cosine"),
        ("one-cycle", NAMES["schedule"], "onecycle"),
        ("fp16", ["float32", "bfloat16", "float16"], "float16"),
        ("bf16", ["float32", "float16", "bfloat16"], "bfloat16"),
        ("f32", ["float16", "float32"], "float32"),
        ("gen", ["train", "generate"], "generate"),
    ],
)
def test_other_spellings_and_abbreviations_are_found(word, known, meant):
    assert did_you_mean(word, known) == f"did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("age", ["make", "name", "price", "city"]),
        ("wrongkey", NAMES["schedule"]),
        ("test", ["tune", "train", "predict"]),
        ("unet", NAMES["model"]),
        ("rate", KEYS["model.gpt"]),
        ("banana", [word for words in KEYS.values() for word in words]),
        (3, ["4", "train"]),
    ],
)
def test_another_word_is_not_taken_for_a_mistake(word, known):
    assert did_you_mean(word, known) is None
