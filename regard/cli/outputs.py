"""What `--out` names: nothing that is there is replaced without `--force`."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Annotated

from typer import Option

from regard.errors import CheckpointError, ConfigError

# One of these is in every folder that Regard or a runtime has written for a model, a tokenizer or
# an index.
WRITTEN = ("config.json", "tokenizer.json", "index.json")

Force = Annotated[bool, Option("--force", help="Replace the file or folder that is there already.")]


def check_out(out: Path | None, force: bool) -> None:
    """Check that a path can be written, before anything is computed.

    Raises:
        CheckpointError: it is there already, without `force`.
        ConfigError: it is a folder with other files than a model, a tokenizer or an index.
    """
    if out is None or not (out.exists() or out.is_symlink()):
        return
    if not force:
        raise CheckpointError(
            f"{out} is there already. Choose another name, or replace it: --force"
        )
    if out.is_dir() and not any((out / name).exists() for name in WRITTEN):
        raise ConfigError(
            f"{out} is a folder with other files, which --force does not remove. Choose another "
            "name."
        )


@contextmanager
def replaced(out: Path, force: bool, source: Path | None = None) -> Iterator[None]:
    """Inside, a path can be written; what was there is removed at the end, or back after an error.

    source: a folder that is read meanwhile.

    Raises:
        ConfigError: the source would be replaced.
        Others as `check_out`.
    """
    check_out(out, force)
    if not out.exists():
        yield
        return
    if source is not None and source.exists() and source.resolve().is_relative_to(out.resolve()):
        raise ConfigError(f"{out} holds {source}, which is read. Choose another name.")
    before = out.with_name(f".{out.name}.{token_hex(4)}.before")
    os.replace(out, before)
    try:
        yield
    except BaseException:
        if not out.exists():
            os.replace(before, out)
        raise
    if before.is_dir() and not before.is_symlink():
        shutil.rmtree(before)
    else:
        before.unlink()
