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
    """Which tokens are those of trees.

    opening, closing: of each label its two brackets.  word: any word.
    """

    opening: Mapping[str, int]
    closing: Mapping[str, int]
    word: int

    def tables(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Of each token its kind, and of each opening bracket the closing one: (V,) each."""
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
        """See `Filter`; where the limit is too low for any tree, nothing is allowed."""
        kinds, partner = (
            table.to(scores.device) for table in self.vocabulary.tables(scores.size(1))
        )
        state = _State.of(prefix.tokens[:, 1:], kinds)
        left = self.words - state.words
        depth = state.depth
        budget = torch.full_like(depth, torch.iinfo(torch.long).max)
        if prefix.limits is not None:
            budget = prefix.limits.to(depth.device) - prefix.generated
        fits = budget > left + depth + 2  # this bracket, its partner, the end, and all others
        begun = depth > 0
        opens = (left > 0) & (state.opened < self.most_open) & fits & (begun | state.empty)
        closes = begun & (state.opened == 0) & ((depth > 1) | (left == 0))
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed |= opens[:, None] & (kinds == OPEN)
        allowed[:, self.vocabulary.word] = begun & (left > 0)
        row = torch.arange(len(scores), device=scores.device)
        allowed[row, partner[state.innermost]] |= closes
        for end in prefix.eos_below(scores.size(1)):
            allowed[:, end] = ~begun & ~state.empty
        return scores.masked_fill(~allowed, NEG_INF)


@dataclass(frozen=True, eq=False)
class _State:
    """What R sequences have so far, (R,) each.

    depth: brackets that are open.  words: how many.  opened: brackets that opened last, one after
    another.  innermost: the token of the innermost open bracket.  empty: nothing.
    """

    depth: Tensor
    words: Tensor
    opened: Tensor
    innermost: Tensor
    empty: Tensor

    @classmethod
    def of(cls, tokens: Tensor, kinds: Tensor) -> _State:
        """From the tokens (R, T) and the kind of each token of the vocabulary (V,)."""
        none = tokens.new_zeros(len(tokens))
        if not tokens.size(1):
            return cls(none, none, none, none, none == 0)
        found = kinds[tokens]
        opening = found == OPEN
        depths = (opening.long() - (found == CLOSE).long()).cumsum(1)  # (R, T)
        # The last bracket that led to the present depth is open: closing it leads below.
        led = opening & (depths == depths[:, -1:])
        last = (led * torch.arange(tokens.size(1), device=tokens.device)).argmax(1)
        innermost = tokens.gather(1, last[:, None])[:, 0]
        opened = opening.flip(1).long().cumprod(1).sum(1)
        return cls(depths[:, -1], (found == WORD).sum(1), opened, innermost, none > 0)
