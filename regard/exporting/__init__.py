"""Models for llama.cpp, CTranslate2 and ONNX Runtime, one module for each runtime.

    export("runs/demo", to="ctranslate2")       writes runs/demo-ctranslate2, and opens it

Each runtime opens what was written for it, and its outputs are compared with ours. What it cannot
compute is rejected before anything is written. `runtime.py` has what all of them share.

Internal: names that `regard` itself does not have may change with every version.
"""

from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from regard.checkpoints.hub import checked_path
from regard.errors import CheckpointError, ConfigError
from regard.exporting.runtime import (
    Difference,
    Exported,
    ExportSource,
    Runtime,
    WeightsInFile,
    package,
)
from regard.file_writing import check_new, creating
from regard.lazy import entry
from regard.tasks.model_card import CardForm, CardHistory, write_card

__all__ = ["Difference", "ExportSource", "Exported", "Runtime", "export"]

# what `to` names -> module:Class
RUNTIMES: dict[str, Any] = {
    "gguf": "regard.exporting.gguf:GGUF",
    "ctranslate2": "regard.exporting.ctranslate2:CTranslate2",
    "onnx": "regard.exporting.onnx:ONNX",
}


def export(
    folder: str | PathLike[str],
    to: str,
    out: str | PathLike[str] | None = None,
    *,
    quantize: WeightsInFile | None = None,
    check: bool = True,
) -> Exported:
    """Write what a run or a folder holds for another runtime, in float32.

    The tokenizer is written, too, and into a folder a model card. With `check`, and if the runtime
    is installed, it opens the file that was written, and its outputs for random ids are compared
    with ours.

    Args:
        to: one of `RUNTIMES`.
        out: the new file or folder; None: beside the folder, with the runtime's ending.
        quantize: "int8": 8-bit weights, where the format has them.

    Raises:
        ConfigError: there is no such runtime, or it cannot compute this model or its tokenizer.
        CheckpointError: `out` exists already, the folder cannot be read, or the runtime computes
            other outputs than ours; then nothing is kept.
        MissingExtra: the package that writes the format is not installed.
    """
    runtime = _runtime(to, quantize)
    path = checked_path(folder)
    target = target_of(path, to) if out is None else Path(out)
    check_new(target)
    from regard.tasks.folders import load_float32

    source = ExportSource(path, load_float32(folder))
    with creating(target) as temporary:
        notes = (*runtime.write(source, temporary, quantize), *source.left_to_the_caller)
        _write_card(source, runtime, temporary)
        if not check or find_spec(runtime.package) is None:
            return Exported(target, runtime.name, None, (), notes)
        differences, remarks = runtime.compare(source, temporary)
        for difference in differences:
            if quantize is None and not difference.relative <= runtime.tolerance:
                raise CheckpointError(
                    f"{path}: {runtime.name} opens what was written, but its {difference.what} "
                    f"differ by {difference.largest:.1e} from ours, whose largest is "
                    f"{difference.magnitude:.1e}. Nothing was kept: please report this model."
                )
    # The version of the module: another distribution, such as onnxruntime-gpu, may contain it.
    opened_by = f"{runtime.distribution} {package(runtime.package).__version__}"
    return Exported(target, runtime.name, opened_by, differences, (*notes, *remarks))


def _runtime(to: str, quantize: str | None) -> Runtime:
    """The runtime of a name.

    Raises:
        ConfigError: there is none, or its format has no such weights.
    """
    chosen: Runtime = entry(RUNTIMES, to, "runtime")()
    if quantize is not None and not chosen.quantizes:
        can = ", ".join(name for name in RUNTIMES if entry(RUNTIMES, name, "runtime").quantizes)
        raise ConfigError(f"{chosen.name} is given float32 weights. `quantize` is for: {can}.")
    return chosen


def target_of(folder: Path, to: str) -> Path:
    """Where a folder is exported to by default: next to it, with the ending of the runtime."""
    ending = _runtime(to, None).ending
    if folder.name in ("", ".."):  # such as "."
        folder = folder.resolve()
    of_run = folder.name == "model" and (folder.parent / "recipe.toml").exists()
    whole = folder.parent if of_run else folder
    return whole.with_name(whole.name + ending)


def _write_card(source: ExportSource, runtime: Runtime, out: Path) -> None:
    """Write the card of a folder, with the licence that the card of the model's folder names."""
    from regard.tasks.folders import config_of_task

    if out.is_dir():
        about = (
            f"This folder is for {runtime.name}: the package `{runtime.package}` opens its files, "
            "and `tokenizers` its tokenizer.json."
        )
        history = CardHistory.of_folder(source.path)
        form = CardForm(runtime.package, about)
        write_card(source.task, out, config_of_task(source.task), history, form)
