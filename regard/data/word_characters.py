"""The characters of the words of a batch, for encoders that read them."""

from dataclasses import replace
from typing import Any

import torch

from regard.data.batches import Sequences
from regard.text.closed_vocabulary import ELMO_PADDING, elmo_word


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
