"""What the parts of BERT's pre-training bring: examples/bert_ablations.py REVIEWS TREC [OUT]

REVIEWS is a table of IMDB's film reviews, whose texts are in its last column; TREC is NLTK's
qc.zip. Small models of recipes/bert-ablations.toml read the same tokens of the reviews, with these
differences (Devlin et al. 2019, section 5):

- masked tokens with sentence pairs (BERT), without pairs (RoBERTa), and with 30 % of the tokens
  masked; left to right (GPT, which has the same blocks);
- a quarter and four times the parameters in the blocks.

Each is then fine-tuned on TREC's questions with several seeds, the first three from every
checkpoint, of which that of step 0 has random weights. Printed are the means, and
OUT/ablations.html has the curves over the steps of pre-training. Interrupted, it goes on where it
was stopped. Options of the recipe and the number of seeds can follow:

    python examples/bert_ablations.py reviews.tsv.gz qc.zip runs/short \\
        training.max_steps=100 seeds=1
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import lstm_to_gpt
import trec

import regard
from regard.checkpoints.filling import load_weights
from regard.checkpoints.store import read_folder
from regard.data.files import lines
from regard.text import Tokenizer
from regard.visual import Curves, Series

RECIPE = Path(__file__).resolve().parents[1] / "recipes/bert-ablations.toml"
REVIEWS, VALIDATION = 12_000, 150  # of the table
SUBWORDS = 2000
VARIANTS: dict[str, list[str]] = {
    "no pairs": [],
    "left to right": [
        "task=language-modeling",
        'data={train="$FOLDER/train.txt", valid="$FOLDER/valid.txt", format="text", '
        "batch_size=16, sequence_length=64}",
        'model={name="gpt", d_model=128, heads=4, layers=2, max_length=64, positions="shaw", '
        "dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0, init_range=0.08}",
    ],
    "30% masked": ["data.mlm_probability=0.3"],
    "64 wide": ["model.d_model=64", "model.d_ff=256"],
    "pairs": ["data.sentence_pairs=true"],
    "256 wide": ["model.d_model=256", "model.d_ff=1024", "training.optimizer.learning_rate=1e-3"],
}
CURVES = ("no pairs", "left to right", "pairs")  # of the others the last checkpoint is fine-tuned
FINE_TUNING = """
task = "classification"
[data]
train = "$FOLDER/trec/train.tsv"
valid = 0.05
test = "$FOLDER/trec/test.tsv"
columns = ["text", "label"]
batch_size = 32
[model]
path = "$MODEL"
[training]
epochs = 3
threads = 1
precision = "auto"
optimizer = { name = "adamw", learning_rate = 5e-4, weight_decay = 0.01, betas = [0.9, 0.98] }
schedule = { name = "linear", warmup = 50 }
checkpoints = { save_total_limit = 1 }
"""


def main(
    reviews: Path, questions: Path, out: Path, overrides: Sequence[str], seeds: int
) -> dict[str, dict[int, list[float]]]:
    """Train, fine-tune and show all variants: accuracies of variants by step of pre-training."""
    data = (out / "data").resolve()
    prepare(reviews, questions, data)
    found: dict[str, dict[int, list[float]]] = {}
    for name, own in VARIANTS.items():
        run = out / name.replace(" ", "-")
        recipe = write_recipe(RECIPE.read_text("utf-8"), data, out / "recipe.toml")
        of_data = [word.replace("$FOLDER", data.as_posix()) for word in own]
        lstm_to_gpt.trained(recipe, [*overrides, *of_data], run)
        chosen = [*models(run).items()][0 if name in CURVES else -1 :]
        found[name] = {
            step: [fine_tuned(model, data, seed) for seed in range(1, seeds + 1)]
            for step, model in chosen
        }
    show(found, out)
    return found


def prepare(reviews: Path, questions: Path, folder: Path) -> None:
    """The reviews as documents with a sentence on each line, a tokenizer, and TREC's tables."""
    if (folder / "tokenizer").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows = [line.split("\t")[-1] for line in lines(reviews)]
    random.Random(1).shuffle(rows)
    documents = [[*lstm_to_gpt.sentences(row)] for row in rows[: REVIEWS + VALIDATION]]
    for part, some in (("train", documents[:REVIEWS]), ("valid", documents[REVIEWS:])):
        text = "\n\n".join("\n".join(document) for document in some)
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")
    trec.main(str(questions), str(folder / "trec"))
    of_lines = [sentence for document in documents[:REVIEWS:3] for sentence in document]
    tokenizer = Tokenizer.train(of_lines, "wordpiece", SUBWORDS, lowercase=True)
    roles = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer.with_roles(roles).save(folder / "tokenizer")


def write_recipe(text: str, folder: Path, path: Path, model: str = "") -> Path:
    """A recipe with the paths of its data."""
    text = text.replace("$FOLDER", folder.as_posix()).replace("$MODEL", model)
    path.write_text(text, encoding="utf-8")
    return path


def models(run: Path) -> dict[int, Path]:
    """A model's folder for each checkpoint of a run, by its step."""
    found = {}
    for checkpoint in sorted((run / "checkpoints").glob("step-*")):
        step = int(checkpoint.name.removeprefix("step-"))
        found[step] = run / f"model-{step}"
        if not (found[step] / "config.json").exists():
            task = regard.load(run)
            load_weights(task.module, read_folder(checkpoint)[0]["weights"])
            regard.save(task, found[step])
    return found


def fine_tuned(model: Path, data: Path, seed: int) -> float:
    """The accuracy on TREC's test questions."""
    score = model / f"trec-{seed}.json"
    if not score.exists():
        recipe = write_recipe(FINE_TUNING, data, model / "trec.toml", model.resolve().as_posix())
        run = model / f"trec-{seed}"
        lstm_to_gpt.trained(recipe, [f"seed={seed}"], run)
        score.write_text((run / "result.json").read_text("utf-8"), encoding="utf-8")
    return float(json.loads(score.read_text("utf-8"))["test_scores"]["accuracy"])


def show(found: dict[str, dict[int, list[float]]], out: Path) -> None:
    """A table of means and standard deviations, and the curves."""
    for name, accuracies in found.items():
        for step, some in accuracies.items():
            spread = f" ± {100 * statistics.stdev(some):.1f}" if len(some) > 1 else ""
            print(f"{name:16}{step:8,}{100 * statistics.mean(some):8.1f}{spread}")
    series = [
        Series(name, tuple((step, 100 * statistics.mean(some)) for step, some in one.items()))
        for name, one in found.items()
    ]
    title = "accuracy on TREC after fine-tuning"
    Curves(tuple(series), title, "steps of pre-training", "%").save(out / "ablations.html")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = [word for word in sys.argv[1:] if "=" in word]
    if not 2 <= len(words) <= 3:
        sys.exit(__doc__)
    chosen = [word.removeprefix("seeds=") for word in options if word.startswith("seeds=")]
    main(
        Path(words[0]),
        Path(words[1]),
        Path(words[2] if words[2:] else "runs/bert-ablations"),
        [word for word in options if not word.startswith("seeds=")],
        int((chosen or ["3"])[-1]),
    )
