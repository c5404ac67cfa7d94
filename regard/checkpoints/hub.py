"""Models by their name on the hub; no other file of the library uses the network.

    folder = resolve("org/name")              the folder of what was downloaded
    folder = resolve("org/name@revision")     a branch, a tag or a commit

Only the files that this library reads are downloaded, once, into the cache of the hub's own tools
(HF_HOME). With HF_HUB_OFFLINE=1 only the cache is used.
"""

import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from regard.errors import CheckpointError, MissingExtra

CONFIG = "config.json"
NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")

DESCRIPTION = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.txt"),
    *("vocab.json", "merges.txt", "encoder.json", "vocab.bpe"),
    *("target_vocab.json", "source.spm", "target.spm"),
    *("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *("modules.json", "sentence_*_config.json", "config_sentence_transformers.json"),
    *("1_Pooling/*", "2_Normalize/*"),
    *("adapter_config.json", "adapter_model.safetensors", "regard.json"),
)
WHOLE = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLED = (
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
    "adapter_model.bin",
)


def resolve(name: str | PathLike[str], *, download: bool = True) -> Path:
    """The folder that a name stands for: a local folder, else what the hub has under ORG/NAME.

    download: whether the hub may be asked; if not, only the cache is used.

    Raises:
        CheckpointError: there is no such folder and no such model, or the hub cannot be reached.
        MissingExtra: `huggingface_hub` is not installed.
        TypeError: as of `checked_path`.
    """
    path = checked_path(name)
    try:
        if path.is_dir():
            return path
        if path.exists():
            raise CheckpointError(f"{path} is a file. Give the folder that it lies in.")
    except OSError as error:  # such as a name that is too long, or a folder that may not be read
        raise CheckpointError(f"{str(path):.200}: {error.strerror}.") from None
    on_hub = NAME.fullmatch(str(name))
    # Where the first part is a folder here, the second is a misspelled name in it.
    if on_hub is None or path.parent.is_dir():
        hint = "A model on the hub is ORG/NAME, or ORG/NAME@REVISION."
        raise CheckpointError(f"{path}: there is no such folder. {hint}")
    return _downloaded(on_hub["repository"], on_hub["revision"], download)


def checked_path(name: str | PathLike[str]) -> Path:
    """The path of a folder, or a name on the hub as a path.

    Raises:
        TypeError: it is something else, such as a model that is in memory.
    """
    if not isinstance(name, str | PathLike):
        hint = 'Write a model that is in memory into a folder first: model.save("folder").'
        raise TypeError(f"A model is a folder or ORG/NAME, not a {type(name).__name__}. {hint}")
    return Path(name)


def folder_of(path: str | PathLike[str], *, download: bool = True) -> Path:
    """The folder of weights that a run, a folder or a name on the hub stands for.

    download: as in `resolve`.
    """
    folder = resolve(path, download=download)
    return folder / "model" if (folder / "model" / CONFIG).exists() else folder


def files_of_model(folder: Path) -> list[Path]:
    """The files of a folder that a model is read from: its description and its weights.

    In the layouts of ELMo and fastai, which have no config.json, these are all files.
    """
    has_weights = any((folder / name).exists() for name in WHOLE)
    patterns = (*DESCRIPTION, *(SAFE if has_weights else PICKLED))
    if not (folder / CONFIG).exists() and not has_weights:
        patterns = ("*",)
    return sorted({path for name in patterns for path in folder.glob(name) if path.is_file()})


def _downloaded(repository: str, revision: str | None, download: bool) -> Path:
    """The folder in the cache, with weights in the safest form that the repository has."""
    folder = _fetched(repository, revision, [*DESCRIPTION, *SAFE], download)
    if any((folder / name).exists() for name in WHOLE):
        return folder
    return _fetched(repository, revision, [*DESCRIPTION, *PICKLED], download)


def _fetched(
    repository: str, revision: str | None, patterns: Sequence[str], download: bool
) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError:
        purpose = f"There is no folder {repository} here, and downloading it"
        raise MissingExtra("huggingface_hub", "", purpose, "huggingface_hub") from None
    # The package reads the variable once, when it is imported.
    now = os.environ.get("HF_HUB_OFFLINE", "").lower()
    offline = constants.HF_HUB_OFFLINE or now in ("1", "on", "yes", "true")
    named = f"{repository}@{revision}" if revision else repository
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(patterns),
                local_files_only=offline or not download,
            )
        )
    except Exception as error:  # the network library may raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split()):.300}".rstrip(".")
        if isinstance(error, errors.LocalEntryNotFoundError):
            asked = download and not offline
            problem = f"it {'could not be reached' if asked else 'was not asked'}"
        hint = "HF_HUB_OFFLINE forbids downloading it. " if offline else ""
        where = f"{named}: neither here nor in the cache of the hub"
        raise CheckpointError(f"{where}: {problem}. {hint}A folder can be given.") from None
