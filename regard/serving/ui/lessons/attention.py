"""Lessons about attention: its weights, its scale, its masks, what it reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from regard.attention import masks
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.serving.ui.lessons.lesson import Control, Lesson, Link
from regard.visual import lecture_examples
from regard.visual.picture import Illustration, Note, Picture, PictureRow
from regard.visual.positions_and_masks import mask_grid, sparse_patterns
from regard.visual.predicted_from import prediction_contexts
from regard.visual.reachable_positions import reachable_positions

HEADS = "/ui/attention"
WORDS = lecture_examples.LECTURE_WORDS
FIRST = lecture_examples.LECTURE_SCORES[0]


def self_attention(
    head_dim: int = 64,
    the: float = FIRST[0],
    brown: float = FIRST[1],
    dog: float = FIRST[2],
    ran: float = FIRST[3],
) -> Picture:
    """The lecture's two rows of scores; with other numbers the first row alone."""
    scores = (the, brown, dog, ran)
    if head_dim == 64 and scores == FIRST:
        return lecture_examples.self_attention()
    return lecture_examples.self_attention((scores,), WORDS, head_dim, slide=None)


def mask_kinds(length: int = 8, around: int = 2) -> Picture:
    """The masks of encoders and decoders, as models combine them."""
    count = torch.tensor([max(1, length - 2)])
    kinds = {
        "causal": masks.causal(),
        "padding": masks.padding(count),
        "causal & padding": masks.causal() & masks.padding(count),
        f"window({around})": masks.window(around),
        f"window({around}) | global(1)": masks.window(around) | masks.global_(1),
    }
    grids = [mask_grid(one.grid(length, length)[0, 0], title=name) for name, one in kinds.items()]
    note = Note((f"The text has {int(count)} tokens and is padded to {length}.",))
    return Illustration((note, PictureRow(tuple(grids))), "Masks")


def sparse(blocks: int = 12, window: int = 1, random: int = 2) -> Picture:
    """BigBird's patterns side by side."""
    found = sparse_patterns(blocks, window, random)
    return Illustration((PictureRow(tuple(found.values())),), "Sparse attention")


