"""Tagging with a conditional random field over the scores of an encoder: tags depend on each other.

With a bidirectional LSTM that is the tagger of Lample et al. 2016. Any encoder can be under it.
Where tags are of entities, only well-formed sequences are predicted: no I- without its B-. A
sentence that is read in windows has a chain of tags in each window. The loss is normalized over all
sequences, ill-formed ones too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from torch import Tensor

from regard.data.batches import IGNORE
from regard.layers.crf import CRF, CRFHead, Transitions
from regard.tasks.tagging import Tagger


class CRFTagger(Tagger):
    """The most probable tags of the words of a sentence together.

    `probabilities` of a prediction are those of each tag at its word, whatever the other tags are.
    """

    name = "crf-tagging"
    head = "crf"

    @classmethod
    def problems(cls, recipe: Any) -> Iterator[tuple[str, str]]:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        if recipe.data.scheme not in ("IOB2", "none"):
            yield "data.scheme", 'must be "IOB2" or "none": the transitions are those of IOB2.'

    @property
    def crf(self) -> CRF:
        """The transitions, under the head."""
        return cast(CRFHead, self.module.head(self.head)).crf

    @cached_property
    def allowed(self) -> Transitions | None:
        """The transitions of well-formed entities; None for other tags."""
        return Transitions.of_iob2(self.labels) if self.scheme == "IOB2" else None

    def word_loss(self, scores: Tensor, tags: Tensor) -> Tensor:
        """The sum of -log p(tags | sentence) of the sentences, in nats; see `Tagger`."""
        return self.crf.loss(scores.float(), tags, tags != IGNORE)

    def best_tags(self, scores: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """See `Tagger`; the sequence of tags that is best as a whole."""
        scores = scores.float()
        best = self.crf.best(scores, keep, self.allowed)
        shares = self.crf.probabilities(scores, keep, self.allowed)
        return shares.gather(2, best[..., None])[..., 0], best
