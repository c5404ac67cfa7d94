"""python -m benchmarks.processes [--out FOLDER]

The loss curve of 200 updates in one process beside that of 2 and of 4, for a language model and a
classifier; and of a run that 4 processes have saved after 100 updates, resumed by 2 and by one. The
largest relative difference of the losses and of the norm of the gradient. It takes about five
minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from regard.training.metrics_log import read_events

UPDATES, SAVED = 200, 100
WORDS = "the old cat sat on a warm mat and was sleeping in sun who where dog ran over hill".split()
COMMON = f"""
[training]
max_steps = {UPDATES}
logging_steps = 1
validation = {{ eval_steps = 50 }}
checkpoints = {{ save_steps = {SAVED}, save_seconds = 0, save_total_limit = 9 }}
optimizer = {{ name = "adamw", learning_rate = RATE, weight_decay = 0.01 }}
"""
RECIPES = {
    "language-modeling": """
task = "language-modeling"
data = { train = "lines.txt", valid = "valid.txt", batch_size = 8, sequence_length = 24 }
tokenizer = { kind = "words" }
[model]
name = "gpt2"
layers = 3
d_model = 30
heads = 3
max_length = 24
dropout = 0
embedding_dropout = 0
attention_dropout = 0
"""
    + COMMON.replace("RATE", "3e-3"),
    "classification": """
task = "classification"
data = { train = "rows.tsv", valid = "some.tsv", batch_size = 7 }
tokenizer = { kind = "wordpiece", vocab_size = 60 }
[model]
name = "bert"
layers = 2
d_model = 30
heads = 3
max_length = 64
dropout = 0
attention_dropout = 0
head_dropout = 0
"""
    + COMMON.replace("RATE", "1e-4").replace(
        "logging_steps", "gradient_accumulation_steps = 2\nlogging_steps"
    ),
}


def write_data(folder: Path) -> None:
    """Lines in which a word depends on the one before, and their classes."""
    chance = random.Random(0)

    def line() -> str:
        number, found = chance.randrange(len(WORDS)), []
        for _ in range(chance.randint(3, 20)):
            found.append(WORDS[number])
            number = (3 * number + chance.choice([1, 1, 2])) % len(WORDS)
        return " ".join(found)

    lines = [line() for _ in range(3000)]
    rows = [f"{one}\t{'animal' if {'cat', 'dog'} & {*one.split()} else 'none'}" for one in lines]
    for name, some in (("lines.txt", lines[200:]), ("valid.txt", lines[:200])):
        (folder / name).write_text("\n".join(some) + "\n")
    for name, some in (("rows.tsv", rows[100:900]), ("some.tsv", rows[:100])):
        (folder / name).write_text("\n".join(some) + "\n")


def regard(processes: int, *arguments: str, folder: Path) -> None:
    """Run the command line in so many processes."""
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "regard", *arguments, "--quiet"], cwd=folder, env=environment, check=True
    )


def halved(run: Path, copy: Path) -> None:
    """A copy of a finished run as it was when it was half done."""
    shutil.copytree(run, copy)
    for name in ("result.json", "report.html", "model/model.safetensors"):
        (copy / name).unlink()
    for step in (copy / "checkpoints").iterdir():
        if int(step.name.removeprefix("step-")) > SAVED:
            shutil.rmtree(step)


def difference(run: Path, expected: Path) -> dict[str, float]:
    """The largest relative difference of each number over all lines of two runs."""
    worst = {"train/loss": 0.0, "grad_norm": 0.0, "valid/loss": 0.0}
    for one, other in zip(read_events(run), read_events(expected), strict=True):
        for name in worst.keys() & one.keys():
            worst[name] = max(
                worst[name], abs(one[name] - other[name]) / max(1e-9, abs(other[name]))
            )
    return worst


def compare(folder: Path, task: str) -> None:
    """Train and resume a recipe in all ways, and print the differences to one process."""
    (folder / f"{task}.toml").write_text(RECIPES[task])
    runs = {size: folder / f"{task}-{size}" for size in (1, 2, 4)}
    for size, run in runs.items():
        regard(size, "train", f"{task}.toml", "--out", str(run), folder=folder)
    resumed = {size: folder / f"{task}-4-resumed-by-{size}" for size in (2, 1)}
    for size, run in resumed.items():
        halved(runs[4], run)
        regard(size, "resume", str(run), folder=folder)
    for run in (runs[2], runs[4], *resumed.values()):
        found = difference(run, runs[1])
        assert all(map(math.isfinite, found.values()))
        print(f"{run.name:40}", *(f"{name} {value:.1e}" for name, value in found.items()), sep="  ")


def main() -> None:
    """Compare both recipes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the runs are kept")
    chosen = parser.parse_args().out
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        for task in RECIPES:
            compare(folder, task)


if __name__ == "__main__":
    main()
