"""Cells that follow a property of the text, such as quotes or the depth of parentheses."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

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
    rows = []
    quoted, depth, column, before = False, 0, 0, ""
    for character in text:
        quoted = {'"': not quoted, "“": True, "”": False}.get(character, quoted)
        depth = max(0, depth + (character in OPENING) - (character in CLOSING))
        if before + character == "\n\n":
            quoted, depth = False, 0
        column = 0 if character == "\n" else column + 1
        rows.append((float(quoted), float(column), float(depth)))
        before = character
    values = torch.tensor(rows, dtype=torch.float64).view(-1, 3).unbind(1)
    names = ("quotes", "position in the line", "depth of parentheses")
    return dict(zip(names, values, strict=True))


def python_properties(source: str) -> Properties:
    """Of a Python file, by its own tokenizer and parser.

    "strings", "comments", "if conditions" and "if bodies" (0 or 1; `elif` is an `if`, and what
    follows `else` is no body), "depth of parentheses", "depth of indentation" and "position in the
    line".

    Raises:
        ConfigError: it is not valid Python.
    """
    lines, size = source.split("\n"), len(source)
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    try:
        if "\r" in source.replace("\r\n", ""):
            raise ValueError("a line ends in \\r without \\n")
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source, newline="").readline))
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        raise ConfigError(f"The text is not valid Python: {error}.") from None
    names = ("strings", "comments", "if conditions", "if bodies")
    marks = {name: torch.zeros(size, dtype=torch.float64) for name in names}
    parentheses, indentation = torch.zeros(2, size + 1, dtype=torch.float64)  # changes of depths
    for token in tokens:
        line = starts[token.start[0] - 1]
        start, end = line + token.start[1], starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.COMMENT:
            marks["comments"][start:end] = 1
        elif token.type == tokenize.STRING:
            marks["strings"][start : end - 1] = 1  # behind the closing quote it is over
        elif token.type == tokenize.OP and token.string in {*OPENING, *CLOSING}:
            parentheses[start] += 1 if token.string in OPENING else -1
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            indentation[min(line, size)] += 1 if token.type == tokenize.INDENT else -1

    def span(first: Any, last: Any) -> slice:
        """From columns in bytes of UTF-8, as `ast` counts, to characters."""
        ends = ((first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset))
        return slice(
            *(starts[n - 1] + len(lines[n - 1].encode()[:byte].decode()) for n, byte in ends)
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            marks["if conditions"][span(node.test, node.test)] = 1
            marks["if bodies"][span(node.body[0], node.body[-1])] = 1
    depths = {"parentheses": parentheses, "indentation": indentation}
    marks |= {f"depth of {name}": depth[:size].cumsum(0) for name, depth in depths.items()}
    name = "position in the line"
    return {**marks, name: text_properties(source)[name]}


KINDS: dict[str, tuple[Callable[[str], Properties], str]] = {  # with the ending of its files
    "text": (text_properties, ".txt"),
    "python": (python_properties, ".py"),
}
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
    reader, ids, parts = reader_of(model), list[int](), list[Tensor]()
    names: list[str] = []
    for number, text in enumerate(texts, 1):
        try:
            encoding, of_text = tokenizer.encode(text), properties(text)
        except ConfigError as error:
            raise ConfigError(f"Text {number}: {error}") from None
        names, ids = names or list(of_text), ids + encoding.ids
        last = torch.tensor([end - 1 for _, end in encoding.offsets], dtype=torch.long)
        parts.append(torch.stack([of_text[name].double()[last] for name in names], 1))
    if len(ids) < 4 * STREAMS:
        raise ConfigError(f"The texts have {len(ids)} tokens: a search needs {4 * STREAMS}.")
    device, values = next(model.parameters()).device, torch.cat(parts)  # (N, K)
    tokens, length = torch.tensor(ids, device=device), len(ids) // (2 * STREAMS)
    halves = []
    for start in (0, len(ids) // 2):
        rows = tokens[start : start + STREAMS * length].view(STREAMS, length)
        targets = values[start : start + STREAMS * length].view(STREAMS, length, -1)
        halves.append(_correlations(reader, tokenizer, rows, targets))
    numbers = {}
    for k, name in enumerate(names):
        cells = [
            FoundCell(layer + 1, number + 1, value, float(halves[1][layer][number, k]))
            for layer, table in enumerate(halves[0])
            for number, value in enumerate(table[:, k].tolist())
            if value == value  # not NaN
        ]
        numbers[name] = sorted(cells, key=lambda cell: -abs(cell.correlation))[:best]
    note = (
        f"Correlations over {len(ids):,} tokens: of {sum(reader.widths):,} cells the best of the "
        "first half, and the same cells over the second half, which had no part in the choice."
    )
    head, title = ["property", "cell", "first half", "held out"], "cells and properties of the text"
    shown = [row for name, cells in numbers.items() for row in _rows(name, cells)]
    return Illustration((Note((note,), title), Table.of(head, shown)), title, numbers=numbers)


def _correlations(
    reader: CellReader, tokenizer: Tokenizer, rows: Tensor, targets: Tensor
) -> list[Tensor]:
    """Of the cells of each layer with the properties, (D, K); NaN where one of both is constant.

    Args:
        rows: ids (B, T), read side by side.
        targets: (B, T, K) in float64.
    """
    totals: list[Any] = [(0.0, 0.0, 0.0)] * len(reader.widths)
    start = 0
    for layers in reader.activations(rows, tokenizer):
        part = targets[:, start : start + layers[0].size(1)].flatten(0, 1)
        start += layers[0].size(1)
        values = torch.cat([part.new_ones(len(part), 1), part], 1)  # (N, 1 + K)
        for layer, activations in enumerate(layers):
            cells = activations.cpu().double().flatten(0, 1)
            cells = torch.cat([cells.new_ones(len(cells), 1), cells], 1)  # (N, 1 + D)
            of_part = cells.T @ values, cells.square().sum(0), values.square().sum(0)
            totals[layer] = [old + new for old, new in zip(totals[layer], of_part, strict=True)]
    tables = []
    for products, *squares in totals:
        products = products / products[0, 0].item()
        means = products[:, 0], products[0]
        covariances = products - means[0][:, None] * means[1]
        for axis, mean, square in zip((1, 0), means, squares, strict=True):
            square = square / square[0].item()
            variance = square - mean.square()
            variance = torch.where(variance > 1e-13 * square, variance, torch.nan)
            covariances = covariances / variance.sqrt().unsqueeze(axis)
        tables.append(covariances[1:, 1:].clamp(-1, 1))
    return tables


def _rows(name: str, cells: Sequence[FoundCell]) -> Iterator[list[str]]:
    """The lines of the table for one property."""
    if not cells:
        yield [name, "does not vary", "", ""]
    for rank, cell in enumerate(cells):
        values = (f"{value:.3f}" for value in (cell.correlation, cell.held_out))
        yield [name if rank == 0 else "", f"{cell.layer}:{cell.number}", *values]
