"""Inference over files by any number of workers, each row once, with the same bytes.

    rows.py      the rows of files
    manifest.py  the manifest of an output folder: its input, model, options and parts
    parts.py     the file with the results of a part, in each format
    worker.py    computes parts, in a process of its own
    driver.py    `regard.predict_files`: starts workers, shows progress, completes the folder
    reading.py   reading the parts

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "driver": "ShardedSummary WorkerOptions compute_files predict_files",
        "manifest": "ShardedTask",
        "reading": "FileResults iter_results",
    },
)
