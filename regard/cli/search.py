"""search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from regard.cli.console import load_task, no_garbage_collection, show
from regard.cli.input_texts import checked_argument, chunks_of, hint_at_file
from regard.cli.options import AsJson, Opening, TooLong, check_none, existing, with_opening
from regard.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from regard.tasks.search_index import SearchIndex


@with_opening
def search(
    words: Annotated[
        list[str],
        Argument(
            metavar="[MODEL] QUERY [TEXT]",
            help="A model, the query, and the texts that are searched, by default the lines of "
            "standard input; with --index the query alone.",
        ),
    ],
    index: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="Search this index, which regard embed --out has written."),
    ] = None,
    model: Annotated[
        Path | None,
        Option(metavar="MODEL", help="With --index: the model of the index, if it has moved."),
    ] = None,
    top_k: Annotated[int, Option("--top-k", "-n", help="Print the N most similar texts.")] = 10,
    too_long: TooLong = "error",
    as_json: AsJson = False,
    *,
    opening: Opening,
) -> None:
    """Print the texts that are most similar to a query.

    A line is a cosine, the number of a text and the text, best first. Texts are numbered from 0.
    Cosines are of the vectors that regard embed prints.
    """
    if index is not None:
        if len(words) != 1:
            raise ConfigError("With --index give the query alone: its texts are searched.")
        check_none("with --index, whose model is opened as its folder says", of_model(opening))
        check_index(index)
        query = checked_argument(words[0])
        best = load_index(index, model, opening.device).search(query, top_k, too_long=too_long)
    else:
        check_none("without --index: the model comes first", {"model": model})
        best = _best(words, top_k, too_long, opening)
    lines = (f"{one.score:.4f}\t{one.index}\t{' '.join(one.text.splitlines())}" for one in best)
    show([asdict(one) for one in best], "\n".join(lines), as_json)


def _best(words: Sequence[str], top_k: int, too_long: str, opening: Opening) -> list[Any]:
    """The best of the texts of the command line or of standard input."""
    if len(words) < 2:
        raise ConfigError("Give a model and a query: regard search MODEL QUERY [TEXT ...]")
    model, query, texts = existing(Path(words[0])), checked_argument(words[1]), words[2:]
    task = load_task(model, **vars(opening))
    problem = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, problem)
    hint_at_file(texts)
    listed = [text for chunk in chunks_of(texts) for text in chunk.texts]
    found: list[Any] = task.search(query, listed, top_k, too_long=too_long)
    return found


def of_model(opening: Opening) -> dict[str, Any]:
    """How a model is opened, but for its device."""
    return {name: value for name, value in vars(opening).items() if name != "device"}


def check_index(folder: Path) -> None:
    """Check that a folder holds an index, before torch is imported.

    Raises:
        CheckpointError: it does not.
    """
    if not folder.exists():
        raise CheckpointError(f"{folder}: there is no such folder.")
    if not (folder / "index.json").is_file():
        raise CheckpointError(
            f"{folder} holds no index. Make one: regard embed MODEL FILE --out {folder}"
        )


@no_garbage_collection()
def load_index(folder: Path, model: Path | None = None, device: str | None = None) -> SearchIndex:
    """The index of a folder, with its model."""
    from regard.tasks.search_index import SearchIndex

    return SearchIndex.load(folder, model, device)
