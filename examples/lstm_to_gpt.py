"""From n-grams to GPT at equal words: examples/lstm_to_gpt.py REVIEWS BLIMP [OUT] [NAME=VALUE...]

REVIEWS is a table of IMDB's film reviews, whose texts are in its last column; BLIMP is BLiMP.zip.
Of 50 reviews 48 are for training, one sentence a line. All models read the same subwords, as many
of them: 1,024 an update (recipes/lstm-to-gpt.toml). XLNet and BERT are trained by their own
objectives. Each model is scored on the test reviews and on BLiMP's minimal pairs. Interrupted, it
goes on where it was stopped, and a second call shows the table again.

    python examples/lstm_to_gpt.py reviews.tsv.gz BLiMP.zip runs/small training.updates=100 pairs=5
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import regard
from regard.data import MinimalPair, encode_texts, read, read_minimal_pairs
from regard.data.files import lines
from regard.experiments import runs
from regard.experiments.compare import compare
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.tasks.language_modeling import LanguageModeling
from regard.tasks.minimal_pairs import minimal_pair_scores
from regard.text import Tokenizer, train

ROOT = Path(__file__).resolve().parents[1]
RECIPE, BERT_RECIPE = ROOT / "recipes/lstm-to-gpt.toml", ROOT / "recipes/bert-small.toml"
GPT_SIZES = "d_model = 128\nheads = 4\nlayers = 4\ndropout = 0.1\ninit_range = 0.05\n"
SIZES = GPT_SIZES + "d_ff = 512\n"
MODELS = {
    "lstm": 'name = "recurrent"\nd_model = 176\nlayers = 2\ntied = true\ndropout = 0.1\n',
    "awd-lstm": (
        'name = "awd-lstm"\nd_model = 128\nd_hidden = 256\nlayers = 2\nembedding_dropout = 0.0\n'
        "input_dropout = 0.1\nweight_dropout = 0.1\nhidden_dropout = 0.1\noutput_dropout = 0.1\n"
    ),
    "gpt": 'name = "gpt"\nmax_length = 64\nembedding_dropout = 0.1\n' + GPT_SIZES,
    "gpt2": 'name = "gpt2"\nmax_length = 64\nembedding_dropout = 0.1\n' + SIZES,
    "transformer-xl": ('name = "transformer-xl"\nmemory_length = 64\ntarget_length = 64\n' + SIZES),
}
SMALL = "d_model=128, d_ff=512, heads=4, layers=4, init_range=0.05"
XLNET = [
    "task=permutation-language-modeling",
    f'model={{name="xlnet", {SMALL}, memory_length=64, memory_in_training=true}}',
]
BERT = [f'model={{name="bert", {SMALL}, max_length=64}}', "data.batch_size=16"]
SENTENCES = 300  # of the test data, the first that are not long: for pseudo-perplexity
UPDATE = 16 * 64  # tokens


@dataclass
class Row:
    """A model's numbers; perplexity is per word, of a masked model pseudo-perplexity."""

    model: str
    parameters: int
    tokens: int
    perplexity: float
    bits_per_byte: float
    blimp: float
    ties: int
    sets: dict[str, float]


def main(
    reviews: Path, blimp: Path, out: Path, overrides: Sequence[str], per_set: int
) -> list[Row]:
    """Train, score and show all models."""
    data = (out / "data").resolve()
    tokenizer = prepare(reviews, data)
    pairs = read_minimal_pairs(blimp, pairs_per_set=per_set)
    recipes = [variant(name, data) for name in MODELS]
    tokens = UPDATE * int(runs.read_recipe(recipes[0], overrides).training.updates)

    def row(name: str, task: Callable[[], Any], tokens: int) -> Row:
        path = out / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(asdict(scored(name, task(), tokens, data, pairs))))
        return Row(**json.loads(path.read_text()))

    every = 1 << 40
    rows = [row("5-gram", lambda: n_grams(data, tokenizer, tokens), tokens)]
    rows.append(row("5-gram of all", lambda: n_grams(data, tokenizer, every), every))
    compare(recipes, overrides, out=out / "compare")
    for name in MODELS:
        run = out / "compare" / f"{name}-seed1"
        rows.append(row(name, lambda run=run: regard.load(run), tokens))
    others = {"xlnet": (variant("xlnet", data), XLNET), "bert": (variant("bert", data), BERT)}
    for name, (recipe, own) in others.items():
        trained(recipe, [*own, *overrides], out / name)
        rows.append(row(name, lambda run=out / name: regard.load(run), tokens))
    show(rows)
    return rows


# --------------------------------------------------------------------------------- data


