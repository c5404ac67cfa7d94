"""What each word of a caption attends to: the photograph, bright where the weights are large
(Xu et al. 2015, figures 3 and 5).

task = regard.load("runs/soft")
attended_regions(task, "dog.jpg").save("dog.png")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from regard.data.images import open_image
from regard.visual.attention_record import look
from regard.visual.drawing import Drawing, Label, Pixels, Shape, clip
from regard.visual.picture import Picture

if TYPE_CHECKING:
    from regard.tasks.captioning import Captioner

SIDE, GAP, ROW = 112, 10, 6  # pixels of a photograph, between two, and photographs in a row
DARKEST = 0.15  # of the brightness, where the weight is 0


@dataclass(frozen=True, repr=False)
class AttendedRegions(Picture):
    """The photograph itself, and once for each word.

    photograph: (SIDE, SIDE, 3) bytes.
    words: of the caption, and what ends it.
    weights: of each word over the regions, (T, rows, columns).
    """

    photograph: np.ndarray
    words: tuple[str, ...]
    weights: Tensor
    title: str = ""

    def drawing(self) -> Drawing:
        shapes = self._title_shapes()
        top = 26 if self.title else 8
        tiles = [("", self.photograph), *zip(self.words, self._brightened(), strict=True)]
        for number, (word, colours) in enumerate(tiles):
            x = GAP + number % ROW * (SIDE + GAP)
            y = top + number // ROW * (SIDE + 26)
            shapes += self._tile(x, y, word, colours)
        columns, rows = min(ROW, len(tiles)), -(-len(tiles) // ROW)
        width = max(GAP + columns * (SIDE + GAP), self._title_width())
        return Drawing(width, top + rows * (SIDE + 26), tuple(shapes), self.title)

    def _tile(self, x: float, y: float, word: str, colours: np.ndarray) -> list[Shape]:
        alpha = np.full((SIDE, SIDE, 1), 255, np.uint8)
        pixels = np.concatenate([colours, alpha], -1).tobytes()
        shapes: list[Shape] = [Pixels(x, y, SIDE, SIDE, ((0.0,) * SIDE,) * SIDE, pixels)]
        if word:
            shapes.append(Label(x + SIDE / 2, y + SIDE + 14, clip(word, 16), 12, anchor="middle"))
        return shapes

    def _brightened(self) -> list[np.ndarray]:
        """Of each word (SIDE, SIDE, 3); where its weight is largest, the photograph is as bright
        as it is.
        """
        whole = F.interpolate(
            self.weights[:, None], (SIDE, SIDE), mode="bilinear", align_corners=False
        )[:, 0]  # (T, SIDE, SIDE)
        share = whole / whole.amax((1, 2), keepdim=True).clamp(min=1e-12)
        bright = (DARKEST + (1 - DARKEST) * share).numpy()[..., None]
        return [np.round(self.photograph * shade).astype(np.uint8) for shade in bright]

    def terminal(self, width: int, color: bool) -> Text:
        """The region that each word attends to most, and its weight."""
        text = self._title_text(width)
        columns = self.weights.size(2)
        for word, weights in zip(self.words, self.weights, strict=True):
            at = int(weights.argmax())
            where = f"row {at // columns + 1}, column {at % columns + 1}"
            text.append(f"{clip(word, 20):<20} {float(weights.max()):.2f} at {where}\n")
        return text


def attended_regions(task: Captioner, image: str | Path, **options: Any) -> AttendedRegions:
    """What each word of an image's caption attends to: the mean of the heads of the last layer.

    options: how to decode, by name (`beams=4`).

    Raises:
        DataError: the file is no image.
    """
    with look(task) as attention:
        caption = task.generate([image], **options)[0]
    (recorded,) = attention.passes
    *_, last = (each for each in recorded.attentions.values() if each.kind == "cross")
    weights = last.weights[0].mean(0)  # (B=1, H, T, S) -> (T, S)
    rows = round(weights.size(1) ** 0.5)
    assert recorded.target is not None
    words = tuple(recorded.target[0][1:])
    photograph = np.asarray(open_image(image).resize((SIDE, SIDE)), np.uint8)
    return AttendedRegions(photograph, words, weights.unflatten(1, (rows, rows)), caption)
