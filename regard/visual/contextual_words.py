"""One word in several sentences: its static vector against its contextual ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from regard.errors import ConfigError
from regard.models.headed import Headed
from regard.models.protocols import Encoder
from regard.visual.attention_record import as_encoder
from regard.visual.curves import Curves, Series
from regard.visual.picture import Illustration, Note
from regard.visual.table import Table

if TYPE_CHECKING:
    from regard.data.encoder_inputs import InputFormat

Place = tuple[int, tuple[int, ...]]  # the number of a text, and the places of a word in its row


def contextual_vectors(
    model: Any, texts: Sequence[str], word: str, pieces: InputFormat | None = None
) -> Illustration:
    """How alike the vectors of a word's occurrences are, layer by layer, as cosines.

    The static vector is the embedding's: the same wherever the word stands. "input" is what the
    first layer reads, with position and segment. A word of several pieces is their mean.

    Args:
        model: a task on an encoder, or an encoder with `pieces`, as for `run_encoder`.
        texts: in which the word stands at least twice in all, as a whole word in any case.

    Returns:
        A picture; `numbers` has "cosines" (L + 2, pairs) and the "pairs" of occurrences, from 1.

    Raises:
        ConfigError: the word stands less than twice, or the model is no encoder.
    """
    module, pieces = as_encoder(model, pieces)
    encoder: Any = module.encoder if isinstance(module, Headed) else module
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"{type(module).__name__} has no hidden states of a whole text to show.")
    rows = pieces.encode([(text,) for text in texts])
    places = [
        (number, tuple(rows[number].starts[0] + place for place in found))
        for number, text in enumerate(texts)
        for found in occurrences(text, word, pieces.tokenizer)
    ]
    if len(places) < 2:
        raise ConfigError(
            f"{word!r} must stand at least twice in `texts`, but stands {len(places)} times."
        )
    batch = pieces.batch(rows).to(next(module.parameters()).device)
    was = module.training
    module.eval()
    with torch.no_grad():
        states = [encoder.embedding(batch.ids), *encoder.layers(batch)]
    module.train(was)
    pairs = list(combinations(range(len(places)), 2))
    cosines = torch.stack([_cosines(hidden, places, pairs) for hidden in states])
    return _picture(texts, word, places, pairs, cosines)


def occurrences(text: str, word: str, tokenizer: Any) -> list[tuple[int, ...]]:
    """The places of the pieces of each occurrence of a word in a text."""
    offsets = tokenizer.encode(text).offsets
    found = []
    for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
        inside = (
            place
            for place, (start, end) in enumerate(offsets)
            if start < match.end() and end > match.start()
        )
        found.append(tuple(inside))
    return [places for places in found if places]


def _cosines(hidden: Tensor, places: Sequence[Place], pairs: Sequence[tuple[int, int]]) -> Tensor:
    vectors = [hidden[row, list(own)].double().mean(0) for row, own in places]
    return torch.stack(
        [cosine_similarity(vectors[one], vectors[other], dim=0) for one, other in pairs]
    ).cpu()


def _picture(
    texts: Sequence[str],
    word: str,
    places: Sequence[Place],
    pairs: Sequence[tuple[int, int]],
    cosines: Tensor,
) -> Illustration:
    names = ["static", "input", *(f"layer {layer}" for layer in range(1, len(cosines) - 1))]
    heads = [f"{one + 1} and {other + 1}" for one, other in pairs]
    table = [
        [name, *(f"{value:.3f}" for value in row)]
        for name, row in zip(names, cosines.tolist(), strict=True)
    ]
    curves = tuple(
        Series(
            head, tuple((float(layer), value) for layer, value in enumerate(column[1:].tolist()))
        )
        for head, column in zip(heads, cosines.T, strict=True)
    )
    title = f"“{word}”, static and contextual"
    lines = tuple(f"{n}  {texts[row]}" for n, (row, _) in enumerate(places, 1))
    parts = (
        Note(lines, title),
        Table.of(["cosine of", *heads], table),
        Curves(curves, f"cosines of “{word}” by layer", "layer (0: input)", ""),
    )
    numbers = {"cosines": cosines, "pairs": [(one + 1, other + 1) for one, other in pairs]}
    return Illustration(parts, title, numbers=numbers)
