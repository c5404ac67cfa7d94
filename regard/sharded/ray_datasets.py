"""`regard.predict_files` for Ray Datasets: actors of the cluster that keep the model open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.data.text_chunks import MAX_TEXTS
from regard.errors import ConfigError, DataError
from regard.sharded.computing import open_computer, reason_of
from regard.sharded.manifest import ShardedTask
from regard.sharded.parts import VECTOR, check_new_columns, parquet_schema, result_columns
from regard.sharded.rows import InputRow
from regard.sharded.worker import added_columns
from regard.tasks.predicted_tables import infer_columns

if TYPE_CHECKING:
    import pyarrow

SOURCE = Path("the dataset")  # in errors
ERROR = "error"  # the column of reasons why rows have no result


def is_ray_dataset(data: object) -> bool:
    """Whether this is a `ray.data.Dataset`; Ray is not imported for that."""
    module = sys.modules.get("ray.data")
    return module is not None and isinstance(data, module.Dataset)


def map_ray_dataset(data: Any, task: ShardedTask, workers: int, gpus: int, strict: bool) -> Any:
    """The dataset with the columns of the results, and with the column `error` unless `strict`.

    All batches have the same columns with the same types, also those of which no row has a result.

    It is lazy, as Ray's datasets are: Ray computes it when it is read or written, in `workers`
    actors, and computes again what is lost with a machine.

    Raises:
        ConfigError: columns of the dataset have the names of results.
    """
    from ray.data import ActorPoolStrategy

    taken = {VECTOR, ERROR, "prediction"} & {*(data.columns() or ())}
    if taken:
        raise ConfigError(
            f"The dataset has a column {taken.pop()!r}, which is the name of results: rename it."
        )
    return data.map_batches(
        DatasetComputer,
        fn_constructor_args=(task, strict),
        batch_size=MAX_TEXTS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=workers),
        num_cpus=task.threads,
        num_gpus=gpus,
    )


class DatasetComputer:
    """Computes batches of a dataset with an open model, in an actor.

    strict: whether a row without a result raises its error.
    """

    def __init__(self, task: ShardedTask, strict: bool):
        torch.set_num_threads(task.threads)
        self.columns, self.strict = task.columns, strict
        self.computer = open_computer(task)
        self.schema: pyarrow.Schema | None = None  # of the columns of results, in all batches

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        """The table with the columns of the results."""
        columns = self.columns or infer_columns(SOURCE, dict.fromkeys(table.column_names))
        rows = [InputRow(number, record) for number, record in enumerate(table.to_pylist(), 1)]
        if self.schema is None:
            added = added_columns(self.computer, rows, columns)
            check_new_columns([dict.fromkeys(table.column_names)], added, str(SOURCE))
            self.schema = parquet_schema([], added, "")
        results, errors = self.computer.compute_rows(rows, columns, str(SOURCE))
        if self.strict and errors:
            raise errors[min(errors)]
        return self._with_results(table, results, errors)

    def _with_results(
        self, table: pyarrow.Table, results: list[Any], errors: dict[int, DataError]
    ) -> pyarrow.Table:
        import pyarrow

        added = pyarrow.Table.from_pylist([result_columns(one) for one in results], self.schema)
        for field in added.schema:
            table = table.append_column(field, added.column(field.name))
        if self.strict:
            return table
        indices = range(len(results))
        reasons = [reason_of(errors[index]) if index in errors else None for index in indices]
        return table.append_column(ERROR, pyarrow.array(reasons, pyarrow.string()))
