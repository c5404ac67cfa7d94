"""Model cards: README.md of a folder, in the form of the hub, with what is known and no more.

    write_card(task, folder, config)                    by `regard.save`
    write_card(task, folder, config, training)          by a run, whose data and scores are known

The last line has the checksum of the text, so that a card which a person has written or changed is
recognized, and left as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import regard
from regard.checkpoints.model_folder import OURS
from regard.file_writing import write_text
from regard.recipe import dumps
from regard.tasks.verbs import TaskVerbs

CARD = "README.md"
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


def write_card(
    task: TaskVerbs,
    folder: Path,
    config: Mapping[str, Any],
    training: CardTraining | None = None,
    license: str | None = None,
) -> None:
    """Write README.md of a folder, unless there is one that a person has written or changed.

    config: the contents of config.json.
    license: as the hub calls it, such as "apache-2.0"; None: it is not known.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = folder / CARD
    text = _sealed(_front_matter(task, config, training, license) + _body(task, config, training))
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
    task: TaskVerbs,
    config: Mapping[str, Any],
    training: CardTraining | None,
    license: str | None,
) -> str:
    """The fields that the hub reads: YAML, each value as JSON."""
    fields: dict[str, Any] = {"license": license} if license else {}
    fields |= {"library_name": _library(task, config), "tags": ["regard", _kind(config)]}
    if task.name in PIPELINES:
        fields["pipeline_tag"] = PIPELINES[task.name]
    if training is not None and training.scores:
        fields["model-index"] = [
            {
                "name": _title(task, config),
                "results": [_result(task, score) for score in training.scores],
            }
        ]
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _result(task: TaskVerbs, score: CardScore) -> dict[str, Any]:
    """One score, as the hub's index of models has it."""
    metric = {"type": score.metric.lower().replace(" ", "_"), "value": score.value}
    name = f"{score.metric} {score.signature}".strip()
    return {
        "task": {"type": PIPELINES.get(task.name, task.name)},
        "dataset": {"name": score.data, "type": score.data},
        "metrics": [metric | {"name": name}],
    }


def _library(task: TaskVerbs, config: Mapping[str, Any]) -> str:
    if config["model_type"] == OURS:
        return "regard"
    return "sentence-transformers" if task.name == "embedding" else "transformers"


def _kind(config: Mapping[str, Any]) -> str:
    """The architecture: as other libraries publish it, or our name of it."""
    about: Mapping[str, Any] = config.get("regard", {})
    return about.get("model", OURS) if config["model_type"] == OURS else config["model_type"]


def _title(task: TaskVerbs, config: Mapping[str, Any]) -> str:
    return f"{_kind(config)}, {task.name}"


# ----------------------------------------------------------------------------------- text


def _body(task: TaskVerbs, config: Mapping[str, Any], training: CardTraining | None) -> str:
    model: Any = task.model
    count = sum(one.numel() for one in dict.fromkeys(model.parameters()))
    architecture = (config.get("architectures") or [type(model).__name__])[0]
    parts = [
        f"# {_title(task, config)}",
        f"{architecture} with {count:,} parameters and a vocabulary of "
        f"{task.tokenizer.vocab_size:,} tokens ({task.tokenizer.kind}), for the task "
        f"{task.name}.",
        "## Loading",
        '```python\nimport regard\n\nmodel = regard.load("FOLDER")\n```',
    ]
    if _library(task, config) != "regard":
        parts.append(f"`{_library(task, config)}` opens it as {architecture}.")
    parts += _of_training(training) if training is not None else []
    return "\n\n".join(parts) + "\n"


def _of_training(training: CardTraining) -> list[str]:
    """Scores, data and recipe, as far as they are known."""
    parts = []
    if training.scores:
        rows = [
            f"| {one.data} | {one.metric} | {one.value:.5g} | {_code(one.signature)} |"
            for one in training.scores
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
    """Tables in which a path is the name of its file: a folder says where somebody works."""
    return {key: _without_folder(value) for key, value in table.items()}


def _without_folder(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_folders(value)
    if isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value
