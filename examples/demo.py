"""Three translators from English to French, trained with one budget: python examples/demo.py

An LSTM without attention, an LSTM with attention and a Transformer read the same 280,000 target
tokens of short sentences. Then they are compared on sentences that none of them has seen, and
runs/demo/report.html shows what they learned and what they attend to.

Interrupted, it goes on where it was stopped; finished, it shows its results again. To train again,
remove runs/demo. It ends with 1 where the best model stays under BLEU 35.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import regard
from regard.attention.capture import CapturePoint
from regard.data import Sequences, open_table
from regard.decoding.beam import Beam
from regard.decoding.steps import start_decoding
from regard.experiments.compare import compare_files
from regard.experiments.results import StudyResults
from regard.experiments.study import RunOptions
from regard.tasks.batching import device_of
from regard.training import Interrupted
from regard.visual import (
    BeamTrace,
    Distribution,
    Heatmap,
    Note,
    Picture,
    PictureColumn,
    PictureRow,
    Table,
)
from regard.visual.head_grid import mean

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("transformer", "lstm-attention", "lstm")  # the longest first: two are trained at a time
RECIPES = [ROOT / f"recipes/demo-{name}.toml" for name in NAMES]
TEST = ROOT / "examples/tatoeba/test.tsv.gz"
LEAST_BLEU = 35.0
DATA = "Tatoeba (tatoeba.org), by way of manythings.org/anki, CC BY 2.0 FR: examples/tatoeba"
# Of the test part, which no model has seen; the report shows its first sentences, unchosen, too.
UNSEEN = (
    "We don't have a cat.",
    "Maybe we should start.",
    "I think he's too young.",
    "Here are the rules.",
    "I'm going to tell everybody.",
    "It's not the answer.",
    "We should make something like that.",
    "I feel bad today.",
)
LOOKED_AT = ("I haven't finished my lunch.", "What are you doing in my office?", *UNSEEN[:2])
SEARCHED = UNSEEN[-1]
ALIGNMENT = (
    "A row is a word to be said, a column a word of the sentence: the stronger the colour, the "
    "more the model looks at that word while it says this one.",
)
EVERY_HEAD = ("Every head of the Transformer. Choose the sentence, the attention and the layer.",)
PROMPT = ("I'm tired of waiting.", "Je suis")  # a sentence, and how its translation begins


def main(
    recipes: Sequence[Path] = RECIPES,
    overrides: Sequence[str] = (),
    out: str | Path = "runs/demo",
    least_bleu: float = LEAST_BLEU,
    progress: bool = True,
) -> int:
    """Compare, print, write the report; 0 when the best model is good enough."""
    console = Console(highlight=False)
    begun = f"Three translators, English to French, one budget. Results go to {out}"
    console.print(begun, soft_wrap=True)  # a path that is broken over lines cannot be copied
    found = compare_files(recipes, overrides, RunOptions(workers=2, progress=progress), out)
    models = {name: regard.load(found.folder / f"{name}-seed1") for name in found.outcomes}
    words = translations(models)
    console.print(found.picture())
    for source, *answers in words.rows:
        console.print(f"\n{source}", style="bold", markup=False)
        for name, answer in zip(words.head[1:], answers, strict=True):
            console.print(f"    {name:<16}{answer}", markup=False)
    whole = replace(found, about={"data": DATA})
    page = whole.report("Three translators, one budget", pictures(models, words))
    path = page.save(found.folder / "report.html")
    console.print(f"\n{path} shows it all", soft_wrap=True)
    return verdict(found, least_bleu)


def verdict(found: StudyResults, least_bleu: float) -> int:
    """0, or 1 with a message where the best model translates worse than it reliably can."""
    assert found.best is not None  # all are measured by one protocol
    best, bleu = found.best.name, found.best.outcomes[0].quality
    if bleu >= least_bleu:
        return 0
    print(
        f"error: the best model, {best}, reached BLEU {bleu:.1f} on the test sentences, but "
        f"{least_bleu:g} was expected. Something is broken: see {found.folder}.",
        file=sys.stderr,
    )
    return 1


def translations(models: dict[str, Any]) -> Table:
    """What each model makes of the unseen sentences, and what a person did."""
    rows = open_table(TEST, {"source": 0, "target": 1})
    people = {row["source"]: row["target"] for row in rows}
    columns = [task.translate(list(UNSEEN)) for task in models.values()]
    columns.append([people[source] for source in UNSEEN])
    return Table.of(["source", *models, "a person"], list(zip(UNSEEN, *columns, strict=True)))


# ------------------------------------------------------------------------------- pictures


def pictures(models: dict[str, Any], words: Table) -> list[tuple[str, Picture]]:
    """What stands in the report below the comparison."""
    attentive = {name: task for name, task in models.items() if has_attention(task)}
    task = next(iter(models.values()))
    return [
        ("More unseen sentences, chosen", words),
        ("What they attend to", PictureColumn(tuple(looked_at(attentive)))),
        ("Which word comes next", next_word(models)),
        ("How a sentence is searched", beam_tree(task)),
    ]


def has_attention(task: Any) -> bool:
    return any(isinstance(module, CapturePoint) for module in task.module.modules())


def looked_at(models: dict[str, Any]) -> list[Picture]:
    """The alignment of each model side by side, and below them every head of the first."""
    aligned, grids = [], []
    for name, task in models.items():
        with regard.look(task) as attention:
            task.translate(list(LOOKED_AT))
        grids.append(heads := attention.plot())
        last = heads.select(kind="cross", example=0).shown[-1]
        which = f"{name}: layer {last.layer}, mean of {len(last.heads)} heads"
        title = which if len(last.heads) > 1 else name
        aligned.append(Heatmap.of(mean(last.heads), last.queries, last.keys, title))
    sentence = f"The sentence: “{LOOKED_AT[0]}”"
    parts: list[Picture] = [Note((sentence, *ALIGNMENT)), PictureRow(tuple(aligned))]
    return [*parts, Note(EVERY_HEAD), grids[0]]


def next_word(models: dict[str, Any]) -> Picture:
    """What each model expects after the beginning of a translation."""
    source, beginning = PROMPT
    bars = []
    for name, task in models.items():
        state, tokens = start(task, source)
        fed = tokens.new_tensor([task.tokenizer.encode(beginning).ids])  # (B=1, T)
        with torch.no_grad():
            scores, _ = task.module.step(torch.cat([tokens, fed], 1), state)
        words = [task.tokenizer.label(i) for i in range(scores.size(-1))]
        bars.append(Distribution.of(scores[0, -1].float().softmax(-1), words, 8, name))
    return PictureColumn((Note((f"“{source}” is “{beginning} …”:",)), PictureRow(tuple(bars))))


def beam_tree(task: Any) -> Picture:
    """The search for one translation, with a beam of three."""
    source, trace = SEARCHED, BeamTrace(size=3)
    best = Beam(size=3).run(task.module, ids_of(task, source), trace)[0][0]
    said = task.tokenizer.decode(best.tokens)
    return trace.tree(task.tokenizer.label, best, f"“{source}” becomes “{said}”")


def start(task: Any, source: str) -> tuple[Any, torch.Tensor]:
    """The state of a model that has read a sentence, and the first token to feed."""
    with torch.no_grad():
        return start_decoding(task.module, ids_of(task, source))


def ids_of(task: Any, source: str) -> Sequences:
    """A sentence as the model reads it."""
    tokenizer = task.tokenizer
    ids = Sequences.of([[*tokenizer.encode(source).ids, tokenizer.eos_id]], tokenizer.pad_id)
    return ids.to(device_of(task.module))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.code)
    except regard.RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
