"""From n-grams to GPT at equal words: examples/lstm_to_gpt.py REVIEWS BLIMP [OUT] [NAME=VALUE...]

REVIEWS is a table of IMDB's film reviews, whose texts are in its last column; BLIMP is BLiMP.zip.
Of 50 reviews 48 are for training, one sentence a line. All models read the same subwords, as many
of them: 1,024 a step (recipes/lstm-to-gpt.toml). XLNet and BERT are trained by their own
objectives. The LSTM and the Transformer-XL are also trained for as many FLOPs as GPT. Each is then
scored on the test reviews and on BLiMP's minimal pairs, and fine-tuned on SST-2 and CoLA, if `glue`
names the folder of GLUE, and on TREC, if `trec` names NLTK's qc.zip. Interrupted, it goes on where
it was stopped, and a second call shows the tables again.

    python examples/lstm_to_gpt.py reviews.tsv.gz BLiMP.zip runs/small \\
        training.max_steps=100 pairs=5
    python examples/lstm_to_gpt.py reviews.tsv.gz BLiMP.zip runs/all glue=GLUE trec=qc.zip
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import trec

import regard
from regard import recipe as recipes
from regard.data import MinimalPair, encode_texts, open_table, read_minimal_pairs
from regard.data.files import lines
from regard.experiments import runs
from regard.experiments.compare import compare_files
from regard.experiments.estimate import estimate
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import minimal_pair_scores
from regard.text import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
RECIPE, BERT_RECIPE = ROOT / "recipes/lstm-to-gpt.toml", ROOT / "recipes/bert-small.toml"
GPT_SIZES = "d_model = 128\nheads = 4\nlayers = 4\ndropout = 0.1\ninit_range = 0.05\n"
SIZES = GPT_SIZES + "d_ff = 512\n"
MODELS = {
    "lstm": 'name = "lstm-lm"\nd_model = 176\nlayers = 2\ntied = true\ndropout = 0.1\n',
    "awd-lstm": (
        'name = "awd-lstm"\nd_model = 128\nd_hidden = 256\nlayers = 2\nembedding_dropout = 0.0\n'
        "input_dropout = 0.1\nweight_dropout = 0.1\nhidden_dropout = 0.1\noutput_dropout = 0.1\n"
    ),
    "gpt": 'name = "gpt"\nmax_length = 64\nembedding_dropout = 0.1\n' + GPT_SIZES,
    "gpt2": 'name = "gpt2"\nmax_length = 64\nembedding_dropout = 0.1\n' + SIZES,
    "transformer-xl": ('name = "transformer-xl"\nmemory_length = 64\ntarget_length = 64\n' + SIZES),
}
XLNET = [
    "task=permutation-language-modeling",
    'model={name="xlnet", d_model=128, d_ff=512, heads=4, layers=4, memory_length=64, '
    "memory_in_training=true, dropout=0.0, init_range=0.08}",
    "training.optimizer.learning_rate=1.5e-3",
    "training.schedule.warmup=500",
]
BERT = [  # with learned positions and init_range=0.05 its loss stays that of token frequencies
    'model={name="bert", d_model=128, d_ff=512, heads=4, layers=4, max_length=64, '
    'positions="shaw", dropout=0.0, attention_dropout=0.0, init_range=0.08}',
    "training.optimizer.learning_rate=1.5e-3",
    "data.batch_size=16",
]
EQUAL_FLOPS = ("lstm", "transformer-xl")  # trained once more, for the FLOPs of GPT's steps
CLASSIFIERS = {
    "sst2": """glue = "sst2"
train = "$GLUE/SST-2"
valid = 0.02
test = "$GLUE/SST-2"
test_part = "dev"
""",
    "cola": """glue = "cola"
train = "$GLUE/CoLA"
valid = 0.05
test = "$GLUE/CoLA"
test_part = "dev"
""",
    "trec": """train = "$TREC/train.tsv"
