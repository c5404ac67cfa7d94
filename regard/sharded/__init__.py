"""Inference over files by any number of workers, each row once, with the same bytes.

    manifest.py  the manifest of an output folder: its input, model, options and parts
    parts.py     the file with the results of a part, in each format, written and read
    worker.py    computes parts, in a process of its own
    driver.py    `regard.predict_files`: starts workers, shows progress, completes the folder

Internal: names that `regard` itself does not have may change with every version.
"""

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "driver": "predict_files",
        "manifest": "ShardedTask",
        "parts": "FileResults ShardedSummary iter_results",
    },
)
