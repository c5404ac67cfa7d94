"""Beam search of 4 and greedy search with a T5 of the small shape over Multi30k's sentences.

The weights are random, in the published format, and the same for everybody, as in `translation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import translation
from benchmarks.cache import cached
from benchmarks.measure import Work
from benchmarks.options import Options

PAD, EOS = 0, 1
GOALS = {"CTranslate2 int8": 1.3, "transformers bfloat16": 4.0}
TINY = {
    "vocab_size": 60, "d_model": 32, "d_ff": 64, "heads": 2, "head_dim": 16, "layers": 2,
    "decoder_layers": 2,
}  # fmt: skip


def works(options: Options) -> Iterator[Work]:
    """Random weights of the small shape."""
    from regard.models.t5 import T5

    sizes = TINY if options.quick else {"vocab_size": 32128, **T5.SIZES["small"]}
    rows = [[*row[:-1], EOS] for row in translation.sentences(options, int(sizes["vocab_size"]))]
    limit = 6 if options.quick else 14
    name = "translation, tiny T5" if options.quick else "translation, T5 small, random weights"
    folder = _folder(options.cache, sizes)
    yield from translation.searches(name, folder, rows, limit, options, __name__, GOALS)


def _folder(cache: Path, sizes: dict[str, Any]) -> Path:
    """Random weights in the published format, written once by the library itself."""

    def write(path: Path) -> None:
        import torch

        from regard.models.t5 import T5, T5Config

        torch.manual_seed(1)
        model = T5(T5Config(**sizes, dropout=0.0))
        with torch.no_grad():
            model.embedding.weight[PAD] = 0.0  # tied to the output: else the start is repeated
        translation.write_published(path, model)

    name = f"t5-{sizes['d_model']}x{sizes['layers']}-{sizes['vocab_size']}-padded-numbers"
    return cached(cache / name, write)


# ------------------------------------------------------------------------------------- sides

write_ours = translation.write_ours


class Ours(translation.Ours):
    """As in `translation`."""


class Transformers(translation.Transformers):
    """As in `translation`."""

    kind, pad, eos = "T5ForConditionalGeneration", PAD, EOS


def write_ct2(folder: str, weights: str, **search: object) -> None:
    """The folder in its format."""
    path = translation.ct2_folder(folder, weights)
    cached(path, lambda made: _convert(folder, made, weights))


class CTranslate2(translation.CTranslate2):
    """As in `translation`."""

    pad, eos = PAD, EOS


def _convert(folder: str, path: Path, weights: str) -> None:
    """Write the folder in CTranslate2's format; its words are the numbers of the tokens."""
    import transformers
    from ctranslate2.converters.transformers import T5Loader

    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    spec = T5Loader().get_model_spec(model)
    words = [str(i) for i in range(model.config.vocab_size)]
    translation.save_ct2(spec, words, words[PAD], words[EOS], path, weights)