valid = 0.05
test = "$TREC/test.tsv"
columns = ["text", "label"]
""",
}
FINE_TUNING = """
task = "classification"
[model]
path = "$MODEL"
[training]
epochs = 2
precision = "auto"
threads = 1
optimizer = { name = "adamw", learning_rate = 3e-4, weight_decay = 0.01, betas = [0.9, 0.98] }
schedule = { name = "linear", warmup = 50 }
checkpoints = { save_total_limit = 1 }
[data]
batch_size = 32
"""
OWN_OPTIONS: dict[str, Callable[[str], Any]] = {
    "pairs": int,
    "masked_pairs": int,
    "glue": Path,
    "trec": Path,
}
PASS_PER_TOKEN = ("bert", "xlnet")  # their scores are from pseudo-log-likelihoods
SENTENCES = 300  # of the test data, the first that are not long: for pseudo-perplexity
LONGEST = 62  # tokens of such a sentence, with [CLS] and [SEP] all that BERT reads
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


@dataclass(frozen=True)
class Settings:
    """pairs: of each set of BLiMP.  masked_pairs: for BERT and XLNet, which need a pass per token.
    glue: the folder of GLUE.  trec: NLTK's archive of TREC."""

    pairs: int = 1000
    masked_pairs: int = 100
    glue: Path | None = None
    trec: Path | None = None


def main(
    reviews: Path, blimp: Path, out: Path, overrides: Sequence[str], settings: Settings
) -> list[Row]:
    """Train, score and show all models."""
    data = (out / "data").resolve()
    tokenizer = prepare(reviews, data)

    def row(name: str, tokens: int, task: Callable[[], Any]) -> Row:
        path = out / f"{name}.json"
        if not path.exists():
            limits = (settings.pairs, settings.masked_pairs)
            most = min(limits) if name in PASS_PER_TOKEN else settings.pairs
            pairs = read_minimal_pairs(blimp, pairs_per_set=most)
            path.write_text(json.dumps(asdict(scored(name, task(), tokens, data, pairs))))
        return Row(**json.loads(path.read_text()))

    folders = trained_models(data, out, overrides)
    read = {name: UPDATE * steps_of(run / "recipe.toml") for name, run in folders.items()}
    counted = {"5-gram": read["gpt"], "5-gram of all": 1 << 40}
    rows = [
        *(row(name, n, lambda n=n: n_grams(data, tokenizer, n)) for name, n in counted.items()),
        *(row(name, read[name], lambda run=run: regard.load(run)) for name, run in folders.items()),
    ]
    show(rows)
    tables = classification_data(data, settings)
    show_classifiers({name: fine_tuned(run, tables) for name, run in folders.items()})
    return rows


def trained_models(data: Path, out: Path, overrides: Sequence[str]) -> dict[str, Path]:
    """The runs of all models by name; those after `-flops` have had as many FLOPs as GPT."""
    recipes = {name: variant(name, data) for name in MODELS}
    compare_files([*recipes.values()], overrides, out=out / "compare")
    folders = {name: out / "compare" / f"{name}-seed1" for name in MODELS}
    for name, own in (("xlnet", XLNET), ("bert", BERT)):
        folders[name] = trained(variant(name, data), [*own, *overrides], out / name)
    flops = {
        name: estimate(recipes[name], overrides, measure=False).flops
        for name in (*EQUAL_FLOPS, "gpt")
    }
    for name in EQUAL_FLOPS:
        steps = round(steps_of(recipes["gpt"], overrides) * flops["gpt"] / flops[name])
        run = out / f"{name}-flops"
        folders[run.name] = trained(recipes[name], [*overrides, f"training.max_steps={steps}"], run)
    return folders


def steps_of(recipe: Path, overrides: Sequence[str] = ()) -> int:
    """How many steps a recipe has."""
    return int(runs.read_recipe(recipe, overrides).training.max_steps)


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
        tokenizer = Tokenizer.train(train_sentences, "bpe", 8000)
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


def n_grams(data: Path, tokenizer: Tokenizer, tokens: int) -> TextGenerator:
    """5-grams of the first tokens of the training text."""
    pad, bos, eos = tokenizer.required_ids("pad", "bos", "eos")
    ids = encode_texts(lines(data / "train.txt"), tokenizer, after=[eos]).ids[:tokens]
    model = KneserNey.fit(ids, KneserNeyConfig(tokenizer.vocab_size, 5, pad, bos, eos))
    return TextGenerator(model, tokenizer, format="lines", unit="word")


