"""Cells of recurrent models over a text, and how far gradients reach back in time."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Self, cast

import torch
from rich.cells import cell_len
from rich.text import Text
from torch import Tensor, nn

from regard.data.batches import Sequences
from regard.decoding.steps import evaluating
from regard.errors import ConfigError
from regard.models.composed import Features
from regard.models.elmo import Direction, Elmo
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import LanguageModel, Recurrent
from regard.models.wrappers import unwrapped
from regard.text import Tokenizer
from regard.visual import characters
from regard.visual.charts import Curves, Series, color_scale
from regard.visual.drawing import Drawing, Label, Raster, Shape, text_width, visible
from regard.visual.picture import Illustration, Note, Picture, PictureRow, Table

COLUMNS = 80  # of a drawing
SIZE, LINE = 12.5, 19.0  # pixels: of letters, and from line to line
FULL = 0.65  # opacity of a value of 1, on which letters can be read
TAB = "␉   "

Glyph = tuple[str, float | None]  # what stands in a column or two, and its value


@dataclass(frozen=True, repr=False)
class CellText(Picture):
    """`pieces` of text, each with its value in [-1, 1]; None: no token covers it."""

    pieces: tuple[tuple[str, float | None], ...]
    title: str = ""

    @classmethod
    def of(
        cls,
        text: str,
        offsets: Sequence[tuple[int, int]],
        values: Sequence[float],
        title: str = "",
    ) -> Self:
        """A text whose tokens have values.

        offsets: the (start, end) of each token. Of several tokens of one character the last counts.
        """
        of_character: list[tuple[int, float | None]] = [(-1, None)] * len(text)
        for number, ((start, end), value) in enumerate(zip(offsets, values, strict=True)):
            of_character[start:end] = [(number, value)] * (end - start)
        groups = groupby(zip(text, of_character, strict=True), key=lambda pair: pair[1])
        pieces = tuple(("".join(c for c, _ in group), key[1]) for key, group in groups)
        return cls(pieces, title)

    @property
    def values(self) -> list[float | None]:
        """The value of each character."""
        return [value for piece, value in self.pieces for _ in piece]

    def _lines(self, columns: int) -> Iterator[list[Glyph]]:
        """Lines of at most so many columns; a line break of the text is shown and ends one."""
        line: list[Glyph] = []
        used = 0
        for glyph, value in self._glyphs():
            if used + cell_len(glyph) > columns and line:
                yield line
                line, used = [], 0
            line.append((glyph, value))
            used += cell_len(glyph)
            if glyph == "↵":
                yield line
                line, used = [], 0
        if line:
            yield line

    def _glyphs(self) -> Iterator[Glyph]:
        for piece, value in self.pieces:
            for part in piece.replace("\t", TAB).splitlines(keepends=True):
                ends = part.endswith("\n")
                yield from ((glyph, value) for glyph in characters.clusters(part.rstrip("\n")))
                if ends:
                    yield "↵", value

    def drawing(self) -> Drawing:
        step, top = text_width("x", SIZE, mono=True), 34.0 if self.title else 8.0
        shapes = self._title_shapes()
        lines = list(self._lines(COLUMNS))
        for number, line in enumerate(lines):
            shapes += _drawn(line, 8.0, top + LINE * number, step)
        bottom = top + LINE * len(lines) + 14
        shapes += color_scale(24.0, bottom, -1.0, 1.0, FULL)
        widest = max((sum(cell_len(glyph) for glyph, _ in line) for line in lines), default=1)
        width = max(16 + widest * step, self._title_width(), 140)
        return Drawing(width, bottom + 14, tuple(shapes), self.title or "a cell over a text")

    def terminal(self, width: int, color: bool) -> Text:
        """Colours behind the letters; without colour a mark below each."""
        text = self._title_text(width)
        for line in self._lines(max(2, width)):
            if color:
                for glyph, value in line:
                    text.append(glyph, style="" if value is None else characters.shade(value))
                text.append("\n")
            else:
                text.append("".join(glyph for glyph, _ in line) + "\n")
                marks = (
                    (" " if value is None else characters.mark((value + 1) / 2)) * cell_len(glyph)
                    for glyph, value in line
                )
                text.append("".join(marks).rstrip() + "\n")
        text.append("" if color else "blank = -1, @ = 1\n")
        return text

    def body(self) -> str:
        spans = (_span(piece, value) for piece, value in self.pieces)
        return f'{self._title_html()}<pre class="rg-cells">{"".join(spans)}</pre>'


def _drawn(line: list[Glyph], x: float, y: float, step: float) -> list[Shape]:
    """The colours of a line, then its words; each word begins in its own column, since letters are
    not of one width in every font.
    """
    columns = [value for glyph, value in line for _ in range(cell_len(glyph))]
    shades = tuple(FULL * (value or 0.0) for value in columns)
    shapes: list[Shape] = [Raster(x, y, step * len(shades), LINE, (shades,))] if shades else []
    at = 0
    for blank, word in groupby(line, key=lambda glyph: glyph[0].isspace() or glyph[0] == "↵"):
        letters = "".join(glyph for glyph, _ in word)
        if letters.strip():
            point, ink = (x + at * step, y + LINE / 2), "muted" if blank else "ink"
            shapes.append(Label(*point, letters, SIZE, mono=True, fill=ink))
        at += cell_len(letters)
    return shapes


def _span(piece: str, value: float | None) -> str:
    """A piece of HTML; a line break stands behind its sign."""
    shown = "".join("↵\n" if c == "\n" else TAB if c == "\t" else visible(c) for c in piece)
    if value is None:
        return escape(shown)
    kind, share = ("rg-above" if value >= 0 else "rg-below"), round(100 * FULL * abs(value))
    return (
        f'<span class="{kind}" style="--rg-a:{share}%" title="{value:.3f}">{escape(shown)}</span>'
    )


CHUNK = 256  # tokens whose activations are computed together
Activations = list[Tensor]  # of each layer, (B, T, D)


def cell_activation(
    model: nn.Module, tokenizer: Tokenizer, text: str, *, layer: int, number: int
) -> CellText:
    """A text coloured by one cell.

    Args:
        model: one with recurrent layers. Of an ELMo the layers of the backward direction come after
            those of the forward one.
        layer, number: from 1.

    Raises:
        ConfigError: the model has no recurrent layers, or not this one, or not this cell of it; the
            text has no token, or more than the model reads.
    """
    reader, encoding = reader_of(model), encoded(tokenizer, text)
    widths = dict(enumerate(reader.widths, 1))
    if not 1 <= number <= widths.get(layer, 0):
        raise ConfigError(f"There is no cell {layer}:{number}: cells of each layer: {widths}.")
    ids = torch.tensor([encoding.ids], device=next(model.parameters()).device)
    parts = [states[layer - 1][0, :, number - 1] for states in reader.activations(ids, tokenizer)]
    values = torch.cat(parts).float().cpu()
    title = f"{reader.names[layer - 1]}, cell {number}"
    return CellText.of(text, encoding.offsets, values.tolist(), title)


def encoded(tokenizer: Tokenizer, text: str) -> Any:
    """The tokens of a text that a model can read.

    Raises:
        ConfigError: there are none.
    """
    encoding = tokenizer.encode(text)
    if not encoding.ids:
        raise ConfigError("The text has no token: there is nothing to read.")
    return encoding


def recurrent_part(model: nn.Module) -> Recurrent | Elmo:
    """The part of a model that has recurrent layers.

    Raises:
        ConfigError: there is none.
    """
    part: object = unwrapped(model)
    while isinstance(part, EncoderWithHeads | Features):
        part = part.encoder
    if not isinstance(part, Recurrent | Elmo):
        name = type(part).__name__
        raise ConfigError(f"{name} has no cells. `lstm-lm`, `awd-lstm` and `elmo` have.")
    return part


@dataclass(frozen=True)
class CellReader:
    """The recurrent layers of a model.

    widths, names: of each layer how many cells it has, and what a picture calls it.
    activations: gives those of all cells, some tokens of the ids (B, T) after others.
    """

    widths: tuple[int, ...]
    names: tuple[str, ...]
    activations: Callable[[Tensor, Tokenizer], Iterator[Activations]]


@torch.no_grad()
def _of_stack(model: Any, ids: Tensor, tokenizer: Tokenizer) -> Iterator[Activations]:
    """Of layers on each other. A model that reads texts from their end does so here, and what it
    gives stands in the order of the text.
    """
    backward = isinstance(model, LanguageModel) and model.reads_backward
    layers, states, chunks = model.recurrent_layers, None, []
    for part in (ids.flip(1) if backward else ids).split(CHUNK, 1):
        with evaluating(model):
            x = model.embedded(part)
            states = states or [layer.empty(len(part), x) for layer in layers]
            chunk = []
            for n, layer in enumerate(layers):
                steps = list(layer.steps(x, *states[n]))
                states[n] = steps[-1]
                x = torch.stack([hidden for hidden, _ in steps], 1)  # T x (B, D) -> (B, T, D)
                cells = torch.stack([cell for _, cell in steps], 1).tanh()
                chunk.append(cells if layer.has_cell else x)
        if not backward:
            yield chunk
            continue
        chunks.append([activations.flip(1) for activations in chunk])
    yield from reversed(chunks)


@torch.no_grad()
def _of_elmo(model: Elmo, ids: Tensor, tokenizer: Tokenizer) -> Iterator[Activations]:
    """At each word the cells after both directions, each on its own, have read it."""
    tokenizer = model.input_tokenizer(tokenizer)
    sides = []
    with evaluating(model):
        for name, read in (("forward", ids), ("backward", ids.flip(1))):
            state, parts = model.empty(len(ids)).forward, []  # zeros, as of both directions
            for part in read.split(CHUNK, 1):
                batch = Sequences.of(part.tolist(), model.config.pad or 0)
                batch = model.complete(batch, tokenizer).to(part.device)
                cells, state = model.cells(batch, cast(Direction, name), state)
                parts.append(cells)
            sides.append(torch.cat(parts, 1))  # (B, T, L, D)
    cells = torch.cat([sides[0], sides[1].flip(1)], 2).tanh()
    yield list(cells.unbind(2))  # (B, T, 2L, D) -> 2L x (B, T, D)


def reader_of(model: nn.Module) -> CellReader:
    """What reads the cells of a model.

    Raises:
        ConfigError: it has none.
    """
    part = recurrent_part(model)
    if isinstance(part, Elmo):
        numbers = range(1, part.config.layers + 1)
        names = tuple(f"layer {n}, {name}" for name in ("forward", "backward") for n in numbers)
        return CellReader((part.config.d_cell,) * len(names), names, partial(_of_elmo, part))
    widths = tuple(layer.d_model for layer in part.recurrent_layers)
    names = tuple(f"layer {number}" for number in range(1, len(widths) + 1))
    return CellReader(widths, names, partial(_of_stack, part))


def gradient_norms(
    model: nn.Module, tokenizer: Tokenizer, text: str, length: int | None = None
) -> Tensor:
    """The norm of dL_T / dh_t in each layer and step, (L, T): L_T is the loss after T tokens.

    Args:
        model: a language model of recurrent layers.
        length: T. The text is cut into windows of T + 1 tokens, each read from a state of zeros;
            the norms are the means over them, and tokens after the last window are left out. None:
            one window, the whole text.

    Raises:
        ConfigError: the model is another one; the text has less than two tokens, or than a window.
    """
    part = recurrent_part(model)
    if not (isinstance(part, Recurrent) and isinstance(part, LanguageModel)):
        kind = "ELMo" if isinstance(part, Elmo) else type(part).__name__
        raise ConfigError(f"{kind} does not predict the next token from hidden states alone.")
    ids = encoded(tokenizer, text).ids
    ids = ids[::-1] if part.reads_backward else ids
    width = len(ids) if length is None else length + 1
    if not 2 <= width <= len(ids):
        problem = f"from 1 to {len(ids) - 1}, one less than the text's tokens, but is {width - 1}"
        raise ConfigError(f"`length` must be {problem}.")
    count = len(ids) // width
    windows = torch.tensor(ids[: count * width]).view(count, width)
    windows = windows.to(next(model.parameters()).device)
    hidden, loss = _loss_of_last(part, windows[:, :-1], windows[:, -1])
    flat = [state for layer in hidden for state in layer]
    grads = torch.autograd.grad(loss, flat)  # of each window its own: no window reads another
    norms = torch.stack([grad.double().norm(dim=-1).mean() for grad in grads])
    return norms.view(len(hidden), -1).cpu()  # (L T,) -> (L, T)


def _loss_of_last(
    model: Recurrent, ids: Tensor, targets: Tensor
) -> tuple[list[list[Tensor]], Tensor]:
    """The hidden states of each layer after each of the ids (B, T), and the sum of the losses of
    the targets (B,).
    """
    norms = []
    with torch.enable_grad(), evaluating(model):
        x = model.embedded(ids)
        x = x if x.requires_grad else x.detach().requires_grad_()  # frozen weights, too
        for layer in model.recurrent_layers:
            states = [hidden for hidden, _ in layer.steps(x, *layer.empty(len(x), x))]
            x = torch.stack(states, 1)  # T x (B, D) -> (B, T, D)
            norms.append(states)
        loss, _ = model.head.loss(norms[-1][-1], targets)
    return norms, loss


def gradient_curves(norms: Mapping[str, Tensor]) -> Illustration:
    """The norms of several models side by side, on a logarithmic scale.

    Args:
        norms: of each model (L, T), from `gradient_norms`.

    Returns:
        The last layers of all models in one chart, then a chart for each model with all its
        layers; `numbers` are the norms. A norm of 0 has no logarithm and no point. In the last
        layer a gradient goes back through time alone; from the others it also goes up at every
        step, to a layer that reaches further.
    """
    last = tuple(_series(name, rows[-1]) for name, rows in norms.items())
    charts = tuple(
        _chart([_series(f"layer {n}", row) for n, row in enumerate(rows, 1)], name)
        for name, rows in norms.items()
    )
    title = "Gradient of the last loss by the hidden state of each step"
    together = (_chart(last, "last layer"),) if len(norms) > 1 else ()
    return Illustration((*together, PictureRow(charts)), title, numbers=dict(norms))


def _series(name: str, norms: Tensor) -> Series:
    back = range(1 - len(norms), 1)  # the last step is 0
    return Series(name, tuple(zip(map(float, back), norms.log10().tolist(), strict=True)))


def _chart(series: tuple[Series, ...] | list[Series], title: str) -> Curves:
    return Curves(tuple(series), title, "step before the last", "log10 of the norm")


# ---- cells that follow a property of the text, such as quotes or the depth of parentheses

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
            raise SyntaxError("a line ends in \\r without \\n")
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source, newline="").readline))
    except (SyntaxError, tokenize.TokenError) as error:
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
    totals: list[Any] = [(0.0,) * 5] * len(reader.widths)
    start = 0
    for layers in reader.activations(rows, tokenizer):
        part = targets[:, start : start + layers[0].size(1)].flatten(0, 1)  # (N, K)
        start += layers[0].size(1)
        for layer, activations in enumerate(layers):
            cells = activations.cpu().double().flatten(0, 1)  # (N, D)
            squares = cells.square().sum(0), part.square().sum(0)
            sums = cells.T @ part, cells.sum(0), part.sum(0), *squares
            totals[layer] = [old + new for old, new in zip(totals[layer], sums, strict=True)]
    tables = []
    for total in totals:
        products, cell, value, *mean_squares = (
            summed / targets[..., 0].numel() for summed in total
        )
        table = products - cell[:, None] * value
        for axis, mean, square in ((1, cell, mean_squares[0]), (0, value, mean_squares[1])):
            variance = square - mean.square()
            variance = torch.where(variance > 1e-13 * square, variance, torch.nan)
            table = table / variance.sqrt().unsqueeze(axis)
        tables.append(table.clamp(-1, 1))
    return tables


def _rows(name: str, cells: Sequence[FoundCell]) -> Iterator[list[str]]:
    """The lines of the table for one property."""
    if not cells:
        yield [name, "does not vary", "", ""]
    for rank, cell in enumerate(cells):
        values = (f"{value:.3f}" for value in (cell.correlation, cell.held_out))
        yield [name if rank == 0 else "", f"{cell.layer}:{cell.number}", *values]
