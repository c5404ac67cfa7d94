"""Start a run in a folder, or go on with one: `train` and `resume`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from regard import old_names, ops
from regard.checkpoints.filling import load_weights
from regard.checkpoints.store import write_tensors
from regard.errors import CheckpointError, ConfigError
from regard.file_writing import write_text
from regard.schema import read_json
from regard.training.folder import RESULT, Checkpoint, RunFolder, check_contents, differences
from regard.training.heap import keep_freed_blocks
from regard.training.interrupt import Interruption
from regard.training.loop import Loop, Task
from regard.training.options import TrainingOptions
from regard.training.progress import Show, progress
from regard.training.snapshot import begin, restore, restore_counters


@dataclass(frozen=True)
class Result:
    """How a training ended; also in result.json, where a number that is not finite is null.

    reason: the limit that ended it. weights: which ones lie in model/. best: the best score of the
    goal, at `best_update`. scores: those of the last validation. seconds: spent in updates.
    tokens: that were predicted; for a task that counts something else (examples), of that.
    """

    reason: str
    weights: str
    update: int
    tokens: int
    seconds: float
    best: float | None
    best_update: int
    scores: dict[str, float | None]


Publish = Callable[[Any, Path], None]


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write model.safetensors under our own names: what a run publishes unless told otherwise."""
    write_tensors(folder / "model.safetensors", model.state_dict())


def train(
    task: Task,
    options: TrainingOptions,
    folder: str | Path,
    *,
    seed: int = 1,
    identity: Mapping[str, Any] | None = None,
    save: Publish = save_weights,
    show: Show = "auto",
) -> Result:
    """Train `task.model` in a new run folder; afterwards it holds the published weights.

    identity: what must be the same when the run is resumed (recipe, hashes of data, tokenizer), as
        nested tables of plain values. The options and the seed are always part of it.
    save: writes the model's weights into model/: the best ones as they come, and the final ones.
    Raises NonFiniteError, CheckpointError, ConfigError, and Interrupted after a signal.
    """
    ops.load_kernels()
    place = RunFolder(Path(folder))
    with place.held(), Interruption() as interruption, closing(progress(show)) as shown:
        if place.all() or place.result.exists():
            raise ConfigError(
                f"{folder} holds a run already. Go on with it (regard resume {folder}), or choose "
                "another folder."
            )
        place.sweep()
        loop = Loop(
            task, options, place, _whole(identity, options, seed), save, shown, interruption
        )
        begin(loop, seed)
        return _finished(loop)


def resume(
    task: Task,
    options: TrainingOptions,
    folder: str | Path,
    *,
    seed: int = 1,
    identity: Mapping[str, Any] | None = None,
    save: Publish = save_weights,
    published: Callable[[Path], bool] = Path.is_dir,
    show: Show = "auto",
) -> Result:
    """Go on with a run from its newest sound checkpoint, as if it had never stopped.

    A run that was killed before its first checkpoint begins anew. A finished run says so and gives
    its result; nothing is touched, the model neither, unless its weights are missing in model/:
    then they are taken from the checkpoints once more. Raises ConfigError naming every difference
    when something in `identity`, in the options or the seed has changed, and what `train` raises.

    published: whether a folder holds all that `save` writes.
    """
    ops.load_kernels()
    place = RunFolder(Path(folder))
    now = _whole(identity, options, seed)
    with place.held(), Interruption() as interruption, closing(progress(show)) as shown:
        place.sweep()
        found = place.newest(shown.warn)
        if found:
            check_contents(*found)
            before = _translated(found[2]["identity"])
            _refuse_changes(_with_defaults(before), now)
            if before != found[2]["identity"]:
                shown.warn(
                    f"{place.path} was begun with an earlier version of Regard: the result will be "
                    "as good, but not equal in every bit."
                )
        finished = read_result(place.path) if place.result.exists() else None
        if finished and published(place.model):
            shown.say(f"{place.path} is finished: there is nothing to resume.")
            return finished
        loop = Loop(task, options, place, now, save, shown, interruption)
        if finished:
            _publish_again(loop, found)
            return finished
        if found:
            restore(loop, *found)
        else:
            shown.say(f"{place.path} has no checkpoint yet: it begins anew.")
            begin(loop, seed)
        return _finished(loop)


def read_result(folder: Path) -> Result:
    """What result.json of a finished run says.

    Raises:
        FileNotFoundError: the run is not finished.
        CheckpointError: the file is damaged; the message names the field.
    """

    def damaged(message: str) -> CheckpointError:
        hint = "If you remove the file, `regard resume` writes it again."
        return CheckpointError(f"{message}\n{hint}")

    return read_json(folder / RESULT, Result, error=damaged)


def _publish_again(loop: Loop, found: Checkpoint | None) -> None:
    """Write model/ of a finished run once more, from its checkpoints."""
    if found is None:
        raise CheckpointError(
            f"{loop.place.path} is finished, but neither its model/ nor its checkpoints are there: "
            "its weights are lost. Restore them from a backup, or train into another folder."
        )
    restore_counters(loop, found[2])
    load_weights(loop.model, found[1]["weights"])
    weights = loop.take_published()
    loop.publish(loop.model, loop.place.model)
    loop.progress.say(f"{loop.place.path} is finished: {weights} were written to model/ again.")


def _finished(loop: Loop) -> Result:
    """Run to the end, and mark the run as finished; from here on there is nothing to resume."""
    keep_freed_blocks()
    facts = loop.run()
    facts["scores"] = {k: v if math.isfinite(v) else None for k, v in facts["scores"].items()}
    result = Result(**facts)
    write_text(loop.place.result, json.dumps(asdict(result), indent=1) + "\n")
    return result


def _whole(
    identity: Mapping[str, Any] | None, options: TrainingOptions, seed: int
) -> dict[str, Any]:
    whole = {**(identity or {}), "training": asdict(options), "seed": seed}
    return json.loads(json.dumps(whole, default=str))


def _translated(before: dict[str, Any]) -> dict[str, Any]:
    """The identity of a run with the names of this version."""
    tables = {**before.get("recipe", {}), "training": before["training"]}
    recipe = old_names.recipe(tables)
    training = recipe.pop("training")
    return {**before, "training": training} | ({"recipe": recipe} if "recipe" in before else {})


def _with_defaults(before: dict[str, Any]) -> dict[str, Any]:
    """With the options that there are only since: the run had what is their default now."""

    def filled(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        inner = {k: filled(v, defaults[k]) for k, v in options.items() if isinstance(v, dict)}
        return {**defaults, **options, **inner}

    defaults = json.loads(json.dumps(asdict(TrainingOptions(updates=1))))
    return {**before, "training": filled(before["training"], defaults)}


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = differences(before, now)
    if changes:
        raise ConfigError(
            "this run cannot be resumed, because what it was started with has changed:\n  "
            + "\n  ".join(changes)
            + "\nPut it back, or train into another folder."
        )
