"""Vectors of words from their characters, for a whole batch: once for every distinct word.

Also the character LSTM of Lample et al. 2016; convolutions are in `character_convolution`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.text.characters import ELMO_CHARACTERS, ELMO_PADDING


def vectors_of_words(batch: Sequences, read: Callable[[Tensor], Tensor]) -> Tensor:
    """The vectors of the words of a batch, (B, T, P), from its extra "characters", (B, T, C); zeros
    at padding.

    On a CPU every distinct word of the batch is computed once; equal ids have equal characters.
    On other devices all words are computed: finding the distinct ones would wait for the device.

    Args:
        read: from characters (N, C) to vectors (N, P).
    """
    characters, keep = batch.extras["characters"], batch.keep
    if characters.device.type != "cpu":
        # (B, T, C) -> (B * T, C) -> (B * T, P) -> (B, T, P)
        vectors = read(characters.flatten(0, 1)).unflatten(0, keep.shape)
        return vectors * keep[..., None]
    distinct, word = batch.ids[keep].unique(return_inverse=True)
    one_of_each = torch.empty_like(distinct).scatter_(0, word, torch.arange(len(word)))
    vectors = read(characters[keep][one_of_each])[word]  # (words, P) -> (N, P)
    padded = vectors.new_zeros(*keep.shape, vectors.size(-1))
    return padded.masked_scatter(keep[..., None], vectors)  # (N, P) -> (B, T, P)


class CharacterLSTM(nn.Module):
    """The last states of a bidirectional LSTM over the characters of a word (Lample et al. 2016,
    section 4.1).

    d_model: the width of both directions together.
    """

    def __init__(self, d_character: int, d_model: int):
        super().__init__()
        self.embedding = nn.Embedding(ELMO_CHARACTERS, d_character, padding_idx=0)
        self.recurrent = BidirectionalStack(LSTM, d_character, d_model, 1)

    def forward(self, characters: Tensor) -> Tensor:
        """(N, C) ids -> (N, D)"""
        lengths = ((characters != ELMO_PADDING) & (characters != 0)).sum(1)
        return self.recurrent(self.embedding(characters), lengths)[1][:, 0]
