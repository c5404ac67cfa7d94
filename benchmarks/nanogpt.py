"""tiny Shakespeare on a CPU: nanoGPT's own script and our recipe, in turn, by the clock.

    python -m benchmarks.nanogpt NANOGPT INPUT [--rounds 3] [--threads 1] [--updates 2000]

NANOGPT is a checkout of its repository, which is copied and not changed; INPUT is input.txt of tiny
Shakespeare. Both sides run as one process from the start of Python to the last validation, with the
flags that nanoGPT's README gives for a CPU: 4 layers, 4 heads, 128 wide, context 64, 12 rows, 2,000
updates. They differ in this, and it is told with the numbers:

    validation   theirs takes 20 random batches of each part every 250 updates; ours reads the whole
                 validation part as often as the recipe says
    biases       theirs has none in this configuration; ours has them, as GPT-2
    start        theirs begins with weights of deviation 0.02; ours as the recipe says
    precision    theirs computes in float32; ours in bfloat16 where that is faster
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RECIPE = Path(__file__).parents[1] / "recipes" / "shakespeare-char-cpu.toml"
FLAGS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=100 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0"
).split()
CUT = 0.9  # of the characters, for training


def main() -> None:
    """Run both sides in turn and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("text", type=Path, help="input.txt of tiny Shakespeare")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        theirs, data = prepared(given.nanogpt, given.text, path)
        rounds = []
        for number in range(given.rounds):
            found = {
                "regard": ours_once(path / f"run{number}", data, given.updates, given.threads),
                "nanoGPT": theirs_once(theirs, given.updates, given.threads),
            }
            rounds.append(found)
            print(json.dumps(found), file=sys.stderr)
    print(json.dumps(summary(rounds, given), indent=2))


def prepared(checkout: Path, text: Path, path: Path) -> tuple[Path, Path]:
    """A copy of nanoGPT with its data made by its own script, and a folder with our two files."""
    copy, data = path / "nanogpt", path / "data"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    dataset = copy / "data" / "shakespeare_char"
    shutil.copy(text, dataset / "input.txt")
    (dataset / "requests.py").write_text("")  # imported for a download that is not needed
    _run([sys.executable, "prepare.py"], dataset, 1)
    written = text.read_text(encoding="utf-8")
    data.mkdir()
    end = int(len(written) * CUT)
    (data / "train.txt").write_text(written[:end], encoding="utf-8")
    (data / "valid.txt").write_text(written[end:], encoding="utf-8")
    return copy, data


def ours_once(out: Path, data: Path, updates: int, threads: int) -> dict[str, float]:
    """Our side: seconds, and the loss of the whole validation part."""
    os.environ["SHAKESPEARE"] = str(data)
    command = [sys.executable, "-m", "regard", "train", str(RECIPE), "--out", str(out)]
    options = [f"training.max_steps={updates}", f"training.threads={threads}"]
    seconds, _ = _run([*command, *options], out.parent, threads)
    result = json.loads((out / "result.json").read_text())
    return {"seconds": seconds, "loss": result["scores"]["loss"]}


def theirs_once(checkout: Path, updates: int, threads: int) -> dict[str, float]:
    """nanoGPT's side: seconds, and its last estimate of the validation loss."""
    script = [sys.executable, "train.py", "config/train_shakespeare_char.py", *FLAGS]
    limits = [f"--max_iters={updates}", f"--lr_decay_iters={updates}"]
    seconds, said = _run([*script, *limits], checkout, threads)
    losses = re.findall(r"val loss ([\d.]+)", said)
    return {"seconds": seconds, "loss": float(losses[-1])}


def summary(rounds: list[dict[str, dict[str, float]]], given: Any) -> dict[str, Any]:
    """Medians and the ratio round by round."""
    sides = ("regard", "nanoGPT")
    ratios = [one["nanoGPT"]["seconds"] / one["regard"]["seconds"] for one in rounds]
    return {
        "updates": given.updates,
        "threads": given.threads,
        "seconds": {side: median(one[side]["seconds"] for one in rounds) for side in sides},
        "loss": {side: median(one[side]["loss"] for one in rounds) for side in sides},
        "times faster": {"median": median(ratios), "lowest": min(ratios), "highest": max(ratios)},
        "rounds": rounds,
    }


def _run(command: list[str], folder: Path, threads: int) -> tuple[float, str]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


if __name__ == "__main__":
    main()
