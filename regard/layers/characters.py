"""Words from their characters: the convolutions of ELMo, and features of words for taggers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.layers.recurrent import LSTM, BidirectionalStack
from regard.text.closed_vocabulary import ELMO_CHARACTERS, ELMO_PADDING, elmo_word

FilterActivation = Literal["relu", "tanh"]
FILTER_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class CharacterConvolution(nn.Module):
    """The largest value of every filter over the characters of a word.

    Args:
        characters: the number of character ids; id 0 has a zero vector.
        d_character: the width of a character's vector.
        filters: (width in characters, number of filters).
        activation: applied to the maxima.
    """

    def __init__(
        self,
        characters: int,
        d_character: int,
        filters: Sequence[tuple[int, int]],
        activation: FilterActivation,
    ):
        super().__init__()
        self.embedding = nn.Embedding(characters, d_character, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_character, count, width) for width, count in filters
        )
        self.activation = FILTER_ACTIVATIONS[activation]
        nn.init.uniform_(self.embedding.weight[1:], -1.0, 1.0)

    def forward(self, characters: Tensor) -> Tensor:
        """(N, C) ids -> (N, F), the filters of all widths concatenated."""
        vectors = self.embedding(characters).transpose(1, 2)  # (N, C, D) -> (N, D, C)
        largest = [conv(vectors).amax(2) for conv in self.convolutions]  # (N, F_w, C') -> (N, F_w)
        return self.activation(torch.cat(largest, 1))


class Highway(nn.Module):
    """z = t * relu(W x + b) + (1 - t) * x,  t = sigmoid(W_t x + b_t)   (Srivastava et al. 2015)

    b_t starts at -2, so that the layer is close to the identity.
    """

    def __init__(self, d_model: int):
        super().__init__()
        self.gate = nn.Linear(d_model, d_model)
        self.transform = nn.Linear(d_model, d_model)
        for part in (self.gate, self.transform):
            nn.init.normal_(part.weight, std=d_model**-0.5)
            nn.init.zeros_(part.bias)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


def with_characters(batch: Sequences, tokenizer: Any, length: int, behind: int = 0) -> Sequences:
    """A batch of words with the extra "characters", (B, T, C), ids as ELMo has them; 0 at padding.

    Args:
        tokenizer: gives the word of each id; see `regard.text.tokenizer`.
        length: characters of a word that are read, with the two that mark its ends.
        behind: columns of padding behind the longest word; C is at most `length`.
    """
    distinct, word = batch.ids.cpu().unique(return_inverse=True)
    rows = [elmo_word(tokenizer, number, length) for number in distinct.tolist()]
    table = torch.tensor(rows, dtype=torch.long).reshape(-1, length)
    used = int((table != ELMO_PADDING).sum(1).max()) if len(table) else 0
    characters = table[:, : used + behind][word]  # (words, C) -> (B, T, C)
    characters = characters * batch.keep.cpu()[..., None]
    return replace(batch, extras={**batch.extras, "characters": characters.to(batch.ids.device)})


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
