"""export."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from regard.cli.console import say, show
from regard.cli.options import AsJson, ModelFolder
from regard.cli.outputs import Force, replaced

if TYPE_CHECKING:
    from regard.exporting import Exported


def export(
    model: ModelFolder,
    to: Annotated[
        Literal["gguf", "ctranslate2", "onnx"],
        Option(
            metavar="FORMAT",
            help="The format: gguf (llama.cpp), ctranslate2 or onnx (ONNX Runtime).",
        ),
    ],
    out: Annotated[
        Path | None, Option(help="The new file or folder; default: beside the model.")
    ] = None,
    quantize: Annotated[
        Literal["int8"] | None, Option(help="Write 8-bit weights (gguf as Q8_0, and ctranslate2).")
    ] = None,
    check: Annotated[
        bool,
        Option(help="Open it with its runtime and compare the outputs (default), or do not."),
    ] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for another runtime, with its tokenizer.

    Where the runtime is installed, the largest difference between its outputs and Regard's is
    printed. What the runtime cannot compute is an error that names it: the architecture, an option,
    the tokenizer or a head.
    """
    from regard.exporting import export as exported
    from regard.exporting import target_of

    target = target_of(model, to) if out is None else out
    with replaced(target, force, model):
        made = exported(model, to, target, quantize=quantize, check=check)
    show(asdict(made), _said(made), as_json)
    for note in made.notes:
        say(f"{made.runtime}: {note}")
    if check and made.opened_by is None:
        say(f"{made.runtime} is not installed here: nothing was compared.")


def _said(made: Exported) -> str:
    """What was written, and how far the runtime is from us."""
    lines = [f"{made.path}: for {made.runtime}"]
    for one in made.differences:
        lines.append(
            f"{made.runtime} ({made.opened_by}): {one.what} differ by at most {one.largest:.1e}; "
            f"the largest is {one.magnitude:.3g}"
        )
    return "\n".join(lines)
