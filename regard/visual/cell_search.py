"""Cells that follow a property of the text, such as quotes or the depth of parentheses."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.text import Tokenizer
from regard.visual.picture import Illustration, Note, Table
from regard.visual.recurrent_cells import CellReader, reader_of

Properties = dict[str, Tensor]  # name -> (characters,) in float64
OPENING, CLOSING = "([{", ")]}"


def text_properties(text: str) -> Properties:
    """Of any text: "quotes" (0 or 1), "position in the line" from 0, "depth of parentheses".

    Quotations are between straight or curly double marks. A blank line ends open quotations and
    parentheses.
    """
    quotes, depths = [], []
    quoted, depth, before = False, 0, ""
    for character in text:
        quoted = {'"': not quoted, "“": True, "”": False}.get(character, quoted)
        depth = max(0, depth + (character in OPENING) - (character in CLOSING))
        if before + character == "\n\n":
            quoted, depth = False, 0
        quotes.append(float(quoted))
        depths.append(float(depth))
        before = character
    properties = {"quotes": quotes, "position in the line": _columns(text)}
    return _tensors(properties | {"depth of parentheses": depths})


def python_properties(source: str) -> Properties:
    """Of a Python file, by its own tokenizer and parser.

    "strings", "comments", "if conditions" and "if bodies" (0 or 1; `elif` is an `if`, and what
    follows `else` is no body), "depth of parentheses", "depth of indentation" and "position in the
    line".

    Raises:
        ConfigError: it is not valid Python.
    """
    if "\r" in source.replace("\r\n", ""):
        raise ConfigError("The text is not valid Python here: a line ends in \\r without \\n.")
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source, newline="").readline))
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        raise ConfigError(f"The text is not valid Python: {error}.") from None
    properties = {name: [0.0] * len(source) for name in ("strings", "comments")}
    for token in tokens:
        at = (starts[row - 1] + column for row, column in (token.start, token.end))
        if token.type == tokenize.COMMENT:
            _mark(properties["comments"], *at)
        elif token.type == tokenize.STRING:
            begin, end = at
            _mark(properties["strings"], begin, end - 1)  # behind the closing quote it is over
    properties |= {"depth of parentheses": _parentheses(tokens, starts, len(source))}
    properties |= {"depth of indentation": _indentation(tokens, starts, len(source))}
    properties |= _ifs(tree, source.split("\n"), starts, len(source))
    return _tensors(properties | {"position in the line": _columns(source)})


KINDS: dict[str, tuple[Callable[[str], Properties], str]] = {  # with the ending of its files
    "text": (text_properties, ".txt"),
    "python": (python_properties, ".py"),
}


def _tensors(found: dict[str, list[float]]) -> Properties:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def _columns(text: str) -> list[float]:
    """Characters of the line so far; 0 at a line break."""
    columns, column = [], 0
    for character in text:
        column = 0 if character == "\n" else column + 1
        columns.append(float(column))
    return columns


def _mark(values: list[float], start: int, end: int) -> None:
    values[start:end] = [1.0] * (end - start)


def _parentheses(tokens: list[tokenize.TokenInfo], starts: list[int], size: int) -> list[float]:
    """How many parentheses, brackets and braces of the code are open."""
    changes = [0] * (size + 1)
    for token in tokens:
        if token.type == tokenize.OP and token.string in {*OPENING, *CLOSING}:
            at = starts[token.start[0] - 1] + token.start[1]
            changes[at] += 1 if token.string in OPENING else -1
    return list(_sums(changes[:size]))


def _indentation(tokens: list[tokenize.TokenInfo], starts: list[int], size: int) -> list[float]:
    """Of each line the depth of the block that its first token stands in."""
    changes, line = [0] * (size + 1), 0
    for token in tokens:
        line = starts[token.start[0] - 1]
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            changes[min(line, size)] += 1 if token.type == tokenize.INDENT else -1
    return list(_sums(changes[:size]))


def _sums(changes: list[int]) -> Iterator[float]:
    total = 0
    for change in changes:
        total += change
        yield float(total)


def _ifs(tree: ast.AST, lines: list[str], starts: list[int], size: int) -> dict[str, list[float]]:
    """The conditions and bodies of `if` statements."""
    conditions, bodies = [0.0] * size, [0.0] * size

    def at(line: int | None, column: int | None) -> int:
        """From a line and a column in bytes of UTF-8, as `ast` counts, to a character."""
        assert line is not None and column is not None
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            test, first, last = node.test, node.body[0], node.body[-1]
            end = at(test.end_lineno, test.end_col_offset)
            _mark(conditions, at(test.lineno, test.col_offset), end)
            end = at(last.end_lineno, last.end_col_offset)
            _mark(bodies, at(first.lineno, first.col_offset), end)
    return {"if conditions": conditions, "if bodies": bodies}


STREAMS = 8  # of each half, read in parallel, each from a state of zeros


class FoundCell(NamedTuple):
    """A cell and its correlations; layer and number from 1. NaN: the property is constant there."""

    layer: int
    number: int
    correlation: float
    held_out: float


def find_cells(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    properties: Callable[[str], Properties] = text_properties,
    *,
    best: int = 3,
) -> Illustration:
    """The cells whose activations correlate most, in absolute value, with each property.

    The texts are read one after the other as one text, in parallel streams: a few tokens at the end
    of each half, less than streams, are left out.

    Args:
        model: one with recurrent layers, as for `cell_activation`.
        properties: of a text the values at each character, by name; what a token has is the value
            at its last character. `text_properties`, `python_properties` or your own.
        best: cells of each property.

    Returns:
        A table; `numbers` has for each property a list of `FoundCell`, the best first, empty where
        the property is the same everywhere in the first half.

    Raises:
        ConfigError: the model has no cells; the texts have too few tokens.
    """
    reader = reader_of(model)
    ids, names, values = _tokens(tokenizer, texts, properties)
    halves = _halves(reader, tokenizer, ids, values, next(model.parameters()).device)
    chosen, held_out = (tuple(moments.correlations() for moments in half) for half in halves)
    numbers = {name: _best(chosen, held_out, k, best) for k, name in enumerate(names)}
    return _picture(reader, numbers, len(ids))


def _tokens(
    tokenizer: Tokenizer, texts: Sequence[str], properties: Callable[[str], Properties]
) -> tuple[Tensor, list[str], Tensor]:
    """All tokens (N,), the names of the properties, and their values at each token, (N, K)."""
    ids: list[int] = []
    values: list[Tensor] = []
    names: list[str] = []
    for number, text in enumerate(texts, 1):
        try:
            encoding, of_text = tokenizer.encode(text), properties(text)
        except ConfigError as error:
            raise ConfigError(f"Text {number}: {error}") from None
        names, ids = names or list(of_text), ids + encoding.ids
        at = torch.tensor([end - 1 for _, end in encoding.offsets], dtype=torch.long)
        values.append(torch.stack([of_text[name].double()[at] for name in names], 1))
    if len(ids) < 4 * STREAMS:
        raise ConfigError(f"The texts have {len(ids)} tokens: a search needs {4 * STREAMS}.")
    return torch.tensor(ids), names, torch.cat(values)


def _halves(
    reader: CellReader, tokenizer: Tokenizer, ids: Tensor, values: Tensor, device: torch.device
) -> Iterator[list[Moments]]:
    """Of each half of the tokens the moments of each layer's cells and the properties."""
    length = len(ids) // (2 * STREAMS)
    for half in range(2):
        part = slice(half * len(ids) // 2, half * len(ids) // 2 + STREAMS * length)
        rows, targets = ids[part].view(STREAMS, length), values[part].view(STREAMS, length, -1)
        totals, start = [Moments() for _ in reader.widths], 0
        for layers in reader.activations(rows.to(device), tokenizer):
            end = start + layers[0].size(1)
            for moments, activations in zip(totals, layers, strict=True):
                moments.add(activations.cpu().flatten(0, 1), targets[:, start:end].flatten(0, 1))
            start = end
        yield totals


@dataclass
class Moments:
    """Sums for the correlations of D cells with K properties, in float64.

    Batches are merged by their means (Chan, Golub and LeVeque 1983), as in `metrics.Pearson`.
    """

    count: int = 0
    means: tuple[Tensor, Tensor] = (torch.zeros(()), torch.zeros(()))  # (D,), (K,)
    squares: tuple[Tensor, Tensor] = (torch.zeros(()), torch.zeros(()))
    products: Tensor = field(default_factory=lambda: torch.zeros(()))  # (D, K)

    def add(self, cells: Tensor, properties: Tensor) -> None:
        """Count (N, D) activations with their (N, K) properties."""
        pair = cells.double(), properties.double()
        means = [values.mean(0) for values in pair]
        deviations = [values - mean for values, mean in zip(pair, means, strict=True)]
        total = self.count + len(cells)
        shift = [new - old for new, old in zip(means, self.means, strict=True)]
        weight = self.count * len(cells) / total
        self.products = self.products + deviations[0].T @ deviations[1]
        self.products = self.products + weight * shift[0][:, None] * shift[1][None]
        squares = [
            d.pow(2).sum(0) + weight * s.pow(2) for d, s in zip(deviations, shift, strict=True)
        ]
        self.squares = (self.squares[0] + squares[0], self.squares[1] + squares[1])
        share = len(cells) / total
        self.means = (self.means[0] + share * shift[0], self.means[1] + share * shift[1])
        self.count = total

    def correlations(self) -> Tensor:
        """(D, K); NaN where a cell or a property is constant."""
        scale = (self.squares[0][:, None] * self.squares[1][None]).sqrt()
        return torch.where(scale > 0, self.products / scale, torch.nan).clamp(-1, 1)


def _best(
    chosen: Sequence[Tensor], held_out: Sequence[Tensor], property: int, best: int
) -> list[FoundCell]:
    """The best cells of all layers for one property."""
    cells = [
        FoundCell(layer + 1, number + 1, value, float(held_out[layer][number, property]))
        for layer, table in enumerate(chosen)
        for number, value in enumerate(table[:, property].tolist())
        if value == value  # not NaN
    ]
    return sorted(cells, key=lambda one: -abs(one.correlation))[:best]


def _picture(reader: CellReader, numbers: dict[str, list[FoundCell]], tokens: int) -> Illustration:
    rows = []
    for name, cells in numbers.items():
        for rank, cell in enumerate(cells):
            values = (f"{value:.3f}" for value in (cell.correlation, cell.held_out))
            rows.append([name if rank == 0 else "", f"{cell.layer}:{cell.number}", *values])
        if not cells:
            rows.append([name, "does not vary", "", ""])
    count = sum(reader.widths)
    note = (
        f"Correlations over {tokens:,} tokens: of {count:,} cells the best of the first half, and "
        "the same cells over the second half, which had no part in the choice."
    )
    head = ["property", "cell", "first half", "held out"]
    title = "cells and properties of the text"
    return Illustration((Note((note,), title), Table.of(head, rows)), title, numbers=dict(numbers))
