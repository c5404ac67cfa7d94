"""Model cards: README.md of a folder, in the form of the hub, with what is known and no more.

    write_card(task, folder, config)                    by `regard.save`
    write_card(task, folder, config, history)           by a run, whose data and scores are known,
                                                        and where another folder's card says them
    write_card(..., form=adapter_form(options, base))   adapters, and files for other runtimes

The last line has the checksum of the text, so that a card which a person has written or changed is
recognized, and left as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, Self

import regard
from regard.checkpoints.adapters import AdapterOptions
from regard.checkpoints.hub import folder_of
from regard.checkpoints.model_folder import OURS
from regard.file_writing import write_text
from regard.tasks.task import Task
from regard.toml_text import dumps

CARD = "README.md"
HISTORY = re.compile(r"^## (Scores|Data|Training)$", re.M)
SEAL = re.compile(r"\n<!-- Written by regard; SHA-256 of the text above: ([0-9a-f]{64}) -->\n\Z")
# task -> its name on the hub
PIPELINES = {
    "translation": "translation",
    "summarization": "summarization",
    "language-modeling": "text-generation",
    "embedding": "feature-extraction",
    "classification": "text-classification",
    "multi-label-classification": "text-classification",
    "regression": "text-classification",
    "fill-mask": "fill-mask",
    "masked-language-modeling": "fill-mask",
    "tagging": "token-classification",
    "crf-tagging": "token-classification",
    "question-answering": "question-answering",
    "multiple-choice": "multiple-choice",
    "captioning": "image-to-text",
}


@dataclass(frozen=True)
class CardScore:
    """A score as a card shows it; signature: how it was measured, "" where nothing says it."""

    data: str
    metric: str
    value: float
    signature: str


@dataclass(frozen=True)
class CardTraining:
    """What a card says of a training.

    recipe: the tables of the recipe but those of the data.
    data: each file -> its SHA-256.
    """

    recipe: Mapping[str, Any]
    data: Mapping[str, str]
    scores: tuple[CardScore, ...]


@dataclass(frozen=True)
class CardHistory:
    """What a card says of where the weights come from.

    license: of the weights, as the hub calls it, such as "apache-2.0"; None: it is not known.
    sections: the scores, the data and the recipe, as far as they are known.
    results: the scores for the hub's index of models.
    """

    license: str | None = None
    sections: str = ""
    results: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of_training(cls, task: Task, training: CardTraining) -> Self:
        """Of a training that is known."""
        results = tuple(_result(task, score) for score in training.scores)
        return cls(None, "\n\n".join(_of_training(training)) + "\n", results)

    @classmethod
    def of_folder(cls, path: str | PathLike[str]) -> Self:
        """As the card of a folder says, from which another one is made. Of a card that a person has
        written or changed the licence alone is read.
        """
        file = folder_of(path) / CARD
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        license = _field(text, "license")
        if not is_generated(text):
            return cls(license if isinstance(license, str) else None)
        text = text[: SEAL.search(text).start()]  # type: ignore[union-attr]
        begin = HISTORY.search(text)
        index = _field(text, "model-index") or [{"results": []}]
        return cls(license, text[begin.start() :] if begin else "", tuple(index[0]["results"]))


NO_HISTORY = CardHistory()


@dataclass(frozen=True)
class CardForm:
    """How a folder holds a model, where it is not as `regard.save` writes it.

    library: that opens it.
    about: what it holds, and how it is opened.
    base: the model that it needs besides.
    """

    library: str
    about: str
    base: str | None = None


def adapter_form(options: AdapterOptions, base: str | PathLike[str]) -> CardForm:
    """Of low-rank adapters. base: their model, a folder, whose name is shown, or one of the hub."""
    path = Path(base)
    name = str(base)
    if path.is_dir():
        name = (path.parent if path.name == "model" else path).resolve().name
    about = (
        f"Low-rank adapters (LoRA) of rank {options.rank}, alpha {options.alpha:g}, for {name}. "
        '`regard.load("FOLDER")` opens them with that model, whose path is in adapter_config.json; '
        "`peft` does, too."
    )
    return CardForm("peft", about, name)


def write_card(
    task: Task,
    folder: Path,
    config: Mapping[str, Any],
    history: CardHistory = NO_HISTORY,
    form: CardForm | None = None,
) -> None:
    """Write README.md of a folder, unless there is one that a person has written or changed.

    config: the contents of config.json.
    form: None: the folder is as `regard.save` writes it.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = folder / CARD
    form = _saved(task, config) if form is None else form
    text = _sealed(_front_matter(task, config, history, form) + _body(task, config, history, form))
    if path.exists():
        before = path.read_text(encoding="utf-8", errors="replace")
        if before == text or not is_generated(before):
            return
    write_text(path, text)


