"""Models by the name they have on the hub: the one place here that touches the network.

    folder = resolve("org/name")              the folder of what was downloaded
    folder = resolve("org/name@revision")     a branch, a tag or a commit

Only the files that are read here are downloaded, once, into the cache that the hub's own tools use
(HF_HOME). With HF_HUB_OFFLINE=1 the cache is all there is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from regard.errors import CheckpointError, RegardError
from regard.suggest import nearest

NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")

ABOUT = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/*",
    "2_Normalize/*",
)
SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")


def resolve(name: str | Path, *, download: bool = True) -> Path:
    """The folder that a name stands for: a folder as it is, else what the hub has under ORG/NAME.

    download: whether the hub may be asked; if not, the cache is all there is.

    Raises:
        CheckpointError: there is no such folder and no such model, or the hub cannot be reached.
        RegardError: `huggingface_hub` is not installed.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return path
        if path.exists():
            raise CheckpointError(f"{path} is a file. Give the folder that it lies in.")
    except OSError as error:  # such as a name that is too long, or a folder that may not be read
        raise CheckpointError(f"{str(path):.200}: {error.strerror}.") from None
    found = NAME.fullmatch(str(name))
    # Where the first part is a folder here, the second is a misspelled name in it.
    if found is None or path.parent.is_dir():
        raise CheckpointError(
            f"{path}: there is no such folder. {_near(path)}A model on the hub is ORG/NAME, or "
            "ORG/NAME@REVISION."
        )
    return _downloaded(found["repository"], found["revision"], download)


def _near(path: Path) -> str:
    """The folder beside it that has nearly this name."""
    beside = [one.name for one in path.parent.iterdir() if one.is_dir()] if _listable(path) else []
    said = nearest(path.name, beside)
    return f"{said} " if beside and said.startswith("Did you mean") else ""


def _listable(path: Path) -> bool:
    return path.parent.is_dir() and os.access(path.parent, os.R_OK)


def _downloaded(repository: str, revision: str | None, download: bool) -> Path:
    """The folder in the cache, with weights in the safest form that the repository has."""
    folder = _fetched(repository, revision, [*ABOUT, *SAFE], download)
    if any((folder / name).exists() for name in SAFE[:2]):
        return folder
    return _fetched(repository, revision, [*ABOUT, *PICKLED], download)


def _fetched(
    repository: str, revision: str | None, patterns: Sequence[str], download: bool
) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise RegardError(
            f"There is no folder {repository} here, and to download it needs `huggingface_hub`, "
            "which is not installed. Install it with: pip install huggingface_hub"
        ) from None
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
    except errors.GatedRepoError:
        why = "its owner asks you to accept terms on its page first, and to log in: hf auth login"
    except errors.RepositoryNotFoundError:
        why = "there is no such folder here and no such model on the hub, or it is a private one"
    except errors.RevisionNotFoundError:
        why = f"the model has no revision {revision!r}"
    except errors.HFValidationError as error:
        why = f"this can be no name on the hub: {error}"
    except errors.LocalEntryNotFoundError as error:
        first = str(error).split("\n")[0].rstrip(".")
        why = f"the hub cannot be reached, and the cache has it not, or not all of it: {first}"
        if offline:
            why = (
                "there is no such folder here, the cache has it not, or not all of it, and "
                "HF_HUB_OFFLINE forbids to download it. Download it once without"
            )
        elif not download:
            why = (
                "there is no such folder here, the cache has it not, or not all of it, and nothing "
                "is downloaded for this. Give a folder, or load the model once"
            )
    except Exception as error:  # of the network: what it raises is that library's own affair
        why = f"it could not be downloaded: {type(error).__name__}: {error}"
    raise CheckpointError(f"{named}: {why}.")
