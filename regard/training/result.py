"""How a training ended: result.json of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.errors import CheckpointError
from regard.schema import read_json

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """How a training ended; also in result.json, where a number that is not finite is null.

    reason: the limit that ended it.  weights: which weights are in model/.
    tokens: predicted tokens, or what else the task counts (examples).
    seconds: spent in updates.  best: the best score of the goal, at `best_update`.
    scores: those of the last validation.
    """

    reason: str
    weights: str
    update: int
    tokens: int
    seconds: float
    best: float | None
    best_update: int
    scores: dict[str, float | None]


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
