"""The pictures of the lessons, each computed by the functions that models use."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from regard.attention import masks
from regard.attention.attend import attend
from regard.decoding.filters import Prefix, Temperature, TopK, TopP, apply
from regard.layers.chart import k_best_trees
from regard.models.bert import Bert
from regard.text import Tokenizer, wordpiece
from regard.text.explain import Training, training
from regard.text.trees import tree_of
from regard.visual.charts import Heatmap, mask_grid, sinusoids, sparse_patterns
from regard.visual.decoding import Distribution
from regard.visual.picture import Illustration, Note, Picture, PictureRow, Table
from regard.visual.recurrent_cells import CellText, text_properties
from regard.visual.texts import encoder_inputs, n_best_picture

# ------------------------------------------------------------------------------- subwords

COUNTED = {"old": 7, "older": 3, "finest": 9, "lowest": 4}
VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] my dog is cute he likes play ##ing un ##aff ##able una ##ffa "
    "##ble work . ,"
).split()
PAIR = ("my dog is cute", "he likes playing")
SPLIT = ("unaffable", "playing", "work")


@cache
def tokenizer() -> Tokenizer:
    """A tokenizer with the vocabulary of these lessons."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(VOCABULARY), encoding="utf-8")
        return Tokenizer.load(file)


def merges(count: int = 5) -> Picture:
    """The merges of byte-pair encoding, and the words and tokens after the last of them."""
    trained = training(COUNTED, count)
    steps = [
        [f"{number}", f"{m.left} + {m.right}", m.symbol, f"{m.count}", _ties(len(m.tied))]
        for number, m in enumerate(trained.merges, 1)
    ]
    head = ["", "pair", "becomes", "count", ""]
    return Illustration(
        (Table.of(head, steps, "The merges"), _words(trained), _tokens(trained)),
        "Byte-pair encoding",
    )


def _ties(pairs: int) -> str:
    return f"first of {pairs} equally frequent pairs" if pairs > 1 else ""


def _words(found: Training) -> Table:
    rows = [[word, f"{count}"] for word, count in found.iterations[-1].words.items()]
    return Table.of(["word", "count"], rows, f"The words after {len(found.merges)} merges")


def _tokens(found: Training) -> Table:
    rows = [[row.token, f"{row.frequency}"] for row in found.iterations[-1].rows]
    return Table.of(["token", "frequency"], rows, "The tokens")


def inputs(length: int = 14) -> Picture:
    """What BERT reads of two sentences."""
    words = tokenizer()
    return encoder_inputs(PAIR, words, Bert.template(words), length=length)


def longest_match(words: Sequence[str] = SPLIT) -> Picture:
    """How WordPiece splits words, match by match."""
    tables = []
    for word in words:
        steps = list(wordpiece.longest_match(word, VOCABULARY))
        rows = [[" ".join(step.tried), step.found or "nothing", f"{step.start}"] for step in steps]
        title = f"{word}: {' '.join(step.found or '[UNK]' for step in steps)}"
        tables.append(Table.of(["tried, the longest first", "found", "at character"], rows, title))
    return Illustration(tuple(tables), "The longest match")


# ------------------------------------------------------------------------ parts of models

QUOTED = (
    'He said: "To be, or not to be (that is the question)."\n'
    'And she: "Words (words, words), my lord."\nHe left.\n'
)


def positions(length: int = 50, d_model: int = 64) -> Picture:
    """The sinusoidal table."""
    return sinusoids(length, d_model)


def cells() -> Picture:
    """What cells would hold that follow a property exactly; each is scaled to at most 1."""
    spans = [(at, at + 1) for at in range(len(QUOTED))]
    shown = []
    for name, values in text_properties(QUOTED).items():
        scaled = 2 * values / values.max() - 1
        shown.append(CellText.of(QUOTED, spans, scaled.tolist(), name))
    return Illustration(tuple(shown), "Cells with a meaning")


