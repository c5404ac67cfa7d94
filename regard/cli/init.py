"""init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from regard.cli.console import emit
from regard.cli.outputs import Force, check_out


def init(
    task: Annotated[
        str, Argument(help="The task to train (regard list tasks), or how its name begins.")
    ],
    out: Annotated[
        Path | None,
        Argument(metavar="FILE", help="The recipe that is written; default: TASK.toml."),
    ] = None,
    force: Force = False,
) -> None:
    """Write a recipe with every option of a task and its default."""
    from regard.experiments.template import recipe_template, trained_tasks
    from regard.file_writing import write_text
    from regard.habit_names import task_name

    begun = [name for name in trained_tasks() if name.startswith(task)]
    task = begun[0] if len(begun) == 1 else task_name(task)
    text, out = recipe_template(task), out or Path(f"{task}.toml")
    check_out(out, force)
    write_text(out, text)
    emit(f"{out}: set its paths, then: regard train {out} --dry-run\n")
