"""How a training ended: result.json of a finished run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import CheckpointError
from regard.schema import read_json

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """How a training ended; also in result.json, where a number that is not finite is null.

    reason: the limit that ended it.  weights: which weights are in model/.
    tokens: predicted tokens, or what else the task counts (examples).
    seconds: spent in steps.  best: the best score of the goal, at `best_step`: the
        last step with it.
    scores: those of the last validation, which are of the weights of the last step, or of the mean
        of the last checkpoints where that is in model/.
    test_scores: of the weights in model/ on the test data, by the names that `regard evaluate`
        prints; empty where there are no test data.  test_signatures: how each was measured.
    """

    reason: str
    weights: str
    step: int
    tokens: int
    seconds: float
    best: float | None
    best_step: int
    scores: dict[str, float | None]
    test_scores: dict[str, float | None] = field(default_factory=dict)
    test_signatures: dict[str, str] = field(default_factory=dict)

    def labelled_scores(self) -> dict[str, float | None]:
        """The scores with the data that they were measured on: "valid bleu", "test BLEU"."""
        parts = {"valid": self.scores, "test": self.test_scores}
        return {f"{part} {name}": n for part, scores in parts.items() for name, n in scores.items()}


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
