"""The rows that a task trains on, as a table: `python -m benchmarks.finetuning.subset sst2`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.finetuning import rows
from benchmarks.finetuning.conditions import TASKS


def main() -> None:
    """Texts and label of each row, tabs between."""
    tables = [name for name, task in TASKS.items() if task.columns is not None]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning.subset")
    parser.add_argument("task", choices=tables)
    parser.add_argument("--data", type=Path, required=True, help="holds glue/")
    parser.add_argument("--rows", type=int, help="instead of the task's own number")
    options = parser.parse_args()
    for row in rows.training(TASKS[options.task], options.data, options.rows):
        sys.stdout.write("\t".join((*row.texts, str(row.label))) + "\n")


if __name__ == "__main__":
    main()
