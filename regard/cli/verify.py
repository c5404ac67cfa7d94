"""verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Option

from regard.cli.console import emit, say, show
from regard.cli.options import AsJson, ModelFolder
from regard.errors import CheckpointError

if TYPE_CHECKING:
    from regard.checkpoints.verify import Verification


def verify(
    model: ModelFolder,
    tolerance: Annotated[
        float, Option(help="The largest difference of two hidden states that passes.")
    ] = 1e-4,
    device: Annotated[
        str, Option(metavar="DEVICE", help="The device of both models: cpu, cuda or cuda:1.")
    ] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Compare a model's hidden states with those of transformers.

    They are compared layer by layer.

    Both get the same token ids, of all lengths and padded on either side, and tokenize the same
    texts. Exit code 2 where a difference exceeds the tolerance, or ids differ.
    """
    from regard.checkpoints.verify import verify as compared
    from regard.tasks.folders import device_for

    report = compared(model, tolerance, device_for(device))
    if as_json:
        facts = asdict(report) | {"largest": report.largest, "equal": report.equal}
        show(facts, "", as_json)
    else:
        _show(report)
        for note in report.notes:
            say(note)
    if not report.equal:
        raise CheckpointError(_differences(report))


def _show(report: Verification) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.architecture}: max|Δ|", box=None, title_justify="left")
    table.add_column("")
    for side in ("padded right", "padded left"):
        table.add_column(side, justify="right")
    for row in report.layers:
        sides = ("" if one is None else f"{one:.1e}" for one in (row.right, row.left))
        table.add_row(row.name, *sides)
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(table)
    emit("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")
    for one in report.tokenizers:
        emit(f"{one.name}: {one.texts - len(one.different)} of {one.texts} have equal ids\n")


def _differences(report: Verification) -> str:
    """The first layer or head that is above the tolerance, and the first text."""
    found = []
    for row in report.layers:
        worst = max(row.right or 0.0, row.left or 0.0)
        if not worst <= report.tolerance:
            found.append(f"{row.name} differs by {worst:.1e}, more than {report.tolerance:g}")
            break
    for one in report.tokenizers:
        for wrong in one.different[:1]:
            found.append(
                f"of {one.name}, {' | '.join(wrong['texts'])!r} has the ids {wrong['ours']} here "
                f"and {wrong['theirs']} there (segments {wrong['segments']} and "
                f"{wrong['their_segments']})"
            )
    return f"{report.folder}: {'; '.join(found)}."
