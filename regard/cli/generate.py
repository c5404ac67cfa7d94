"""generate."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from regard.cli.console import emit, load_task, say_acceptance, show
from regard.cli.input_texts import checked_argument, chunks_of
from regard.cli.options import AsJson, Device, ModelFolder, Quantize, TooLong, with_decoding


@with_decoding
def generate(
    model: ModelFolder,
    prompt: Annotated[str, Argument(help="- reads standard input.")] = "",
    too_long: TooLong = "error",
    quantize: Quantize = None,
    device: Device = None,
    as_json: AsJson = False,
    *,
    decoding: dict[str, Any],
) -> None:
    """Continue a text, token by token as the model decides, or generate the text for a source.

    A prompt that leaves no room for a token is an error; --too-long truncate keeps its end.
    """
    from regard.decoding import IncrementalMethod, count_acceptance, with_options
    from regard.decoding.hypothesis import values_of

    task = load_task(model, quantize, device)
    task.require("generate", model, f"{model} answers a text and does not continue one.")
    if prompt == "-":
        prompt = "\n".join(text for chunk in chunks_of(None) for text in chunk.texts)
    else:
        prompt = checked_argument(prompt)
    streams = task.model.continues and not as_json and decoding.get("samples", 1) == 1
    with count_acceptance() as acceptance:
        if streams and isinstance(with_options(task.method, **decoding), IncrementalMethod):
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
