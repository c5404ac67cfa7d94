"""Models with a long memory at equal tokens: python examples/long_memory.py TEXT SOURCE [MODEL...]

TEXT is `bbc`, articles with paragraphs (SOURCE: bbc_news.tar.gz, http://mlg.ucd.ie/datasets/bbc.html),
or `ptb`, the Penn Treebank (SOURCE: the folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt).
The recipe is recipes/long-memory.toml. The table is printed, and runs/long-memory-TEXT/report.html
shows the curves; then the LSTM is tested once more with a neural cache. Interrupted, it goes on
where it was stopped.

    python examples/long_memory.py ptb $PTB transformer-xl lstm training.tokens=100_000 seeds=1,2,3
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import regard
from regard.data import open_table
from regard.experiments.compare import compare_files
from regard.experiments.results import StudyResults
from regard.experiments.study import RunOptions
from regard.text import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/long-memory.toml"
SIZES = "d_model = 128\nd_ff = 256\nheads = 4\nlayers = 4\ndropout = 0.1\ninit_range = 0.05\n"
XL = SIZES + "target_length = 64\n"
# With a memory, every token sees 64 slots before its segment of 64.
MODELS = {
    "transformer": 'name = "gpt2"\nmax_length = 64\nembedding_dropout = 0.1\n' + SIZES,
    "lstm": 'name = "lstm-lm"\nd_model = 176\nlayers = 2\ntied = true\ndropout = 0.1\n',
    "transformer-xl": 'name = "transformer-xl"\nmemory_length = 64\n' + XL,
    "sega-transformer-xl": (
        'name = "sega-transformer-xl"\nmemory_length = 64\nsentence_ends = {stops}\n' + XL
    ),
    "compressive-transformer": (
        'name = "compressive-transformer"\nmemory_length = 32\ncompressed_length = 32\n'
        "compression_rate = 4\n" + XL
    ),
}
CACHE = dict(neural_cache=500, neural_cache_theta=0.3, neural_cache_weight=0.1)


def main(
    text: str,
    source: Path,
    models: Sequence[str],
    overrides: Sequence[str] = (),
    seeds: Sequence[int] = (1,),
    out: Path | None = None,
) -> StudyResults:
    """Train the models, compare them, and test the LSTM with a neural cache."""
    out = out or Path(f"runs/long-memory-{text}")
    folder = (out.parent / f"{out.name}-data").resolve()
    tokenizer = prepare(text, source, folder)
    recipes = [variant(name, folder, tokenizer) for name in models]
    found = compare_files(recipes, overrides, RunOptions(tuple(seeds)), out)
    found.picture().show()
    for run in sorted(out.glob("lstm-seed*")):
        task = regard.load(run)
        test = open_table(folder / "test.txt", format="lines")
        print(run.name, task.evaluate(test), "with a cache:", task.evaluate(test, **CACHE))
    return found


def prepare(text: str, source: Path, folder: Path) -> Tokenizer:
    """Training, validation and test text in a folder, and a tokenizer of the first."""
    if not (folder / "tokenizer").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if text == "ptb":
            for part in ("train", "valid", "test"):
                shutil.copy(source / f"ptb.{part}.txt", folder / f"{part}.txt")
        else:
            write_articles(source, folder)
        kind, size = ("words", 10_003) if text == "ptb" else ("bpe", 3_000)
        lines = (folder / "train.txt").read_text(encoding="utf-8").splitlines()
        Tokenizer.train(lines, kind, size).save(folder / "tokenizer")
    return Tokenizer.load(folder / "tokenizer")


def write_articles(archive: Path, folder: Path) -> None:
    """One paragraph a line, lower case, punctuation split off: of 20 articles 18 to train on, one
    to validate and one to test.
    """
    parts = ["valid", "test", *["train"] * 18]
    texts: dict[str, list[str]] = {part: [] for part in parts}
    for number, article in enumerate(articles(archive)):
        words = (re.findall(r"\w+|[^\w\s]", line.lower()) for line in article.splitlines())
        texts[parts[number % len(parts)]] += [" ".join(line) for line in words if line]
    for part, lines in texts.items():
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def articles(archive: Path) -> Iterator[str]:
    """The articles by their names."""
    with tarfile.open(archive) as files:
        for name in sorted(n for n in files.getnames() if re.fullmatch(r".*/\d+\.txt", n)):
            file = files.extractfile(name)
            assert file is not None
            yield file.read().decode("latin-1")


def variant(name: str, folder: Path, tokenizer: Tokenizer) -> Path:
    """The recipe with one of the models and the paths of its data."""
    stops = {tokenizer.encode(mark).ids[-1] for mark in ".?!"} - {tokenizer.unk_id}
    model = MODELS[name].format(stops=sorted(stops))
    text = RECIPE.read_text(encoding="utf-8").replace("$FOLDER", folder.as_posix())
    text = text[: text.index("\n[model]")] + "\n[model]\n"
    path = folder / f"{name}.toml"
    path.write_text(text.replace('"long-memory"', f'"{name}"', 1) + model, encoding="utf-8")
    return path


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = [word for word in sys.argv[1:] if "=" in word]
    chosen = [word.removeprefix("seeds=") for word in options if word.startswith("seeds=")]
    main(
        words[0],
        Path(words[1]),
        words[2:] or list(MODELS),
        [word for word in options if not word.startswith("seeds=")],
        [int(seed) for seed in (chosen or ["1"])[-1].split(",")],
    )
