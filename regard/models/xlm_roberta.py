"""XLM-R: "Unsupervised Cross-lingual Representation Learning at Scale" (Conneau et al. 2020).

The network is RoBERTa's. It was trained on text in 100 languages, with 250,002 subwords of a
unigram language model instead of byte-level BPE.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.models.roberta import SIZES, Roberta, RobertaConfig


@dataclass(frozen=True)
class XlmRobertaConfig(RobertaConfig):
    """The defaults are the base model."""


_PARAMETERS = (
    "Conneau et al. 2020, the sizes in its appendix, rounded; with 250,002 tokens the encoder "
    "and its pooler have 278,043,648 and 559,890,432"
)
PUBLISHED = {
    "base": {"parameters": (270e6, _PARAMETERS)},
    "large": {"parameters": (550e6, _PARAMETERS)},
}


class XlmRoberta(Roberta):
    """XLM-R without a head, an `Encoder`."""

    Config = XlmRobertaConfig
    SIZES = SIZES
    PUBLISHED = PUBLISHED
