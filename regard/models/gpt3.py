"""GPT-3: "Language Models are Few-Shot Learners" (Brown et al. 2020).

    ids -> embed + positions -> L x [norm, masked self-attention; norm, feed-forward] -> norm

GPT-2 in which layers with dense and with locally banded attention alternate, as in the Sparse
Transformer (Child et al. 2019): a token sees all before it, or the last `window` tokens alone
(section 2.1).

GPT-Neo (Black et al. 2021) is GPT-3, trained on public text and published. Its scores are not
divided by sqrt(d_k), and its projections to queries, keys and values add no vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from regard.attention.cache import KeyValueCache
from regard.attention.multihead import PackedLinear
from regard.attention.selection import local_mask
from regard.data.batches import Sequences
from regard.models.config import AttentionKinds, Probability, Size
from regard.models.gpt2 import GPT2, GPT2Block, GPT2Config
from regard.ops import KeyMask


@dataclass(frozen=True)
class GPT3Config(GPT2Config):
    """The defaults are the smallest model. The paper mentions no dropout and no width of the bands;
    256 is that of GPT-Neo.

    attention_kinds: of the first layers, repeated for the others: "global": a token sees all
        earlier ones; "local": only the last `window` tokens.
    window: the tokens that a token of a "local" layer sees, itself included.

    The others are those of `GPT2Config`.
    """

    max_length: Size = 2048
    dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    attention_kinds: AttentionKinds = ("global", "local")
    window: Size = 256


class GPT3(GPT2):
    """GPT-3: "Language Models are Few-Shot Learners" (Brown et al. 2020).

    GPT-3, a `LanguageModel` and an `Encoder`.
    """

    Config: type = GPT3Config
    # Table 2.1, where heads x d_head is d_model. It prints 24 heads of 128 for XL, whose d_model is
    # 2048, and a d_model of 5140 for 13B, whose heads have 40 x 128 dimensions. The counts of
    # table D.1 are those of 16 heads and of 5120.
    SIZES = {
        "125M": dict(d_model=768, heads=12, layers=12),
        "350M": dict(d_model=1024, heads=16, layers=24),
        "760M": dict(d_model=1536, heads=16, layers=24),
        "1.3B": dict(d_model=2048, heads=16, layers=24),
        "2.7B": dict(d_model=2560, heads=32, layers=32),
        "6.7B": dict(d_model=4096, heads=32, layers=32),
        "13B": dict(d_model=5120, heads=40, layers=40),
        "175B": dict(d_model=12288, heads=96, layers=96),
    }
    reads_both_ways = False

    def layer_masks(self, mask: Callable[[int | None], KeyMask]) -> list[KeyMask]:
        """The mask of each layer; mask: from a window, or None for all tokens, to a mask."""
        kinds = self.config.attention_kinds
        masks = {"global": mask(None), "local": mask(self.config.window)}
        return [masks[kinds[n % len(kinds)]] for n in range(self.config.layers)]

    def masks_of(self, batch: Sequences) -> list[KeyMask]:
        return self.layer_masks(lambda window: local_mask(batch, window))

    def masks_after(self, cache: KeyValueCache, count: int) -> list[KeyMask]:
        return self.layer_masks(lambda window: cache.mask(count, window))


@dataclass(frozen=True)
class GPTNeoConfig(GPT3Config):
    """The defaults are the smallest model; the fields are those of `GPT3Config`."""

    head_dropout: Probability = 0.1
    scaled: Literal[False] = False
    scaled_by_layer: Literal[False] = False


class GPTNeoBlock(GPT2Block):
    """x = x + attend(norm(x)); x = x + feed(norm(x))"""

    def __init__(self, config: GPT2Config, layer: int):
        super().__init__(config, layer)
        width = config.d_model
        self.attention.query_key_value = PackedLinear(width, width, parts=3, bias=False)


class GPTNeo(GPT3):
    """GPT-Neo, a `LanguageModel` and an `Encoder`."""

    Config: type = GPTNeoConfig
    SIZES = {
        "125M": dict(d_model=768, heads=12, layers=12),
        "1.3B": dict(d_model=2048, heads=16, layers=24),
        "2.7B": dict(d_model=2560, heads=20, layers=32),
    }
    block: Any = GPTNeoBlock
