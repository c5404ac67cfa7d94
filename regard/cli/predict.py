"""predict."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from regard.cli import console, options
from regard.cli.input_texts import chunks_of, hint_at_file
from regard.cli.outputs import Force, check_out
from regard.cli.sharding import ShardedWork, Sharding, with_sharding
from regard.tasks.line_predictor import LinePredictor, Result

TRANSLATE = "Translate texts with a model that translates; see predict."
TAG = "Tag the words of texts with a model that tags; see predict."


@options.with_opening
@options.with_decoding
@with_sharding
def predict(
    context: Context,
    model: options.ModelFolder,
    texts: options.Texts = None,
    too_long: options.TooLong = "error",
    scores: Annotated[
        bool, Option("--scores", help="Print the number, the score and the text of each output.")
    ] = False,
    as_json: options.AsJson = False,
    file: Annotated[
        Path | None,
        Option(metavar="FILE", help="Read texts from a table (CSV, TSV, JSONL, Parquet) or lines."),
    ] = None,
    columns: Annotated[
        str | None,
        Option(metavar="COLUMNS", help="The columns of --file that hold texts: text, or one,two."),
    ] = None,
    delimiter: options.Delimiter = None,
    out: Annotated[
        Path | None,
        Option(help="The table that is written for --file; with --workers a folder of parts."),
    ] = None,
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
    several = [name for name in ("n_best", "samples") if decoding.get(name, 1) > 1]
    work = ShardedWork(model, verb, too_long, opening, decoding, columns, delimiter)
    lines = {"scores": scores, **dict.fromkeys(several, True)}
    if file is not None:
        from regard.cli.predict_file import check_output, predict_file

        options.check_none("with --file FILE", {"TEXT": texts or None, "json": as_json, **lines})
        table = check_output(file, out)
        check_out(table, force)
        return predict_file(sharding, work, file, table)
    if sharding is not None:
        options.check_none("with --workers", {"force": force, **lines})
        return sharding.run(work, texts, out, as_json)
    of_files = {"columns": columns, "delimiter": delimiter, "out": out, "force": force}
    options.check_none("without --file or --workers", of_files)
    if as_json:
        options.check_none("with --json, which has the scores", {"scores": scores})
    form = _json_line if as_json else _score_lines if scores or several else _text_line
    _predict_lines(work, texts, scores, form)


def _predict_lines(
    work: ShardedWork, texts: list[str] | None, scores: bool, form: Callable[[Result], str]
) -> None:
    """Print the result of each text."""
    task = console.load_task(work.model, **vars(work.opening))
    task.require_method(work.verb, work.model)
    if not task.reads_images:
        hint_at_file(texts, table="--file {}")
    if not task.decodes:
        options.check_none(f"on the task {task.name}", {**work.options, "scores": scores})
    predictor = LinePredictor(task, work.too_long, work.options)
    for chunk in chunks_of(texts):
        results, error = predictor.predict(chunk)
        console.emit("".join(map(form, results)))
        if error is not None:
            raise error
    counts = predictor.counts
    unit = f"{task.limited}s"
    console.say_truncated(counts["truncated"], counts["texts"], predictor.limit, unit)
    console.say_unfinished(counts["unfinished"], counts["texts"])


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
