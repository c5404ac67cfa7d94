"""How models have grown: their parameters on a logarithmic axis, counted and reported.

    model_sizes().save("sizes.svg")                      # the models of the lectures
    model_sizes([NamedSize("GPT-2", 2019, "gpt2", "124M", dict(vocab_size=50257))]).show()

Every count is that of a model of this library, built on the meta device, where it takes no memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from regard.checkpoints.filling import on_meta
from regard.errors import ConfigError
from regard.models import model_class
from regard.visual import characters
from regard.visual.drawing import Circle, Drawing, Label, Polyline, Shape, text_width
from regard.visual.picture import Picture


@dataclass(frozen=True)
class NamedSize:
    """A published model.

    model, size: of the table of models, and of the model's `SIZES`.
    options: what the size leaves open: the vocabulary.
    with_pooler: whether the published count has the pooler of an encoder.
    """

    name: str
    year: int
    model: str
    size: str
    options: dict[str, Any] = field(default_factory=dict)
    with_pooler: bool = False

    @property
    def parameters(self) -> int:
        """The exact count; shared parameters count once.

        Raises:
            ConfigError: there is no such model, or no such size of it.
        """
        kind: Any = model_class(self.model)
        if self.size not in kind.SIZES:
            known = ", ".join(kind.SIZES)
            raise ConfigError(f"`size` must be one of {known}, but is {self.size!r}.")
        with on_meta():
            model = kind(kind.Config(**{**kind.SIZES[self.size], **self.options}))
            parts = [model, model.new_head("pooler")] if self.with_pooler else [model]
        return sum(parameter.numel() for part in parts for parameter in part.parameters())

    @property
    def reported(self) -> float | None:
        """The published count; None where none is reported."""
        found = model_class(self.model).PUBLISHED.get(self.size, {}).get("parameters")
        return None if found is None else found[0]


def _vocabulary(tokens: int, **more: Any) -> dict[str, Any]:
    return dict(vocab_size=tokens, **more)


LECTURES = (
    NamedSize("Transformer base", 2017, "transformer", "base", _vocabulary(37_000)),
    NamedSize("Transformer big", 2017, "transformer", "big", _vocabulary(37_000)),
    # Words enter by their characters; the output over 793,471 words is not in the reported count.
    NamedSize("ELMo", 2018, "elmo", "original", _vocabulary(793_471, output="none")),
    NamedSize("GPT", 2018, "gpt", "base", _vocabulary(40_478)),
    NamedSize("BERT base", 2018, "bert", "base", _vocabulary(30_522), with_pooler=True),
    NamedSize("BERT large", 2018, "bert", "large", _vocabulary(30_522), with_pooler=True),
    NamedSize(
        "Transformer-XL large",
        2019,
        "transformer-xl",
        "large",
        _vocabulary(267_735, cutoffs=(20_000, 40_000, 200_000)),
    ),
    NamedSize("GPT-2", 2019, "gpt2", "1558M", _vocabulary(50_257)),
    NamedSize("XLNet large", 2019, "xlnet", "large", _vocabulary(32_000)),
    NamedSize("RoBERTa large", 2019, "roberta", "large", _vocabulary(50_265), with_pooler=True),
    NamedSize("DistilBERT", 2019, "distilbert", "base", _vocabulary(30_522)),
    NamedSize("ALBERT xxlarge", 2019, "albert", "xxlarge", _vocabulary(30_000), with_pooler=True),
    NamedSize("T5 11B", 2019, "t5", "11b", _vocabulary(32_128)),
    NamedSize("GPT-3", 2020, "gpt3", "175B", _vocabulary(50_257)),
    NamedSize("GPT-Neo", 2021, "gpt-neo", "2.7B", _vocabulary(50_257)),
    NamedSize("Llama 65B", 2023, "llama", "65B", _vocabulary(32_000)),
)


@dataclass(frozen=True)
class CountedSize:
    """One row of the chart."""

    name: str
    year: int
    parameters: int
    reported: float | None


ROW, WIDE = 22, 430  # pixels of a row, and of the axis


@dataclass(frozen=True, repr=False)
class ModelSizes(Picture):
    """A dot for each count, and a ring for what is reported; the axis is logarithmic."""

    rows: tuple[CountedSize, ...]
    title: str = "parameters"

    @property
    def decades(self) -> range:
        """The powers of ten around all numbers."""
        numbers = [row.parameters for row in self.rows]
        numbers += [int(row.reported) for row in self.rows if row.reported]
        low, high = math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))
        return range(low, max(high, low + 1) + 1)

    def share(self, number: float) -> float:
        """Where a number lies on the axis, from 0 to 1."""
        first, last = self.decades[0], self.decades[-1]
        return (math.log10(number) - first) / (last - first)

    def drawing(self) -> Drawing:
        left = 24 + max(text_width(f"{row.year}  {row.name}", 12) for row in self.rows)
        top, shapes = 34, self._title_shapes()
        bottom = top + ROW * len(self.rows)
        for power in self.decades:
            x = left + WIDE * self.share(10.0**power)
            shapes.append(Polyline(((x, top), (x, bottom)), "faint"))
            shapes.append(Label(x, bottom + 12, _round_number(power), 11, "middle", "muted"))
        for index, row in enumerate(self.rows):
            shapes += self._dots(row, left, top + ROW * (index + 0.5))
        shapes += _legend(left, bottom + 30)
        width = left + WIDE + text_width("174,604,259,328", 11) + 16
        return Drawing(width, bottom + 42, tuple(shapes), self.title)

    def _dots(self, row: CountedSize, left: float, y: float) -> list[Shape]:
        x, tip = left + WIDE * self.share(row.parameters), f"{row.name}: {row.parameters:,}"
        shapes: list[Shape] = [
            Label(8, y, str(row.year), 12, fill="muted"),
            Label(left - 10, y, row.name, 12, "end"),
            Polyline(((left, y), (x, y)), "accent", 1.0, 0.35),
        ]
        if row.reported:
            said = f"{row.name}: reported {row.reported:,.0f}"
            shapes += _ring(left + WIDE * self.share(row.reported), y, said)
        shapes += [
            Circle(x, y, 3.2, "accent", tip),
            Label(x + 12, y, f"{row.parameters:,}", 11, fill="muted"),
        ]
        return shapes

    def terminal(self, width: int, color: bool) -> Text:
        text = self._title_text(width)
        name = max(len(row.name) for row in self.rows)
        for row in self.rows:
            text.append(f"{row.year} {characters.pad(row.name, name)} {row.parameters:>15,} ")
            room = max(1, width - name - 22)
            drawn = characters.bar(max(0.0, self.share(row.parameters)), room, color)
            text.append(drawn + "\n", style="blue" if color else "")
        return text


def model_sizes(sizes: Iterable[NamedSize] = LECTURES, title: str = "") -> ModelSizes:
    """The parameters of named models, each built on the meta device.

    Raises:
        ConfigError: there is no such model, or no such size of it.
    """
    rows = tuple(CountedSize(o.name, o.year, o.parameters, o.reported) for o in sizes)
    return ModelSizes(rows, title or "Parameters of published models")


def _ring(x: float, y: float, title: str = "") -> list[Shape]:
    return [Circle(x, y, 6, "warm", title), Circle(x, y, 4.4, "paper")]


def _legend(left: float, y: float) -> list[Shape]:
    counted = Label(left + 12, y, "counted", 11, fill="muted")
    reported = Label(left + 96, y, "reported", 11, fill="muted")
    return [Circle(left, y, 3.2, "accent"), counted, *_ring(left + 84, y), reported]


def _round_number(power: int) -> str:
    """1M, 10M, 100M, 1B, ..."""
    units: Sequence[str] = ("", "K", "M", "B", "T")
    unit = min(power // 3, len(units) - 1)
    return f"{10 ** (power - 3 * unit):,}{units[unit]}"
