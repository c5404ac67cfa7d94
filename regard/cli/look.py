"""look, cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from typer import Argument

from regard.cli import console, options
from regard.cli.options import Opening, check_none, flag
from regard.errors import ConfigError
from regard.schema import read_text

if TYPE_CHECKING:
    from regard.tasks.captioning import Captioner
    from regard.tasks.task import Task
    from regard.text.trees import ConstituencyTree
    from regard.visual import Illustration, Picture
    from regard.visual.attention_record import AttentionRecord

    Drawn = tuple[Picture, dict[str, Any]]  # and its numbers

LEAST_BEAMS = 5  # of a parser that writes trees


@dataclass(frozen=True)
class Selection:
    """Which attention is shown."""

    kind: str | None = flag("Show this attention: encoder, decoder, cross or query.")
    layer: int | None = flag("Show this layer, from 1; default: the mean of all layers.")
    head: int | None = flag("Show this head, from 1; default: the mean of all heads.")
    token: str | None = flag(
        "Show what this token, or its index from 0, attends to: the mean of the heads and layers, "
        "without --head and --layer."
    )
    tokens: bool = flag("Show the attention between subwords, not merged to words.", False)


@dataclass(frozen=True)
class OtherPicture:
    """A picture of something else than attention; one at most is asked for."""

    inputs: bool = flag("Show the ids, segments and mask that an encoder reads.", False)
    cell: str | None = flag(
        "Color the text by the value of a recurrent cell.", metavar="LAYER:NUMBER"
    )
    gradients: bool = flag("Show how far the gradient reaches back in time.", False)
    regions: bool = flag(
        "Show the region of the image TEXT that each word of its caption is about.", False
    )
    trees: int | None = flag("Draw the N best trees that a parser finds for the sentence.", min=1)

    def chosen(self) -> str | None:
        """The option of the picture that is asked for; None where none is.

        Raises:
            ConfigError: several are asked for.
        """
        flags = [f"--{name}" for name, value in options.given(self).items() if value is not False]
        if len(flags) > 1:
            raise ConfigError(f"{' and '.join(flags)} are different pictures: give one of them.")
        return flags[0] if flags else None

    def draw(self, tasks: Mapping[str, Task], text: str, decoding: dict[str, Any]) -> Drawn:
        """The picture of the option that is chosen, and its numbers.

        Args:
            tasks: by their names; the first is drawn, and of gradients all.
        """
        task = next(iter(tasks.values()))
        if self.regions:
            return _regions(task, text, decoding)
        if self.gradients:
            return _gradients(tasks, text)
        if self.trees is not None:
            return _trees(task, text, self.trees)
        if self.cell is not None:
            return _cell(task, text, self.cell)
        return _inputs(task, text)


@dataclass(frozen=True)
class PictureOutput:
    """Where the picture goes besides the terminal."""

    html: Path | None = flag("Write a page with every head of every layer.")
    png: Path | None = flag("Save the picture that the terminal shows.")
    force: options.Force = False
    as_json: options.AsJson = False

    def check(self) -> None:
        """Check the names of the files.

        Raises:
            ConfigError: one has another ending than its kind of file.
            CheckpointError: one is there already, without --force.
        """
        if self.html is None and self.png is None:
            check_none("without --html or --png", {"force": self.force})
        for suffix, path in ("html", self.html), ("png", self.png):
            if path is not None:
                options.parts_of(f"--{suffix}", path.name, rf".*\.{suffix}", f"picture.{suffix}")
                options.check_out(path, self.force)

    def write(self, picture: Picture, page: Picture, facts: Mapping[str, Any]) -> None:
        """Write the files that are asked for; then print the facts as JSON, or the picture."""
        if self.html is not None:
            page.save(self.html)
            console.say(f"the page: {self.html}")
        if self.png is not None:
            picture.save(self.png)
            console.say(f"the picture: {self.png}")
        console.show_drawn(facts, lambda: picture, self.as_json)


@options.with_opening
@options.with_decoding
@options.with_flags("output", PictureOutput)
@options.with_flags("other", OtherPicture)
@options.with_flags("selection", Selection)
def look(
    model: options.ModelFolder,
    text: Annotated[
        str, Argument(help="The text that the model reads; a tab separates the texts of a pair.")
    ],
    compare_with: str | None = flag("Show a second model on the same text."),
    mask_heads: list[str] | None = flag(
        "Mask heads of the first model: 3:1,6 are heads 1 and 6 of layer 3.", metavar="LAYER:HEADS"
    ),
    *,
    opening: Opening,
    selection: Selection,
    other: OtherPicture,
    output: PictureOutput,
    decoding: dict[str, Any],
) -> None:
    """Show which tokens of a text a model attends to."""
    output.check()
    chosen = other.chosen()
    if compare_with is not None:
        check_none("with --compare-with, which draws two models", {"token": selection.token})
    if chosen is not None:
        ignored = {**vars(selection), "mask_heads": mask_heads}
        ignored |= {} if other.gradients else {"compare_with": compare_with}
        check_none(f"with {chosen}", ignored | ({} if other.regions else decoding))
    text, task = console.checked_argument(text), console.load_task(model, **vars(opening))
    if not task.reads_images:
        console.check_no_file([text], '"$(cat {})"')
    facts: dict[str, Any] = {"source": text}
    others = [] if compare_with is None else [compare_with]
    names = _short_names(model, *others)
    title = f"{' and '.join(names)}: “{text}”"
    tasks = [task, *(console.load_task(name, **vars(opening)) for name in others)]
    if chosen is not None:
        from regard.tasks.inputs import read_whole

        with read_whole():
            named = dict(zip(names, tasks, strict=True))
            picture, numbers = other.draw(named, text, decoding)
        output.write(picture, page_of(picture, title), facts | numbers)
        return
    from regard.visual.attention_record import token_weights

    with _masked_heads(task, mask_heads or ()):
        record, answer = _record(task, text, decoding)
    facts["answer"] = answer
    if compare_with is not None:
        records = (record, _record(tasks[1], text, decoding)[0])
        picture = page = _comparison(dict(zip(names, records, strict=True)), selection, title)
        facts |= picture.numbers
    elif selection.token is not None:
        heads = replace(record.plot(), tokens=selection.tokens)
        picture = token_weights(
            heads, selection.token, selection.kind, selection.layer, selection.head
        )
        page, facts = page_of(picture, title), facts | picture.numbers
    else:
        picture, page, numbers = _heads(record, selection, title)
        facts |= numbers
    if not output.as_json and answer:
        console.emit(answer + "\n\n")
    output.write(picture, page, facts)


def _regions(task: Task, image: str, decoding: dict[str, Any]) -> Drawn:
    """The photograph for each word of its caption, and the weights of its regions."""
    from regard.visual import attended_regions

    if not task.reads_images:
        raise ConfigError(f"--regions is for models that describe images: {task.name} reads texts.")
    regions = attended_regions(cast("Captioner", task), image, **decoding)
    numbers = {"words": regions.words, "weights": regions.weights.tolist()}
    return regions, {"answer": regions.title, **numbers}


def _gradients(tasks: Mapping[str, Task], text: str) -> Drawn:
    """The gradient of the last token's loss by the hidden states, step by step."""
    from regard.visual import gradient_curves, gradient_norms

    norms = {
        name: gradient_norms(model.module, model.tokenizer, text) for name, model in tasks.items()
    }
    return gradient_curves(norms), {
        "norms": {name: model.tolist() for name, model in norms.items()}
    }


