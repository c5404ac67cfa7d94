"""The trials of a sweep: Optuna suggests their values, and keeps them in its journal.

The journal is written by one process alone. Its values are those of the goal, negative where lower
is better. A trial that runs when a sweep is interrupted goes on when the sweep does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import MissingExtra
from regard.experiments.compare.study import ERROR, Row, StudyRun
from regard.experiments.sweep.space import Space, Values

JOURNAL = "journal.log"


class _OneWriter:
    """The lock of a journal that no other process writes: the folder of the sweep is locked."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class SweepTrials:
    """The trials in the journal of a folder, by their numbers from 0.

    points: the configurations that are known.  seed: of the values that Optuna draws.

    Raises:
        MissingExtra: Optuna is not installed.
    """

    def __init__(self, folder: Path, points: Sequence[Values], seed: int):
        try:
            import optuna
        except ImportError as error:
            raise MissingExtra("optuna", "sweep", "A sweep") from error
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._seed = optuna, seed
        self.space: Space
        file = folder / JOURNAL
        _drop_torn_line(file)
        journal = JournalFileBackend(str(file), lock_obj=_OneWriter())  # type: ignore[arg-type]
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal),
            study_name="sweep",
            direction="maximize",
            pruner=optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        self._points = points
        self._rows: dict[int, list[Row]] = {}

    def next(self, count: int, batch: int, space: Space) -> list[int]:
        """The numbers of the trials that are trained next: those that ran when the sweep was
        interrupted, and new ones.

        count: of all trials.  batch: how many run together.
        """
        self.space = space
        running = self._numbers(self._optuna.trial.TrialState.RUNNING)
        while len(running) < batch and (number := len(self.study.trials)) < count:
            if number < len(self._points):
                self.study.enqueue_trial(space.plain(self._points[number]))
            # Its state is not stored: each trial has a seed of its own.
            sampler = self._optuna.samplers.TPESampler
            self.study.sampler = sampler(seed=self._seed + number, constant_liar=batch > 1)
            running.append(self.study.ask(space.distributions()).number)
        return running

    def values(self, number: int) -> Values:
        """The values of a trial."""
        return self.space.values(self.study.trials[number].params)

    def begin_rung(self, batch: Sequence[int], rung: int, until: float) -> list[int]:
        """The trials that are trained to this rung; a single one is trained to the end at once."""
        running = self._numbers(self._optuna.trial.TrialState.RUNNING)
        alive = [number for number in batch if number in running]
        self._rows = {}
        return [] if len(alive) == 1 and until < 1 and rung > 1 else alive

    def record(self, run: StudyRun, row: Row, rung: int, until: float, seeds: int) -> str:
        """Note what a run has reached; when all `seeds` of its trial have ended, the journal gets
        their mean. Returns a message where the run has failed."""
        number = int(run.trial.removeprefix("trial-")) - 1
        if row.get("score", 0) is None:
            row.setdefault(ERROR, "no validation score is finite")
        rows = self._rows.setdefault(number, [])
        rows.append(row)
        if len(rows) == seeds and rung not in self.study.trials[number].intermediate_values:
            self._tell(number, rows, rung, until)
        return f"{run.folder.name} has failed: {row[ERROR]}" if ERROR in row else ""

    def _tell(self, number: int, rows: Sequence[Row], rung: int, until: float) -> None:
        trial = self._open(number)
        errors = [str(row[ERROR]) for row in rows if ERROR in row]
        if errors:
            trial.set_user_attr(ERROR, errors[0])
            self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        better = rows[0]["goal"][1]
        value = math.fsum(row["score"] for row in rows) / len(rows)
        value = value if better == "max" else -value
        trial.report(value, rung)
        if until == 1:
            self.study.tell(trial, value)

    def end_rung(self, alive: Sequence[int], rung: int, until: float) -> None:
        """Stop the worse half of the trials that have reached a rung before the end."""
        if until == 1:
            return
        trials = self.study.trials
        reached = [trial for trial in trials if rung in trial.intermediate_values]
        ranked = sorted(reached, key=lambda t: (-t.intermediate_values[rung], t.number))
        for trial in ranked[math.ceil(len(ranked) / 2) :]:
            if not trial.state.is_finished():
                state = self._optuna.trial.TrialState.PRUNED
                self.study.tell(self._open(trial.number), state=state)

    def _open(self, number: int) -> Any:
        """A trial that can be told something; also one of an earlier process."""
        return self._optuna.trial.Trial(self.study, self.study.trials[number]._trial_id)

    def _numbers(self, state: Any) -> list[int]:
        return [trial.number for trial in self.study.get_trials(deepcopy=False, states=(state,))]

    def configurations(self) -> dict[str, tuple[Values, str]]:
        """The values of each trial by its name, and why it has failed ("")."""
        return {
            f"trial-{trial.number + 1:02}": (
                self.space.values(trial.params),
                str(trial.user_attrs.get(ERROR, "")),
            )
            for trial in self.study.trials
        }


def _drop_torn_line(file: Path) -> None:
    """Remove the end of a journal whose process was killed while it wrote."""
    if file.exists():
        content = file.read_bytes()
        os.truncate(file, content.rfind(b"\n") + 1)
