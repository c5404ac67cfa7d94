"""predict and generate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.console import (
    AsJson,
    Model,
    Quantize,
    dumps,
    emit,
    loaded,
    say,
    show,
    with_decoding,
)
from regard.cli.lines import Chunk, chunks_of, one_argument
from regard.errors import ConfigError, DataError, TextError

if TYPE_CHECKING:
    from regard.decoding.hypothesis import Hypothesis


@with_decoding
def predict(
    model: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="- reads standard input.")
    ] = None,
    too_long: Annotated[
        Literal["error", "truncate"], typer.Option(help="For texts beyond the model's limit.")
    ] = "error",
    scores: Annotated[
        bool, typer.Option("--scores", help="Lines of number, score and text, tabs between.")
    ] = False,
    quantize: Quantize = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Translate, classify, tag, answer or continue: one line in, one line out, in order.

    What comes through a pipe is answered as it comes. A line of two texts (a pair, a question and
    its context) has a tab between them. An empty line has an empty answer. With --scores or
    --n-best every hypothesis is a line: the number of its text from 0, its score and itself, tabs
    between.
    """

    task, tally = loaded(model, quantize=quantize), Counter[str]()
    several = max(decoding.get("n_best", 1), decoding.get("samples", 1)) > 1
    form = _as_json if as_json else _with_scores if scores or several else _best
    if not task.decodes:
        refuse_decoding(task.name, decoding | ({"scores": True} if scores else {}))
    for chunk in chunks_of(texts):
        answers, error = _until_an_error(task, chunk, too_long, decoding, tally)
        emit("".join(map(form, answers)))
        if error is not None:
            raise error
    report(tally, limit_of(task))


def limit_of(task: Any) -> int:
    """The most tokens that a text may have."""
    return task.model.config.max_length if task.decodes else task.pieces.max_length


def refuse_decoding(what: str, options: dict[str, Any]) -> None:
    """A head, or a measure, needs no search.

    Raises:
        ConfigError: options of decoding were given.
    """
    if options:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise ConfigError(
            f"{what} decodes nothing, so {names} would be without effect. Leave it out."
        )


def texts_of(task: Any, lines: Sequence[str]) -> list[Any]:
    """What lines hold for an encoder: a text, or those between tabs."""
    if task.decodes:
        return list(lines)
    return [tuple(line.split("\t")) if "\t" in line else line for line in lines]


def asked_of(task: Any, line: str) -> Any:
    """What a line asks of this task: a text, or for one that reads pairs those between tabs."""
    several = not task.decodes and task.reads_pairs and "\t" in line
    return tuple(line.split("\t")) if several else line


@dataclass(frozen=True)
class Asked:
    """The lines of a chunk that are no white space alone: their places in it, and their texts."""

    places: list[int]
    texts: list[Any]

    @classmethod
    def of(cls, task: Any, chunk: Chunk) -> Asked:
        """What the lines ask of a task."""
        places = [place for place, line in enumerate(chunk.texts) if line.strip()]
        return cls(places, [asked_of(task, chunk.texts[place]) for place in places])


def _until_an_error(
    task: Any, chunk: Chunk, too_long: str, decoding: dict[str, Any], tally: Counter[str]
) -> tuple[list[dict[str, Any]], DataError | None]:
    """What is known of the answer to each line before the first that cannot be answered, and why
    that cannot be.
    """
    answering = _decoded if task.decodes else _read_off
    error: DataError | None = None
    while True:
        asked = Asked.of(task, chunk)
        try:
            long = task.long_ones(asked.texts, **decoding)
            if not long or too_long == "truncate":
                found = answering(task, asked, bool(long), decoding, tally)
                return _numbered(task, chunk, asked, found, long, tally), error
            first = asked.places[min(long)]
            error = chunk.too_long(first, long[min(long)], limit_of(task))
        except TextError as refused:
            first = asked.places[refused.place]
            error = chunk.error(first, refused.problem, refused.hint)
        chunk = chunk.until(first)


def _numbered(
    task: Any,
    chunk: Chunk,
    asked: Asked,
    found: Sequence[dict[str, Any]],
    long: Mapping[int, int],
    tally: Counter[str],
) -> list[dict[str, Any]]:
    """For each line what is known of its answer; an empty line has an empty answer."""
    tally.update(texts=len(chunk.texts), truncated=len(long))
    answers = dict(zip(asked.places, found, strict=True))
    cut = {asked.places[place] for place in long}
    return [
        {
            "number": chunk.first + place,
            "source": line,
            "text": "",
            "truncated": place in cut,
            **(answers[place] if place in answers else _nothing(task)),
        }
        for place, line in enumerate(chunk.texts)
    ]


