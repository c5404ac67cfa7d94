"""predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from regard.cli import console, options
from regard.cli.input_texts import chunks_of, hint_at_file
from regard.cli.outputs import Force, check_out
from regard.cli.sharding import ShardedWork, Sharding, with_sharding
from regard.errors import ConfigError
from regard.tasks.line_predictor import LinePredictor, Result

TRANSLATE = "Translate texts with a model that translates; see predict."
TAG = "Tag the words of texts with a model that tags; see predict."

Scores = Annotated[
    bool, Option("--scores", help="Print the number, the score and the text of each output.")
]
Table = Annotated[
    Path | None,
    Option(metavar="FILE", help="Read texts from a table: CSV, TSV, JSONL or Parquet."),
]
TableColumns = Annotated[
    str | None,
    Option(metavar="COLUMNS", help="The columns of --file that hold texts: text, or one,two."),
]
Out = Annotated[
    Path | None,
    Option(help="The table that is written for --file; with --workers a folder of parts."),
]


@options.with_opening
@options.with_decoding
@with_sharding
def predict(
    context: Context,
    model: options.ModelFolder,
    texts: options.Texts = None,
    too_long: options.TooLong = "error",
    scores: Scores = False,
    as_json: options.AsJson = False,
    file: Table = None,
    columns: TableColumns = None,
    out: Out = None,
    force: Force = False,
    *,
    opening: options.Opening,
    decoding: dict[str, Any],
    sharding: Sharding | None,
) -> None:
    """Predict for texts with any model: one line in, one line out.

    It translates, classifies, tags, answers or continues. Lines from a pipe are processed as they
    arrive. A tab separates the two texts of a pair, such as a question and its context. The result
    of an empty line is empty. With --scores or --n-best each hypothesis is a line: the number of
    its text from 0, its score and its text, separated by tabs.

    --file reads the texts from columns of a table. --out is a copy of it with further columns:
    prediction, and scores or probabilities. --workers computes it with several processes.

    With --workers and without --file the arguments are files, and --out is a folder with parts
    of 1024 rows.
    """
    verb = context.info_name or "predict"
    if file is not None:
        out = _check_table(file, out, texts, scores or as_json, decoding)
        check_out(out, force)
    if sharding is not None:
        _check_one_output(scores, decoding)
        work = ShardedWork(model, verb, too_long, opening, decoding)
        if file is None or out is None:
            return sharding.run(work, texts, columns, out, as_json)
        from regard.cli.joined_parts import predict_table

        return predict_table(sharding, work, file, columns, out)
    if file is None and (columns or out):
        raise ConfigError(
            "--columns and --out are for files. Name a table by --file, or let --workers N write "
            "the parts of the files into the folder --out."
        )
    task = console.load_task(model, **vars(opening))
    task.require_method(verb, model)
    if file is None and not task.reads_images and (hint := hint_at_file(texts, table="--file {}")):
        console.say(hint)
    if not task.decodes:
        options.check_no_decoding(task.name, decoding | ({"scores": True} if scores else {}))
    several = max(decoding.get("n_best", 1), decoding.get("samples", 1)) > 1
    form = _json_line if as_json else _score_lines if scores or several else _text_line
    predictor = LinePredictor(task, too_long, decoding)
    if file is not None and out is not None:
        _predict_file(predictor, file, columns, out)
    for chunk in chunks_of(texts) if file is None else ():
        results, error = predictor.predict(chunk)
        console.emit("".join(map(form, results)))
        if error is not None:
            raise error
    console.say_truncated(predictor.counts, predictor.limit, f"{task.limited}s")
    console.say_unfinished(predictor.counts)


def _check_one_output(scores: bool, decoding: Mapping[str, Any]) -> None:
    """Check that --workers is used with what it can write.

    Raises:
        ConfigError: it is not.
    """
    if scores or decoding.get("n_best", 1) > 1 or decoding.get("samples", 1) > 1:
        raise ConfigError(
            "--scores, --n-best and --samples print several lines, and --workers writes one "
            "prediction a row. Leave them out."
        )


def _check_table(
    file: Path,
    out: Path | None,
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

    names = options.column_names(columns)
    rows = predict_file(predictor.task, predictor.predict, file, names, out)
    console.say(f"{out}: {rows:,} rows of {file} with their predictions")


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
