"""export, quantize, verify."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from regard.cli import console, options
from regard.cli.options import flag
from regard.errors import CheckpointError

if TYPE_CHECKING:
    from regard.exporting import Exported


def export(
    model: options.ModelFolder,
    to: Literal["gguf", "ctranslate2", "onnx"] = flag(
        "The format: gguf (llama.cpp), ctranslate2 or onnx (ONNX Runtime).", ...
    ),
    out: Path | None = flag("The new file or folder; default: beside the model."),
    quantize: Literal["int8"] | None = flag("Write 8-bit weights (gguf as Q8_0, and ctranslate2)."),
    check: bool = flag(
        "Open it with its runtime and compare the outputs (default), or do not.", True
    ),
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a model for another runtime, with its tokenizer.

    Where the runtime is installed, the largest difference between its outputs and Regard's is
    printed. What the runtime cannot compute is an error that names it: the architecture, an option,
    the tokenizer or a head.
    """
    from regard.exporting import export as exported
    from regard.exporting import target_of

    target = target_of(model, to) if out is None else out
    with options.replaced(target, force, model):
        result = exported(model, to, target, quantize=quantize, check=check)
    console.show(asdict(result), _said(result), as_json)
    for note in result.notes:
        console.say(f"{result.runtime}: {note}")
    if check and result.opened_by is None:
        console.say(f"{result.runtime} is not installed here: nothing was compared.")


def _said(made: Exported) -> str:
    """What was written, and how far the runtime is from us."""
    lines = [f"{made.path}: for {made.runtime}"]
    for difference in made.differences:
        lines.append(
            f"{made.runtime} ({made.opened_by}): {difference.what} differ by at most "
            f"{difference.largest:.1e}; the largest is {difference.magnitude:.3g}"
        )
    return "\n".join(lines)


def verify(
    model: options.ModelFolder,
    tolerance: float = flag(
        "The largest difference that passes, relative to the largest number.", 1e-4
    ),
    as_json: options.AsJson = False,
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
    console.show(facts, "\n".join(lines), as_json)
    for note in report.notes:
        console.say(note)
    if not report.equal:
        name = next(n for n, value in report.differences.items() if not value <= tolerance)
        raise CheckpointError(
            f"{report.folder}: {name} differs by {report.differences[name]:.1e} of its largest "
            f"number, more than {tolerance:g}."
        )


def quantize(
    model: options.ModelFolder,
    out: Path = flag("The folder that the model is written to.", ...),
    dtype: Literal["int8", "bfloat16"] = flag("The type of the weights that are written.", "int8"),
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a copy of a model with quantized weights.

    It is smaller on disk, is loaded faster, and is faster on a CPU.

    Every command but train reads the folder. The file is the same for every machine; on one without
    a compiler the model computes in float32.
    """
    options.check_out(out, force)
    from regard.checkpoints.hub import folder_of
    from regard.tasks import folders

    with options.replaced(out, force, folder_of(model)):
        folder = folders.quantize(model, out, dtype)
    before, after = _size_of(folder_of(model)), _size_of(folder)
    facts = {"folder": folder, "dtype": dtype, "bytes": after, "bytes_before": before}
    text = f"{folder}: {dtype}, {after / 1e6:,.1f} MB of weights instead of {before / 1e6:,.1f}"
    console.show(facts, text, as_json)


def _size_of(folder: Path) -> int:
    """Bytes of the weights in a folder."""
    files = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return sum(file.stat().st_size for file in files)
