"""Lessons about attention: its weights, its scale, its masks, what it reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from regard.attention import masks
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.serving.studio.lessons.lesson import Control, Lesson, Link
from regard.visual import lecture_examples
from regard.visual.picture import Illustration, Note, Picture, PictureRow
from regard.visual.positions_and_masks import mask_grid, sparse_patterns
from regard.visual.predicted_from import prediction_contexts
from regard.visual.reachable_positions import reachable_positions

HEADS = "/studio/attention"
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
    """BigBird's patterns beside each other."""
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
            "Each word asks with its query q, answers with its key k, and gives its value v. The "
            "weight of a word is the softmax of the scores, divided by the root of d_k:",
            "  z = sum_j softmax_j(q · k_j / sqrt(d_k)) v_j",
            "The scores 112, 96, 16, 8 and 92, 124, 22, 8 are the lecture's. What it prints as "
            "weights is not always their softmax; both stand in the tables.",
        ),
        self_attention,
        (
            Control("head_dim", "d_k", 64, 1, 4096),
            *(
                Control(word.lower(), f"q · k of “{word}”", score, -500, 500)
                for word, score in zip(WORDS, FIRST, strict=True)
            ),
        ),
        (
            "Set d_k to 1. What do the weights become, and why?",
            "Which d_k gives “brown” a third of the weight?",
        ),
        (Link("attention", "The heads of a model", HEADS, {"text": " ".join(WORDS)}),),
    ),
    Lesson(
        "scaling",
        "Why the scores are divided by the root of d_k",
        (
            "If the d_k entries of a query and a key have mean 0 and variance 1, their product has "
            "variance d_k. Large scores make a softmax of 0 and 1, whose gradient vanishes.",
            "  Var[q · k] = d_k,  Var[q · k / sqrt(d_k)] = 1",
            "It is the root of the dimension of a key, not of the number of keys.",
        ),
        lecture_examples.saturation,
        (
            Control("keys", "keys", 16, 2, 64),
            Control("seed", "seed of the random vectors", 0, 0, 99),
        ),
        ("What happens to both curves with more keys?",),
    ),
    Lesson(
        "kernel-regression",
        "Regression as attention",
        (
            "Nadaraya and Watson (1964) estimated a function from noisy points as a weighted mean. "
            "With a Gaussian kernel it is attention: x asks, the points x_i are the keys and their "
            "y_i the values.",
            "  f(x) = softmax_i(-(x - x_i)² / (2 h²)) · y",
        ),
        lecture_examples.kernel_regression,
        (
            Control("width", "width h", 0.5, 0.05, 3.0, 0.05),
            Control("count", "points", 40, 2, 100),
            Control("seed", "seed of the points", 0, 0, 99),
        ),
        (
            "What does the curve become with a very small h, and with a very large one?",
            "What plays the part of h in scaled dot-product attention?",
        ),
    ),
    Lesson(
        "masks",
        "Which token may read which",
        (
            "A mask says for each query (row) which keys (columns) it may attend to. A decoder "
            "reads no later token; padding is read by none. Masks are joined with “and” and “or”.",
        ),
        mask_kinds,
        (
            Control("length", "tokens", 8, 3, 24),
            Control("around", "tokens of the window on each side", 2, 0, 12),
        ),
        ("What does a query read with a window of 0? And with causal & window together?",),
        (Link("attention", "A decoder's heads", HEADS),),
    ),
    Lesson(
        "sparse-attention",
        "Sparse attention over long texts",
        (
            "With N tokens there are N² scores. BigBird computes blocks of them: a window, the "
            "first and last block for all, and some blocks at random.",
        ),
        sparse,
        (
            Control("blocks", "blocks", 12, 6, 32),
            Control("window", "blocks of the window on each side", 1, 0, 3),
            Control("random", "random blocks", 2, 0, 3),
        ),
        ("How does the number of blocks in a row grow with the length of the text?",),
    ),
    Lesson(
        "what-predictions-read",
        "What a prediction reads: left to right, BERT, XLNet",
        (
            "“New York is a city”: BERT predicts “New” and “York” from the other three words, each "
            "without the other. XLNet predicts them one after the other, in any order. A model "
            "from left to right reads what stands before.",
            "On the left what the masks allow; on the right how far a small random model's "
            "prediction moves when a word is replaced.",
        ),
        contexts,
        (),
        ("Why may XLNet predict “York” from “New”, but not “New” from “York”?",),
    ),
    Lesson(
        "context-length",
        "How far a position reaches",
        (
            "A model that reads a text in segments forgets at each border. Transformer-XL keeps "
            "the hidden states of the segment before, so that the reach grows with every layer.",
            "Rows are positions, columns the tokens on which they depend, measured by changing "
            "tokens in small random models.",
        ),
        context,
        (Control("segment", "tokens of a segment", 6, 2, 12), Control("layers", "layers", 2, 1, 4)),
        ("How many layers does it take until the last position depends on the first token?",),
    ),
)
