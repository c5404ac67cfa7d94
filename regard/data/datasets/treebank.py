"""Constituency trees in brackets, as the Penn Treebank and its parsers write them."""

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

from regard.data.datasets.records import RecordReader, Source, items_of
from regard.data.files import lines
from regard.data.readers import Location
from regard.data.token_arrays import ReadReport
from regard.errors import DataError
from regard.text.trees import (
    ConstituencyTree,
    TreeError,
    numbered_trees,
    read_trees,
    simplified,
)


def read_treebank(
    data: str | PathLike[str] | Iterable[Any],
) -> RecordReader[ConstituencyTree]:
    """The trees of a file in brackets, or of anything to loop over that gives trees.

    They are as parsers learn them: without traces, grammatical functions (NP-SBJ is NP) and
    brackets without a label, see `regard.text.trees.simplified`. A tree may take several lines. A
    tree without a word is left out and counted in the report.

    data: a file of brackets; a `.jsonl` file of objects {"tree": "(S ...)"}; or such mappings,
        brackets or trees to loop over

    Raises:
        DataError: when it is read, for malformed brackets.
    """
    return RecordReader(data, _trees, "tree", unit="line")


def _trees(source: Source, report: ReadReport) -> Iterator[tuple[int, ConstituencyTree]]:
    items = items_of(source)
    numbered = (
        _from_brackets(str(source))
        if items is None
        else ((location[1] or 0, _from_item(item, location)) for location, item in items)
    )
    for line, whole in numbered:
        report.read += 1
        tree = simplified(whole)
        if tree is None:
            report.note("tree without a word left out", line)
        else:
            yield line, tree


def _from_brackets(path: str) -> Iterator[tuple[int, ConstituencyTree]]:
    try:
        yield from numbered_trees(lines(path))
    except TreeError as error:
        raise DataError(path, error.line, error.problem) from None


def _from_item(item: object, location: Location) -> ConstituencyTree:
    if isinstance(item, dict):
        item = item.get("tree")
    if isinstance(item, ConstituencyTree):
        return item
    if not isinstance(item, str):
        raise DataError(*location, 'must be brackets, or an object {"tree": brackets}.')
    try:
        trees = read_trees(item)
    except TreeError as error:
        raise DataError(*location, error.problem) from None
    if len(trees) != 1:
        raise DataError(*location, f"must be one tree, but is {len(trees)}.")
    return trees[0]
