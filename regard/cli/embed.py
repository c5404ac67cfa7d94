"""embed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeVar

from typer import Option

from regard.cli.console import emit, load_task, say_truncated, show, to_json
from regard.cli.input_texts import TABLES, chunks_of, chunks_of_file_or_texts
from regard.cli.options import (
    AsJson,
    ModelFolder,
    Opening,
    Texts,
    TooLong,
    column_names,
    with_flags,
    with_opening,
)
from regard.cli.outputs import Force, check_out, replaced
from regard.cli.sharding import ShardedWork, Sharding, with_vector_sharding
from regard.data.text_chunks import Chunk
from regard.errors import ConfigError, RegardError, TextError

if TYPE_CHECKING:
    import numpy as np

    from regard.tasks.embedder import EncodedTexts, VectorBatches

    Vectors = np.ndarray | Sequence[np.ndarray]  # one for each text


LAYERS = "Use these layers, such as -1 or -4,-3,-2,-1; 0 is the embeddings, -1 the last layer."
COMBINE = ("concat", "sum", "mean")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class VectorOptions:
    """What a vector is made of."""

    layers: Annotated[str, Option(metavar="LAYERS", help=LAYERS)] = "-1"
    combine: Annotated[
        str,
        Option(
            metavar="COMBINE",
            help="Combine several layers: concat, sum, mean, or their weights, such as 0.5,0.5.",
        ),
    ] = "concat"
    pooling: Annotated[
        str | None,
        Option(
            metavar="POOLING",
            help="Pool the states of tokens by mean, first, last or max; default: the folder's.",
        ),
    ] = None
    granularity: Annotated[
        Literal["sentence", "word", "token"],
        Option(help="Compute a vector for each sentence (a whole text), word or token."),
    ] = "sentence"
    normalize: Annotated[
        bool | None, Option(help="Scale vectors to length 1 or not; default: as the folder says.")
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16"], Option(help="Compute matrix products in this precision.")
    ] = "float32"

    def of_texts(self) -> dict[str, Any]:
        """The options of vectors of texts that differ from the defaults.

        Raises:
            ConfigError: vectors of words or tokens are asked for.
        """
        if self.granularity != "sentence":
            raise ConfigError(
                "--out writes a vector for each text: --granularity "
                f"{self.granularity} is for lines."
            )
        defaults = VectorOptions().options()
        return {name: value for name, value in self.options().items() if value != defaults[name]}

    def options(self) -> dict[str, Any]:
        """As `embed` of a task takes them."""
        layers = _numbers_in(self.layers, int, "--layers must be")
        combine: str | list[float] = self.combine
        if self.combine not in COMBINE:
            kinds = f"--combine must be {', '.join(COMBINE)}, or"
            combine = _numbers_in(self.combine, float, kinds)
        return asdict(self) | {"layers": layers, "combine": combine}


def _numbers_in(text: str, kind: Callable[[str], Number], must_be: str) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        problem = f"numbers with commas between them, but is {text!r}."
        raise ConfigError(f"{must_be} {problem}") from None


Columns = Annotated[
    str | None,
    Option(metavar="COLUMN", help="The column of texts in the files of an index or of --workers."),
]
Out = Annotated[
    Path | None,
    Option(
        metavar="PATH",
        help="Write FILE.npy, an array; or a folder: an index for regard search, and with "
        "--workers the parts.",
    ),
]


@with_opening
@with_flags("vectors", VectorOptions)
@with_vector_sharding
def embed(
    model: ModelFolder,
    texts: Texts = None,
    too_long: TooLong = "error",
    columns: Columns = None,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
    *,
    opening: Opening,
    vectors: VectorOptions,
    sharding: Sharding | None,
) -> None:
    """Compute vectors of texts: one line in, one vector out.

    The order is that of the lines, and an empty line has a vector, too. A single TEXT that is the
    name of a file means its lines.

    Lines from a pipe are processed as they arrive, in constant memory. With --granularity word or
    token, a line is the word, a tab and its vector, and an empty line follows each text. The
    correlation of cosines with human judgements: regard evaluate MODEL --data PAIRS.

    With --out FOLDER the arguments are files, text or tables, and the folder is an index: the texts
    with their vectors. With --workers it has parts of 1024 rows.
    """
    if sharding is not None:
        work = ShardedWork(model, "embed", too_long, opening, vectors.of_texts())
        return sharding.run(work, texts, columns, out, as_json)
    is_index = out is not None and out.suffix != ".npy"
    if columns and not is_index:
        raise ConfigError("--columns is for the files of an index (--out FOLDER) or of --workers.")
    check_out(out, force)
    task = load_task(model, **vars(opening))
    from regard.tasks.embedder import VectorBatches

    no_vectors = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, no_vectors)
    if out is not None and is_index:
        listed = _texts_of(task, texts, columns)
        return _write_index(task, model, listed, opening, too_long, vectors, out, force, as_json)
    embedder = VectorBatches.of(task.text_encoder(), **vectors.options())
    with _writer(out, vectors, as_json, embedder.width) as writer:
        counts = Counter[str]()
        for chunk in chunks_of_file_or_texts(texts):
            _embed(embedder, chunk, writer, counts, too_long)
        say_truncated(counts, embedder.input_format.max_length or 0)


def _texts_of(task: Any, files: Sequence[str] | None, columns: str | None) -> list[str]:
    """The texts of an index: those of files, or the lines of standard input.

    Raises:
        ConfigError: an argument is no file, or the names do not tell which column holds texts.
        DataError: a file cannot be read.
    """
    if not files or list(files) == ["-"]:
        return [text for chunk in chunks_of(None) for text in chunk.texts]
    from regard.cli.predict_file import chunks_of_table
    from regard.data import read
    from regard.data.files import check_file, ending

    names, found = column_names(columns), list[str]()
    if len(names) > 1:
        raise ConfigError(f"--columns must name the one column with texts, but is {columns}.")
    for file in map(Path, files):
        check_file(file)
        if ending(str(file)) in TABLES:
            for chunk in chunks_of_table(file, names, task):
                found += [text for (text,) in chunk.texts]
        else:
            found += read(file).texts()
    return found


def _write_index(
    task: Any,
    model: Path,
    texts: list[str],
    opening: Opening,
    too_long: Any,
    vectors: VectorOptions,
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write an index, and say what it holds."""
    from regard.tasks.search_index import SearchIndex

    options = vectors.of_texts()
    if options.pop("normalize", True) is False:
        raise ConfigError("--no-normalize has no effect on an index: vectors there have length 1.")
    if opening.task or opening.model_type:
        raise ConfigError(
            "An index opens its model again as its folder says. Save the model with this task or "
            "type first, and leave out --task and --model-type."
        )
    made = {"source": model, "quantize": opening.quantize, "too_long": too_long}
    index = SearchIndex.build(task, texts, **made, **options)
    with replaced(out, force, model):
        index.save(out)
    facts = {"folder": out, "texts": len(texts), "width": index.vectors.shape[1]}
    show(facts, f"{out}: an index of {len(texts):,} texts", as_json)