def trained(recipe: Path, overrides: Sequence[str], run: Path) -> Path:
    """The run, trained, or gone on with if it was interrupted."""
    if (run / "recipe.toml").exists():
        regard.resume(run)
    else:
        runs.train_recipe(recipes.read(recipe, overrides), out=run)
    return run


def scored(name: str, task: Any, tokens: int, data: Path, pairs: Sequence[MinimalPair]) -> Row:
    """The numbers of a model, from the test reviews and the minimal pairs."""
    test, pseudo = [*lines(data / "test.txt")], None
    if name in PASS_PER_TOKEN:
        pseudo = task.pseudo_log_likelihoods if name == "xlnet" else task.log_likelihoods
        test = [one for one in test if len(task.tokenizer.encode(one).ids) <= LONGEST][:SENTENCES]
        nats = -sum(pseudo(test))
    else:
        nats = task.evaluate(open_table(test, format="lines")).named[0].nats
    words = sum(len(line.split()) + 1 for line in test)
    size = sum(len(line.encode()) + 1 for line in test)
    score = minimal_pair_scores(task, pairs)[-1 if pseudo else 0]
    sets = score.facts()["sets"]
    return Row(
        model=name,
        parameters=sum(p.numel() for p in task.module.parameters()),
        tokens=tokens,
        perplexity=math.exp(nats / words),
        bits_per_byte=nats / math.log(2) / size,
        blimp=score.value,
        ties=sum(one["ties"] for one in sets.values()),
        sets={key: one["accuracy"] for key, one in sets.items()},
    )


def classification_data(data: Path, settings: Settings) -> dict[str, str]:
    """The sections [data] of the tasks whose files are given."""
    found = {}
    if settings.glue is not None:
        folder = settings.glue.resolve().as_posix()
        found = {name: CLASSIFIERS[name].replace("$GLUE", folder) for name in ("sst2", "cola")}
    if settings.trec is not None:
        if not (data / "trec/test.tsv").exists():
            trec.main(str(settings.trec), str(data / "trec"))
        found["trec"] = CLASSIFIERS["trec"].replace("$TREC", f"{data.as_posix()}/trec")
    return found


def fine_tuned(run: Path, tables: Mapping[str, str]) -> dict[str, float]:
    """The first score on the test data of each task; CoLA's is Matthews' correlation."""
    found = {}
    for name, table in tables.items():
        recipe = run / f"{name}.toml"
        text = FINE_TUNING.replace("$MODEL", (run / "model").resolve().as_posix())
        recipe.write_text(text + table, encoding="utf-8")
        tuned = trained(recipe, [], run / name)
        scores = json.loads((tuned / "result.json").read_text("utf-8"))["test_scores"]
        found[name] = next(iter(scores.values()))
    return found


def show(rows: Sequence[Row]) -> None:
    """The table."""
    print(
        f"{'model':22}{'parameters':>12}{'perplexity':>12}{'bits/byte':>11}{'BLiMP':>8}{'ties':>6}"
    )
    for row in rows:
        print(
            f"{row.model:22}{row.parameters:12,}{row.perplexity:12.1f}{row.bits_per_byte:11.3f}"
            f"{100 * row.blimp:8.1f}{row.ties:6,}"
        )


def show_classifiers(scores: Mapping[str, Mapping[str, float]]) -> None:
    """A table of what the fine-tuned models score, in percent."""
    for name, of_tasks in scores.items():
        if of_tasks:
            print(f"{name:22}", *(f"{key} {100 * one:5.1f}" for key, one in of_tasks.items()))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = [word for word in sys.argv[1:] if "=" in word]
    if not 2 <= len(words) <= 3:
        sys.exit(__doc__)
    own = dict(word.split("=", 1) for word in options if word.split("=")[0] in OWN_OPTIONS)
    main(
        Path(words[0]),
        Path(words[1]),
        Path(words[2] if words[2:] else "runs/lstm-to-gpt"),
        [word for word in options if word.split("=")[0] not in own],
        Settings(**{name: OWN_OPTIONS[name](value) for name, value in own.items()}),
    )
