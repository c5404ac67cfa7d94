"""Word vectors that others trained, as the initial vectors of a model: `word_vectors` in [data].

Words of the vocabulary that the file lacks keep their random vectors, scaled to the mean square of
those that were found (Kim 2014, section 4.3, asks for the same variance).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from regard.data.word_vectors import PretrainedVectors, read_word_vectors
from regard.errors import ConfigError, DataError
from regard.models.protocols import Encoder
from regard.text import Tokenizer

NAME = "[data] `word_vectors`"


def vectors_for(path: Path, encoder: Encoder, tokenizer: Tokenizer) -> PretrainedVectors:
    """The vectors that a file has for the vocabulary, of the width of the encoder's own.

    Raises:
        ConfigError: the tokens are not words, the encoder has no vectors of words, or theirs have
            another width.
        DataError: the file is damaged, or has a vector for no word.
    """
    if tokenizer.kind != "words":
        raise ConfigError(
            f'{NAME} needs words: set kind = "words" in [tokenizer]; the tokens of '
            f"{tokenizer.kind!r} are other ones."
        )
    if not encoder.word_tables:
        raise ConfigError(
            f"{NAME}: {type(encoder).__name__} has no vectors of words that a file could "
            "initialize. Leave it out."
        )
    numbers = [n for n in range(tokenizer.vocab_size) if n not in tokenizer.special_ids]
    vectors = read_word_vectors(path, list(map(tokenizer.token, numbers)))
    for table in encoder.word_tables:
        if table.embedding_dim != vectors.width:
            raise ConfigError(
                f"{NAME}: the vectors of {path} have width {vectors.width}, but those of "
                f"{type(encoder).__name__} {table.embedding_dim}. Set `d_words` (of a model "
                f"without it `d_model`) to {vectors.width}, or name another file."
            )
    if not len(vectors.ids):
        problem = f"has none of the {vectors.words:,} words of the vocabulary."
        raise DataError(path, None, problem, "Is it of another language?")
    return replace(vectors, ids=torch.tensor(numbers)[vectors.ids])


@torch.no_grad()
def put(pretrained: PretrainedVectors, table: nn.Embedding) -> None:
    """Write pretrained vectors, (N, D), into a table, (V, D), and scale its other rows to the same
    root mean square.
    """
    weight = table.weight
    others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    others[pretrained.ids.to(weight.device)] = False
    size = weight[others].square().mean().sqrt()
    if size > 0:  # NaN where there are no others
        weight[others] *= pretrained.vectors.square().mean().sqrt().to(weight.device) / size
    weight[~others] = pretrained.vectors.to(weight)
