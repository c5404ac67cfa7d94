"""The alignment that is drawn is the formula of the model's own weights, window by window."""

from __future__ import annotations

import math
import re

import pytest
import torch

from regard.errors import ConfigError
from regard.models.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.translation import Translator
from regard.text import train
from regard.visual import AlignedToken, Alignment, alignment_of
from regard.visual.attention_record import look
from regard.visual.drawing import Circle, Polyline, Rect

TEXT = "one two three four"


def translator(**form):
    torch.manual_seed(2)
    tokenizer = train("words", [TEXT, "two one"], 20)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    config = Seq2SeqConfig(tokenizer.vocab_size, d_model=8, layers=1, **form, **ids)
    model = Seq2Seq(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return Translator(model, tokenizer.with_eos_template())


def shapes(picture, kind, color=None):
    found = [one for one in picture.drawing().shapes if isinstance(one, kind)]
    return [one for one in found if color in (None, vars(one).get("stroke"), vars(one).get("fill"))]


def test_soft_alignment_is_the_recorded_attention_without_marks():
    task = translator()
    picture = alignment_of(task, TEXT, max_tokens=4)
    with look(task) as attention:
        task.hypotheses([TEXT], max_tokens=4)
    (panel,) = attention.plot().panels
    assert picture.weights == panel.heads[0] and picture.columns == panel.keys
    assert set(picture.tokens) == {AlignedToken()} and len(picture.tokens) == len(picture.rows)
    assert not shapes(picture, Circle) and not shapes(picture, Rect, "good")


def test_monotonic_windows_are_framed():
    picture = alignment_of(translator(window="local-m", half_width=1), TEXT, max_tokens=7)
    last = len(picture.columns) - 1
    for t, token in enumerate(picture.tokens):
        centre = min(t, last)
        assert token == AlignedToken((max(0, centre - 1), min(centre + 1, last)), float(centre))
        inside = range(token.window[0], token.window[1] + 1)
        assert all((weight > 0) == (s in inside) for s, weight in enumerate(picture.weights[t]))
    frames = shapes(picture, Rect, "good")
    assert len(frames) == len(picture.rows) == len(shapes(picture, Circle))
    cell = (frames[-1].width + 2) / 2
    assert frames[-1].x + 2 * cell - 1 <= picture.drawing().width and frames[1].x < frames[-1].x


def test_the_gaussian_of_a_predictive_window_has_its_centre_and_deviation():
    picture = alignment_of(translator(window="local-p", half_width=2), TEXT, max_tokens=4)
    curves, dots = shapes(picture, Polyline, "good"), shapes(picture, Circle)
    assert len(curves) == len(dots) == len(picture.rows)
    for token, curve, dot in zip(picture.tokens, curves, dots, strict=True):
        assert token.deviation == 1.0 and token.window[0] <= token.centre + 2
        frame = shapes(picture, Rect, "good")[0]
        cell = frame.height + 3
        xs, ys = zip(*curve.points, strict=True)
        bottom = dot.y
        for x, y in zip(xs, ys, strict=True):
            distance = (x - dot.x) / cell
            height = (bottom - y) / (cell - 8)
            assert height == pytest.approx(math.exp(-(distance**2) / 2), abs=1e-6)
    assert "curve: the Gaussian" in picture.svg() and "p = " in picture.text()


@pytest.mark.parametrize("seed", [None, 1])
def test_hard_choices_are_marked_among_the_weights(seed):
    picture = alignment_of(translator(selection="hard", choice_seed=seed), TEXT, max_tokens=5)
    for row, token in zip(picture.weights, picture.tokens, strict=True):
        assert sum(row) == pytest.approx(1.0, abs=1e-5) and 0 < max(row) < 1
        assert row[token.chosen] > 0
        assert seed is not None or row[token.chosen] == max(row)
    assert len(shapes(picture, Rect, "warm")) == 2 * len(picture.rows)
    assert re.search("chosen: (one|two|three|four|</s>)", picture.text())


def test_a_picture_is_saved_in_every_format(tmp_path):
    picture = alignment_of(translator(window="local-p", selection="hard"), TEXT, max_tokens=3)
    assert isinstance(picture, Alignment) and picture.title == TEXT
    for suffix in (".html", ".svg", ".txt"):
        assert picture.save(tmp_path / f"one{suffix}").stat().st_size > 100


def test_models_without_one_attention_to_the_source_raise_an_error():
    task = translator(attention="none")
    with pytest.raises(ConfigError, match="no attention"):
        alignment_of(task, TEXT)
    sizes = dict(d_model=8, d_ff=8, heads=2, encoder_layers=2, decoder_layers=2)
    other = Transformer(TransformerConfig(task.tokenizer.vocab_size, **sizes)).eval()
    with pytest.raises(ConfigError, match="this one has 2"):
        alignment_of(Translator(other, task.tokenizer), TEXT, max_tokens=3)
