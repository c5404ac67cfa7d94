"""GPT-Neo: "GPT-Neo: Large Scale Autoregressive Language Modeling" (Black et al. 2021).

    ids -> embed + positions -> L x [norm, masked self-attention; norm, feed-forward] -> norm

GPT-3, trained on public text, and published. Its scores are not divided by sqrt(d_k), and the
projections to queries, keys and values add no vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.attention.multihead import PackedLinear
from regard.models.config import Probability
from regard.models.gpt2 import GPT2Block, GPT2Config
from regard.models.gpt3 import GPT3, GPT3Config


@dataclass(frozen=True)
class GPTNeoConfig(GPT3Config):
    """The defaults are the smallest model; the fields are those of `GPT3Config`."""

    head_dropout: Probability = 0.1
    scaled: Literal[False] = False
    scaled_by_layer: Literal[False] = False


SIZES = {
    "125M": dict(d_model=768, heads=12, layers=12),
    "1.3B": dict(d_model=2048, heads=16, layers=24),
    "2.7B": dict(d_model=2560, heads=20, layers=32),
}
_NAME = "the name of the model; with its 50,257 tokens they are {:,}"
PUBLISHED: dict[str, Any] = {
    "125M": {"parameters": (125e6, _NAME.format(125_198_592))},
    "1.3B": {"parameters": (1.3e9, _NAME.format(1_315_575_808))},
    "2.7B": {"parameters": (2.7e9, _NAME.format(2_651_307_520))},
}


class GPTNeoBlock(GPT2Block):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    def __init__(self, config: GPT2Config, layer: int):
        super().__init__(config, layer)
        width = config.d_model
        self.attention.query_key_value = PackedLinear(width, width, parts=3, bias=False)


class GPTNeo(GPT3):
    """GPT-Neo, a `LanguageModel` and an `Encoder`."""

    Config: type = GPTNeoConfig
    SIZES = SIZES
    PUBLISHED: dict[str, Any] = PUBLISHED
    block: Any = GPTNeoBlock