def _cell(task: Task, text: str, cell: str) -> Drawn:
    """A text coloured by a cell, and the value of each character."""
    from regard.visual import cell_activation

    layer, number = options.parts_of("--cell", cell, r"(\d+):(\d+)", "2:17")
    where = {"layer": int(layer), "number": int(number)}
    picture = cell_activation(task.module, task.tokenizer, text, **where)
    return picture, {**where, "values": picture.values}


def page_of(picture: Picture, title: str) -> Picture:
    """A page with a title above the picture."""
    from regard.visual import PictureColumn

    return PictureColumn((picture,), title)


def _heads(
    record: AttentionRecord, selection: Selection, title: str
) -> tuple[Picture, Picture, dict[str, Any]]:
    """The mean of the selected heads, a page with all of them, and the numbers of the mean."""
    from regard.visual.attention_record import mean_weights

    heads = replace(record.plot(), title=title, tokens=selection.tokens)
    picture, facts = mean_weights(heads, selection.kind, selection.layer, selection.head)
    return picture, heads.select(selection.kind, selection.layer), facts


def _texts_of(task: Task, line: str) -> Any:
    """What an encoder reads of a line: a text, or the texts between tabs. Where words are tagged or
    parsed, a tab is white space.
    """
    of_words = task.has("tag") or task.has("parse")
    return tuple(line.split("\t")) if "\t" in line and not of_words else line


def _inputs(task: Task, text: str) -> Drawn:
    """What the encoder of a task reads."""
    from regard.visual import encoder_inputs

    if task.input_format is None:
        raise ConfigError(f"--inputs is for encoders: {task.name} reads plain ids.")
    form = task.input_format
    picture = encoder_inputs(_texts_of(task, text), form.tokenizer, form.template)
    return picture, picture.numbers