def _nothing(task: Any) -> dict[str, Any]:
    """The answer to an empty line."""
    if not task.decodes:
        return {**task.prediction_type.empty_values(), "text": ""}
    return {"hypotheses": [{"text": "", "score": 0.0, "log_prob": 0.0, "finished": True}]}


def _read_off(
    task: Any, asked: Asked, cut: bool, decoding: dict[str, Any], tally: Counter[str]
) -> list[dict[str, Any]]:
    """For each text what the head of the model answers, with all that is known of it."""
    answers = task.predictions(asked.texts, too_long="truncate" if cut else "error")
    return [{"text": str(answer), **answer.values()} for answer in answers]


def _decoded(
    task: Any, asked: Asked, cut: bool, decoding: dict[str, Any], tally: Counter[str]
) -> list[dict[str, Any]]:
    """For each text what is known of its hypotheses, best first."""
    from regard.decoding import count_acceptance

    with count_acceptance() as acceptance:
        found = task.hypotheses(asked.texts, **decoding, too_long="truncate" if cut else "error")
    tally.update(acceptance.counts())
    tally.update(unfinished=unfinished(found))
    return [
        {"text": words[0], "hypotheses": hypotheses_of(several, words)}
        for several, words in zip(found, task.spelled(asked.texts, found), strict=True)
    ]


def hypotheses_of(found: Sequence[Hypothesis], words: Sequence[str]) -> list[dict[str, Any]]:
    """Hypotheses as plain values."""
    return [
        {"text": text, "score": h.score, "log_prob": h.log_prob, "finished": h.finished}
        for h, text in zip(found, words, strict=True)
    ]


def _best(answer: dict[str, Any]) -> str:
    return _one_line(answer["text"])


def _with_scores(answer: dict[str, Any]) -> str:
    return "".join(
        f"{answer['number']}\t{h['score']:.4f}\t{_one_line(h['text'])}"
        for h in answer["hypotheses"]
    )


def _as_json(answer: dict[str, Any]) -> str:
    return dumps(answer) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) + "\n"


def unfinished(found: Sequence[Sequence[Hypothesis]]) -> int:
    """How many of the best hypotheses were cut off."""
    from regard.decoding import unfinished

    return unfinished(list(several) for several in found)


def report(tally: Counter[str], limit: int) -> None:
    """Tell how many texts were cut, or their answers: nothing of it is silent."""
    if tally["truncated"]:
        say(f"{tally['truncated']:,} of {tally['texts']:,} texts were cut to {limit:,} tokens")
    if tally["unfinished"]:
        of = f"{tally['unfinished']:,} of {tally['texts']:,} answers"
        say(f"{of} were cut off at the limit on their length (--max-tokens)")
    tell_acceptance(tally)


def tell_acceptance(counts: Mapping[str, int]) -> None:
    """Tell what a draft was good for, where there was one."""
    if counts["steps"]:
        from regard.decoding import AcceptanceStats

        say(str(AcceptanceStats(*(counts[name] for name in AcceptanceStats.COUNTS))))


@with_decoding
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="- reads standard input.")] = "",
    too_long: Annotated[
        Literal["error", "truncate"],
        typer.Option(help="For a prompt that leaves no room; truncate keeps its end."),
    ] = "error",
    quantize: Quantize = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Continue a text, token by token as the model decides."""
    from regard.decoding import count_acceptance, with_options

    task = loaded(model, quantize=quantize)
    task.require("generate", model, f"{model} answers a text and does not continue one.")
    if prompt != "-":
        prompt = one_argument(prompt)
    else:
        prompt = "\n".join(text for chunk in chunks_of(None) for text in chunk.texts)
    method = with_options(task.method, **decoding)
    if not as_json and hasattr(method, "steps") and decoding.get("samples", 1) == 1:
        with count_acceptance() as acceptance:
            pieces = task.stream(prompt, too_long=too_long, **decoding)
            emit(prompt + next(pieces, ""))  # a prompt that is refused is not repeated
            for piece in pieces:
                emit(piece)
        emit("\n")
        tell_acceptance(acceptance.counts())
        return
    with count_acceptance() as acceptance:
        found = task.hypotheses([prompt], too_long=too_long, **decoding)
    texts = task.spelled([prompt], found)[0]
    facts = {"prompt": prompt, "hypotheses": hypotheses_of(found[0], texts)}
    show(facts, "\n\n".join(texts), as_json)
    tell_acceptance(acceptance.counts())
