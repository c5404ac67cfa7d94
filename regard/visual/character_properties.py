"""Properties of a text at each character, with which cells are compared.

What holds at a character holds once it has been read: an opening quotation mark is inside its
quotation, the closing one is not.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from regard.errors import ConfigError

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
    found = {"quotes": quotes, "position in the line": _columns(text)}
    return _tensors(found | {"depth of parentheses": depths})


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
    found = {name: [0.0] * len(source) for name in ("strings", "comments")}
    for token in tokens:
        at = (starts[row - 1] + column for row, column in (token.start, token.end))
        if token.type == tokenize.COMMENT:
            _mark(found["comments"], *at)
        elif token.type == tokenize.STRING:
            begin, end = at
            _mark(found["strings"], begin, end - 1)  # behind the closing quote it is over
    found |= {"depth of parentheses": _parentheses(tokens, starts, len(source))}
    found |= {"depth of indentation": _indentation(tokens, starts, len(source))}
    found |= _ifs(tree, source.split("\n"), starts, len(source))
    return _tensors(found | {"position in the line": _columns(source)})


KINDS: dict[str, tuple[Callable[[str], Properties], str]] = {  # with the ending of its files
    "text": (text_properties, ".txt"),
    "python": (python_properties, ".py"),
}


def _tensors(found: dict[str, list[float]]) -> Properties:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def _columns(text: str) -> list[float]:
    """Characters of the line so far; 0 at a line break."""
    found, column = [], 0
    for character in text:
        column = 0 if character == "\n" else column + 1
        found.append(float(column))
    return found


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
