"""Steps that are not finite: they change nothing, in any precision, and the run says where the NaN came from."""

import numpy as np
import pytest

import ampkit
from ampkit import config, nn
from ampkit.base.errors import NonFiniteError, ScaleCollapseError
from ampkit.run.loop import fit

SHORT = ["train.epochs=", "train.steps=6", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]"]


def started(*overrides, steps=2):
    """A run of the small recipe, after some steps."""
    run = fit(config.load("recipes/digits_mlp.toml", [*SHORT, "train.log_every=1", *overrides]))
    rows = iter(run)
    for _ in range(steps):
        next(rows)
    return run, rows


def state(run):
    tensors = [*run.model.state_dict().values(), *(run.average.state_dict().values() if run.average else ())]
    moments = [value for held in run.optimizer.state.values() for value in held.values()]
    values = [value.numpy().copy() if isinstance(value, ampkit.Tensor) else value for value in (*tensors, *moments)]
    return [*values, run.optimizer.param_groups[0]["lr"], ampkit.get_rng_state()]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def spoil_gradient(run):
    """Make the gradient of a bias NaN, though the loss is finite."""
    layer = next(module for module in run.model.modules() if isinstance(module, nn.Linear))
    layer.bias.register_hook(lambda gradient: gradient * float("nan"))