def _trees(task: Task, text: str, count: int) -> Drawn:
    """The best trees of a sentence beside each other, with their scores."""
    from regard.visual import n_best_picture

    best = _n_best_trees(task, text, count)
    drawn = n_best_picture(best, f"{text}: the best trees")
    return drawn, {"trees": [{"tree": str(tree), "score": score} for tree, score in best]}


def _n_best_trees(task: Task, text: str, count: int) -> Sequence[tuple[ConstituencyTree, float]]:
    from regard.tasks.parsing import Parser
    from regard.tasks.sequence_parsing import SequenceParser
    from regard.text.trees import read_trees

    if isinstance(task, Parser):
        return task.predict(text, return_proba=True, n_best=count).n_best  # type: ignore[no-any-return]
    if not isinstance(task, SequenceParser):
        raise ConfigError(f"--trees is for parsers: {task.name} gives no trees.")
    if not text.strip():
        raise ConfigError("--trees needs a sentence, but the text is empty.")
    (hypotheses,) = task.hypotheses([text], beams=max(count, LEAST_BEAMS), n_best=count)
    (brackets,) = task.spelled([text], [hypotheses])
    return [
        (read_trees(b)[0], hypothesis.score)
        for b, hypothesis in zip(brackets, hypotheses, strict=True)
    ]


def _masked_heads(task: Task, heads: Sequence[str]) -> AbstractContextManager[Any]:
    """The given heads are masked in the block."""
    from regard.attention.pruning import heads_masked

    masked: dict[int, list[int]] = {}
    for text in heads:
        layer, numbers = options.parts_of("--mask-heads", text, r"(\d+):(\d+(?:,\d+)*)", "3:1,6")
        masked.setdefault(int(layer), []).extend(int(part) for part in numbers.split(","))
    return heads_masked(task, masked) if masked else nullcontext()


def _short_names(*models: str | Path) -> list[str]:
    """The names of models' folders; those of equal names are numbered."""
    paths = map(Path, models)
    names = [path.parent.name if path.name == "model" else path.name for path in paths]
    if len({*names}) == len(names):
        return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _comparison(
    records: Mapping[str, AttentionRecord], selection: Selection, title: str
) -> Illustration:
    """Models side by side: one layer, or the first and the last that all of them have."""
    from regard.visual import attention_comparison

    kind = selection.kind or next(iter(records.values())).plot().main_kind
    last = min(max(p.layer for p in record.plot(kind).panels) for record in records.values())
    layers = [selection.layer] if selection.layer is not None else sorted({1, last})
    shown: Any = {"kind": kind, "head": selection.head, "tokens": selection.tokens}
    return attention_comparison(records, layers, title=title, **shown)


def _record(task: Task, text: str, decoding: dict[str, Any]) -> tuple[AttentionRecord, str]:
    """The attention while the task processes the text, and its answer where it decodes."""
    from regard.visual.attention_record import attention_of_text

    if not task.decodes:
        check_none(f"on the task {task.name}", decoding)
        return attention_of_text(task, _texts_of(task, text))
    return attention_of_text(task, text, decoding)


LARGEST_TEXT = 1 << 26  # bytes of a file in which cells are looked for


@options.with_opening
@options.with_flags(
    "output", PictureOutput, html={"help": "Write a page with all cells that were found."}
)
def cells(
    model: options.ModelFolder,
    file: Annotated[Path, Argument(help="A text, or a folder with texts, that the model reads.")],
    kind: Literal["text", "python"] = flag(
        "Compare cells with properties of running text or of Python programs.", "text"
    ),
    *,
    opening: Opening,
    output: PictureOutput,
) -> None:
    """Find the cells of a recurrent model that have a meaning.

    The value of each cell is correlated with properties of the text, such as the position in the
    line or whether a quote is open.
    """
    output.check()
    task = console.load_task(model, **vars(opening))
    from regard.visual import find_cells
    from regard.visual.recurrent_cells import KINDS

    properties, suffix = KINDS[kind]
    files = sorted(file.rglob(f"*{suffix}")) if file.is_dir() else [file]
    if not files:
        raise ConfigError(f"{file} has no file that ends in {suffix}.")
    texts = [read_text(item, max_bytes=LARGEST_TEXT, error=ConfigError) for item in files]
    picture = find_cells(task.module, task.tokenizer, texts, properties)
    numbers = {name: [item._asdict() for item in best] for name, best in picture.numbers.items()}
    output.write(picture, page_of(picture, str(file)), {"source": file, "cells": numbers})
