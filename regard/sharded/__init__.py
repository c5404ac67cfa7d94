"""Inference over files by any number of workers, each row once, with the same bytes.

shards.py     which rows each shard has
rows.py       reading the rows of a shard
manifest.py   what an output folder was begun with
leases.py     which worker computes a shard
computing.py  what is computed of the rows
parts.py      the files of the results
worker.py     the work of one process
driver.py     starts workers, shows progress, completes the folder
reading.py    reading the parts
ray_datasets.py  Ray Datasets, without files
"""

from __future__ import annotations

from regard.lazy import names_of

__all__, __getattr__ = names_of(
    __name__,
    {
        "driver": "Summary Workers compute",
        "manifest": "ShardedTask",
        "mapping": "map",
        "reading": "read_parts",
    },
)