def self_attention(
    head_dim: int = 64, the: float = 112, brown: float = 96, dog: float = 16, ran: float = 8
) -> Picture:
    """Scores divided by the root of the dimension, softmax, weighted sum.

    Keys and values are unit vectors and the query holds the scores, so that its products with the
    keys are the scores, and what `attend` returns is the weights.
    """
    words = ("The", "brown", "dog", "ran")
    scores = torch.tensor([[the, brown, dog, ran]], dtype=torch.float64)
    keys = torch.eye(4, max(4, head_dim), dtype=torch.float64)
    query = scores @ keys * math.sqrt(keys.size(1) / head_dim)  # of fewer than 4 dimensions, too
    weights = attend(query, keys, torch.eye(4, dtype=torch.float64))
    divided = scores / math.sqrt(head_dim)
    columns = zip(words, scores[0].tolist(), divided[0].tolist(), weights[0].tolist(), strict=True)
    rows = [[word, f"{s:g}", f"{d:g}", f"{weight:.6f}"] for word, s, d, weight in columns]
    sums = [f"{w:.4f} v_{n}" for n, w in enumerate(weights[0].tolist(), 1) if w >= 0.00005]
    heatmap = replace(Heatmap.of(weights, ["The"], words, "The weights"), digits=3)
    parts = (
        Table.of(["key", "q · k", "/ sqrt(d_k)", "weight"], rows, "The query of “The”"),
        Note(("The values are weighted and added:", "z = " + " + ".join(sums))),
        heatmap,
    )
    return Illustration(parts, "Self-attention", numbers={"weights": weights})


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
    grids = [mask_grid(mask.grid(length, length)[0, 0], title=name) for name, mask in kinds.items()]
    note = Note((f"The text has {int(count)} tokens and is padded to {length}.",))
    return Illustration((note, PictureRow(tuple(grids))), "Masks")


def sparse(blocks: int = 12, window: int = 1, random: int = 2) -> Picture:
    """BigBird's patterns side by side."""
    patterns = sparse_patterns(blocks, window, random)
    return Illustration((PictureRow(tuple(patterns.values())),), "Sparse attention")


# ---------------------------------------------------------------------------- searching

SENTENCE = "The child came home from"
LOGITS = {
    "school": 5.0,
    "work": 2.6,
    "the": 2.4,
    "his": 1.9,
    "play": 1.7,
    "hospital": 1.5,
    "college": 1.2,
    "church": 0.8,
    "camp": 0.6,
    "war": 0.1,
    "Paris": -0.6,
    "green": -3.0,
}

WORDS, TAGS = "I shot an elephant in my pajamas".split(), "PRP VBD DT NN IN PRP$ NNS".split()
LABELS = ("S", "VP", "NP", "PP")
# The scores of constituents by their first word, the word after them and their label.
CONSTITUENTS = {
    (0, 7, "S"): 3.0,
    (0, 1, "NP"): 2.0,
    (1, 7, "VP"): 2.0,
    (2, 4, "NP"): 2.0,
    (4, 7, "PP"): 2.0,
    (5, 7, "NP"): 2.0,
}
UNLIKELY = -9.0  # of every other constituent


def next_word(temperature: float = 1.0, top_k: int = 12, top_p: float = 1.0) -> Picture:
    """The distribution after a sentence, as the filters of sampling leave it."""
    scores = torch.tensor([list(LOGITS.values())], dtype=torch.float64)
    filters = (Temperature(temperature), TopK(top_k), TopP(top_p))
    left = apply(filters, scores, Prefix(torch.empty(1, 0, dtype=torch.long), 0))
    probabilities = left.softmax(-1)[0]
    title = f"after “{SENTENCE} …”"
    shown = Distribution.of(probabilities, list(LOGITS), len(LOGITS), title)
    numbers = {"probabilities": probabilities}
    return Illustration((shown,), "The next word", numbers=numbers)


def parses(noun: float = 0.5, count: int = 2) -> Picture:
    """The best trees of a chart whose score of "an elephant in my pajamas" is given."""
    chart = torch.full((1, len(WORDS), len(WORDS), len(LABELS)), UNLIKELY, dtype=torch.float64)
    for (start, stop, label), score in {**CONSTITUENTS, (2, 7, "NP"): noun}.items():
        chart[0, start, stop - start - 1, LABELS.index(label)] = score
    (best,) = k_best_trees(chart, torch.tensor([len(WORDS)]), count)
    trees = [
        (tree_of(WORDS, TAGS, [(a, b, LABELS[label]) for a, b, label in parse.spans]), parse.score)
        for parse in best
    ]
    numbers = {"trees": [(str(tree), score) for tree, score in trees]}
    return Illustration((n_best_picture(trees),), "The best trees", numbers=numbers)
