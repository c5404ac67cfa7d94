"""Captions by greedy search: Show, Attend and Tell and a Transformer over the regions of images.

The peer of the recurrent decoder is the paper's equations with torch's own parts: `nn.LSTMCell` and
linear layers, all images in one batch, or image after image. Weights are random and the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Work
from benchmarks.options import Options
from benchmarks.workers import Condition

SIDES = {
    "regard": ("Ours", {"model": "recurrent"}),
    "regard, beams of 5": ("Ours", {"model": "recurrent", "beams": 5}),
    "regard, image after image": ("Ours", {"model": "recurrent", "at_once": 1}),
    "regard, a Transformer": ("Ours", {"model": "transformer"}),
    "PyTorch LSTMCell": ("Theirs", {}),
    "PyTorch LSTMCell, image after image": ("Theirs", {"at_once": 1}),
}


def works(options: Options) -> Iterator[Work]:
    """The sizes of `recipes/flickr8k-captions.toml`; no caption ends before the limit."""
    count, words = (3, 4) if options.quick else (64, 12)
    given = {"quick": options.quick, "count": count, "words": words, "at_once": count}
    yield Work(
        "captions",
        "captions/s",
        count,
        [
            Condition(name, f"{__name__}:{kind}", given | settings)
            for name, (kind, settings) in SIDES.items()
        ],
        {"PyTorch LSTMCell": 1.0, "PyTorch LSTMCell, image after image": 1.0},
        judge=lambda results: {name: str(one[0][-3:]) for name, one in results.items()},
        note=f"{count} images of 49 regions of 1,280 numbers, {words} words each, greedy",
    )


def _model(kind: str, quick: bool) -> Any:
    """Random weights, and no word that ends a caption."""
    from regard.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
    from regard.models.transformer import RegionTransformer, RegionTransformerConfig

    words, region, width = (20, 16, 8) if quick else (2500, 1280, 384)
    torch.manual_seed(1)
    if kind == "transformer":
        sizes = {"d_model": width, "d_ff": 4 * width, "heads": 4}
        layers = {"encoder_layers": 2, "decoder_layers": 3}
        config = RegionTransformerConfig(words, d_region=region, **sizes, **layers)
        return RegionTransformer(config).eval()
    return ShowAttendTell(ShowAttendTellConfig(words, region, width, width // 2)).eval()


class Ours:
    """The library's search, with `at_once` images in a batch."""

    def __init__(
        self,
        quick: bool,
        count: int,
        words: int,
        at_once: int,
        threads: int,
        model: str = "recurrent",
        beams: int = 1,
    ):
        from regard import decoding, ops

        ops.load_kernels()
        torch.set_num_threads(threads)
        self.model, self.words, self.at_once = _model(model, quick), words, at_once
        width = self.model.config.d_region
        drawn = np.random.default_rng(1).standard_normal((count, 49, width))
        self.features = drawn.astype(np.float32)
        search = {"beams": beams} if beams > 1 else {}
        limits = {"min_tokens": words, "max_tokens": words}
        self.method = decoding.options(**search, **limits)

    def turn(self) -> list[list[int]]:
        """The tokens of each caption."""
        found: list[list[int]] = []
        with torch.no_grad():
            for start in range(0, len(self.features), self.at_once):
                found += self.captions(self.features[start : start + self.at_once])
        return found

    def captions(self, features: np.ndarray) -> list[list[int]]:
        """Of images (B, S, F)."""
        from regard import decoding
        from regard.data.images import RegionTable

        source = RegionTable(features).select(range(len(features)))
        several = decoding.generate(self.model, source, self.method)
        return [hypotheses[0].tokens for hypotheses in several]


class Theirs(Ours):
    """The same weights in torch's own parts."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        model = self.model
        width, region = model.config.d_model, model.config.d_region
        cell = nn.LSTMCell(model.config.d_embedding + region, width)
        with torch.no_grad():
            context, hidden = model.gates.weight.split([region, width], 1)
            cell.weight_ih.copy_(torch.cat([model.words.weight, context], 1))
            cell.weight_hh.copy_(hidden)
            cell.bias_ih.copy_(model.words.bias)
            cell.bias_hh.zero_()
        self.cell = cell

    def captions(self, features: np.ndarray) -> list[list[int]]:
        """See `Ours`."""
        model, regions = self.model, torch.from_numpy(features)
        mean = regions.mean(1)
        state = torch.tanh(model.first_hidden(mean)), torch.tanh(model.first_cell(mean))
        keys = model.score.key(regions)  # (B, S, D)
        written = [torch.full((len(regions),), model.config.bos)]
        for _ in range(self.words):
            scores, state = self._step(written[-1], state, regions, keys)
            scores[:, model.config.eos] = -torch.inf
            written.append(scores.argmax(1))
        rows: list[list[int]] = torch.stack(written[1:], 1).tolist()
        return rows

    def _step(
        self, tokens: Tensor, state: tuple[Tensor, Tensor], regions: Tensor, keys: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Scores (B, V) of the next word, and the state."""
        model, hidden = self.model, state[0]
        word = nn.functional.embedding(tokens, model.embedding.weight)
        both = torch.tanh(model.score.query(hidden)[:, None] + keys)  # (B, S, D)
        weights = model.score.weigh(both).softmax(1)  # (B, S, 1)
        context = torch.sigmoid(model.gate(hidden)) * (weights * regions).sum(1)
        state = self.cell(torch.cat([word, context], 1), state)
        deep = word + model.hidden_output(state[0]) + model.context_output(context)
        scores: Tensor = model.head.logits(deep)
        return scores, state