def is_generated(text: str) -> bool:
    """Whether a card is as the library wrote it."""
    seal = SEAL.search(text)
    return seal is not None and seal[1] == _checksum(text[: seal.start()])


def _sealed(text: str) -> str:
    return f"{text}\n<!-- Written by regard; SHA-256 of the text above: {_checksum(text)} -->\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ----------------------------------------------------------------------------------- front matter


def _front_matter(
    task: Task,
    config: Mapping[str, Any],
    history: CardHistory,
    form: CardForm,
) -> str:
    """The fields that the hub reads: YAML, each value as JSON."""
    fields: dict[str, Any] = {"license": history.license} if history.license else {}
    fields |= {"library_name": form.library, "tags": ["regard", _kind(config)]}
    if form.base is not None:
        fields["base_model"] = form.base
    if task.name in PIPELINES:
        fields["pipeline_tag"] = PIPELINES[task.name]
    if history.results:
        fields["model-index"] = [{"name": _title(task, config), "results": history.results}]
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _field(text: str, name: str) -> Any:
    """A field of the front matter of a card; None where it has none, or not as JSON has values."""
    front = text.partition("\n---\n")[0] if text.startswith("---\n") else ""
    match = re.search(rf"^{name}: (.+)$", front, re.M)
    if match is None:
        return None
    try:
        return json.loads(match[1])
    except ValueError:
        return match[1] if re.fullmatch(r"[\w.-]+", match[1]) else None


def _result(task: Task, score: CardScore) -> dict[str, Any]:
    """One score, as the hub's index of models has it."""
    metric = {"type": score.metric.lower().replace(" ", "_"), "value": score.value}
    name = f"{score.metric} {score.signature}".strip()
    return {
        "task": {"type": PIPELINES.get(task.name, task.name)},
        "dataset": {"name": score.data, "type": score.data},
        "metrics": [metric | {"name": name}],
    }


def _library(task: Task, config: Mapping[str, Any]) -> str:
    if config["model_type"] == OURS:
        return "regard"
    return "sentence-transformers" if task.name == "embedding" else "transformers"


def _kind(config: Mapping[str, Any]) -> str:
    """The architecture: as other libraries publish it, or our name of it."""
    about: Mapping[str, Any] = config.get("regard", {})
    return about.get("model", OURS) if config["model_type"] == OURS else config["model_type"]


def _title(task: Task, config: Mapping[str, Any]) -> str:
    return f"{_kind(config)}, {task.name}"


# ----------------------------------------------------------------------------------- text


def _saved(task: Task, config: Mapping[str, Any]) -> CardForm:
    """Of a folder that `regard.save` writes."""
    library = _library(task, config)
    about = '```python\nimport regard\n\nmodel = regard.load("FOLDER")\n```'
    if library != "regard":
        about += f"\n\n`{library}` opens it as {_architecture(task, config)}."
    return CardForm(library, about)


def _architecture(task: Task, config: Mapping[str, Any]) -> str:
    return (config.get("architectures") or [type(task.module).__name__])[0]


def _body(task: Task, config: Mapping[str, Any], history: CardHistory, form: CardForm) -> str:
    model: Any = task.module
    count = sum(parameter.numel() for parameter in dict.fromkeys(model.parameters()))
    parts = [
        f"# {_title(task, config)}",
        f"{_architecture(task, config)} with {count:,} parameters and a vocabulary of "
        f"{task.tokenizer.vocab_size:,} tokens ({task.tokenizer.kind}), for the task "
        f"{task.name}.",
        "## Loading",
        form.about,
    ]
    return "\n\n".join(parts) + "\n" + (f"\n{history.sections}" if history.sections else "")


def _of_training(training: CardTraining) -> list[str]:
    """Scores, data and recipe, as far as they are known."""
    parts = []
    if training.scores:
        rows = [
            f"| {score.data} | {score.metric} | {score.value:.5g} | {_code(score.signature)} |"
            for score in training.scores
        ]
        head = "| data | metric | value | signature |\n|---|---|---:|---|"
        parts += ["## Scores", "\n".join([head, *rows])]
    if training.data:
        files = [f"| {PurePath(name).name} | `{sha}` |" for name, sha in training.data.items()]
        parts += ["## Data", "\n".join(["| file | SHA-256 |\n|---|---|", *files])]
    recipe = dumps(_without_folders(training.recipe))
    parts += ["## Training", f"With regard {regard.__version__}, by this recipe (data left out):"]
    return [*parts, f"```toml\n{recipe}```"]


def _code(signature: str) -> str:
    """In a cell of a table, where a bar would end it."""
    return f"`{signature}`".replace("|", r"\|") if signature else ""


def _without_folders(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with the names of files in place of paths, whose folders may identify a user."""
    return {key: _without_folder(value) for key, value in table.items()}


def _without_folder(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_folders(value)
    if isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value
