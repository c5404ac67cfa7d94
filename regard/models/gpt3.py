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


_FLOPS = (
    "Brown et al. 2020, table D.1, before it rounds: 6 for each parameter and each of 300 billion "
    "tokens, without attention"
)


def _printed(parameters: float, millions: int, exact: int) -> dict[str, tuple[float, str]]:
    source = (
        f"Brown et al. 2020, table 2.1; table D.1 prints {millions:,} million. With 50,257 tokens "
        f"and 2,048 positions they are {exact:,}"
    )
    return {"parameters": (parameters, source), "FLOPs": (6 * millions * 1e6 * 300e9, _FLOPS)}


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
    PUBLISHED: dict[str, Any] = {
        "125M": _printed(125e6, 125, 125_226_240),
        "350M": _printed(350e6, 356, 355_871_744),
        "760M": _printed(760e6, 760, 760_300_032),
        "1.3B": _printed(1.3e9, 1_320, 1_315_723_264),
        "2.7B": _printed(2.7e9, 2_650, 2_651_553_280),
        "6.7B": _printed(6.7e9, 6_660, 6_658_404_352),
        "13B": _printed(13.0e9, 12_850, 12_853_386_240),
        "175B": _printed(175.0e9, 174_600, 174_604_259_328),
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


_NEO_NAME = "the name of the model; with its 50,257 tokens they are {:,}"


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
    PUBLISHED: dict[str, Any] = {
        "125M": {"parameters": (125e6, _NEO_NAME.format(125_198_592))},
        "1.3B": {"parameters": (1.3e9, _NEO_NAME.format(1_315_575_808))},
        "2.7B": {"parameters": (2.7e9, _NEO_NAME.format(2_651_307_520))},
    }
    block: Any = GPTNeoBlock
