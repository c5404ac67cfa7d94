"""quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from regard.cli.console import show
from regard.cli.options import AsJson, ModelFolder
from regard.cli.outputs import Force, check_out, replaced


def quantize(
    model: ModelFolder,
    out: Annotated[Path, Option(metavar="FOLDER", help="The folder that the model is written to.")],
    dtype: Annotated[
        Literal["int8", "bfloat16"], Option(help="The type of the weights that are written.")
    ] = "int8",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a model with quantized weights.

    It is smaller on disk, is loaded faster, and is faster on a CPU.

    Every command but train reads the folder. The file is the same for every machine; on one without
    a compiler the model computes in float32.
    """
    check_out(out, force)
    from regard.checkpoints.hub import folder_of
    from regard.tasks import folders

    with replaced(out, force, folder_of(model)):
        folder = folders.quantize(model, out, dtype)
    before, after = _size_of(folder_of(model)), _size_of(folder)
    facts = {"folder": folder, "dtype": dtype, "bytes": after, "bytes_before": before}
    text = f"{folder}: {dtype}, {after / 1e6:,.1f} MB of weights instead of {before / 1e6:,.1f}"
    show(facts, text, as_json)


def _size_of(folder: Path) -> int:
    """Bytes of the weights in a folder."""
    files = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return sum(file.stat().st_size for file in files)
