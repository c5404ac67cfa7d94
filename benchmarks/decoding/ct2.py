"""CTranslate2: the same weights, converted once by its own converter."""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np

from benchmarks.cache import cached
from benchmarks.decoding.quality import told
from benchmarks.decoding.shape import Shape


def prepare(folder: str, shape: dict[str, int], weights: str) -> None:
    """Convert the folder."""
    cached(_path(folder, weights), lambda made: convert(folder, made, weights))


class CTranslate2:
    """weights: one of CTranslate2's compute types."""

    def __init__(self, folder: str, shape: dict[str, int], weights: str, threads: int):
        self.shape = Shape(**shape)
        self.model = ctranslate2.Generator(
            str(_path(folder, weights)),
            device="cpu",
            compute_type=weights,
            intra_threads=threads,
            inter_threads=1,
        )
        self.prompts = [[str(i) for i in row] for row in self.shape.prompts()]

    def turn(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        found = self.model.generate_batch(
            self.prompts,
            max_length=self.shape.new,
            min_length=self.shape.new,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
        )
        return [each.sequences_ids[0] for each in found]

    def scores(self, ids: list[list[int]]) -> list[tuple[float, list[int]]]:
        """See `quality.told`."""
        found = self.model.forward_batch([[str(i) for i in row] for row in ids])
        logits = (
            np.array(found.to_device(ctranslate2.Device.cpu))
            if hasattr(found, "to_device")
            else np.array(found)
        )
        return [told(logits[i, : len(row)].astype(np.float32), row) for i, row in enumerate(ids)]


def _path(folder: str, weights: str) -> Path:
    return Path(folder) / f"ctranslate2-{weights}"


def convert(folder: str, path: Path, weights: str) -> None:
    """Write the folder in CTranslate2's format; its words are the numbers of the tokens."""
    import transformers
    from ctranslate2.converters.transformers import GPT2Loader

    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    spec = GPT2Loader().get_model_spec(model)
    words = [str(i) for i in range(model.config.vocab_size)]
    spec.register_vocabulary(words)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = words[-1]
    spec.validate()
    spec.optimize(quantization=weights)
    path.mkdir()
    spec.save(str(path))