def context(segment: int = 6, layers: int = 2) -> Picture:
    """What positions depend on, without and with a memory of one segment."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes: dict[str, Any] = dict(d_model=8, heads=2, layers=layers)
        vanilla = GPT2(GPT2Config(20, max_length=32, **sizes))
        recurrent = TransformerXL(
            TransformerXLConfig(20, d_ff=8, memory_length=segment, init_range=0.5, **sizes)
        )
    reach = partial(reachable_positions, length=24, segment=segment)
    pair = (
        reach(vanilla, title="GPT-2, segment by segment"),
        reach(recurrent, carried=True, title="Transformer-XL"),
    )
    return Illustration((PictureRow(pair),), "How far a position reaches")


def contexts() -> Picture:
    """Which words a prediction reads in three models."""
    with torch.random.fork_rng():
        return prediction_contexts()


LESSONS = (
    Lesson(
        "self-attention",
        "Self-attention, step by step",
        (
            "Each word has a query q, a key k and a value v. The scores are the products of one "
            "query with all keys, divided by the square root of d_k, the dimension of a key; their "
            "softmax are the weights with which the values are added:",
            "  z = sum_j softmax_j(q · k_j / sqrt(d_k)) v_j",
            "The products 112, 96, 16, 8 and 92, 124, 22, 8 are those of a lecture. The weights on "
            "its slide are not the exact softmax; the tables have both.",
        ),
        self_attention,
        (
            Control("head_dim", "dimension d_k", 64, 1, 4096),
            *(
                Control(word.lower(), f"q · k of “{word}”", score, -500, 500)
                for word, score in zip(WORDS, FIRST, strict=True)
            ),
        ),
        (
            "Set d_k to 1. What do the weights become, and why?",
            "Which d_k gives “brown” a third of the weight for the query of “The”?",
        ),
        (Link("attention", "The heads of a model", HEADS, {"text": " ".join(WORDS)}),),
    ),
    Lesson(
        "scaling",
        "Why the scores are divided by the root of d_k",
        (
            "If the d_k entries of a query and a key are independent, with mean 0 and variance 1, "
            "their dot product has variance d_k. With large scores the softmax is almost 0 and 1, "
            "and its gradient vanishes.",
            "  Var[q · k] = d_k,  Var[q · k / sqrt(d_k)] = 1",
            "d_k is the dimension of a key, not the number of keys.",
        ),
        lecture_examples.saturation,
        (
            Control("keys", "keys", 16, 2, 64),
            Control("seed", "random seed of the vectors", 0, 0, 99),
        ),
        ("What happens to both curves with more keys?",),
    ),
    Lesson(
        "kernel-regression",
        "Regression as attention",
        (
            "Nadaraya and Watson (1964) estimated a function from noisy points as a weighted "
            "mean. With a Gaussian kernel it is attention: x is the query, the points x_i are the "
            "keys and their y_i the values.",
            "  f(x) = softmax_i(-(x - x_i)² / (2 h²)) · y",
        ),
        lecture_examples.kernel_regression,
        (
            Control("width", "kernel width h", 0.5, 0.05, 3.0, 0.05),
            Control("count", "points", 40, 2, 100),
            Control("seed", "random seed of the points", 0, 0, 99),
        ),
        (
            "What does the curve become with a very small h, and with a very large one?",
            "Which part of scaled dot-product attention corresponds to h?",
        ),
    ),
    Lesson(
        "masks",
        "Which token may read which",
        (
            "A mask says for each query (row) which keys (columns) it may attend to: 1 may, 0 may "
            "not. A decoder reads no later token (“causal”); no query reads padding. Masks are "
            "combined by “and” (&) and “or” (|); “global(1)”: the first token reads all tokens and "
            "is read by all.",
        ),
        mask_kinds,
        (
            Control("length", "tokens", 8, 3, 24),
            Control("around", "window: tokens on each side", 2, 0, 12),
        ),
        ("What does a query read with a window of 0? And with “causal & window(2)”?",),
        (Link("attention", "A decoder's heads", HEADS),),
    ),
    Lesson(
        "sparse-attention",
        "Sparse attention over long texts",
        (
            "A text of N tokens has N² attention scores. BigBird divides the tokens into blocks "
            "and computes the scores of some pairs of blocks alone: near ones (window), those "
            "with the first and the last block (global), and a few at random.",
        ),
        sparse,
        (
            Control("blocks", "blocks", 12, 6, 32),
            Control("window", "window: blocks on each side", 1, 0, 3),
            Control("random", "random blocks in a row", 2, 0, 3),
        ),
        ("How many blocks of a row are computed, in a text twice as long?",),
    ),
    Lesson(
        "what-predictions-read",
        "What a prediction reads: left to right, BERT, XLNet",
        (
            "“New York is a city”: BERT predicts “New” and “York” from the other three words, each "
            "without the other. XLNet predicts them one after the other, in any order. A model "
            "from left to right reads what stands before.",
            "“may read”: what the masks allow, 1 or 0. “reads”: how much the prediction of a "
            "small untrained model changes when a word is replaced. Rows are predicted words, "
            "columns the words that are read.",
        ),
        contexts,
        (),
        ("Why may XLNet predict “York” from “New” here, but not “New” from “York”?",),
    ),
    Lesson(
        "context-length",
        "How far a position reaches",
        (
            "A model that reads a long text in segments, such as GPT-2, remembers nothing of the "
            "segment before. Transformer-XL keeps the hidden states of the previous segment, so "
            "that each layer lets a position depend on tokens one segment further back.",
            "Rows are positions, columns the tokens on which they depend, measured by changing "
            "tokens in small untrained models.",
        ),
        context,
        (Control("segment", "tokens in a segment", 6, 2, 12), Control("layers", "layers", 2, 1, 4)),
        ("How many layers does it take until the last position depends on the first token?",),
    ),
)
