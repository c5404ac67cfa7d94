"""search."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from regard.cli.console import load_task, say_hint, show
from regard.cli.input_texts import checked_argument, chunks_of, hint_at_file
from regard.cli.options import AsJson, Device, ModelFolder, Quantize, Texts, TooLong


def search(
    model: ModelFolder,
    query: Annotated[str, Argument(help="The text that all others are compared with.")],
    texts: Texts = None,
    top_k: Annotated[int, Option("--top-k", "-n", help="Print the N most similar texts.")] = 10,
    too_long: TooLong = "error",
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Print the texts that are most similar to a query.

    A line is a cosine, the number of a text and the text, best first.

    Texts are arguments or lines of standard input, numbered from 0. Cosines are of the vectors that
    regard embed prints.
    """
    query = checked_argument(query)
    task = load_task(model, quantize, device)
    problem = f"{model} holds a model of {task.name}, which gives no vectors of texts."
    task.require("embed", model, problem)
    say_hint(hint_at_file(texts))
    found = [text for chunk in chunks_of(texts) for text in chunk.texts]
    best = task.search(query, found, top_k, too_long=too_long)
    lines = (f"{one.score:.4f}\t{one.index}\t{' '.join(one.text.splitlines())}" for one in best)
    show([asdict(one) for one in best], "\n".join(lines), as_json)