def _embed(
    embedder: VectorBatches, chunk: Chunk, writer: Writer, counts: Counter[str], too_long: str
) -> None:
    """Write the vectors of a chunk, some texts at a time.

    Raises:
        DataError: a text is beyond the limit and `too_long` is "error", or its vector is not
            finite; the vectors of the texts before it are written.
    """
    parts = chunk.split(embedder.unit.chunk)
    for part, (encoded, long) in zip(parts, embedder.encoded_chunks(chunk.texts), strict=True):
        if long and too_long == "error":
            _write_until(embedder, part, long[0], writer)
            tokens = len(encoded.inputs[long[0]])
            raise part.too_long(long[0], tokens, embedder.input_format.max_length or 0)
        _write(embedder, part, encoded, writer)
        counts.update(texts=len(part.texts), truncated=len(long))


def _write(embedder: VectorBatches, part: Chunk, encoded: EncodedTexts, writer: Writer) -> None:
    """Write the vectors of texts, or of those before the first whose vector is not finite."""
    try:
        vectors = embedder.vectors(encoded)
    except TextError as error:
        _write_until(embedder, part, error.index, writer)
        raise part.error(error.index, error.problem, error.hint) from None
    writer.write(part, vectors)


def _write_until(embedder: VectorBatches, part: Chunk, index: int, writer: Writer) -> None:
    """Write the vectors of the texts before this one."""
    before = part.until(index)
    if before.texts:
        _write(embedder, before, embedder.encode(before.texts), writer)


class Writer(Protocol):
    """Writes the vectors of texts as they are computed."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None: ...


class LineWriter:
    """One vector a line, numbers with 7 digits; per word or token, after it and a tab."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        emit("".join(map(_lines, vectors)))


class JsonWriter:
    """One text a line: its number from 0, the text, and its vector or those of its words."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        numbered = enumerate(zip(chunk.texts, vectors, strict=True), chunk.first)
        emit("".join(to_json(_facts(n, text, found)) + "\n" for n, (text, found) in numbered))


class ArrayWriter:
    """Rows of float32 in numpy's format, in a file that is renamed when it is complete.

    The header holds the number of rows, which is known at the end: it has a fixed size.
    """

    HEADER = 128  # bytes

    def __init__(self, path: Path, width: int):
        self.path, self.width, self.rows = path, width, 0
        self.partial = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Self:
        self.file = self.partial.open("wb")
        self.file.write(self._header())
        return self

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        import numpy as np

        self.file.write(np.asarray(vectors, "<f4").tobytes())
        self.rows += len(vectors)

    def __exit__(self, kind: Any, *error: Any) -> None:
        # The rows before an error about a text are complete, and kept; they replace no older file.
        keep = kind is None or (issubclass(kind, RegardError) and not self.path.exists())
        if keep:
            self.file.seek(0)
            self.file.write(self._header())
        self.file.close()
        if keep:
            self.partial.replace(self.path)
        else:
            self.partial.unlink()

    def _header(self) -> bytes:
        shape = f"({self.rows}, {self.width})"
        facts = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        start = b"\x93NUMPY\x01\x00" + (self.HEADER - 10).to_bytes(2, "little")
        return start + facts.ljust(self.HEADER - 11).encode() + b"\n"


def _writer(
    out: Path | None, vectors: VectorOptions, as_json: bool, width: int
) -> AbstractContextManager[Writer]:
    """Where the vectors go."""
    if out is None:
        return nullcontext(JsonWriter() if as_json else LineWriter())
    vectors.of_texts()
    if as_json:
        raise ConfigError("--out writes an array with a row for each text: --json is for lines.")
    return ArrayWriter(out, width)


def _lines(vectors: np.ndarray) -> str:
    if vectors.ndim == 1:
        return _numbers(vectors) + "\n"
    words = zip(vectors.labels, vectors, strict=True)  # type: ignore[attr-defined]
    return "".join(f"{word}\t{_numbers(vector)}\n" for word, vector in words) + "\n"


def _numbers(vector: np.ndarray) -> str:
    return " ".join([f"{number:.7g}" for number in vector.tolist()])


def _facts(number: int, text: str, vectors: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {"number": number, "text": text}
    if vectors.ndim == 1:
        return {**facts, "vector": vectors.tolist()}
    labels = vectors.labels  # type: ignore[attr-defined]
    return {**facts, "labels": labels, "vectors": vectors.tolist()}
