"""Which word comes next: the largest probabilities as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.cells import cell_len
from rich.text import Text

from regard.errors import ConfigError
from regard.visual import characters
from regard.visual.drawing import Drawing, Label, Rect, Shape, clip, text_width, visible
from regard.visual.picture import Picture

LONGEST = 24  # columns of a word
FULL = 320  # pixels of a bar of probability 1


@dataclass(frozen=True)
class Distribution(Picture):
    """Words with probabilities, largest first; `rest` is what the other `others` words share."""

    words: tuple[str, ...]
    probabilities: tuple[float, ...]
    rest: float = 0.0
    others: int = 0
    title: str = ""

    @classmethod
    def of(cls, probabilities: Any, words: Sequence[str], most: int = 10, title: str = "") -> Self:
        """The `most` likely of `words`, given their `probabilities` (V,), which sum to one.

        Equal probabilities keep the order of the vocabulary.

        Raises:
            ConfigError: the lengths differ, or the numbers are no probabilities (logits, perhaps).
        """
        numbers = (
            probabilities.tolist() if hasattr(probabilities, "tolist") else list(probabilities)
        )
        if len(numbers) != len(words):
            raise ConfigError(
                f"`words` must be {len(numbers)}, as many as probabilities, but is {len(words)}."
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
        return cls(tuple(words[index] for index in order), chosen, rest, others, title)

    def _bars(self) -> list[tuple[str, float, str]]:
        """(word, probability, colour)"""
        bars = [(word, p, "accent") for word, p in zip(self.words, self.probabilities, strict=True)]
        if self.others:
            bars.append((f"{self.others:,} others", self.rest, "muted"))
        return bars

    @property
    def _full(self) -> float:
        """The probability of a bar of full length; all the others together get no bar."""
        return max(self.probabilities, default=0.0) or 1.0

    def drawing(self) -> Drawing:
        bars, top = self._bars(), 34 if self.title else 8
        left = 18 + max((text_width(clip(word, LONGEST), 13) for word, _, _ in bars), default=0)
        shapes: list[Shape] = []
        if self.title:
            shapes.append(Label(8, 14, self.title, 14, bold=True))
        for index, (word, probability, fill) in enumerate(bars):
            y = top + 24 * (index + 0.5)
            wide = FULL * probability / self._full if fill == "accent" else 0.0
            ink = "ink" if fill == "accent" else "muted"
            tip = f"{word}: {probability:.6f}"
            shapes += [
                Label(left - 8, y, clip(word, LONGEST), 13, "end", ink, title=word),
                Rect(left, y - 8, max(wide, 0.5), 16, fill, 0.85, tip),
                Label(left + wide + 6, y, f"{probability:.4f}", 11.5, fill="muted"),
            ]
        width = max(left + FULL + 70, text_width(self.title, 14.5) + 16)
        return Drawing(width, top + 24 * len(bars) + 6, tuple(shapes), self.title or "next word")

    def terminal(self, width: int, color: bool) -> Text:
        text, bars = Text(no_wrap=True), self._bars()
        if self.title:
            text.append(clip(self.title, width) + "\n", style="bold")
        name = min(LONGEST, max((cell_len(visible(word)) for word, _, _ in bars), default=1))
        for word, probability, fill in bars:
            text.append(f"{characters.pad(word, name, right=True)} {probability:.4f} ")
            share = probability / self._full if fill == "accent" else 0.0
            drawn = characters.bar(share, max(1, width - name - 9), color)
            text.append(drawn + "\n", style="blue" if color else "")
        return text


def next_tokens(
    model: Any, tokenizer: Any, text: str = "", most: int = 10, title: str = ""
) -> Distribution:
    """What a language model expects after `text`; an empty text asks for the first word."""
    import torch

    from regard.data.batches import Sequences

    ids = tokenizer.encode(text).ids
    prompt = Sequences.of([ids], model.config.pad) if ids else None
    training = model.training
    model.eval()
    with torch.no_grad():
        state, tokens = model.start(prompt)
        scores, _ = model.step(tokens, state)
    model.train(training)
    probabilities = scores[0, -1].double().softmax(-1)
    words = [tokenizer.label(index) for index in range(len(probabilities))]
    return Distribution.of(probabilities, words, most, title or f"after {text!r}")
