"""predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from regard.cli import console, options
from regard.cli.input_texts import Chunk, chunks_of, hint_at_file, is_blank
from regard.errors import ConfigError, DataError, TextError

if TYPE_CHECKING:
    from regard.tasks.verbs import TaskVerbs

Result = dict[str, Any]  # what --json prints of a line
EMPTY_HYPOTHESIS = {"text": "", "score": 0.0, "log_prob": 0.0, "finished": True}


@options.with_decoding
def predict(
    model: options.ModelFolder,
    texts: options.Texts = None,
    too_long: options.TooLong = "error",
    scores: Annotated[bool, Option("--scores", help="Print number, score and text.")] = False,
    quantize: options.Quantize = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
    file: Annotated[Path | None, Option(help="A table: CSV, TSV, JSONL or Parquet.")] = None,
    columns: Annotated[str | None, Option(help="Its texts: text, or one,two of a pair.")] = None,
    out: Annotated[Path | None, Option(help="The table with predictions.")] = None,
    *,
    decoding: dict[str, Any],
) -> None:
    """Translate, classify, tag, answer or continue: one line in, one line out, in order.

    Lines from a pipe are processed as they arrive. A tab separates the two texts of a pair, such as
    a question and its context. The result of an empty line is empty. With --scores or --n-best
    each hypothesis is a line: the number of its text from 0, its score and its text, separated by
    tabs.

    --file reads the texts from columns of a table. --out is a copy of it with further columns:
    prediction, and scores or probabilities.
    """
    if file is not None:
        out = _check_table(file, out, columns, texts, scores or as_json, decoding)
    elif columns or out:
        raise ConfigError("--columns and --out are for the table that --file names. Name it.")
    task = console.load_task(model, quantize, device)
    if file is None and not task.reads_images and (hint := hint_at_file(texts)):
        console.say(hint)
    from regard.decoding import count_acceptance

    if not task.decodes:
        options.check_no_decoding(task.name, decoding | ({"scores": True} if scores else {}))
    several = max(decoding.get("n_best", 1), decoding.get("samples", 1)) > 1
    form = _json_line if as_json else _score_lines if scores or several else _text_line
    predictor = LinePredictor(task, too_long, decoding)
    with count_acceptance() as acceptance:
        if file is not None and out is not None:
            _predict_file(predictor, file, columns, out)
        for chunk in chunks_of(texts) if file is None else ():
            results, error = predictor.predict(chunk)
            console.emit("".join(map(form, results)))
            if error is not None:
                raise error
    console.say_truncated(predictor.counts, predictor.limit, f"{task.limited}s")
    console.say_unfinished(predictor.counts)
    console.say_acceptance(acceptance)


def _check_table(
    file: Path,
    out: Path | None,
    columns: str | None,
    texts: Sequence[str] | None,
    lines: bool,
    decoding: Mapping[str, Any],
) -> Path:
    """The file to write for a table, before torch is imported.

    Raises:
        ConfigError: something else that is given does not go with --file.
    """
    from regard.cli.predict_file import check_output
    from regard.data.files import check_file

    if texts:
        raise ConfigError(f"--file {file} and the text {texts[0]!r} are given. Leave one out.")
    if lines or decoding.get("n_best", 1) > 1 or decoding.get("samples", 1) > 1:
        raise ConfigError(
            "--json, --scores, --n-best and --samples print lines, and --file writes a table with "
            "one prediction a row. Leave them out; --out answers.jsonl writes JSON."
        )
    check_file(file)
    return check_output(file, out)


def _predict_file(predictor: LinePredictor, file: Path, columns: str | None, out: Path) -> None:
    from regard.cli.predict_file import predict_file

    names = [name.strip() for name in (columns or "").split(",") if name.strip()]
    rows = predict_file(predictor.task, predictor.predict, file, names, out)
    console.say(f"{out}: {rows:,} rows of {file} with their predictions")


class LinePredictor:
    """Predictions for lines of text, and `counts` of the texts that were truncated or cut off."""

    def __init__(self, task: TaskVerbs, too_long: str, decoding: Mapping[str, Any]):
        self.task, self.too_long, self.decoding = task, too_long, decoding
        self.counts = Counter[str]()

    @property
    def limit(self) -> int | None:
        """The most tokens that a text, or the question of one, may have; None: any number."""
        return self.task.token_limit(**self.decoding)

    def predict(self, chunk: Chunk) -> tuple[list[Result], DataError | None]:
        """The results of the lines before the first without a prediction, and the error for it."""
        error: DataError | None = None
        while True:
            filled = [index for index, line in enumerate(chunk.texts) if not is_blank(line)]
            texts = [self._text(chunk.texts[index]) for index in filled]
            try:
                long = self.task.over_limit(texts, **self.decoding)
                if not long or self.too_long == "truncate":
                    found = self._predictions(texts, "truncate" if long else "error")
                    return self._results(chunk, dict(zip(filled, found, strict=True)), long), error
                first, tokens = min(long.items())
                end = filled[first]
                error = chunk.too_long(end, tokens, self.limit, self.task.limited)
            except TextError as problem:
                end = filled[problem.index]
                error = chunk.error(end, problem.problem, problem.hint)
            chunk = chunk.until(end)

    def _text(self, line: str | tuple[str, ...]) -> Any:
        """The text of a line; for a task that reads pairs, the texts between tabs.

        A row of a table is a tuple: its texts may contain tabs.
        """
        if isinstance(line, tuple):
            return line if len(line) > 1 else line[0]
        pair = not self.task.decodes and self.task.reads_pairs and "\t" in line
        return tuple(line.split("\t")) if pair else line

    def _predictions(self, texts: Sequence[Any], too_long: str) -> Sequence[Result]:
        task = self.task
        if not task.decodes:
            predictions = task.predictions(texts, too_long=too_long)
            return [{"text": str(one), **one.values()} for one in predictions]
        from regard.decoding.hypothesis import unfinished, values_of

        found = task.hypotheses(texts, **self.decoding, too_long=too_long)
        self.counts["unfinished"] += unfinished(found)
        return [
            {"text": outputs[0], "hypotheses": values_of(hypotheses, outputs)}
            for hypotheses, outputs in zip(found, task.spelled(texts, found), strict=True)
        ]

    def _results(
        self, chunk: Chunk, found: Mapping[int, Result], long: Mapping[int, int]
    ) -> list[Result]:
        """A result for each line; `found` by the index of the line, `long` among those found."""
        self.counts.update(texts=len(chunk.texts), truncated=len(long))
        truncated = {index for number, index in enumerate(found) if number in long}
        return [
            {
                "number": chunk.first + index,
                "source": line,
                "text": "",
                "truncated": index in truncated,
                **(found[index] if index in found else self._empty()),
            }
            for index, line in enumerate(chunk.texts)
        ]

    def _empty(self) -> Result:
        """The result of an empty line."""
        if self.task.decodes:
            return {"hypotheses": [EMPTY_HYPOTHESIS]}
        return {**self.task.prediction_type.empty_values(), "text": ""}


def _text_line(result: Result) -> str:
    return _one_line(result["text"])


def _score_lines(result: Result) -> str:
    return "".join(
        f"{result['number']}\t{h['score']:.4f}\t{_one_line(h['text'])}"
        for h in result["hypotheses"]
    )


def _json_line(result: Result) -> str:
    return console.to_json(result) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) + "\n"