def spoil_forward(run):
    layer = next(module for module in run.model.modules() if isinstance(module, nn.Linear))
    return layer.register_forward_hook(lambda module, inputs, output: output.log() * 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spoil", [spoil_gradient, spoil_forward])
@pytest.mark.parametrize("more", [[], ["train.grad_clip=1.0"], ["train.ema=0.5"], ["train.log_every=100"]])
def test_a_step_that_is_not_finite_changes_nothing_and_ends_the_run(dtype, spoil, more):
    run, rows = started(f"amp.dtype={dtype}", *more, steps=1)
    spoil(run)
    before = state(run)
    with pytest.raises(NonFiniteError, match=rf"step 2, {dtype}: needs a finite loss, got "):
        next(rows)
    assert equal(state(run)[:-2], before[:-2])
    assert run.skipped == 0
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_the_error_names_the_module_the_op_and_the_cure():
    run, rows = started()
    spoil_forward(run)
    with pytest.raises(NonFiniteError) as caught:
        next(rows)
    lines = str(caught.value).splitlines()
    assert lines[0] == "step 3, float32: needs a finite loss, got nan"
    assert lines[1].startswith("the loss is not finite: log in ")
    assert lines[2].startswith("  cause: log(-")
    assert (
        lines[3] == "help: clamp the input to where log is defined: log(x.clamp(min=1e-06))"
    )  # and not to lower the learning rate


def test_a_replay_that_fails_does_not_hide_why_the_run_ended(monkeypatch):
    run, rows = started()
    spoil_forward(run)

    def out_of_memory(step, training):
        raise MemoryError

    monkeypatch.setattr("ampkit.run.guard.explained", out_of_memory)
    with pytest.raises(
        NonFiniteError, match="got nan; running it again to see why failed: MemoryError\nhelp: lower opt"
    ):
        next(rows)
    assert run.done == 2


def test_a_gradient_alone_is_named_too():
    run, rows = started()
    spoil_gradient(run)
    with pytest.raises(
        NonFiniteError, match="got gradients that are not\nthe gradient of .*bias is not finite: a hook"
    ):
        next(rows)


def test_a_replay_restores_buffers_and_random_numbers():
    run = fit(config.load("recipes/digits_cnn.toml", ["train.epochs=", "train.steps=6", "train.eval_every=1"]))
    rows = iter(run)
    next(rows)
    run.model.eval()
    buffers = [buffer.numpy().copy() for buffer in run.model.buffers()]
    before = ampkit.get_rng_state()
    assert run._replay.step(1).account == "; run again at a loss scale of 1, the same data were finite"
    assert equal([buffer.numpy() for buffer in run.model.buffers()], buffers)
    assert ampkit.get_rng_state() == before
    assert run._replay.step(99) == ("", "")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_replay_draws_the_masks_and_reads_the_batches_of_the_step(accumulate):
    short = ["train.epochs=", "train.steps=6", "train.eval_every=", f"train.accumulate={accumulate}"]
    run = fit(config.load("recipes/digits_cnn.toml", short))
    dropout, seen = nn.Dropout(0.5), []
    run.model.classifier.register_forward_pre_hook(lambda module, args: (dropout(args[0]),))
    run.model.register_forward_pre_hook(lambda module, args: seen.append(args[0].numpy(force=True).copy()))
    run.model.classifier.register_forward_hook(
        lambda module, args, output: seen.append(args[0].numpy(force=True).copy()) or output * float("nan")
    )
    with pytest.raises(NonFiniteError, match="mul in classifier"):
        list(run)
    step, replay = seen[: 2 * accumulate], seen[2 * accumulate : 4 * accumulate]
    assert len({values.tobytes() for values in step}) == 2 * accumulate
    assert equal(step[: len(replay)], replay) and len(replay) >= 2


def test_a_scale_that_collapses_by_a_fault_of_the_model_says_which():
    run, rows = started("amp.dtype=float16", "train.steps=100")
    spoil_gradient(run)
    says = r"(?s)50 steps in a row.*is not finite: a hook on the gradient"
    with pytest.raises(ScaleCollapseError, match=says) as caught:
        list(rows)
    assert str(caught.value).count("help:") == 1


def test_a_float16_loss_that_is_not_finite_is_explained_once_and_training_goes_on():
    run, rows = started("amp.dtype=float16")
    notices = []
    run.notice = notices.append
    hook = spoil_forward(run)
    before = state(run)
    assert next(rows).skipped == 1
    assert next(rows).skipped == 2
    assert equal(state(run)[:-2], before[:-2])
    hook.remove()
    assert next(rows).skipped == 2
    (text,) = notices
    assert text.startswith("step 3 is skipped: its loss is nan\nthe loss is not finite: log in ")
    assert text.endswith("\n  cure: clamp the input to where log is defined: log(x.clamp(min=0.001))")


def notices_of(run):
    found = []
    run.notice = found.append
    return found


def test_gradients_that_no_scale_cures_are_explained_once_long_before_the_scale_collapses():
    run, rows = started("amp.dtype=float16", "train.steps=40")
    notices = notices_of(run)
    spoil_gradient(run)
    for _ in range(30):
        next(rows)
    (text,) = notices
    assert text.startswith("step 12 is skipped, and a smaller loss scale does not help: its gradients are not finite")
    assert "\nthe gradient of " in text and "a hook on the gradient" in text


def test_single_steps_whose_gradients_no_scale_cures_are_explained_where_the_scale_falls_below_1():
    run, rows = started("amp.dtype=float16", "train.steps=20", "amp.init_scale=2")
    notices, layer = notices_of(run), next(m for m in run.model.modules() if isinstance(m, nn.Linear))
    layer.bias.register_hook(lambda gradient: gradient * (float("nan") if run.done % 3 == 0 else 1.0))
    next(rows), next(rows)
    assert not notices
    for _ in range(6):
        next(rows)
    assert len(notices) == 1 and "a hook on the gradient" in notices[0]


def test_a_search_for_the_scale_raises_no_notice():
    run, rows = started("amp.dtype=float16", "train.steps=40", f"amp.init_scale={2.0**40}")
    notices = notices_of(run)
    list(rows)
    assert run.skipped > 11
    assert not notices


def test_a_float16_loss_that_is_not_finite_is_skipped_though_its_gradients_are_finite():
    run, rows = started("amp.dtype=float16")
    notices, loss_of, before = notices_of(run), run.loss_of, state(run)
    run.loss_of = lambda model, *batch: loss_of(model, *batch) + float("inf")
    assert next(rows).skipped == 1
    assert equal(state(run)[:-2], before[:-2])
    assert notices[0].startswith("step 3 is skipped: its loss is inf\nthe loss is not finite: add ")


@pytest.mark.parametrize("spoil", ["loss", "gradient"])
def test_running_statistics_stay_as_they_were_where_a_step_is_refused(spoil):
    short = ["train.epochs=", "train.steps=6", "train.eval_every=", "amp.dtype=bfloat16", "train.log_every=1"]
    run = fit(config.load("recipes/digits_cnn.toml", short))
    rows = iter(run)
    next(rows)
    before = [buffer.numpy(force=True).copy() for buffer in run.model.buffers()]
    if spoil == "gradient":
        next(run.model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    else:
        loss_of = run.loss_of
        run.loss_of = lambda model, *batch: loss_of(model, *batch) * float("nan")
    with pytest.raises(NonFiniteError):
        next(rows)
    assert len(before) > 6 and equal([buffer.numpy(force=True) for buffer in run.model.buffers()], before)


def test_a_scale_that_is_only_too_large_says_so():
    with pytest.raises(ScaleCollapseError, match="run again at a loss scale of 1, the same data were finite"):
        list(fit(config.load("recipes/digits_mlp.toml", [
            *SHORT, "amp.dtype=float16", f"amp.init_scale={2.0**97}", f"amp.min_scale={2.0**96}"
        ])))  # fmt: skip


def test_an_evaluation_that_is_not_finite_says_where_it_came_from():
    run, rows = started("train.steps=2", "train.eval_every=2")
    for parameter in run.model.parameters():
        parameter.array[...] = 1e38
    with pytest.raises(NonFiniteError, match=r"evaluation after step 2, float32: .*\n.*linear in .*, forward, gave"):
        list(rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sound_run_has_the_bits_of_one_without_a_guard(dtype, monkeypatch):
    guarded = [row.loss for row in started(f"amp.dtype={dtype}", steps=0)[1] if hasattr(row, "loss")]
    monkeypatch.setattr("ampkit.run.trainer.loop.Guard", lambda device: None)
    assert guarded == [row.loss for row in started(f"amp.dtype={dtype}", steps=0)[1] if hasattr(row, "loss")]
