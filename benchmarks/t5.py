"""Beam search of 4 with a T5 of the small shape over Multi30k's sentences, as `translation` does.

The weights are random, in the published format, and the same for everybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import translation
from benchmarks.cache import cached
from benchmarks.decoding.shape import write_numbers
from benchmarks.measure import Work
from benchmarks.options import Options

PAD, EOS, UNKNOWN = 0, 1, 2
GOALS = {"CTranslate2 int8": 1.3, "transformers bfloat16": 4.0}
TINY = {
    "vocab_size": 60, "d_model": 32, "d_ff": 64, "heads": 2, "head_dim": 16, "layers": 2,
    "decoder_layers": 2,
}  # fmt: skip


def works(options: Options) -> Iterator[Work]:
    """Random weights of the small shape."""
    from regard.models.t5 import SIZES

    sizes = TINY if options.quick else {"vocab_size": 32128, **SIZES["small"]}
    rows = [[*row[:-1], EOS] for row in translation.sentences(options, int(sizes["vocab_size"]))]
    limit = 6 if options.quick else 14
    name = "translation, tiny T5" if options.quick else "translation, T5 small, random weights"
    note = f"{len(rows):,} sentences, beams of {translation.BEAMS}, {limit} tokens each"
    folder = _folder(options.cache, sizes)
    yield translation.work(name, note, folder, rows, limit, options, __name__, GOALS)


def _folder(cache: Path, sizes: dict[str, Any]) -> Path:
    """Random weights in the published format, written once by the library itself."""

    def write(path: Path) -> None:
        import torch

        from regard.checkpoints.formats import to_published
        from regard.checkpoints.store import write_tensors
        from regard.models.t5 import T5, T5Config

        torch.manual_seed(1)
        published = to_published(T5(T5Config(**sizes, dropout=0.0)))
        assert published is not None
        path.mkdir()
        write_tensors(path / "model.safetensors", published[1])
        (path / "config.json").write_text(json.dumps(published[0], indent=1))
        write_numbers(path, sizes["vocab_size"])

    name = f"t5-{sizes['d_model']}x{sizes['layers']}-{sizes['vocab_size']}-numbers"
    return cached(cache / name, write)


# ------------------------------------------------------------------------------------- sides

write_ours = translation.write_ours


class Ours(translation.Ours):
    """As in `translation`."""


class Transformers(translation.Transformers):
    """As in `translation`."""

    kind, ends = "T5ForConditionalGeneration", (PAD, EOS)


def write_ct2(folder: str, rows: str, limit: int, weights: str, parallel: bool) -> None:
    """The folder in its format."""
    path = translation.ct2_folder(folder, weights)
    cached(path, lambda made: _convert(folder, made, weights))


class CTranslate2(translation.CTranslate2):
    """As in `translation`."""

    ends = (PAD, EOS)


def _convert(folder: str, path: Path, weights: str) -> None:
    """Write the folder in CTranslate2's format; its words are the numbers of the tokens."""
    import transformers
    from ctranslate2.converters.transformers import T5Loader

    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    spec = T5Loader().get_model_spec(model)
    words = [str(i) for i in range(model.config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = words[PAD]
    spec.config.eos_token, spec.config.unk_token = words[EOS], words[UNKNOWN]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=weights)
    path.mkdir()
    spec.save(str(path))
