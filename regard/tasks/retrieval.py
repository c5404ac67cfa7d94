"""Pairs of texts, with negatives or with a number, and searches whose answers are known.

pairs = pairs_in(pair_rows("pairs.csv"), scored=False)
SearchData.of_pairs(pairs).scores(model)             each positive among all positives
SearchData.read("scifact").scores(model)             a folder of BEIR (Thakur et al. 2021):

    queries.jsonl       {"_id": "1", "text": "..."}
    corpus.jsonl        {"_id": "d", "title": "...", "text": "..."}
    qrels/test.tsv      query-id, corpus-id, score
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from regard.data.in_memory import column_names, infer_columns, is_path, plain_names
from regard.data.readers import Record, RowReader, columns_in_header, field_value, open_table
from regard.errors import DataError
from regard.habit_names import TARGETS
from regard.metrics.retrieval import RECALLS, Retrieval
from regard.metrics.score import Scores
from regard.tasks.embedder import EmbedsTexts, products
from regard.tasks.inputs import first_record
from regard.tasks.task import EmbedOptions
from regard.tasks.text_tasks import number_in

QUERIES = 256  # that are compared with the corpus together


@dataclass(frozen=True)
class Pair:
    """A row: an anchor, its positive and texts that are none; or two texts and how alike they are.

    line: of the file.
    """

    line: int
    anchor: str
    positive: str
    negatives: Sequence[str] = ()
    score: float = 0.0


def texts_in(rows: RowReader, row: Record, line: int, columns: Iterable[str]) -> list[str]:
    """The texts in some columns of a row, each of which may hold a list.

    Raises:
        DataError: one holds something else.
    """
    texts = list[str]()
    for name in columns:
        value = row[name]
        texts += value if isinstance(value, list) else [rows.text(row, name, line)]
    return texts


def pairs_in(rows: RowReader, *, scored: bool) -> Iterator[Pair]:
    """The pair of each row. scored: whether its third column is the number, and no negative.

    Raises:
        DataError: a row has other columns, no text in one, or no number in its third.
    """
    for line, row in rows.numbered():
        if len(row) != 3 if scored else len(row) < 2:
            hint = "Name the columns, such as 5,6,4. Of single texts one learns by a [teacher]."
            must = "two texts and any negatives, or two texts and how alike they are"
            raise DataError(rows.name, line, f"has {len(row)} fields, but must have {must}.", hint)
        anchor, positive, *others = row
        texts = rows.text(row, anchor, line), rows.text(row, positive, line)
        if scored:
            score = number_in(rows.text(row, others[0], line), rows.name, line)
            yield Pair(line, *texts, score=score)
        else:
            yield Pair(line, *texts, texts_in(rows, row, line, others))


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


def is_scored(row: Record) -> bool:
    """Whether a row is two texts and a number: by the name of its third column, or by the value."""
    third = [*row][2:]
    if len(third) != 1:
        return False
    with suppress(ValueError, TypeError):
        return plain_names(third)[0] in TARGETS or float(row[third[0]]) is not None
    return False


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
    def of_pairs(cls, pairs: Iterable[Pair]) -> Self:
        """Anchors as queries, whose positives are relevant among those of all anchors.

        Equal texts are one.
        """
        relevant = defaultdict[str, dict[str, float]](dict)
        for pair in pairs:
            relevant[pair.anchor][pair.positive] = 1.0
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

    def scores(self, model: EmbedsTexts, **options: Unpack[EmbedOptions]) -> Scores:
        """nDCG@10, MRR@10 and recall of searches in the whole corpus by the cosine.

        options: as of `embed`; long texts are truncated.

        Raises:
            RegardError: no query has a relevant text.
        """
        names, metric, queries = list(self.corpus), Retrieval(), list(self.relevant)
        options = {"too_long": "truncate", **options, "normalize": True}
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
