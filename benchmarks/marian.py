"""Beam search of 4 and greedy search with an OPUS-MT of the base shape over Multi30k's sentences.

Its vocabulary has 58,101 tokens, of which the last is the padding: the decoder starts with its
embedding, which is zero, and never generates it. The other weights are random, in the published
format, and the same for everybody, as in `translation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import translation
from benchmarks.cache import cached
from benchmarks.measure import Work
from benchmarks.options import Options

EOS = 0
GOALS = {"CTranslate2 int8": 1.3, "transformers bfloat16": 4.0}
BASE = {"vocab_size": 58101, "d_model": 512, "d_ff": 2048, "heads": 8}
TINY = {"vocab_size": 60, "d_model": 32, "d_ff": 64, "heads": 2}
NEVER = -1e4  # the logit of the padding


def works(options: Options) -> Iterator[Work]:
    """Random weights of the base shape."""
    sizes, layers = (TINY, 2) if options.quick else (BASE, 6)
    rows = [[*row[:-1], EOS] for row in translation.sentences(options, sizes["vocab_size"] - 1)]
    limit = 6 if options.quick else 14
    name = "translation, tiny Marian" if options.quick else "translation, OPUS-MT, random weights"
    folder = _folder(options.cache, sizes, layers)
    yield from translation.searches(name, folder, rows, limit, options, __name__, GOALS)


def _folder(cache: Path, sizes: dict[str, int], layers: int) -> Path:
    """Random weights in the published format, written once by the library itself."""

    def write(path: Path) -> None:
        import torch

        from regard.models.transformer import Transformer, TransformerConfig

        torch.manual_seed(1)
        pad = sizes["vocab_size"] - 1
        blocks = {"encoder_layers": layers, "decoder_layers": layers}
        fixed = {"pad": pad, "bos": pad, "eos": EOS, "output_bias": True, "max_length": 512}
        config = TransformerConfig(**sizes, **blocks, **fixed, activation="swish", dropout=0.0)
        model = Transformer(config)
        with torch.no_grad():
            model.embedding.weight[pad] = 0.0
            model.head.bias[pad] = NEVER
        translation.write_published(path, model)

    name = f"marian-{sizes['d_model']}x{layers}-{sizes['vocab_size']}-padded-numbers"
    return cached(cache / name, write)


# ------------------------------------------------------------------------------------- sides

write_ours = translation.write_ours


class Ours(translation.Ours):
    """As in `translation`."""


class Transformers(translation.Transformers):
    """As in `translation`."""

    eos = EOS

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.pad = self.model.config.pad_token_id


def write_ct2(folder: str, weights: str, **search: object) -> None:
    """The folder in its format."""
    path = translation.ct2_folder(folder, weights)
    cached(path, lambda made: _convert(folder, made, weights))


class CTranslate2(translation.CTranslate2):
    """As in `translation`."""

    eos = EOS


def _convert(folder: str, path: Path, weights: str) -> None:
    """Write the folder in CTranslate2's format, by its own loader, which removes the padding."""
    import transformers
    from ctranslate2.converters.transformers import MarianMTLoader

    model = transformers.MarianMTModel.from_pretrained(folder)
    spec = MarianMTLoader().get_model_spec(model)
    spec.decoder.start_from_zero_embedding = True
    words = [str(i) for i in range(model.config.vocab_size - 1)]
    translation.save_ct2(spec, words, words[EOS], words[EOS], path, weights)
