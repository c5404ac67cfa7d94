"""embed, search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from regard.call_options import VectorFields
from regard.cli import console, options
from regard.cli.options import Opening, ShardedWork, Sharding, check_none, flag
from regard.data.text_chunks import Chunk
from regard.errors import ConfigError
from regard.file_writing import replacing, sync

if TYPE_CHECKING:
    import numpy as np

    Write = Callable[[Chunk, Sequence[np.ndarray]], object]  # the vector of each text
    from regard.tasks.search_index import SearchIndex


def of_texts(vectors: Mapping[str, Any]) -> dict[str, Any]:
    """The options of vectors, which are of texts.

    Raises:
        ConfigError: vectors of words or tokens are asked for.
    """
    if (unit := vectors.get("granularity", "sentence")) != "sentence":
        raise ConfigError(f"--out has a vector for each text: --granularity {unit} is for lines.")
    return dict(vectors)


@options.with_opening
@options.with_flags("vectors", VectorFields)
@options.with_flags(
    "sharding",
    Sharding,
    format={"help": f"{options.WORKERS}the format of parts: safetensors or parquet."},
)
def embed(
    model: options.ModelFolder,
    texts: options.Texts = None,
    too_long: options.TooLong = "error",
    columns: str | None = flag("The column of texts in the files of an index or of --workers."),
    delimiter: options.Delimiter = None,
    out: Path | None = flag(
        "Write FILE.npy, an array; or a folder: an index for regard search, and with "
        "--workers the parts.",
    ),
    force: options.Force = False,
    as_json: options.AsJson = False,
    *,
    opening: Opening,
    vectors: dict[str, Any],
    sharding: Sharding,
) -> None:
    """Compute vectors of texts: one line in, one vector out.

    The order is that of the lines, and an empty line has a vector, too.

    Lines from a pipe are processed as they arrive, in constant memory. With --granularity word or
    token, a line is the word, a tab and its vector, and an empty line follows each text. The
    correlation of cosines with human judgements: regard evaluate MODEL --data PAIRS.

    With --out FOLDER the arguments are files, text or tables, and the folder is an index: the texts
    with their vectors. With --workers it has parts of 1024 rows.
    """
    if sharding.asked():
        check_none("with --workers", {"force": force})
        work = ShardedWork(model, "embed", too_long, opening, of_texts(vectors), columns, delimiter)
        return sharding.run(work, texts, out, as_json)
    is_index = out is not None and out.suffix != ".npy"
    if out is None or not is_index:
        of_files = {"columns": columns, "delimiter": delimiter}
        check_none("without --out FOLDER or --workers", of_files)
    if out is None:
        check_none("without --out", {"force": force})
    elif not is_index:
        of_texts(vectors)
        check_none("with --out FILE.npy", {"json": as_json})
    options.check_out(out, force)
    task = console.load_task(model, **vars(opening))
    no_vectors = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, no_vectors)
    if out is not None and is_index:
        of_index = _texts_of(texts, options.column_names(columns), delimiter)
        with options.replaced(out, force, model):
            count, width = _write_index(task, model, of_index, opening, too_long, vectors, out)
        facts = {"folder": out, "texts": count, "width": width}
        return console.show(facts, f"{out}: an index of {count:,} texts", as_json)
    console.check_no_file(texts, table="{} with --out FOLDER, or with --workers 1")
    _embed_lines(task, texts, too_long, vectors, out, as_json)


def _embed_lines(
    task: Any,
    texts: Sequence[str] | None,
    too_long: str,
    vectors: dict[str, Any],
    out: Path | None,
    as_json: bool,
) -> None:
    """Write the vector of each text.

    Raises:
        DataError: a text has none; those of the texts before it are printed.
    """
    from regard.sharded.worker import VectorComputer
    from regard.tasks.embedder import VectorBatches

    embedder = VectorBatches.of(task.text_encoder(), **vectors)
    computer, total = VectorComputer(embedder, too_long), 0
    with _writer(out, as_json, embedder.width) as write:
        for chunk in console.chunks_of(texts):
            results, errors = computer.compute(chunk)
            end = min(errors, default=len(results))
            write(chunk, [result["vector"] for result in results[:end] if result])
            if errors:
                raise errors[end]
            total += len(results)
    console.warn_truncated(computer.counts["truncated"], total, embedder.input_format.max_length)


def _texts_of(
    files: Sequence[str] | None, columns: Sequence[str], delimiter: str | None
) -> list[str]:
    """The texts of an index: those of files, or the lines of standard input.

    Raises:
        ConfigError: the names do not tell which column holds texts.
        DataError: a file cannot be read.
    """
    if not files or list(files) == ["-"]:
        return [text for chunk in console.chunks_of(None) for text in chunk.texts]
    from regard.data.readers import TEXT
    from regard.sharded.manifest import input_files
    from regard.tasks.line_predictor import infer_columns, texts_of_row

    if len(columns) > 1:
        raise ConfigError(f"--columns must name the column of texts alone, but is {columns}.")
    texts = []
    for file in input_files([Path(name) for name in files], columns, delimiter):
        for line, record in file.table(keep_errors=False).numbered():
            columns = columns or (
                [TEXT] if file.format == "lines" else infer_columns(Path(file.path), record)
            )
            texts.append(texts_of_row(record, columns[:1], (file.path, line))[0])
    return texts


def _write_index(
    task: Any,
    model: Path,
    texts: list[str],
    opening: Opening,
    too_long: Any,
    vectors: dict[str, Any],
    out: Path,
) -> tuple[int, int]:
    """Write an index; the number of texts, and the width of their vectors."""
    from regard.tasks.search_index import SearchIndex

    scaled = of_texts(vectors)
    unscaled = scaled.pop("normalize", True) is False
    check_none("on an index, whose vectors have length 1", {"no_normalize": unscaled})
    of_folder = {"task": opening.task, "model_type": opening.model_type}
    check_none("on an index, which opens its model as its folder says", of_folder)
    settings = {"source": model, "quantize": opening.quantize, "too_long": too_long}
    index = SearchIndex.build(task, texts, **settings, **scaled)
    index.save(out)
    return len(texts), index.vectors.shape[1]


@contextmanager
def _writer(out: Path | None, as_json: bool, width: int) -> Iterator[Write]:
    """What writes vectors: as lines as they are computed, or at the end as an array of float32."""
    if out is None:
        yield _write_json if as_json else _write_lines
        return
    import numpy as np

    rows: list[np.ndarray] = []
    yield lambda chunk, vectors: rows.extend(vectors)
    with replacing(out) as temporary:
        with temporary.open("wb") as file:
            np.save(file, np.asarray(rows, np.float32).reshape(len(rows), width))
        sync(temporary)


def _write_lines(chunk: Chunk, vectors: Sequence[np.ndarray]) -> None:
    """A vector a line, numbers with 7 digits; of words or tokens each after its word and a tab."""
    for vector in vectors:
        if vector.ndim == 1:
            console.emit(_numbers(vector) + "\n")
        else:
            words = zip(vector.labels, vector, strict=True)  # type: ignore[attr-defined]
            console.emit("".join(f"{word}\t{_numbers(part)}\n" for word, part in words) + "\n")


def _write_json(chunk: Chunk, vectors: Sequence[np.ndarray]) -> None:
    """A text a line: its number from 0, the text, and its vector or those of its words."""
    texts = chunk.texts[: len(vectors)]
    for number, (text, vector) in enumerate(zip(texts, vectors, strict=True), chunk.first):
        facts: dict[str, Any] = {"number": number, "text": text}
        if vector.ndim == 1:
            facts["vector"] = vector.tolist()
        else:
            facts |= {"labels": vector.labels, "vectors": vector.tolist()}  # type: ignore[attr-defined]
        console.emit(console.to_json(facts) + "\n")


def _numbers(vector: np.ndarray) -> str:
    return " ".join([f"{number:.7g}" for number in vector.tolist()])


@options.with_opening
def search(
    words: Annotated[
        list[str],
        Argument(
            metavar="[MODEL] QUERY [TEXT]",
            help="A model, the query, and the texts that are searched, by default the lines of "
            "standard input; with --index the query alone.",
        ),
    ],
    index: Path | None = flag("Search this index, which regard embed --out has written."),
    model: Path | None = flag("With --index: the model of the index, if it has moved."),
    top_k: Annotated[int, Option("--top-k", "-n", help="Print the N most similar texts.")] = 10,
    too_long: options.TooLong = "error",
    as_json: options.AsJson = False,
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
        query = console.checked_argument(words[0])
        best = load_index(index, model, opening.device).search(query, top_k, too_long=too_long)
    else:
        check_none("without --index: the model comes first", {"model": model})
        best = _best(words, top_k, too_long, opening)
    lines = (
        f"{match.score:.4f}\t{match.index}\t{' '.join(match.text.splitlines())}" for match in best
    )
    console.show([asdict(match) for match in best], "\n".join(lines), as_json)


def _best(words: Sequence[str], top_k: int, too_long: str, opening: Opening) -> list[Any]:
    """The best of the texts of the command line or of standard input."""
    if len(words) < 2:
        raise ConfigError("Give a model and a query: regard search MODEL QUERY [TEXT ...]")
    model, query, texts = (
        options.existing(Path(words[0])),
        console.checked_argument(words[1]),
        words[2:],
    )
    task = console.load_task(model, **vars(opening))
    problem = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, problem)
    console.check_no_file(texts)
    listed = [text for chunk in console.chunks_of(texts) for text in chunk.texts]
    matches: list[Any] = task.search(query, listed, top_k, too_long=too_long)
    return matches


def of_model(opening: Opening) -> dict[str, Any]:
    """How a model is opened, but for its device."""
    return {name: value for name, value in vars(opening).items() if name != "device"}


@console.no_garbage_collection()
def load_index(folder: Path, model: Path | None = None, device: str | None = None) -> SearchIndex:
    """The index of a folder, with its model."""
    from regard.tasks.search_index import SearchIndex

    return SearchIndex.load(folder, model, device)
