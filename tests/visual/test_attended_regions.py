"""The photograph is bright where the weights are large, for every word."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.visual.drawing import Label, Pixels
from regard.visual.image_regions import SIDE, AttendedRegions, attended_regions

sys.path.insert(0, str(Path(__file__).parents[1]))
import every_task  # noqa: E402

from regard.models.transformer import RegionTransformer  # noqa: E402


def test_the_brightest_part_is_where_the_weight_is_largest():
    weights = torch.full((2, 7, 7), 0.01)
    weights[0, 1, 5] = weights[1, 6, 0] = 0.9
    photograph = np.full((SIDE, SIDE, 3), 200, np.uint8)
    picture = AttendedRegions(photograph, ("dog", "</s>"), weights, "a dog")
    pixels = [one for one in picture.drawing().shapes if isinstance(one, Pixels)]
    assert len(pixels) == 3
    first, *words = (np.frombuffer(one.pixels(), np.uint8).reshape(SIDE, SIDE, 4) for one in pixels)
    assert (first[..., :3] == 200).all() and (first[..., 3] == 255).all()
    for word, (row, column) in zip(words, ((1, 5), (6, 0)), strict=True):
        at = np.unravel_index(word[..., 0].argmax(), (SIDE, SIDE))
        assert (at[0] * 7 // SIDE, at[1] * 7 // SIDE) == (row, column)
        assert word[..., 0].max() == 200 and word[..., 0].min() < 40
    labels = [one.text for one in picture.drawing().shapes if isinstance(one, Label)]
    assert labels == ["a dog", "dog", "</s>"]
    assert "0.90 at row 2, column 6" in picture.text()


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_caption_is_drawn_from_its_image(tmp_path, kind):
    torch.manual_seed(1)
    more = [RegionTransformer] if kind == "transformer" else []
    task = every_task.captioner(*more)
    Image.new("RGB", (30, 20), (250, 10, 10)).save(tmp_path / "red.png")
    picture = attended_regions(task, tmp_path / "red.png", max_tokens=4)
    assert picture.weights.shape[1:] == (7, 7) and len(picture.weights) == len(picture.words)
    torch.testing.assert_close(picture.weights.sum((1, 2)), torch.ones(len(picture.words)))
    for name in ("a.png", "a.html", "a.svg", "a.txt"):
        assert picture.save(tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("attention", ["hard", "hard-expected", "mean"])
def test_hard_attention_shows_the_one_region_that_a_word_chose_and_the_mean_all(
    tmp_path, attention
):
    task = every_task.captioner(attention=attention)
    Image.new("RGB", (30, 20), (250, 10, 10)).save(tmp_path / "red.png")
    weights = attended_regions(task, tmp_path / "red.png", max_tokens=4).weights.flatten(1)
    one = torch.full((49,), 1 / 49) if attention == "mean" else torch.eye(49)[-1]
    torch.testing.assert_close(weights.sort(1).values, one.expand(len(weights), -1))
