"""Only well-formed trees: what may follow in a tree that is decoded as tokens.

    (S (NP XX )NP (VP XX )VP )S        typed brackets, XX for each word

At every step a sequence can be completed to a tree within its limit, so that every search that
takes only allowed tokens ends with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.filters import NEG_INF, Prefix

OTHER, OPEN, CLOSE, WORD = range(4)


@dataclass(frozen=True)
class TreeVocabulary:
    """The ids of the tokens that trees consist of.

    opening, closing: the ids of the two brackets of each label.  word: the id that stands for any
    word.
    """

    opening: Mapping[str, int]
    closing: Mapping[str, int]
    word: int

    def tables(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The kind of each token, and the closing bracket of each opening one (0 for the others):
        (V,) int64 each.
        """
        kinds = torch.full((vocab_size,), OTHER)
        partner = torch.zeros(vocab_size, dtype=torch.long)
        kinds[self.word] = WORD
        for label, token in self.opening.items():
            kinds[token], kinds[self.closing[label]] = OPEN, CLOSE
            partner[token] = self.closing[label]
        return kinds, partner


@dataclass(frozen=True)
class WellFormedTree:
    """Allows what continues a tree of `words` words: a `Filter`.

    - A bracket is closed by one of its own label, and only if something is in it.
    - The root holds all words, and nothing follows it but the end.
    - At most `most_open` brackets open one after another, which also limits unary chains.
    - What is still to come, all words, the closing brackets and the end, fits into the limit.
    """

    vocabulary: TreeVocabulary
    words: int
    most_open: int

    def __call__(self, scores: Tensor, prefix: Prefix) -> Tensor:
        """Where the limit is too low for any tree, nothing is allowed."""
        kinds, partner = (
            table.to(scores.device) for table in self.vocabulary.tables(scores.size(1))
        )
        state = _State.of(prefix.tokens[:, 1:], kinds)
        words_left = self.words - state.words  # (B,)
        depth = state.depth
        budget = torch.full_like(depth, torch.iinfo(torch.long).max)
        if prefix.limits is not None:
            budget = prefix.limits.to(depth.device) - prefix.generated
        # After this bracket: the words, a closing bracket for each open one and for it, the end.
        fits = budget > words_left + depth + 2
        is_inside = depth > 0
        opens = (words_left > 0) & (state.opened < self.most_open) & fits
        opens &= is_inside | state.empty
        closes = is_inside & (state.opened == 0) & ((depth > 1) | (words_left == 0))
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed |= opens[:, None] & (kinds == OPEN)
        allowed[:, self.vocabulary.word] = is_inside & (words_left > 0)
        row = torch.arange(len(scores), device=scores.device)
        allowed[row, partner[state.innermost]] |= closes
        for end in prefix.eos_below(scores.size(1)):
            allowed[:, end] = ~is_inside & ~state.empty
        return scores.masked_fill(~allowed, NEG_INF)


@dataclass(frozen=True, eq=False)
class _State:
    """What B sequences have so far, (B,) each.

    depth: the number of open brackets.  words: the number of words.  opened: the number of opening
    brackets at the end, one after another.  innermost: the id of the innermost open bracket.
    empty: whether there is no token yet.
    """

    depth: Tensor
    words: Tensor
    opened: Tensor
    innermost: Tensor
    empty: Tensor

    @classmethod
    def of(cls, tokens: Tensor, kinds: Tensor) -> _State:
        """From the tokens (B, T) and the kind of each token of the vocabulary (V,)."""
        zero = tokens.new_zeros(len(tokens))
        if not tokens.size(1):
            return cls(zero, zero, zero, zero, zero == 0)
        kind = kinds[tokens]  # (B, T)
        opening = kind == OPEN
        depths = (opening.long() - (kind == CLOSE).long()).cumsum(1)  # (B, T), after each token
        # The innermost open bracket is the last opening one after which the depth was what it is.
        candidates = opening & (depths == depths[:, -1:])
        last = (candidates * torch.arange(tokens.size(1), device=tokens.device)).argmax(1)  # (B,)
        innermost = tokens.gather(1, last[:, None])[:, 0]
        opened = opening.flip(1).long().cumprod(1).sum(1)
        return cls(depths[:, -1], (kind == WORD).sum(1), opened, innermost, zero > 0)
