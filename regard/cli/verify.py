"""verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from regard.cli.console import say, show
from regard.cli.options import AsJson, ModelFolder
from regard.errors import CheckpointError


def verify(
    model: ModelFolder,
    tolerance: Annotated[
        float, Option(help="The largest difference that passes, relative to the largest number.")
    ] = 1e-4,
    as_json: AsJson = False,
) -> None:
    """Compare a model's hidden states with those of transformers.

    Both get the same token ids, of all lengths. Exit code 2 where a difference exceeds the
    tolerance.
    """
    from regard.checkpoints.verify import verify as compared

    report = compared(model, tolerance)
    facts = asdict(report) | {"largest": report.largest, "equal": report.equal}
    lines = [f"{report.architecture}: max|Δ| / max"]
    lines += [f"{name:<12} {value:.1e}" for name, value in report.differences.items()]
    show(facts, "\n".join(lines), as_json)
    for note in report.notes:
        say(note)
    if not report.equal:
        name = next(n for n, value in report.differences.items() if not value <= tolerance)
        raise CheckpointError(
            f"{report.folder}: {name} differs by {report.differences[name]:.1e} of its largest "
            f"number, more than {tolerance:g}."
        )
