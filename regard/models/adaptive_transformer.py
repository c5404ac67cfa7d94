"""The Transformer with adaptive input: "Adaptive Input Representations" (Baevski & Auli 2019).

    ids -> adaptive embed + positions -> L x [norm, masked self-attention; norm, feed-forward]
        -> norm -> adaptive softmax

GPT-2's decoder with sinusoidal positions and relu, in which rare words have narrower vectors, as
inputs and as outputs; both share their matrices and projections (section 3).
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.layers.softmax import AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from regard.models.config import Activation, Positions, Probability, Size, Sizes
from regard.models.gpt2 import GPT2, GPT2Config


@dataclass(frozen=True)
class AdaptiveTransformerConfig(GPT2Config):
    """The defaults are the paper's model for WikiText-103, its cut-offs left out.

    cutoffs, divisor: the clusters of the vocabulary, see `regard.layers.softmax.Clusters`;
        the paper's are 20,000 and 60,000.

    The others are those of `GPT2Config`.
    """

    d_model: Size = 1024
    d_ff: Size | None = 4096
    heads: Size = 8
    layers: Size = 16
    max_length: Size = 512
    positions: Positions = "sinusoidal"
    activation: Activation = "relu"
    dropout: Probability = 0.3
    output: Literal["tied"] = "tied"
    cutoffs: Sizes = ()
    divisor: Size = 4

    @property
    def clusters(self) -> Clusters:
        """How the vocabulary is cut."""
        width, cutoffs = self.d_model, tuple(self.cutoffs)
        return Clusters(self.vocab_size, width, width, cutoffs, self.divisor)

    def __post_init__(self) -> None:
        _ = self.clusters  # raises an error for those that cannot be


class AdaptiveTransformer(GPT2):
    """The Transformer with adaptive input: "Adaptive Input Representations" (Baevski & Auli 2019).

    The decoder with adaptive input and adaptive softmax, a `LanguageModel` and an `Encoder`.
    """

    Config: type = AdaptiveTransformerConfig
    SIZES = {"wikitext-103": dict(d_model=1024, d_ff=4096, heads=8, layers=16, divisor=4)}

    def new_embedding(self, config: Any) -> nn.Module:
        """ids (...,) -> (..., D), scaled up as in section 3.4 of Vaswani et al. 2017."""
        return AdaptiveEmbedding(config.clusters, scale=config.d_model**0.5)

    def new_output(self, config: Any) -> nn.Module:
        """The output over tokens; its weights are the embedding's."""
        for table in self.embedding.tables:
            nn.init.normal_(table.weight, std=table.weight.size(1) ** -0.5)
        tied = (True,) * (len(config.cutoffs) + 1)
        return AdaptiveSoftmax(
            config.clusters, tied=self.embedding, embedding=self.embedding, tied_projections=tied
        )
