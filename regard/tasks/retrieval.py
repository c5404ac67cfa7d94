"""Pairs of texts, with negatives or with a number, and searches whose answers are known.

rows = pair_rows("pairs.csv")                        (anchor, positive, negatives ...), or
                                                     (text, text, number)
SearchData.of_pairs(rows).scores(model)              each positive among all positives
SearchData.read("scifact").scores(model)             a folder of BEIR (Thakur et al. 2021):

    queries.jsonl       {"_id": "1", "text": "..."}
    corpus.jsonl        {"_id": "d", "title": "...", "text": "..."}
    qrels/test.tsv      query-id, corpus-id, score
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from regard.data.in_memory import column_names, infer_columns, is_path, plain_names
from regard.data.readers import RowReader, columns_in_header, field_value, open_table
from regard.errors import DataError
from regard.habit_names import TARGETS
from regard.metrics.retrieval import RECALLS, Retrieval
from regard.metrics.score import Scores
from regard.tasks.batching import TooLong
from regard.tasks.embedder import EmbedsTexts, products
from regard.tasks.inputs import first_record
from regard.tasks.text_tasks import number_in

QUERIES = 256  # that are compared with the corpus together


Row = Sequence[Any]  # texts and lists of texts, or two texts and a number


def fields_of_rows(rows: RowReader) -> list[tuple[int, list[Any]]]:
    """The fields of rows as texts, or lists of texts, each row with its line.

    Raises:
        DataError: one is neither.
    """
    return [
        (
            line,
            [
                value if isinstance(value, list) else rows.text(row, name, line)
                for name, value in row.items()
            ],
        )
        for line, row in rows.numbered()
    ]


def pair_rows(
    data: Any, columns: Sequence[int | str] = (), delimiter: str | None = None
) -> RowReader:
    """The rows of pairs in a file or in memory; where no columns are named, those that names tell,
    or the first two or three of a file without a header.

    Raises:
        ConfigError: the names of the columns do not tell which they are.
    """
    if not columns and is_path(data):
        fields = len(first_record(data, delimiter)) or 3
        columns = columns_in_header(data, None, delimiter, None) or range(max(2, min(3, fields)))
    elif not columns and column_names(data):
        columns = infer_columns(data)
    return open_table(data, tuple(columns), delimiter=delimiter)


def are_scored(rows: Iterable[Row], columns: Sequence[int | str] = ()) -> bool:
    """Whether rows are two texts and a number: by the name of the third column, or by its value in
    the first row.
    """
    if len(columns) == 3 and plain_names([str(columns[2])])[0] in TARGETS:
        return True
    row = next(iter(rows), ())
    with suppress(ValueError, TypeError):
        return len(row) == 3 and float(row[2]) is not None
    return False


def scored_pair(
    row: Row, file: str, line: int, limits: tuple[float, float] = (-np.inf, np.inf)
) -> tuple[str, str, float]:
    """Two texts and how alike they are.

    limits: the least and the largest number.

    Raises:
        DataError: the row has no number in its third field, or one beyond the limits.
    """
    if len(row) != 3:
        raise DataError(
            file,
            line,
            f"has {len(row)} fields, but these must be two texts and how alike they are.",
            "Name the three columns, such as 5,6,4.",
        )
    number = number_in(row[2], file, line)
    if not limits[0] <= number <= limits[1]:
        problem = f"has the number {number:g}, but this loss takes {limits[0]:g} to {limits[1]:g}."
        hint = 'Divide the numbers, or take loss = "cosent", which reads their order alone.'
        raise DataError(file, line, problem, hint)
    return row[0], row[1], number


def texts_in(row: Row) -> list[str]:
    """The texts of a row, of which a field may be a list."""
    return [text for field in row for text in ([field] if isinstance(field, str) else field)]


@dataclass(frozen=True)
class SearchData:
    """Queries, a corpus, and what of it is relevant for each query.

    queries, corpus: texts by their names.
    relevant: name of a query -> name of a relevant text -> its gain, above 0.
    """

    queries: Mapping[str, str]
    corpus: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]

    @classmethod
    def of_pairs(cls, rows: Iterable[Sequence[Any]]) -> Self:
        """Anchors as queries, whose positives are relevant among those of all anchors.

        Equal texts are one.
        """
        relevant = defaultdict[str, dict[str, float]](dict)
        for anchor, positive, *_ in rows:
            relevant[anchor][positive] = 1.0
        corpus = {text: text for of_anchor in relevant.values() for text in of_anchor}
        return cls({anchor: anchor for anchor in relevant}, corpus, relevant)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """A folder of BEIR. Judgements of 0 are left out, and queries without any others.

        Raises:
            DataError: a file is missing or malformed, or judges a query that does not exist.
        """
        corpus = {
            name: f"{row.get('title') or ''} {row['text']}".strip()
            for name, row in _by_id(folder / "corpus.jsonl")
        }
        queries = {name: row["text"] for name, row in _by_id(folder / "queries.jsonl")}
        relevant = defaultdict[str, dict[str, float]](dict)
        path = folder / "qrels" / "test.tsv"
        for line, row in open_table(path).numbered():
            query, text = (field_value(row, name, (path, line)) for name in QRELS)
            gain = number_in(str(field_value(row, "score", (path, line))), str(path), line)
            if query not in queries:
                raise DataError(path, line, f"judges query {query!r}, which is not among them.")
            if gain > 0:
                relevant[query][text] = gain
        return cls(queries, corpus, relevant)

    def scores(self, model: EmbedsTexts, too_long: TooLong = "truncate") -> Scores:
        """nDCG@10, MRR@10 and recall of searches in the whole corpus by the cosine.

        Raises:
            RegardError: no query has a relevant text.
        """
        names, metric, queries = list(self.corpus), Retrieval(), list(self.relevant)
        options: Any = {"normalize": True, "too_long": too_long}
        found = model.embed([self.queries[query] for query in queries], **options)  # (Q, D)
        vectors = model.embed(list(self.corpus.values()), **options)  # (N, D)
        for start in range(0, len(queries), QUERIES):
            cosines = products(found[start : start + QUERIES], vectors)
            order = np.argsort(-cosines, axis=1, kind="stable")[:, : max(RECALLS)]
            for query, ranked in zip(queries[start:], order, strict=False):
                metric.add([names[i] for i in ranked], self.relevant[query])
        return Scores(metric.results(f"queries:{len(queries)}|corpus:{len(names)}"))


QRELS = ("query-id", "corpus-id")


def _by_id(path: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The rows of a file of BEIR by their names."""
    for line, row in open_table(path).numbered():
        field_value(row, "text", (path, line))
        yield str(field_value(row, "_id", (path, line))), row
