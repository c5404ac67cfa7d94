"""MPNet: "Masked and Permuted Pre-training for Language Understanding" (Song et al. 2020).

    ids -> embed + positions -> norm -> L x [self-attention with a score bias, feed-forward]

RoBERTa's network without segments, and with T5's relative positions beside the absolute ones: a
learned number for each bucket of distances and each head, which all layers add to their scores.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from regard.attention.relative_kinds import BiasRelation
from regard.attention.relative_protocol import RelativeBias, padded_positions, two_sided_bucket
from regard.data.batches import Sequences
from regard.data.layout import ALL, TokenSubset
from regard.models.parts import init_weights
from regard.models.protocols import States
from regard.models.roberta import Roberta, RobertaConfig


@dataclass(frozen=True)
class MpnetConfig(RobertaConfig):
    """The defaults are the base model. There are no segments."""

    segments: Literal[1] = 1


class Mpnet(Roberta):
    """MPNet without a head, an `Encoder`. It ignores segments."""

    Config = MpnetConfig
    SIZES = {"base": dict(d_model=768, d_ff=3072, heads=12, layers=12)}  # noqa: RUF012
    PUBLISHED = {}  # noqa: RUF012  # the paper prints no number of parameters
    unpadded = False  # distances are those in a padded batch

    def __init__(self, config: MpnetConfig):
        super().__init__(config)
        del self.segments
        self.relative = RelativeBias(config.heads, two_sided_bucket)
        init_weights(self.relative, config.init_range)

    @property
    def segment_types(self) -> int:
        return 1

    def states(self, batch: Sequences, tokens: TokenSubset = ALL) -> States:
        hidden = self.embed(batch)
        yield hidden
        mask, positions = batch.padding_mask(), padded_positions(batch)
        relation = BiasRelation(self.relative(positions, positions))  # of all layers
        for block in self.blocks[:-1]:
            hidden = block(hidden, mask, relation=relation)
            yield hidden
        for block in self.blocks[-1:]:  # the last layer computes only `tokens`
            yield block(hidden, mask, tokens, relation)

    def embed(self, batch: Sequences) -> Tensor:
        """Token + position, (B, T, D)."""
        return self.dropout(self.norm(self.embedding(batch.ids) + self.positions.of(batch)))
