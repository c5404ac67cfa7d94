"""python -m benchmarks [--rounds N] [--model RUN --sources FILE] [--json FILE]

Prints what we and `transformers` do in the same time, in turn, with the ratio of each round, and
the ceilings of this machine. With a trained model and a file of sentences, beam search is measured
on real text too, where sentences end at different times.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

import regard
from benchmarks import measure, startup, translation
from benchmarks.measure import Duel


def main() -> None:
    """Measure, print, and write the numbers where `--json` says."""
    asked = _arguments()
    duels = translation.training(asked.rounds) + _searches(asked)
    found: dict[str, Any] = {
        "machine": _machine(),
        "ceilings": measure.ceilings(),
        "duels": [each.row() for each in duels],
        "import seconds": startup.imports(asked.rounds),
        "peak MB of one training update": startup.peaks(),
    }
    _show(found)
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="a run of a Transformer, to search on real text")
    parser.add_argument("--sources", help="its sentences, one a line")
    parser.add_argument("--json", help="where to write the numbers")
    return parser.parse_args()


def _searches(asked: argparse.Namespace) -> list[Duel]:
    ours, theirs = translation.pair(32000)
    texts = translation.sentences(64, 32000)
    name = "beam 4, Transformer base, random"
    duels = [translation.searching(name, ours, theirs, texts, 20, asked.rounds)]
    if asked.model:
        task = regard.load(asked.model)
        lines = Path(asked.sources).read_text(encoding="utf-8").splitlines()[:256]
        texts = task.tokenizer.encode_many(lines)
        peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(Path(asked.model) / "model")
        name = f"beam 4, trained, {Path(asked.sources).name}"
        duels.append(translation.searching(name, task.model, peer, texts, 60, asked.rounds))
    return duels


def _machine() -> dict[str, Any]:
    return {
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "regard": regard.__version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _show(found: dict[str, Any]) -> None:
    table = Table(title="regard beside transformers, medians")
    for column in ("work", "unit", "regard", "transformers", "ratio", "spread", "note"):
        table.add_column(column, justify="left" if column in ("work", "unit", "note") else "right")
    for row in found["duels"]:
        spread = f"{row['lowest']:.2f}-{row['highest']:.2f}"
        numbers = [f"{row[side]:,.1f}" for side in ("regard", "transformers")]
        table.add_row(
            row["work"], row["unit"], *numbers, f"{row['ratio']:.2f}", spread, row["note"]
        )
    console = Console()
    console.print(table)
    for name in ("machine", "ceilings", "import seconds", "peak MB of one training update"):
        parts = (
            f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in found[name].items()
        )
        console.print(f"{name}: " + ", ".join(parts))


if __name__ == "__main__":
    main()
