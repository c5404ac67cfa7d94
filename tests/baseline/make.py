"""Folders as this version of the library writes them: later versions must open and resume them.

    PYTHONPATH=. python tests/baseline/make.py tests/baseline

writes folders.tar.xz and expected.json: a finished run and a run stopped in the middle of every
family of models, cell, attention, head, optimizer and schedule; exported folders with every head;
folders with quantized weights; and what each of them answered. Run it before a change of formats,
never to make a failing test pass.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "tasks")]

import tiny_folders  # noqa: E402

import regard  # noqa: E402
from regard.tasks.folders import save  # noqa: E402
from regard.training import Interrupted  # noqa: E402
from regard.training.interrupt import Stopped  # noqa: E402
from regard.training.loop import Loop  # noqa: E402

UPDATES, MIDDLE = 8, 5
ENDINGS = {
    "bert": [
        "Model",
        "ForMaskedLM",
        "ForNextSentencePrediction",
        "ForPreTraining",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMultipleChoice",
    ],
    "roberta": [
        "Model",
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMultipleChoice",
    ],
    "distilbert": [
        "Model",
        "ForMaskedLM",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
        "ForMultipleChoice",
    ],
    "gpt": ["LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"],
    "gpt2": [
        "LMHeadModel",
        "DoubleHeadsModel",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    ],
}
LANGUAGE = """task = "language-modeling"
[data]
train = "data/text.txt"
valid = "data/text.txt"
{data}
[tokenizer]
kind = "characters"
"""
PAIRS = """task = "translation"
[data]
train = ["data/pairs.tsv"]
valid = ["data/pairs.tsv"]
[tokenizer]
kind = "bpe"
vocab_size = 80
"""
STREAMS = "batch_size = 2\nsequence_length = 6"
SMALL = 'size = "tiny"\nd_model = 8\nd_ff = 16\nheads = 2\n'
TRAINING = f"[training]\nupdates = {UPDATES}\nlog_every = 1\n"
SGD = '[training.optimizer]\nname = "sgd"\nlearning_rate = 0.5\nmomentum = 0.9\n'
ADAMW = '[training.optimizer]\nname = "adamw"\nlearning_rate = 0.01\nweight_decay = 0.1\n'
LINEAR = '[training.schedule]\nname = "linear"\nwarmup = 2\n'
COSINE = '[training.schedule]\nname = "cosine"\nwarmup = 2\nfinal = 0.1\n'
ROOT = '[training.schedule]\nname = "inverse-sqrt"\nwarmup = 3\n'
NOAM = '[training.schedule]\nname = "noam"\nwarmup = 3\nd_model = 8\n'
STEP = '[training.schedule]\nname = "step"\nepochs = 1\nfactor = 0.5\n'
AVERAGE = "[training.checkpoints]\nevery = 2\naverage = 2\nkeep = 3\n"
VALIDATED = "[training.validation]\nevery = 2\npatience = 3\n"


def recurrent(cell: str, more: str = "") -> str:
    """A recurrent language model."""
    model = f'[model]\nname = "recurrent"\ncell = "{cell}"\nd_model = 8\ndropout = 0.2\n{more}'
    return LANGUAGE.format(data=STREAMS) + model


def language(name: str) -> str:
    """A GPT that starts from random weights."""
    sizes = "d_model = 8\nheads = 2\nlayers = 2\nmax_length = 16\n"
    return (
        LANGUAGE.format(data="batch_size = 2\nsequence_length = 12")
        + f'[model]\nname = "{name}"\n{sizes}'
    )


def seq2seq(attention: str) -> str:
    """An LSTM encoder-decoder."""
    model = f'[model]\nname = "seq2seq"\nattention = "{attention}"\nd_model = 8\nlayers = 1\n'
    return PAIRS + model


def started(task: str, family: str, data: str, more: str = "") -> str:
    """Fine-tuning of an exported folder."""
    return (
        f'task = "{task}"\n[model]\npath = "exported/{family}-{STARTS[family]}"\n{more}'
        f'[data]\ntrain = "data/{data}"\nvalid = "data/{data}"\nmax_length = 24\n'
    )


STARTS = {
    "bert": "ForPreTraining",
    "roberta": "ForMaskedLM",
    "distilbert": "ForMaskedLM",
    "gpt": "LMHeadModel",
    "gpt2": "LMHeadModel",
}
RECIPES = {
    "recurrent-lstm": recurrent("lstm") + TRAINING + SGD + STEP,
    "recurrent-gru": recurrent("gru", "tied = true\n") + TRAINING + ADAMW,
    "recurrent-rnn": recurrent("rnn") + TRAINING + COSINE,
    "recurrent-average": recurrent("lstm") + TRAINING + AVERAGE,
    **{
        f"seq2seq-{kind}": seq2seq(kind) + TRAINING
        for kind in ("none", "additive", "dot", "general")
    },
    "transformer": PAIRS + f'[model]\nname = "transformer"\n{SMALL}' + TRAINING + NOAM,
    "transformer-prenorm": PAIRS
    + f'[model]\nname = "transformer-prenorm"\n{SMALL}'
    + TRAINING
    + "accumulate = 2\n"
    + ROOT
    + VALIDATED,
    "transformer-bfloat16": PAIRS
    + f'[model]\nname = "transformer"\n{SMALL}'
    + TRAINING
    + 'precision = "bfloat16"\n'
    + ADAMW,
    "gpt": language("gpt") + TRAINING + LINEAR,
    "gpt2": language("gpt2") + TRAINING + "activation_checkpointing = true\n" + ADAMW,
    **{
        f"classification-{family}": started("classification", family, "pairs.tsv") + TRAINING
        for family in STARTS
    },
    "regression-bert": started("regression", "bert", "numbers.tsv") + TRAINING + ADAMW,
    "tagging-roberta": started("tagging", "roberta", "tags.conll") + TRAINING,
    "tagging-features": started(
        "tagging",
        "bert",
        "tags.conll",
        '[model.features]\nlayers = "mix"\nd_model = 4\nlstm_layers = 1\n',
    )
    + TRAINING,
    "question-answering-distilbert": started("question-answering", "distilbert", "asked.jsonl")
    + "overlap = 4\n"
    + TRAINING,
    "multiple-choice-bert": started("multiple-choice", "bert", "choices.jsonl") + TRAINING,
}
QUANTIZED = {
    "int8": ("recurrent-lstm", "seq2seq-general", "transformer", "gpt2", "classification-bert"),
    "bfloat16": ("recurrent-gru", "transformer-prenorm", "gpt", "classification-roberta"),
}


def main() -> None:
    """Write everything beside this file, or in the folder that is named."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as workdir:
        os.chdir(workdir)
        write_data()
        expected: dict[str, Any] = {"root": Path(workdir).as_posix().split("/"), "answers": {}}
        for family, endings in ENDINGS.items():
            for ending in endings:
                export(family, ending)
        for name, recipe in RECIPES.items():
            run(name, recipe)
        for weights, names in QUANTIZED.items():
            for name in names:
                regard.quantize(f"finished/{name}", f"quantized/{name}-{weights}", weights)
        for folder in sorted([*Path("exported").iterdir(), *Path("quantized").iterdir()]):
            expected["answers"][str(folder)] = answers(regard.load(folder, device="cpu"))
        for folder in sorted(Path("finished").iterdir()):
            expected["answers"][str(folder)] = answers(regard.load(folder, device="cpu"))
        with tarfile.open(out / "folders.tar.xz", "w:xz") as archive:
            archive.add(".")
        (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def write_data() -> None:
    """One small file for each kind of task."""
    Path("data").mkdir()
    lines = [text for text in tiny_folders.TEXT if text]
    Path("data/text.txt").write_text("\n".join(lines) + "\n")
    pairs = [f"{text}\t{' '.join(reversed(text.split()))}" for text in lines]
    Path("data/pairs.tsv").write_text("\n".join(pairs) + "\n")
    Path("data/numbers.tsv").write_text("".join(f"{t}\t{len(t) / 10}\n" for t in lines))
    words = [f"{w} {'B-DOG' if w == 'dog' else 'O'}" for w in lines[0].split()]
    Path("data/tags.conll").write_text("\n".join([*words, "", *words[:4], ""]))
    asked = {"question": "who sleeps ?", "context": lines[1], "id": "1"}
    asked["answers"] = {"text": ["the old cat"], "answer_start": [0]}  # type: ignore[assignment]
    Path("data/asked.jsonl").write_text((json.dumps(asked) + "\n") * 3)
    choice = {"context": lines[1], "question": "who ?", "choices": ["a cat", "a dog"], "answer": 0}
    Path("data/choices.jsonl").write_text((json.dumps(choice) + "\n") * 3)


def export(family: str, ending: str) -> None:
    """A tiny random model with this head, as the library saves it."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_folders.folder(Path(folder), family, ending)
        save(regard.load(folder, device="cpu"), f"exported/{family}-{ending}")


def run(name: str, recipe: str) -> None:
    """The finished run, and the same one stopped after a few updates."""
    Path("recipe.toml").write_text(recipe)
    regard.train("recipe.toml", out=f"finished/{name}", show="none")
    shutil.rmtree(f"finished/{name}/checkpoints")
    update, done = Loop.update, 0

    def counted(self: Any) -> None:
        nonlocal done
        if done == MIDDLE:
            self.interruption.code = 130
            raise Stopped
        done += 1
        update(self)

    Loop.update = counted  # type: ignore[method-assign]
    try:
        regard.train("recipe.toml", out=f"stopped/{name}", show="none")
    except Interrupted:
        pass
    finally:
        Loop.update = update  # type: ignore[method-assign]


def answers(task: Any) -> Any:
    """What a task answers, as plain values; numbers with six digits."""
    text, pair = tiny_folders.TEXT[0], (tiny_folders.TEXT[1], tiny_folders.TEXT[2])
    torch.manual_seed(1)
    if task.decodes:
        best = task.hypotheses([text], max_tokens=6, too_long="truncate")[0][0]
        return {"tokens": list(best.tokens), "score": round(best.score, 5)}
    ways = {
        "question-answering": lambda: task.predict(("who sleeps ?", tiny_folders.TEXT[1])),
        "multiple-choice": lambda: task.predict(
            {"context": "", "question": "who sleeps ?", "choices": ["a cat", "a dog"]}
        ),
        "tagging": lambda: task.predict(text.split()),
        "fill-mask": lambda: task.predict(text.replace("dog", task.tokenizer.roles["mask"])),
        "next-sentence": lambda: task.predict(pair),
    }
    found = ways.get(task.name, lambda: task.predict(text))()
    return {"answer": plain(found), "vector": plain(task.embed(text))[:4]}


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else plain(vars(value))


if __name__ == "__main__":
    main()
