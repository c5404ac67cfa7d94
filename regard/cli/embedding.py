"""embed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import typer

from regard.cli.console import AsJson, Model, Quantize, dumps, emit, loaded
from regard.cli.lines import Chunk, chunks_of
from regard.cli.using import report
from regard.errors import ConfigError, RegardError, TextError

if TYPE_CHECKING:
    import numpy as np

    from regard.tasks.embedder import Embedder, EncodedTexts

    Vectors = np.ndarray | Sequence[np.ndarray]  # one for each text


def embed(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="- reads standard input.")
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="first, last, second-to-last, sum, sum-last-4, concat-last-4, a number, or a mix "
            "such as mix:0,0.5,1."
        ),
    ] = "last",
    pooling: Annotated[
        str | None,
        typer.Option(help="mean, first, last or max; of a text by default as the folder says."),
    ] = None,
    per: Annotated[
        Literal["text", "word", "token"], typer.Option(help="What a vector is of.")
    ] = "text",
    normalize: Annotated[
        bool | None,
        typer.Option(help="To length 1; by default as the folder says.", show_default=False),
    ] = None,
    too_long: Annotated[
        Literal["error", "truncate"], typer.Option(help="For texts beyond the model's limit.")
    ] = "error",
    quantize: Quantize = None,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the matrix products.")
    ] = "float32",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="Write an array, a row a text.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Vectors of texts: one line in, one vector a line out, in order; of an empty line, too.

    What comes through a pipe is answered as it comes, and memory stays flat. Per word or token, a
    line is the word, a tab and its vector, and an empty line follows each text. How well cosines of
    vectors go together with what people say: regard evaluate MODEL --data PAIRS.
    """
    task = loaded(model, quantize=quantize)
    from regard.tasks.embedder import Embedder

    no_vectors = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, no_vectors)
    embedder = Embedder.of(
        task.text_encoder(),
        layers=layers,
        pooling=pooling,
        per=per,
        normalize=normalize,
        precision=precision,
    )
    with _written(out, per, as_json, embedder.width) as sink:
        tally = Counter[str]()
        for chunk in chunks_of(texts):
            _embed(embedder, chunk, sink, tally, too_long)
        report(tally, embedder.pieces.max_length or 0)


def _embed(
    embedder: Embedder, chunk: Chunk, sink: Sink, tally: Counter[str], too_long: str
) -> None:
    """One chunk, in parts whose vectors are held together.

    Raises:
        DataError: a text is beyond the limit and that is an error, or its vector is not finite;
            those before it are written.
    """
    parts = _parts(chunk, embedder.unit.chunk)
    for part, (encoded, long) in zip(parts, embedder.encoded_chunks(chunk.texts), strict=True):
        if long and too_long == "error":
            before = part.until(long[0])
            if before.texts:
                _write(embedder, before, embedder.encode(before.texts), sink)
            tokens = len(encoded.rows[long[0]])
            raise part.too_long(long[0], tokens, embedder.pieces.max_length or 0)
        _write(embedder, part, encoded, sink)
        tally.update(texts=len(part.texts), truncated=len(long))


def _write(embedder: Embedder, part: Chunk, encoded: EncodedTexts, sink: Sink) -> None:
    """The vectors of texts; those before one whose vector is not finite."""
    try:
        vectors = embedder.vectors(encoded)
    except TextError as error:
        before = part.until(error.place)
        if before.texts:
            _write(embedder, before, embedder.encode(before.texts), sink)
        raise part.error(error.place, error.problem, error.hint) from None
    sink.write(part, vectors)


def _parts(chunk: Chunk, size: int) -> Iterator[Chunk]:
    for start in range(0, len(chunk.texts), size):
        yield Chunk(chunk.first + start, chunk.texts[start : start + size], chunk.origin)


# ------------------------------------------------------------------------------ where vectors go


class Sink(Protocol):
    """Takes the vectors of texts as they are computed."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None: ...


class Lines:
    """One vector a line, numbers with 7 digits; per word, the word before it."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        emit("".join(map(_lines, vectors)))


class Json:
    """One text a line: its number from 0, itself, its vector or its words and their vectors."""

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        numbered = enumerate(zip(chunk.texts, vectors, strict=True), chunk.first)
        emit("".join(dumps(_facts(n, text, found)) + "\n" for n, (text, found) in numbered))


class ArrayFile:
    """Rows of float32 in numpy's format, written as they come; the file appears when all are there.

    The header tells the number of rows, which is known at the end: it has room for any.
    """

    ROOM = 128

    def __init__(self, path: Path, width: int):
        if path.suffix != ".npy":
            raise ConfigError(f"--out must end in .npy, but is {path}.")
        self.path, self.width, self.rows = path, width, 0
        self.begun = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Self:
        self.file = self.begun.open("wb")
        self.file.write(self._header())
        return self

    def write(self, chunk: Chunk, vectors: Vectors) -> None:
        import numpy as np

        self.file.write(np.asarray(vectors, "<f4").tobytes())
        self.rows += len(vectors)

    def __exit__(self, kind: Any, *error: Any) -> None:
        # What was computed before an error about a text is whole rows, and worth keeping.
        if kind is None or issubclass(kind, RegardError):
            self.file.seek(0)
            self.file.write(self._header())
            self.file.close()
            self.begun.replace(self.path)
        else:
            self.file.close()
            self.begun.unlink()

    def _header(self) -> bytes:
        shape = f"({self.rows}, {self.width})"
        facts = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        before = b"\x93NUMPY\x01\x00" + (self.ROOM - 10).to_bytes(2, "little")
        return before + facts.ljust(self.ROOM - 11).encode() + b"\n"


def _written(out: Path | None, per: str, as_json: bool, width: int) -> Any:
    """Where the vectors go, to be entered."""
    if out is None:
        return nullcontext(Json() if as_json else Lines())
    if per != "text" or as_json:
        option = "--json" if as_json else f"--per {per}"
        raise ConfigError(f"--out writes an array with a row for each text: {option} is for lines.")
    return ArrayFile(out, width)


def _lines(found: np.ndarray) -> str:
    if found.ndim == 1:
        return _numbers(found) + "\n"
    words = zip(found.labels, found, strict=True)  # type: ignore[attr-defined]
    return "".join(f"{word}\t{_numbers(vector)}\n" for word, vector in words) + "\n"


def _numbers(vector: np.ndarray) -> str:
    return " ".join([f"{number:.7g}" for number in vector.tolist()])


def _facts(number: int, text: str, found: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {"number": number, "text": text}
    if found.ndim == 1:
        return {**facts, "vector": found.tolist()}
    labels = found.labels  # type: ignore[attr-defined]
    return {**facts, "labels": labels, "vectors": found.tolist()}
