"""One word in several sentences: its static vector and its contextual ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.text import Tokenizer
from regard.visual.attention_record import as_encoder, encoded_texts
from regard.visual.charts import Curves, Series
from regard.visual.picture import Illustration, Note, Table

if TYPE_CHECKING:
    from regard.data.encoder_inputs import InputFormat

Occurrence = tuple[int, tuple[int, ...]]  # a row of the batch, and the positions of the word in it


def contextual_vectors(
    model: Any,
    texts: Sequence[str],
    word: str,
    input_format: InputFormat | None = None,
) -> Illustration:
    """The cosines between the vectors of a word's occurrences, layer by layer.

    The static vector is the embedding, the same for every occurrence. "input" is what the first
    layer reads, with position and segment. The vector of several subwords is their mean.

    Args:
        model: a task on an encoder, or an encoder with `input_format`.
        texts: the word occurs in them at least twice, as a whole word in any case.
        word: without white space.
        input_format: how texts become inputs, as for `run_encoder`.

    Returns:
        A picture; `numbers` has "cosines" (L + 2, pairs) and the "pairs" of occurrences, from 1.

    Raises:
        TextError: a text is longer than the model's limit.
        ConfigError: the word occurs less than twice, or the model is no encoder.
    """
    module, input_format = as_encoder(model, input_format)
    encoder: Any = module.encoder if isinstance(module, EncoderWithHeads) else module
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"{type(module).__name__} has no hidden states of a whole text to show.")
    rows = encoded_texts(texts, input_format)
    found = [
        (number, tuple(rows[number].starts[0] + position for position in positions))
        for number, text in enumerate(texts)
        for positions in occurrences(text, word, input_format.tokenizer)
    ]
    if len(found) < 2:
        raise ConfigError(
            f"{word!r} must occur at least twice in `texts`, but occurs {len(found)} times."
        )
    batch = encoder.complete(input_format.batch(rows), input_format.tokenizer)
    batch = batch.to(next(module.parameters()).device)
    with torch.no_grad(), evaluating(module):
        states = [encoder.static(batch), *encoder.states(batch)]
    pairs = list(combinations(range(len(found)), 2))
    cosines = torch.stack([_cosines(hidden, found, pairs) for hidden in states])
    lines = tuple(f"{n}  {texts[row]}" for n, (row, _) in enumerate(found, 1))
    return _picture(word, lines, [(one + 1, other + 1) for one, other in pairs], cosines)


def occurrences(text: str, word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """For each occurrence of a word in a text the positions of its tokens."""
    offsets = tokenizer.encode(text).offsets
    found = []
    for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
        tokens = enumerate(offsets)
        found.append(tuple(i for i, (a, b) in tokens if a < match.end() and b > match.start()))
    return [positions for positions in found if positions]


def _cosines(
    hidden: Tensor, found: Sequence[Occurrence], pairs: Sequence[tuple[int, int]]
) -> Tensor:
    """(B, T, D) -> a cosine for each pair"""
    vectors = torch.stack(
        [hidden[row, list(positions)].double().mean(0) for row, positions in found]
    )
    one, other = torch.tensor(pairs).T
    return cosine_similarity(vectors[one], vectors[other]).cpu()


def _picture(
    word: str, lines: tuple[str, ...], pairs: list[tuple[int, int]], cosines: Tensor
) -> Illustration:
    layers = ["static", "input", *(f"layer {layer}" for layer in range(1, len(cosines) - 1))]
    heads = [f"{one} and {other}" for one, other in pairs]
    rows = [
        [name, *(f"{value:.3f}" for value in row)]
        for name, row in zip(layers, cosines.tolist(), strict=True)
    ]
    columns = zip(heads, cosines.T[:, 1:].tolist(), strict=True)
    curves = tuple(Series(head, tuple(enumerate(column))) for head, column in columns)
    title = f"“{word}”, static and contextual"
    parts = (
        Note(lines, title),
        Table.of(["cosine of", *heads], rows),
        Curves(curves, f"cosines of “{word}” by layer", "layer (0: input)", ""),
    )
    return Illustration(parts, title, numbers={"cosines": cosines, "pairs": pairs})
