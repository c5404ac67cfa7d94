"""predict, with its names translate and tag; generate.

`regard predict --file` writes a copy of a table with the predictions as columns. The rows are
computed into parts, as with --workers and a folder; they are then joined to one table.

OUT.parts/          the parts; removed when OUT is complete
OUT                 the table with its predictions
OUT.failed.jsonl    with --workers: file, line and reason of each row without a prediction
"""

import csv
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any

from typer import Argument, Context

from regard.cli import console, options
from regard.cli.options import Opening, ShardedWork, Sharding, check_none, flag
from regard.data.files import check_file, ending
from regard.errors import ConfigError, DataError
from regard.executors import ExecutorOptions
from regard.file_writing import replacing, sync
from regard.tasks.line_predictor import LinePredictor, Result

TRANSLATE = "Translate texts with a model that translates; see predict."
TAG = "Tag the words of texts with a model that tags; see predict."


@options.with_opening
@options.with_decoding
@options.with_sharding
def predict(
    context: Context,
    model: options.ModelFolder,
    texts: options.Texts = None,
    too_long: options.TooLong = "error",
    scores: bool = flag("Print the number, the score and the text of each output.", False),
    as_json: options.AsJson = False,
    file: Path | None = flag("Read texts from a table (CSV, TSV, JSONL, Parquet) or lines."),
    columns: str | None = flag("The columns of --file that hold texts: text, or one,two."),
    delimiter: options.Delimiter = None,
    out: Path | None = flag(
        "The table that is written for --file; with --workers a folder of parts."
    ),
    force: options.Force = False,
    *,
    opening: Opening,
    decoding: dict[str, Any],
    sharding: Sharding,
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
        check_none("with --file FILE", {"TEXT": texts or None, "json": as_json, **lines})
        table = check_output(file, out)
        options.check_out(table, force)
        return predict_file(sharding, work, file, table)
    if sharding.asked():
        check_none("with --workers", {"force": force, **lines})
        return sharding.run(work, texts, out, as_json)
    of_files = {"columns": columns, "delimiter": delimiter, "out": out, "force": force}
    check_none("without --file or --workers", of_files)
    if as_json:
        check_none("with --json, which has the scores", {"scores": scores})
    form = _json_line if as_json else _score_lines if scores or several else _text_line
    _predict_lines(work, texts, scores, form)


def _predict_lines(
    work: ShardedWork, texts: list[str] | None, scores: bool, form: Callable[[Result], str]
) -> None:
    """Print the result of each text."""
    task = console.load_task(work.model, **vars(work.opening))
    task.require_method(work.verb, work.model)
    if not task.reads_images:
        console.check_no_file(texts, table="--file {}")
    if not task.decodes:
        check_none(f"on the task {task.name}", {**work.options, "scores": scores})
    predictor = LinePredictor(task, work.too_long, work.options)
    for chunk in console.chunks_of(texts):
        results, error = predictor.predict(chunk)
        console.emit("".join(map(form, results)))
        if error is not None:
            raise error
    counts = predictor.counts
    unit = f"{task.limited}s"
    console.warn_truncated(counts["truncated"], counts["texts"], predictor.limit, unit)
    console.warn_unfinished(counts["unfinished"], counts["texts"])


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


ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
PARTS_AT_ONCE = 64  # of Parquet, which are written as one row group
HERE = Sharding(1, strict=True, executor=ExecutorOptions("here"))  # without --workers


def check_output(file: Path, out: Path | None) -> Path:
    """The path of the output file.

    Raises:
        ConfigError: no path is given, its ending is not supported, or it is the input file.
        DataError: there is no input file.
    """
    check_file(file)
    if out is None or out.suffix not in ENDINGS:
        raise ConfigError(
            f"--file needs a file for the answers, --out answers{ENDINGS[0]}, whose ending is one "
            f"of {', '.join(ENDINGS)}, but --out is {out or 'not given'}."
        )
    return out


def predict_file(sharding: Sharding, work: ShardedWork, file: Path, out: Path) -> None:
    """Write the rows of a table with their predictions, all or nothing.

    sharding: with workers the same command continues after an interruption, and rows without a
        prediction are listed beside the table. Without, this process computes.

    Raises:
        ConfigError: --format is given, the parts were begun with other settings, or the names do
            not tell which columns are texts.
        DataError: the table has no row; or, without workers, a row has no prediction.
        RegardError: no row has a prediction; the table is written.
        Others as `regard.sharded.driver.compute_files`.
    """
    if sharding.asked():
        check_none("with --file: the ending of --out says it", {"format": sharding.format})
        return _predict(sharding, work, file, out, out.with_name(f"{out.name}.parts"))
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        _predict(HERE, work, file, out, Path(folder))


def _predict(sharding: Sharding, work: ShardedWork, file: Path, out: Path, folder: Path) -> None:
    from regard.sharded.manifest import ALL_FAILED
    from regard.sharded.parts import iter_results

    typed = ".parquet" in (ending(file), out.suffix)  # JSON has no dates
    format = "parquet" if typed else "jsonl"
    progress = None if sharding is not HERE or sys.stderr.isatty() else False
    summary = sharding.compute(work, [str(file)], folder, format, progress)
    if not summary.rows:
        raise DataError(file, None, "is empty: it has not one row.")
    if summary.missing:
        return console.say(str(summary))
    results = iter_results(folder)
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            _join_parquet(results.files, temporary)
        else:
            with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as to:
                _write_text(results, to, out.suffix, file)
        sync(temporary)
    failed = out.with_name(f"{out.name}.failed.jsonl")
    text = f"{out}: {summary.rows:,} rows of {file} with their predictions"
    if summary.failed:
        os.replace(folder / ALL_FAILED, failed)
        text += f"; {summary.failed:,} rows have none: see {failed}"
    shutil.rmtree(folder)
    console.say(text)
    console.warn_truncated(summary.truncated, summary.rows)
    console.warn_unfinished(summary.unfinished, summary.rows)
    options.check_results(summary, failed)


def _join_parquet(parts: Sequence[Path], out: Path) -> None:
    """Write the parts, which have one schema, as one file with few row groups."""
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetWriter(out, parquet.read_schema(parts[0])) as writer:
        for start in range(0, len(parts), PARTS_AT_ONCE):
            several = map(parquet.read_table, parts[start : start + PARTS_AT_ONCE])
            writer.write_table(pyarrow.concat_tables(several).combine_chunks())


def _write_text(rows: Iterable[dict[str, Any]], out: IO[str], suffix: str, file: Path) -> None:
    """Write JSONL; or CSV or TSV, whose columns are those of the first row with a prediction.

    In CSV and TSV lists and objects are JSON, and in TSV a tab or line break becomes a space.

    Raises:
        DataError: a row has a column that CSV or TSV lacks.
    """
    if suffix == ".jsonl":
        return out.writelines(f"{console.to_json(row)}\n" for row in rows)
    predicted = (row for row in rows if row["prediction"] is not None)
    names = list(next(chain(predicted, rows)))
    table = csv.writer(out, lineterminator="\n")
    table_rows = chain([dict(zip(names, names, strict=True))], rows)
    for row in table_rows:
        if extra := row.keys() - {*names}:
            problem = f"has rows with the field {min(extra)!r}, which the first does not have."
            raise DataError(file, None, problem, "Write --out answers.jsonl instead.")
        cells = [_cell(row.get(name)) for name in names]
        if suffix == ".csv":
            table.writerow(cells)
        else:
            fields = (" ".join(cell.replace("\t", " ").splitlines()) for cell in cells)
            out.write("\t".join(fields) + "\n")


def _cell(value: Any) -> str:
    """A value as text; nothing is "", and what is neither text nor a date is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else console.to_json(value).strip('"')


@options.with_opening
@options.with_decoding
@options.with_sharding
def generate(
    model: options.ModelFolder,
    prompt: Annotated[
        list[str] | None,
        Argument(
            help="The text to continue; - is standard input as a whole; without one its lines.",
        ),
    ] = None,
    too_long: options.TooLong = "error",
    window: bool = flag("Go on beyond the context: read the last tokens that fit.", False),
    columns: str | None = flag("With --workers: the column of the files that holds prompts."),
    delimiter: options.Delimiter = None,
    out: Path | None = flag("With --workers: the folder that the parts are written to."),
    as_json: options.AsJson = False,
    *,
    opening: Opening,
    decoding: dict[str, Any],
    sharding: Sharding,
) -> None:
    """Continue a prompt, or generate a text for a source.

    A prompt that leaves no room for a token is an error; --too-long truncate keeps its end.

    With --workers the arguments are files of prompts, and --out is a folder with parts of 1024
    rows.
    """
    if window:
        decoding["window"] = True
    if sharding.asked():
        work = ShardedWork(model, "generate", too_long, opening, decoding, columns, delimiter)
        return sharding.run(work, prompt, out, as_json)
    check_none("without --workers", {"columns": columns, "delimiter": delimiter, "out": out})
    console.check_no_file(prompt, "- < {}")
    _generate(model, _prompts(prompt), too_long, opening, as_json, decoding)


def _prompts(given: Sequence[str] | None) -> list[str]:
    """The prompt of the command line, or with - standard input as a whole; without one the lines of
    standard input, or where there are none the empty prompt.

    Raises:
        ConfigError: there are several.
        DataError: it is not UTF-8.
    """
    if given is not None and len(given) > 1:
        raise ConfigError(f"several prompts: {given[0]!r}, {given[1]!r}. Put quotes around one.")
    if given and given != ["-"]:
        return [console.checked_argument(given[0])]
    piped = given or not sys.stdin.isatty()
    lines = [text for chunk in console.chunks_of(None) for text in chunk.texts] if piped else []
    return ["\n".join(lines)] if given else lines or [""]


def _generate(
    model: Path,
    prompts: list[str],
    too_long: str,
    opening: Opening,
    as_json: bool,
    decoding: dict[str, Any],
) -> None:
    """Print what the model generates after each prompt."""
    from regard.decoding import TokenMethod, with_options
    from regard.decoding.steps import values_of

    task = console.load_task(model, **vars(opening))
    task.require("generate", model, f"{model} answers a text and does not continue one.")
    streams = task.module.continues and not as_json and decoding.get("samples", 1) == 1
    of_method = {name: value for name, value in decoding.items() if name not in ("stop", "window")}
    for prompt in prompts:
        if streams and isinstance(with_options(task.method, **of_method), TokenMethod):
            tokens = task.stream(prompt, too_long=too_long, **decoding)
            console.emit(prompt + next(tokens, ""))  # after an error nothing is printed
            for token in tokens:
                console.emit(token)
            console.emit("\n")
        else:
            ranked = task.hypotheses([prompt], too_long=too_long, **decoding)
            texts = task.spelled([prompt], ranked)[0]
            facts = {"prompt": prompt, "hypotheses": values_of(ranked[0], texts)}
            console.show(facts, "\n\n".join(texts), as_json)
