"""sweep.json: the settings of a sweep, and the state of each run in each of its stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError
from regard.executors import Json
from regard.experiments.compare.conditions import check_unchanged
from regard.experiments.sweep.methods import SweepStage
from regard.experiments.sweep.space import Values
from regard.file_writing import write_json
from regard.schema import Fields, read_json

STATE = "sweep.json"
ERROR = "error"


class StoredStage(Fields):
    """A stage in sweep.json.

    until: the part of the budget, such as "1/8".  trials: the values of each trial by its name.
    runs: what each run has reached, by its name; see `regard.experiments.sweep.trial`.
    """

    until: str
    trials: dict[str, dict[str, Any]]
    runs: dict[str, dict[str, Any]]


class StoredSweep(Fields):
    """The content of sweep.json."""

    settings: dict[str, Any]
    stages: list[StoredStage]


class SweepState:
    """The state of a sweep in a folder.

    Raises:
        ConfigError: the folder holds another sweep; every difference is named.
        CheckpointError: the file is damaged.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Json]):
        self.path, self.folder = folder / STATE, folder
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self._stages: list[StoredStage] = []
        if self.path.exists():
            stored: StoredSweep = read_json(self.path, StoredSweep, error=_damaged)
            check_unchanged(stored.settings, self.settings, folder)
            self._stages = list(stored.stages)

    def begin(self, index: int, stage: SweepStage) -> None:
        """Add a stage, unless it is there.

        Raises:
            CheckpointError: another stage is there.
        """
        plain = {"until": str(stage.until), "trials": stage.trials, "runs": {}}
        new = StoredStage.model_validate(json.loads(json.dumps(plain)))
        if index == len(self._stages):
            self._stages.append(new)
            self._write()
        there = self._stages[index]
        if (there.until, there.trials) != (new.until, new.trials):
            raise CheckpointError(
                f"{self.path}: stage {index + 1} has other trials than this version of Regard "
                "chooses. Choose another folder."
            )

    def reached(self, index: int) -> dict[str, dict[str, Any]]:
        """What each run of a stage has reached, by its name. A run that has failed has `error`.

        It is tried again where its folder was removed.
        """
        runs = self._stages[index].runs
        return {
            name: found
            for name, found in runs.items()
            if ERROR not in found or (self.folder / name).exists()
        }

    def record(self, index: int, run: str, found: Mapping[str, Json]) -> None:
        """Write what a run has reached."""
        self._stages[index].runs[run] = dict(found)
        self._write()

    def stages(self) -> list[tuple[Fraction, dict[str, Values], dict[str, dict[str, Any]]]]:
        """Of each stage that has begun: the part of the budget, its trials, and its runs."""
        return [
            (Fraction(one.until), one.trials, self.reached(index))
            for index, one in enumerate(self._stages)
        ]

    def _write(self) -> None:
        stages = [one.model_dump() for one in self._stages]
        write_json(self.path, {"settings": self.settings, "stages": stages})


def _damaged(message: str) -> CheckpointError:
    return CheckpointError(
        f"{message}\nThe runs are still there. Remove the file and run the same sweep again: it "
        "continues from them."
    )
