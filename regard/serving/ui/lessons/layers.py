"""Lessons about the parts of models: convolution, positions, dropout, sizes, cells."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from regard.models.awd_lstm import AwdLstm, AwdLstmConfig
from regard.serving.ui.lessons.lesson import Control, Lesson, Link
from regard.text import Tokenizer
from regard.visual import lecture_examples
from regard.visual.cell_text import CellText
from regard.visual.character_properties import text_properties
from regard.visual.dropout_masks import dropouts
from regard.visual.parameter_counts import model_sizes
from regard.visual.picture import Illustration, Picture, PictureRow
from regard.visual.positions_and_masks import bucket_grid, distance_grid, sinusoids

LOVED = ("I love cats", "I love dogs")
QUOTED = (
    'He said: "To be, or not to be (that is the question)."\n'
    'And she: "Words (words, words), my lord."\nHe left.\n'
)


def positions(length: int = 50, d_model: int = 64) -> Picture:
    """The sinusoidal table."""
    return sinusoids(length, d_model)


def distances(length: int = 16, clip_distance: int = 4) -> Picture:
    """Relative positions as Shaw and as T5 have them."""
    grids = (
        distance_grid(length, clip_distance),
        bucket_grid(length),
        bucket_grid(length, causal=True),
    )
    return Illustration((PictureRow(grids),), "Relative positions")


def five_dropouts(seed: int = 5) -> Picture:
    """The dropouts in one pass of a small random AWD-LSTM."""
    tokenizer = Tokenizer.train(LOVED, "words", 20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes: dict[str, Any] = dict(d_model=8, d_hidden=12, layers=2)
        config = AwdLstmConfig(tokenizer.vocab_size, **sizes, embedding_dropout=0.25)
        model = AwdLstm(config)
        return dropouts(model, tokenizer, LOVED, seed=seed)


def cells() -> Picture:
    """What cells would hold that follow a property exactly; each is scaled to at most 1."""
    spans = [(at, at + 1) for at in range(len(QUOTED))]
    shown = []
    for name, values in text_properties(QUOTED).items():
        scaled = 2 * values / values.max() - 1
        shown.append(CellText.of(QUOTED, spans, scaled.tolist(), name))
    return Illustration(tuple(shown), "Cells with a meaning")


@cache
def sizes() -> Picture:
    """The parameters of published models; to build them all takes seconds."""
    return model_sizes()


LESSONS = (
    Lesson(
        "convolution",
        "Convolution: an image and two filters",
        (
            "A filter of 3x3 numbers moves over the image, one step at a time. Each output is the "
            "sum of the products of the filter and what lies under it.",
            "  out[i, j] = sum_(a, b) image[i + a, j + b] filter[a, b]",
        ),
        lecture_examples.convolution,
        (),
        (
            "Where does filter 1 give 3, and what is there in the image?",
            "How large is the output with stride 2?",
        ),
    ),
    Lesson(
        "positions",
        "Positions as sines and cosines",
        (
            "Attention does not know the order of its keys. The Transformer adds to the embedding "
            "of each token a vector of its position: sines and cosines whose frequency falls with "
            "the dimension. D is the number of dimensions.",
            "  PE(pos, 2i) = sin(pos / 10000^(2i/D)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/D))",
        ),
        positions,
        (
            Control("length", "positions", 50, 4, 200),
            Control("d_model", "dimensions", 64, 4, 256, 2),
        ),
        ("Which dimensions tell neighbours apart, and which ones distant positions?",),
    ),
    Lesson(
        "relative-positions",
        "Distances instead of positions",
        (
            "Shaw et al. (2018) learn a vector for each distance j - i, up to k on either side. T5 "
            "learns a number for each bucket: small distances have a bucket each, large ones share "
            "buckets. Rows are queries i, columns keys j.",
        ),
        distances,
        (
            Control("length", "tokens", 16, 4, 40),
            Control("clip_distance", "largest distance k", 4, 1, 16),
        ),
        ("What can a model with these positions do with texts longer than in training?",),
    ),
    Lesson(
        "dropouts",
        "The five dropouts of AWD-LSTM",
        (
            "Merity et al. (2018) set to zero whole words, inputs, hidden states and outputs, "
            "with one random mask for all steps of a text, and weights of the recurrent matrix, "
            "with one mask for each forward pass.",
            "Each pair of pictures shows a tensor of a small untrained model before and after "
            "dropout; d1 to d8 are its dimensions. In the recurrent matrix i, f, g and o are the "
            "rows of the input gate, the forget gate, the new cell values and the output gate.",
        ),
        five_dropouts,
        (Control("seed", "random seed of the masks", 5, 0, 99),),
        ("The values that are not dropped are larger than before. By which factor, and why?",),
    ),
    Lesson(
        "cells",
        "Cells with a meaning",
        (
            "Some cells of a trained LSTM can be interpreted: one is active inside quotes, another "
            "counts the characters of a line (Karpathy et al. 2015). These are the values of ideal "
            "cells, which follow the text exactly: blue above zero, orange below.",
            "The view Cells of a served model finds those of its cells that correlate most with "
            "such properties.",
        ),
        cells,
        (),
        ("Which property needs a memory of the beginning of the line?",),
        (Link("cells", "The cells of a model", "/ui/cell", {"text": QUOTED}),),
    ),
    Lesson(
        "model-sizes",
        "How large models are",
        (
            "The numbers of parameters of published models: a dot is the exact count of the model "
            "in this library, a ring what its paper states. The axis is logarithmic.",
        ),
        sizes,
        (),
        ("By which factor did models grow from 2017 to 2020?",),
    ),
)
