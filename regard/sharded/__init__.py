"""Inference over files by any number of workers, each row once, with the same bytes.

rows.py       reading the rows of files
manifest.py   the manifest of an output folder: its input, model, options and parts
computing.py  what a worker computes of rows: vectors or predictions
parts.py      the file with the results of a part, in each format
worker.py     the function that each process runs
driver.py     starts workers, shows progress, completes the folder
reading.py    reading the parts
file_predictions.py  `regard.predict_files`
ray_datasets.py  Ray Datasets, without files

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "driver": "ShardedSummary WorkerOptions compute_files",
        "manifest": "ShardedTask",
        "file_predictions": "predict_files",
        "reading": "FileResults iter_results",
    },
)
