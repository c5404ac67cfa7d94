"""Which token comes next: the largest probabilities as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from rich.cells import cell_len
from rich.text import Text

from regard.data.batches import Sequences
from regard.decoding.start import start
from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.models.protocols import Generator
from regard.text import Tokenizer
from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Rect, clip, text_width, visible
from regard.visual.picture import Picture

LONGEST = 24  # columns of a token
FULL = 220  # pixels of the longest bar


@dataclass(frozen=True, repr=False)
class Distribution(Picture):
    """Tokens with probabilities, largest first; the `others` further ones have `rest` in sum."""

    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    rest: float = 0.0
    others: int = 0
    title: str = ""

    @classmethod
    def of(cls, probabilities: Any, tokens: Sequence[str], most: int = 10, title: str = "") -> Self:
        """The `most` probable of `tokens`.

        probabilities: of the V tokens, a tensor, an array or a list; they sum to one. Equal ones
        keep the order of the vocabulary.

        Raises:
            ConfigError: the lengths differ, or the numbers are no probabilities (logits, perhaps).
        """
        values = probabilities
        numbers = values.tolist() if hasattr(values, "tolist") else list(values)
        if len(numbers) != len(tokens):
            raise ConfigError(
                f"`tokens` must be {len(numbers)}, as many as probabilities, but is {len(tokens)}."
            )
        total = sum(numbers)
        if not abs(total - 1) < 1e-3 or min(numbers) < 0:
            raise ConfigError(
                f"`probabilities` must be at least 0 and sum to 1, but sum to {total:.4g}. "
                "Take the softmax of logits first."
            )
        order = sorted(range(len(numbers)), key=lambda index: -numbers[index])[:most]
        chosen = tuple(numbers[index] for index in order)
        others = len(numbers) - len(order)
        rest = max(0.0, total - sum(chosen)) if others else 0.0
        return cls(tuple(tokens[index] for index in order), chosen, rest, others, title)

    def _bars(self) -> list[tuple[str, float, str]]:
        """(token, probability, colour)"""
        bars = [(t, p, "accent") for t, p in zip(self.tokens, self.probabilities, strict=True)]
        if self.others:
            bars.append((f"{self.others:,} others", self.rest, "muted"))
        return bars

    @property
    def _full(self) -> float:
        """The probability of a bar of full length; the sum of the others has no bar."""
        return max(self.probabilities, default=0.0) or 1.0

    def drawing(self) -> Drawing:
        bars, shapes, top = self._bars(), self._title_shapes(), 34 if self.title else 8
        left = 18 + max((text_width(clip(token, LONGEST), 13) for token, _, _ in bars), default=0)
        for index, (token, probability, fill) in enumerate(bars):
            y = top + 24 * (index + 0.5)
            wide = FULL * probability / self._full if fill == "accent" else 0.0
            ink = "ink" if fill == "accent" else "muted"
            tip = f"{token}: {probability:.6f}"
            shapes += [
                Label(left - 8, y, clip(token, LONGEST), 13, "end", ink, title=token),
                Rect(left, y - 8, max(wide, 0.5), 16, fill, 0.85, tip),
                Label(left + wide + 6, y, f"{probability:.4f}", 11.5, fill="muted"),
            ]
        width = max(left + FULL + 70, self._title_width())
        return Drawing(width, top + 24 * len(bars) + 6, tuple(shapes), self.title or "next token")

    def terminal(self, width: int, color: bool) -> Text:
        text, bars = self._title_text(width), self._bars()
        name = min(LONGEST, max((cell_len(visible(token)) for token, _, _ in bars), default=1))
        for token, probability, fill in bars:
            text.append(f"{characters.pad(token, name, right=True)} {probability:.4f} ")
            share = probability / self._full if fill == "accent" else 0.0
            drawn = characters.bar(share, max(1, width - name - 9), color)
            text.append(drawn + "\n", style="blue" if color else "")
        return text


def next_tokens(
    model: Generator, tokenizer: Tokenizer, text: str = "", most: int = 10, title: str = ""
) -> Distribution:
    """The next-token distribution of a language model after `text`; "" is the start of a text.

    most: how many tokens are shown.
    """
    ids = tokenizer.encode(text).ids
    prompt = Sequences.of([ids], model.config.pad) if ids else None
    with torch.no_grad(), evaluating(model):
        state, first = start(model, prompt)
        scores, _ = model.step(first, state)
    probabilities = scores[0, -1].double().softmax(-1)
    tokens = [tokenizer.label(index) for index in range(len(probabilities))]
    return Distribution.of(probabilities, tokens, most, title or f"after {text!r}")
