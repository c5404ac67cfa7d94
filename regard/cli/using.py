"""predict and generate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.console import AsJson, Model, Narrow, dumps, emit, loaded, say, show, with_decoding
from regard.cli.lines import Chunk, chunks_of
from regard.errors import ConfigError

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
    weights: Narrow = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Translate, classify, tag, answer or continue: one line in, one line out, in order.

    What comes through a pipe is answered as it comes. A line of several texts (a pair, a question
    and its context) has tabs between them. With --scores or --n-best every hypothesis is a line:
    the number of its text from 0, its score and itself, tabs between.
    """

    task, tally = loaded(model, weights=weights), Counter[str]()
    several = max(decoding.get("n_best", 1), decoding.get("samples", 1)) > 1
    form = _as_json if as_json else _with_scores if scores or several else _best
    answering = _decoded if task.decodes else _read_off
    if not task.decodes:
        refuse_decoding(task.name, decoding | ({"scores": True} if scores else {}))
    for chunk in chunks_of(texts):
        long = task.long_ones(texts_of(task, chunk.texts), **decoding)
        refused = min(long) if long and too_long == "error" else None
        emit("".join(map(form, answering(task, chunk.until(refused), long, decoding, tally))))
        if refused is not None:
            raise chunk.too_long(refused, long[refused], limit_of(task))
    report(tally, limit_of(task))


def limit_of(task: Any) -> int:
    """The most tokens that a text may have."""
    return task.model.config.max_length if task.decodes else task.pieces.limit


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
    """What lines hold for this task: for one that reads several texts, those between tabs."""
    if task.decodes:
        return list(lines)
    return [tuple(line.split("\t")) if "\t" in line else line for line in lines]


def _read_off(
    task: Any, chunk: Chunk, long: dict[int, int], decoding: dict[str, Any], tally: Counter[str]
) -> Iterator[dict[str, Any]]:
    """For each text what the head of the model answers, with all that is known of it."""
    cut = {"too_long": "truncate"} if long else {}
    answers = task.answers(texts_of(task, chunk.texts), **cut)
    tally.update(texts=len(chunk.texts), truncated=len(long))
    for place, (text, answer) in enumerate(zip(chunk.texts, answers, strict=True)):
        yield {
            "number": chunk.first + place,
            "source": text,
            "text": str(answer),
            "truncated": place in long,
            **asdict(answer),
        }


def _decoded(
    task: Any, chunk: Chunk, long: dict[int, int], decoding: dict[str, Any], tally: Counter[str]
) -> Iterator[dict[str, Any]]:
    """For each text what is known of its hypotheses, best first."""
    from regard.decoding import counting

    cut = {"too_long": "truncate"} if long else {}
    with counting() as pace:
        found = task.hypotheses(chunk.texts, **decoding, **cut)
    tally.update(pace.counts())
    spelled = task.spelled(chunk.texts, found)
    cut_off = unfinished(found)
    tally.update(texts=len(chunk.texts), truncated=len(long), unfinished=cut_off)
    for place, (text, several, words) in enumerate(zip(chunk.texts, found, spelled, strict=True)):
        yield {
            "number": chunk.first + place,
            "source": text,
            "text": words[0],
            "truncated": place in long,
            "hypotheses": hypotheses_of(several, words),
        }


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
    tell_pace(tally)


def tell_pace(counts: Mapping[str, int]) -> None:
    """Tell what a draft was good for, where there was one."""
    if counts["steps"]:
        from regard.decoding import Pace

        say(str(Pace(*(counts[name] for name in Pace.COUNTS))))


@with_decoding
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="- reads standard input.")] = "",
    too_long: Annotated[
        Literal["error", "truncate"],
        typer.Option(help="For a prompt that leaves no room; truncate keeps its end."),
    ] = "error",
    weights: Narrow = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Continue a text, token by token as the model decides."""
    from regard.decoding import changed, counting

    task = loaded(model, weights=weights)
    if not hasattr(task, "stream"):
        raise ConfigError(
            f"{model} answers a text and does not continue one. Use: regard predict {model} TEXT"
        )
    if prompt == "-":
        prompt = "\n".join(text for chunk in chunks_of(None) for text in chunk.texts)
    method = changed(task.method, **decoding)
    if not as_json and hasattr(method, "walk") and decoding.get("samples", 1) == 1:
        with counting() as pace:
            pieces = task.stream(prompt, too_long=too_long, **decoding)
            emit(prompt + next(pieces, ""))  # a prompt that is refused is not repeated
            for piece in pieces:
                emit(piece)
        emit("\n")
        tell_pace(pace.counts())
        return
    with counting() as pace:
        found = task.hypotheses([prompt], too_long=too_long, **decoding)
    texts = task.spelled([prompt], found)[0]
    facts = {"prompt": prompt, "hypotheses": hypotheses_of(found[0], texts)}
    show(facts, "\n\n".join(texts), as_json)
    tell_pace(pace.counts())
