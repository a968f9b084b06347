"""Checkpoints: what is written, what is read back, and that a run which goes on ends like one that never stopped."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ampkit import config, nn, optim, tensor
from ampkit.amp.grad_scaler import GradScaler
from ampkit.base import atomic_file
from ampkit.base.errors import ArgumentError, ConfigError, FileError, NonFiniteError, ScaleCollapseError, StateError
from ampkit.core import random
from ampkit.core.policy.recipe import FAMILIES
from ampkit.optim.lr_scheduler import StepLR
from ampkit.run.checkpoint import Checkpoints, restore, state_of
from ampkit.run.input_pipeline import input_pipeline
from ampkit.run.loop import StepRow, fit

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=7", "train.log_every=1", "train.eval_every=3", "train.threads=1"]
GPT = ["model.n_layer=1", "model.n_embd=16", "model.block_size=8", "model.dropout=0.2", "train.eval_batches=2"]
KINDS = {
    "text": ["text_gpt.toml", *GPT, "schedule.warmup=2", "data.path={text}"],
    "tokens": ["text_gpt.toml", *GPT, 'data={name="synthetic_tokens", count=30, batch_size=4}', "schedule.warmup=3"],
    "mlp": ["digits_mlp.toml", "model.hidden=[8]", "data.batch_size=500"],  # three batches in an epoch
    "sgd": ["digits_mlp.toml", "model.hidden=[8]", 'optimizer={name="sgd", lr=0.1, momentum=0.9, nesterov=true}'],
    "free": ["digits_mlp.toml", "model.hidden=[8]", 'optimizer={name="adamwschedulefree", lr=0.05, warmup_steps=3}'],
    "cnn": [
        "digits_cnn.toml",
        "model.width=4",
        "model.dropout=0.3",
        'data={name="synthetic_images", count=40, shape=[1, 8, 8], batch_size=8}',
        'schedule={name="step", warmup=2, step_size=2}',
    ],
}


def recipe(kind: str, *overrides: str):
    name, *own = KINDS[kind]
    own = [
        word.format(text=Path(__file__).parents[1] / "amp" / "test_grad_scaler.py") if "{text}" in word else word
        for word in own
    ]
    return config.load(RECIPES / name, [*own, *SHORT, *overrides])


def without_seconds(row):
    found = {name: value for name, value in vars(row).items() if name not in ("seconds", "memory")}
    return type(row).__name__, repr(found)  # a repr: inf and nan compare


def weights(run):
    optimizer = run.optimizer.state_dict()["state"]
    held = {**run.model.state_dict(), **{f"{n}.{k}": t for n, entry in optimizer.items() for k, t in entry.items()}}
    return {name: value.numpy(force=True).tobytes() for name, value in held.items()}


def in_pieces(wanted, directory, rows_each):
    """The rows of a run that loses its process after every so many rows, and of those that go on; and the last run."""
    rows = []
    for _ in range(20):
        run = fit(wanted, directory, resume=True)
        before = run.done
        rows = [row for row in rows if row.step <= before]
        part = list(islice(run, rows_each))
        rows += part
        if run.finished and len(part) < rows_each:
            return rows, run
    raise AssertionError("it does not get on")


# going on


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float16") for kind in KINDS), ("cnn", "float32"), ("cnn", "bfloat16")]
)
def test_a_run_in_pieces_ends_like_one_that_never_stopped_bit_for_bit(kind, dtype, tmp_path):
    wanted = recipe(kind, f"amp.dtype={dtype}", "train.accumulate=2", "train.checkpoint_every=1", "amp.init_scale=1e7")
    whole = fit(wanted)
    rows = list(whole)
    parts, last = in_pieces(wanted, tmp_path, 4)
    assert list(map(without_seconds, parts)) == list(map(without_seconds, rows))
    assert weights(last) == weights(whole)
    for part in ("random", "scaler", "schedule", "guard"):
        assert last.state_dict()[part] == whole.state_dict()[part]


@pytest.mark.parametrize("name", ["delayed", "blockwise", "mxfp8", "nvfp4", "int8"])
def test_a_run_by_a_recipe_below_16_bits_in_pieces_ends_bit_for_bit(name, tmp_path):
    family = next(word for word, names in FAMILIES.items() if name in names)
    more = [f"amp.dtype={family}", f"amp.recipe={name}", 'amp.modules={lm_head="bfloat16"}', "train.ema=0.75"]
    wanted = recipe("text", "train.accumulate=2", "train.checkpoint_every=1", *more)
    assert wanted.amp.precision == name
    whole = fit(wanted)
    rows = list(whole)
    parts, last = in_pieces(wanted, tmp_path, 4)
    assert list(map(without_seconds, parts)) == list(map(without_seconds, rows))
    assert weights(last) == weights(whole)


@pytest.mark.parametrize("more", [[], ["amp.parameters=low", "optimizer.stochastic_rounding=true"]], ids=len)
@pytest.mark.parametrize("kind", ["cnn", "sgd"])
def test_averaged_weights_and_random_rounding_go_on_bit_for_bit(kind, more, tmp_path):
    wanted = recipe(
        kind, "train.ema=0.75", "amp.dtype=float16", "train.checkpoint_every=1", "amp.init_scale=1e7", *more
    )
    whole = fit(wanted)
    rows = list(whole)
    parts, last = in_pieces(wanted, tmp_path, 4)
    assert list(map(without_seconds, parts)) == list(map(without_seconds, rows))
    assert weights(last) == weights(whole)
    averages = [{k: v.numpy().tobytes() for k, v in run.average.state_dict().items()} for run in (whole, last)]
    assert averages[0] == averages[1]
    assert whole.average.n_averaged.item() == 7 - whole.skipped < 7


def test_skipped_steps_and_a_scale_on_its_way_are_part_of_what_goes_on(tmp_path):
    wanted = recipe("mlp", "amp.dtype=float16", "amp.init_scale=1e9", "train.checkpoint_every=1", "amp.hysteresis=2")
    rows = list(fit(wanted))
    parts, last = in_pieces(wanted, tmp_path, 3)
    assert 1 < last.skipped < 7
    assert list(map(without_seconds, parts)) == list(map(without_seconds, rows))


def test_the_guard_of_the_scale_counts_on_and_stops_at_the_same_step(tmp_path):
    endless = ["amp.dtype=float16", "amp.init_scale=1e38", "amp.backoff_factor=0.999", "train.steps=60"]
    wanted = recipe("mlp", *endless, "train.eval_every=", "train.checkpoint_every=20", "train.log_every=100")
    with pytest.raises(ScaleCollapseError, match="50 steps in a row overflowed") as first:
        list(fit(wanted, tmp_path))
    run = fit(wanted, tmp_path, resume=True)
    assert run.done == 40
    with pytest.raises(ScaleCollapseError) as second:
        list(run)
    assert run.done == 49  # the fiftieth is refused
    assert str(second.value) == str(first.value)


def test_a_run_that_is_made_longer_goes_on_along_the_schedule_of_its_new_length(tmp_path):
    schedule = ['schedule={name="linear"}', "train.eval_every="]
    list(fit(recipe("mlp", "train.steps=2", *schedule), tmp_path))
    run = fit(recipe("mlp", "train.steps=8", *schedule), tmp_path, resume=True)
    rates = [row.lr for row in run if isinstance(row, StepRow)]
    np.testing.assert_allclose(rates, 3e-3 * (1 - np.arange(2, 8) / 8), rtol=1e-12)


def test_seconds_count_on(tmp_path):
    list(fit(recipe("mlp", "train.steps=3"), tmp_path))
    run = fit(recipe("mlp", "train.steps=6"), tmp_path, resume=True)
    before = run.seconds
    assert 0 < before < next(iter(run)).seconds


@pytest.mark.parametrize("stop_at", [2, 4, 6])  # in a step, in an evaluation, in the last one
def test_a_run_that_is_told_to_stop_leaves_a_checkpoint_of_that_moment(stop_at, tmp_path):
    wanted = recipe("mlp", "train.eval_every=4", "train.steps=6")
    run = fit(wanted, tmp_path)
    rows = []
    for row in run:
        rows.append(row)
        if row.step == stop_at:
            run.stop()
    assert (run.done, len(rows)) == (stop_at, len([row for row in rows if isinstance(row, StepRow)]) + (stop_at == 6))
    onward = fit(wanted, tmp_path, resume=True)
    assert (onward.done, onward.finished) == (stop_at, False)
    assert [*map(without_seconds, [*rows, *onward])] == [*map(without_seconds, fit(wanted))]


def test_a_run_that_is_stopped_while_it_looks_whether_to_save_leaves_a_checkpoint(tmp_path, monkeypatch):
    run = fit(recipe("mlp"), tmp_path)

    def stopped_meanwhile():
        run.stop()
        return False

    monkeypatch.setattr(run, "_checkpoint_is_due", stopped_meanwhile)
    list(run)
    assert Checkpoints(tmp_path).last().step == run.done


def test_the_state_of_parts_goes_on_in_a_loop_of_ones_own(tmp_path):
    def parts():
        random.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)).half()
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        return model, optimizer, StepLR(optimizer, 2), GradScaler(init_scale=8.0)

    def train(model, optimizer, schedule, scaler):
        scaler.scale(model(tensor(np.ones((2, 4), np.float16))).float().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        return [p.detach().numpy(force=True).tobytes() for p in model.parameters()]

    first, places = parts(), Checkpoints(tmp_path)
    for _ in range(3):
        train(*first)
    places.save(3, state_of(*first), {})
    expected = [train(*first) for _ in range(3)]
    second = parts()
    restore(places.last().state, *second)
    assert [train(*second) for _ in range(3)] == expected


# files


def filled(directory, *steps, keep=2):
    places = Checkpoints(directory, keep)
    for step in steps:
        places.save(step, {"x": tensor([step, 1.0]), "n": step}, {"of": "test"})
    return places


def names(directory):
    return sorted(path.name.split("-")[1][:8] + path.suffix for path in directory.iterdir())


def test_the_newest_k_stay_each_with_its_manifest(tmp_path):
    filled(tmp_path, 1, 2, 30, keep=2)
    assert names(tmp_path) == ["00000002.json", "00000002.safetensors", "00000030.json", "00000030.safetensors"]
    last = Checkpoints(tmp_path).last()
    assert (last.step, last.state["n"], last.recipe, last.damaged) == (30, 30, {"of": "test"}, ())
    assert last.state["x"].tolist() == [30, 1]


def test_a_manifest_describes_its_file(tmp_path):
    manifest = json.loads(filled(tmp_path, 7).save(7, {"x": tensor(np.ones((2, 3), np.float16))}, {"a": 1}).read_text())
    assert (manifest["format"], manifest["step"], manifest["shapes"], manifest["recipe"]) == (
        2,
        7,
        [["float16", 2, 3]],
        {"a": 1},
    )
    assert (tmp_path / manifest["file"]).stat().st_size == manifest["bytes"]
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_without_any_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / "nowhere").last() is None


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def turn_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def from_the_future(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 3}))


def without_its_sum(path):
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "sha256"}))


def leading_elsewhere(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"file": "../secret"}))


def changed(**keys):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize(
    ("suffix", "harm", "says"),
    [
        (".safetensors", cut, "bytes instead of"),
        (".safetensors", turn_a_bit, "other bytes than were written"),
        (".safetensors", Path.unlink, "No such file"),
        (".json", cut, "a manifest that is no JSON"),
        (".json", lambda path: path.write_bytes(b""), "a manifest that is no JSON"),
        (".json", lambda path: path.write_text("[1]"), "a manifest of another format"),
        (".json", from_the_future, "format 3, but this ampkit reads 1 and 2"),
        (".json", without_its_sum, "a manifest without sha256"),
        (".json", leading_elsewhere, "whose file is not beside it"),
        (".json", changed(file="a\0b"), "whose file is not beside it"),
        (".json", changed(step=3), "with other content than was written, of another step than its name"),
        (".json", changed(recipe={"of": "tests"}), "a manifest with other content than was written"),
        (".json", changed(metrics={"bytes": 0}), "other content than was written"),
        (".json", changed(format=1), "with further keys"),
        (".json", changed(format=None), "a manifest of another format"),
        (".json", lambda path: path.write_text("[" * 100_000), "a manifest that is no JSON"),
        (".json", lambda path: path.write_text("1" * 5000), "a manifest that is no JSON"),
    ],
)
def test_a_damaged_one_is_passed_over_and_if_it_was_the_last_that_is_one_error(tmp_path, suffix, harm, says):
    places = filled(tmp_path, 1, 2)
    for step in (2, 1):
        (path,) = tmp_path.glob(f"step-0000000{step}*{suffix}")
        harm(path)
        if step == 2:
            last = places.last()
            assert last.step == 1
            assert says in last.damaged[0]
    with pytest.raises(FileError, match="none of 2 checkpoints can be used; .*step-00000002") as error:
        places.last()
    assert says in str(error.value)


def test_any_byte_of_a_head_that_is_changed_is_found_or_means_nothing(tmp_path):
    places = filled(tmp_path, 1, 2)
    (path,) = tmp_path.glob("step-00000002.json")
    good, manifest = path.read_bytes(), places.last()
    for at in range(0, len(good), 5):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        last = places.last()
        assert last.step == 1 or (last.recipe, last.damaged) == (manifest.recipe, ())


def test_a_checkpoint_of_the_first_format_can_still_be_read(tmp_path):
    path = filled(tmp_path, 1).save(2, {"x": tensor([1.0])}, {"of": "test"})
    manifest = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("metrics", "checksum")}
    path.write_text(json.dumps(manifest | {"format": 1}))
    last = Checkpoints(tmp_path).last()
    assert (last.step, last.metrics, last.damaged) == (2, None, ())


def test_a_head_records_the_rows_before_it(tmp_path):
    run = fit(recipe("mlp", "train.steps=1"), tmp_path)
    run.before_saving = lambda: {"bytes": 3, "sha256": "abc"}
    list(run)
    assert Checkpoints(tmp_path).last().metrics == {"bytes": 3, "sha256": "abc"}
    assert fit(recipe("mlp"), tmp_path, resume=True).resumed.path == tmp_path / "step-00000001.json"


def test_a_head_that_cannot_be_written_takes_its_state_with_it_but_not_that_of_another(tmp_path, monkeypatch):
    places, write = filled(tmp_path, 1), atomic_file.write

    def no_space_for_manifests(where, path, data):
        if path.suffix == ".json":
            raise FileError(where, "room")
        write(where, path, data)

    monkeypatch.setattr("ampkit.run.checkpoint.write", no_space_for_manifests)
    for step in (1, 2):
        with pytest.raises(FileError):
            places.save(step, {"x": tensor([step, 1.0]), "n": step}, {"of": "test"})
    assert names(tmp_path) == ["00000001.json", "00000001.safetensors"]
    assert places.last().step == 1


def test_damaged_ones_of_later_steps_drive_out_no_good_one(tmp_path):
    for path in filled(tmp_path, 8, 9).directory.glob("*.json"):
        path.write_text("")
    filled(tmp_path, 3, 4, keep=1)
    assert Checkpoints(tmp_path).last().step == 4


def test_a_write_that_was_cut_off_leaves_the_last_one_and_is_tidied_up(tmp_path, monkeypatch):
    places = filled(tmp_path, 1, 2)
    (tmp_path / ".step-00000003-x.safetensors.abc").touch()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("ampkit.base.atomic_file.os.fsync", full)
        with pytest.raises(FileError, match="checkpoint: needs .*No space left"):
            places.save(3, {"x": tensor([1.0])}, {})
    assert places.last().step == 2
    places.save(4, {"x": tensor([1.0])}, {})
    assert names(tmp_path) == ["00000002.json", "00000002.safetensors", "00000004.json", "00000004.safetensors"]


def test_no_moment_of_a_save_is_without_a_whole_checkpoint(tmp_path, monkeypatch):
    places, seen = filled(tmp_path, 5, keep=1), []
    for name in ("write", "_sync_directory", "_remove"):
        before = getattr(__import__("ampkit.run.checkpoint", fromlist=[name]), name)

        def look(*args, before=before):
            seen.append(places.last().step)
            before(*args)
            seen.append(places.last().step)

        monkeypatch.setattr(f"ampkit.run.checkpoint.{name}", look)
    for step in (5, 6):  # once in its own place
        places.save(step, {"x": tensor([0.5, step])}, {})
    assert len(seen) >= 12
    assert seen == sorted(seen)
    assert set(seen) == {5, 6}


# when, and of what


def test_none_is_left_where_none_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    list(fit(recipe("mlp")))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["train.eval_every=3"], [3, 6, 7]),
        (["train.eval_every="], [7]),
        (["train.eval_every=3", "train.checkpoint_every=2"], [2, 3, 4, 6, 7]),  # 3: the least validation loss
    ],
)
def test_checkpoints_come_after_evaluations_or_each_so_many_steps_and_at_the_end(tmp_path, overrides, steps):
    list(fit(recipe("mlp", *overrides, "train.keep=9"), tmp_path))
    assert [int(path.stem[5:]) for path in sorted(tmp_path.glob("*.json"))] == steps


def test_the_rows_before_a_checkpoint_have_been_handed_on_by_then(tmp_path):
    run, rows, seen = fit(recipe("mlp"), tmp_path), [], []
    run.before_saving = lambda: seen.append((run.done, len(rows)))
    for row in run:
        rows.append(row)
    assert seen == [(3, 4), (6, 8), (7, 10)]


def test_batches_can_be_had_from_any_number_on():
    for kind in ("mlp", "text", "tokens"):
        pipeline = input_pipeline(recipe(kind))
        whole = [batch[0].numpy().tobytes() for batch in islice(pipeline.train(0), 9)]
        for first in (0, 1, 3, 5):
            batches = input_pipeline(recipe(kind)).train(first)
            part = [batch[0].numpy().tobytes() for batch in islice(batches, 9 - first)]
            assert part == whole[first:]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model.hidden=[9]", "needs model.hidden=[8], with which the run was trained, got model.hidden=[9]"),
        ("train.seed=1", "train.seed=1"),
        ("train.accumulate=2", "train.accumulate=2"),
        ("amp.dtype=float16", "got amp.dtype=float16"),
        ('optimizer={name="sgd"}', "needs optimizer.name=adamw"),
    ],
)
def test_another_recipe_is_refused_and_the_key_named(tmp_path, override, says):
    list(fit(recipe("mlp", "train.steps=1"), tmp_path))
    with pytest.raises(ConfigError) as error:
        fit(recipe("mlp", override), tmp_path, resume=True)
    assert says in str(error.value)


def test_how_long_how_often_and_where_may_differ_and_threads_stay(tmp_path):
    list(fit(recipe("mlp", "train.steps=1"), tmp_path))
    free = ["train.log_every=5", "train.eval_every=", "train.keep=3", "train.checkpoint_every=4", "train.threads="]
    run = fit(recipe("mlp", *free), tmp_path, resume=True)
    assert run.done == 1
    assert run.recipe.train.threads == 1


def test_states_that_do_not_fit_are_refused():
    run, other = fit(recipe("mlp")), fit(recipe("cnn"))
    with pytest.raises((StateError, ArgumentError)):
        run.load_state_dict(other.state_dict())


def everything(run):
    held = run.state_dict()
    return weights(run), {name: repr(held[name]) for name in ("random", "scaler", "schedule", "guard", "counts")}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"counts": {}}, "one without done, evaluated, skipped, seconds"),
        ({"counts": {"stop": 1}}, "one with stop"),
        ({"counts": {"done": -1}}, "done as an integer from 0"),
        ({"counts": {"skipped": 9}}, "skipped as an integer from 0 to 2"),
        ({"counts": {"seconds": "1"}}, "seconds as a number from 0"),
        ({"counts": []}, "needs the dict of state_dict"),
        ({"batches": 3}, "needs 2 batches after 2 steps, got 3"),
        ({"steps": None}, "steps as an integer"),
        ({"random": []}, "random state"),
        ({"guard": 1}, "guard"),
        ({"schedule": {}}, "the whole state"),
        ({"schedule": {"last_epoch": "x", "_pending": False}}, "load_state_dict"),
        ({"optimizer": {}}, "param_groups"),
        ({"average": {}}, "missing"),
        ({"scaler": {"scale": 1}}, "the whole state"),
        ({"model": {}}, "missing"),
    ],
    ids=str,
)
def test_a_state_with_one_wrong_part_changes_no_part(changed, says):
    wanted = recipe("mlp", "amp.dtype=float16", "train.ema=0.5")
    first, second = fit(wanted), fit(wanted)
    list(islice(first, 2))
    list(islice(second, 1))
    state, before = first.state_dict(), everything(second)
    if changed.get("counts"):
        changed = {"counts": state["counts"] | changed["counts"]}
    with pytest.raises((ArgumentError, StateError)) as error:
        second.load_state_dict(state | changed)
    assert says in str(error.value)
    assert everything(second) == before
    with pytest.raises(ArgumentError, match="one without steps, batches, counts"):
        second.load_state_dict({})
    second.load_state_dict(state)
    assert everything(second) == everything(first)


def test_a_run_whose_every_step_was_skipped_leaves_no_finished_checkpoint(tmp_path):
    wanted = recipe("mlp", "amp.dtype=float16", "amp.init_scale=1e38", "train.steps=3", "train.eval_every=")
    with pytest.raises(NonFiniteError):
        list(fit(wanted, tmp_path))
    assert Checkpoints(tmp_path).last() is None