def prepare(reviews: Path, folder: Path) -> Tokenizer:
    """The parts of the text in a folder, as sentences, and a tokenizer of the training text."""
    if not (folder / "tokenizer").exists():
        folder.mkdir(parents=True, exist_ok=True)
        parts = ["valid", "test", *["train"] * 48]
        texts: dict[str, list[list[str]]] = {part: [] for part in parts}
        rows = [line.split("\t")[-1] for line in lines(reviews)]
        random.Random(1).shuffle(rows)
        for number, review in enumerate(rows):
            texts[parts[number % len(parts)]].append([*sentences(review)])
        for part, found in texts.items():
            of_lines = [sentence for review in found for sentence in review]
            (folder / f"{part}.txt").write_text("\n".join(of_lines) + "\n", encoding="utf-8")
        documents = "\n\n".join("\n".join(review) for review in texts["train"])
        (folder / "documents.txt").write_text(documents, encoding="utf-8")
        train_sentences = [sentence for review in texts["train"][::5] for sentence in review]
        tokenizer = train("bpe", train_sentences, 8000)
        roles = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        tokenizer.with_roles(roles).save(folder / "tokenizer")
    return Tokenizer.load(folder / "tokenizer")


def sentences(review: str) -> Iterator[str]:
    """The sentences of a review, which end before a capital or a quote, or at a line's end."""
    for line in re.split(r"(?:<br\s*/?>\s*)+", review):
        ends = [m.end() for m in re.finditer(r"[.!?]+[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])", line)]
        for start, end in pairwise([0, *ends, len(line)]):
            if sentence := " ".join(line[start:end].split()):
                yield sentence


def variant(name: str, folder: Path) -> Path:
    """The recipe with one of the models and the paths of its data."""
    text = (BERT_RECIPE if name == "bert" else RECIPE).read_text(encoding="utf-8")
    text = text.replace("$FOLDER", folder.as_posix())
    text = text.replace("${DOCUMENTS}", (folder / "documents.txt").as_posix())
    if name == "bert":
        a, b = text.index("[tokenizer]"), text.index("[model]")
        tokenizer = (folder / "tokenizer").as_posix()
        text = text[:a] + f'[tokenizer]\npath = "{tokenizer}"\n\n' + text[b:]
        text = text.replace('field = "text"\n', "")
    if name in MODELS:
        text = text[: text.index("\n[model]")] + "\n[model]\n" + MODELS[name]
    path = folder / f"{name}.toml"
    path.write_text(re.sub(r'\nname = ".*"', f'\nname = "{name}"', text, count=1), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------- models


def n_grams(data: Path, tokenizer: Tokenizer, tokens: int) -> LanguageModeling:
    """5-grams of the first tokens of the training text."""
    pad, bos, eos = tokenizer.required_ids("pad", "bos", "eos")
    ids = encode_texts(lines(data / "train.txt"), tokenizer, after=[eos]).ids[:tokens]
    model = KneserNey.fit(ids, KneserNeyConfig(tokenizer.vocab_size, 5, pad, bos, eos))
    return LanguageModeling(model, tokenizer, format="lines", unit="word")


def trained(recipe: Path, overrides: Sequence[str], run: Path) -> None:
    """Train, or go on with a run that was interrupted."""
    if (run / "result.json").exists():
        return
    if (run / "checkpoints").exists():
        regard.resume(run)
    else:
        regard.train(recipe, overrides, out=run)


def scored(name: str, task: Any, tokens: int, data: Path, pairs: Sequence[MinimalPair]) -> Row:
    """The numbers of a model, from the test reviews and the minimal pairs."""
    test = [*lines(data / "test.txt")]
    if isinstance(task, LanguageModeling):
        nats = task.evaluate(read(test, format="lines")).nats
    else:
        limit = task.input_format.max_length // 2  # words
        test = [line for line in test if len(line.split()) <= limit][:SENTENCES]
        nats = -sum(task.log_likelihoods(test))
    words = sum(len(line.split()) + 1 for line in test)
    size = sum(len(line.encode()) + 1 for line in test)
    score = minimal_pair_scores(task, pairs)
    sets = score.facts()["sets"]
    return Row(
        model=name,
        parameters=sum(p.numel() for p in task.model.parameters()),
        tokens=tokens,
        perplexity=math.exp(nats / words),
        bits_per_byte=nats / math.log(2) / size,
        blimp=score.value,
        ties=sum(one["ties"] for one in sets.values()),
        sets={key: one["accuracy"] for key, one in sets.items()},
    )


def show(rows: Sequence[Row]) -> None:
    """The table."""
    print(
        f"{'model':16}{'parameters':>12}{'perplexity':>12}{'bits/byte':>11}{'BLiMP':>8}{'ties':>6}"
    )
    for row in rows:
        print(
            f"{row.model:16}{row.parameters:12,}{row.perplexity:12.1f}{row.bits_per_byte:11.3f}"
            f"{100 * row.blimp:8.1f}{row.ties:6,}"
        )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = [word for word in sys.argv[1:] if "=" in word]
    if not 2 <= len(words) <= 3:
        sys.exit(__doc__)
    chosen = [word.removeprefix("pairs=") for word in options if word.startswith("pairs=")]
    main(
        Path(words[0]),
        Path(words[1]),
        Path(words[2] if words[2:] else "runs/lstm-to-gpt"),
        [word for word in options if not word.startswith("pairs=")],
        int((chosen or ["100"])[-1]),
    )
