"""generate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from regard.cli.console import AsJson, ModelFolder, Quantize, emit, load_task, show
from regard.cli.decoding import say_acceptance, values_of, with_decoding
from regard.cli.input_texts import checked_argument, chunks_of


@with_decoding
def generate(
    model: ModelFolder,
    prompt: Annotated[str, typer.Argument(help="- reads standard input.")] = "",
    too_long: Annotated[
        Literal["error", "truncate"],
        typer.Option(help="For a prompt that fills the context; truncate keeps its end."),
    ] = "error",
    quantize: Quantize = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Continue a text, token by token as the model decides."""
    from regard.decoding import IncrementalMethod, count_acceptance, with_options

    task = load_task(model, quantize)
    task.require("generate", model, f"{model} answers a text and does not continue one.")
    if prompt == "-":
        prompt = "\n".join(text for chunk in chunks_of(None) for text in chunk.texts)
    else:
        prompt = checked_argument(prompt)
    method = with_options(task.method, **decoding)
    with count_acceptance() as acceptance:
        streams = isinstance(method, IncrementalMethod) and decoding.get("samples", 1) == 1
        if streams and not as_json:
            tokens = task.stream(prompt, too_long=too_long, **decoding)
            emit(prompt + next(tokens, ""))  # after an error nothing is printed
            for token in tokens:
                emit(token)
            emit("\n")
        else:
            found = task.hypotheses([prompt], too_long=too_long, **decoding)
            texts = task.spelled([prompt], found)[0]
            facts = {"prompt": prompt, "hypotheses": values_of(found[0], texts)}
            show(facts, "\n\n".join(texts), as_json)
    say_acceptance(acceptance)
