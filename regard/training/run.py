"""`train` starts a run in a folder, and `resume` goes on with one."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard import ops
from regard.checkpoints.store import read_folder, write_tensors
from regard.errors import CheckpointError, ConfigError
from regard.file_writing import write_text
from regard.malloc import keep_freed_blocks
from regard.models.protocols import CountedModel
from regard.progress import Mute
from regard.schema import change_lines
from regard.training.callbacks import Callback, Progress, Result, Trainable, display_of, read_result
from regard.training.checkpointing import RunFolder, Tables, checked_checkpoint
from regard.training.counting import count_text
from regard.training.distributed import processes
from regard.training.interrupt import Interruption
from regard.training.loop import Loop, Publish, Test, no_test, restore, start_run
from regard.training.options import TrainingOptions, defaults_of, with_defaults


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write model.safetensors under our own names: what a run publishes unless told otherwise."""
    write_tensors(folder / "model.safetensors", model.state_dict())


def train(
    task: Trainable,
    options: TrainingOptions,
    folder: str | Path,
    *,
    seed: int = 1,
    identity: Mapping[str, Any] | None = None,
    save: Publish = save_weights,
    test: Test = no_test,
    progress: bool | Progress = True,
    callbacks: Sequence[Callback] = (),
    stop_after_fraction: float | None = None,
    resumed: bool = False,
) -> Result:
    """Train `task.module` in a new run folder; afterwards it holds the published weights.

    identity: what must be the same when the run is resumed (recipe, checksums of data, tokenizer),
        as nested tables of plain values. The options and the seed are always part of it.
    save: writes the model's weights into model/: the best ones as they come, and the final ones.
    test: the scores of the final weights on the test data; it is called once, at the end.
    callbacks: are told what happens; see `Callback`.
    stop_after_fraction: the fraction of the training, above 0, after which it saves and stops;
        `resume` ends it as if it had not stopped.
    resumed: see `resume`.

    Raises:
        NonFiniteError: a loss or a gradient became infinite or NaN.
        CheckpointError: the folder cannot be written.
        ConfigError: the folder holds a run, or another process trains in it.
        Interrupted: after a signal, when the training is saved.
        Paused: at `stop_after_fraction`, when the training is saved.
    """
    ops.load_kernels()
    options = with_defaults(options, defaults_of(task.module))
    run, group = RunFolder(Path(folder)), processes()
    now = _identity(identity, options, seed)
    with _opened(run, progress) as (interruption, shown):
        checkpoint = None
        if not resumed:
            group.from_first(lambda: _check_empty(run))
        else:
            group.from_first(run.remove_leftovers)
            newest = _newest(run, shown.warn)
            checkpoint = checked_checkpoint(*newest) if newest else None
            if checkpoint:
                usual = with_defaults(TrainingOptions(), defaults_of(task.module))
                stored = _filled(checkpoint.facts.identity, _identity(None, usual, seed))
                _check_identity(stored, now)
            if run.result.exists():
                return _finished(run, shown)
        callbacks = callbacks if group.first else ()
        if isinstance(task.module, CountedModel):
            result = count_text(task, options, run, save, test)
        else:
            loop = Loop(task, options, run, now, save, shown, interruption, callbacks)
            if checkpoint:
                restore(loop, checkpoint)
            else:
                start_run(loop, seed)
            keep_freed_blocks()
            result = loop.run(test, stop_after_fraction)
        text = json.dumps(asdict(result), indent=1) + "\n"
        group.from_first(lambda: write_text(run.result, text))
        for callback in callbacks:
            callback.on_end(result)
        return result


def resume(task: Trainable, options: TrainingOptions, folder: str | Path, **more: Any) -> Result:
    """Resume a run from its newest intact checkpoint; it ends as if it had never stopped.

    A run that was killed before its first checkpoint starts from the beginning. Of a finished run
    the result is returned, and nothing changes.

    more: keyword arguments as of `train`.

    Raises:
        ConfigError: `identity`, an option or the seed has changed; every difference is named.
        Others as `train`.
    """
    return train(task, options, folder, resumed=True, **more)


def _finished(run: RunFolder, shown: Progress) -> Result:
    """The result of a finished run.

    Raises:
        CheckpointError: its model/ is gone, or the result is damaged.
    """
    if not run.model.is_dir():
        raise CheckpointError(f"{run.path} has no model/. Remove {run.result}, then resume.")
    shown.say(f"{run.path} is finished: there is nothing to resume.")
    return read_result(run.path)


@contextmanager
def _opened(run: RunFolder, progress: bool | Progress) -> Iterator[tuple[Interruption, Progress]]:
    """The first process locks the folder and shows the progress; all listen for signals."""
    group = processes()
    with ExitStack() as stack:
        group.from_first(lambda: stack.enter_context(run.locked()))
        interruption = stack.enter_context(Interruption(repeated=group.size > 1))
        shown = stack.enter_context(closing(display_of(progress if group.first else Mute())))
        yield interruption, shown


def _check_empty(run: RunFolder) -> None:
    """Check that the folder holds no run, and delete what a killed process left in it.

    Raises:
        ConfigError: it holds one.
    """
    if run.saved() or run.result.exists():
        raise ConfigError(f"{run.path} holds a run. Resume it, or choose another folder.")
    run.remove_leftovers()


def _newest(
    run: RunFolder, warn: Callable[[str], None]
) -> tuple[Path, Tables, dict[str, Any]] | None:
    """The newest checkpoint that is not damaged, which the first process looks for."""
    newest, group = [], processes()

    def look() -> Path | None:
        newest.append(run.newest(warn, group))
        return newest[0] and newest[0][0]

    path = group.from_first(look)
    if newest or path is None:
        return newest[0] if newest else None
    return path, *read_folder(path, group.rank, group.size, verified=True)


def _identity(
    identity: Mapping[str, Any] | None, options: TrainingOptions, seed: int
) -> dict[str, Any]:
    """What must be the same when the run is resumed, as JSON has it."""
    whole = {**(identity or {}), "training": asdict(options), "seed": seed}
    return json.loads(json.dumps(whole, default=str))


def _filled(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was started with, and the defaults of options that are newer than the run."""
    tables = {key for key, value in stored.items() if isinstance(value, dict)} & defaults.keys()
    return {**defaults, **stored, **{key: _filled(stored[key], defaults[key]) for key in tables}}


def _check_identity(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare what a run was started with and what it is resumed with.

    Raises:
        ConfigError: something has changed; every difference is named.
    """
    if changes := change_lines(stored, now):
        hint = "Put it back, or start another run: with [model] path it begins from these weights."
        raise ConfigError(f"this run was started with something else:{changes}\n{hint}")
