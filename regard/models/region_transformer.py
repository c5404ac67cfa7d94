"""The Transformer as a captioner: the pre-norm encoder-decoder over the regions of an image.

    region -> linear + position in the image -> encoder -> decoder, as of any Transformer

Positions count the regions row by row.
"""

from dataclasses import dataclass

from torch import Tensor

from regard.data.batches import Sequences
from regard.data.regions import regions_of
from regard.errors import ConfigError
from regard.layers.linear import Linear
from regard.models.config import Size
from regard.models.transformer import TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer


@dataclass(frozen=True)
class RegionTransformerConfig(TransformerConfig):
    """d_region: of the vector of a region.  The others are those of `TransformerConfig`."""

    d_region: Size = 1280

    def __post_init__(self) -> None:
        if self.source_vocab_size is not None:
            raise ConfigError("`source_vocab_size` has no effect: the source has no tokens.")


class RegionTransformer(PreNormTransformer):
    """An `EncoderDecoder` whose source is the regions of an image."""

    Config: type[TransformerConfig] = RegionTransformerConfig
    reads_regions = True

    def __init__(self, config: RegionTransformerConfig):
        super().__init__(config)
        self.regions = Linear(config.d_region, config.d_model)

    def embed_source(self, source: Sequences) -> Tensor:
        """Linear of the region + position, (B, S, D) or (1, N, D)."""
        regions = self.regions(regions_of(source, self.encoder_norm.weight))
        return self.dropout(regions + self.positions.of(source))
