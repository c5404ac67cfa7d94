"""Model cards: README.md of a folder, in the form of the hub, with what is known and no more.

    write_card(task, folder, config)                    by `regard.save`
    write_card(task, folder, config, history)           by a run, whose data and scores are known
    write_card(..., form=adapter_form(options, base))   adapters, and files for other runtimes

The last line has the checksum of the text, so that a card which a person has written or changed is
recognized, and left as it is.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, Self

import regard
from regard.checkpoints.adapters import AdapterOptions
from regard.checkpoints.hub import folder_of
from regard.checkpoints.model_folder import OURS
from regard.file_writing import write_text
from regard.schema import to_toml
from regard.tasks.task import Task

CARD = "README.md"
SEAL = re.compile(r"\n<!-- Written by regard; SHA-256 of the text above: ([0-9a-f]{64}) -->\n\Z")


@dataclass(frozen=True)
class CardScore:
    """A score as a card shows it; signature: how it was measured, "" where nothing says it."""

    data: str
    metric: str
    value: float
    signature: str


@dataclass(frozen=True)
class CardHistory:
    """What a card says of where the weights come from.

    license: of the weights, as the hub calls it, such as "apache-2.0"; None: it is not known.
    sections: the scores, the data and the recipe, as far as they are known.
    """

    license: str | None = None
    sections: str = ""

    @classmethod
    def of_training(
        cls,
        task: Task,
        recipe: Mapping[str, Any],
        data: Mapping[str, str],
        scores: Sequence[CardScore],
    ) -> Self:
        """Of a training that is known.

        recipe: the tables of the recipe but those of the data.  data: each file -> its SHA-256.
        """
        parts = []
        if scores:
            rows = [
                f"| {score.data} | {score.metric} | {score.value:.5g} | "
                + (f"`{score.signature}`".replace("|", r"\|") if score.signature else "")
                + " |"
                for score in scores
            ]
            head = "| data | metric | value | signature |\n|---|---|---:|---|"
            parts += ["## Scores", "\n".join([head, *rows])]
        if data:
            files = [f"| {PurePath(name).name} | `{sha}` |" for name, sha in data.items()]
            parts += ["## Data", "\n".join(["| file | SHA-256 |\n|---|---|", *files])]
        version = f"With regard {regard.__version__}, by this recipe (data left out):"
        parts += ["## Training", version, f"```toml\n{to_toml(_without_folders(recipe))}```"]
        return cls(sections="\n\n".join(parts) + "\n")

    @classmethod
    def of_folder(cls, path: str | PathLike[str]) -> Self:
        """The licence that the card of a folder names, from which another one is made."""
        file = folder_of(path) / CARD
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        license = re.match(r"---\n(?:.+\n)*?license: \"?([\w.-]+)\"?\n", text)
        return cls(license[1] if license else None)


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
    text = _card(task, config, history, form)
    text += f"\n<!-- Written by regard; SHA-256 of the text above: {_checksum(text)} -->\n"
    if path.exists():
        before = path.read_text(encoding="utf-8", errors="replace")
        if before == text or not is_generated(before):
            return
    write_text(path, text)


def is_generated(text: str) -> bool:
    """Whether a card is as the library wrote it."""
    seal = SEAL.search(text)
    return seal is not None and seal[1] == _checksum(text[: seal.start()])


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _card(
    task: Task, config: Mapping[str, Any], history: CardHistory, form: CardForm | None
) -> str:
    """The text of a card: fields that the hub reads, in YAML, each value as JSON; what the folder
    holds, and its history.
    """
    is_ours = config["model_type"] == OURS
    kind = config.get("regard", {}).get("model", OURS) if is_ours else config["model_type"]
    title = f"{kind}, {task.name}"
    architecture = (config.get("architectures") or [type(task.module).__name__])[0]
    if form is None:  # as `regard.save` writes it
        about = '```python\nimport regard\n\nmodel = regard.load("FOLDER")\n```'
        if not is_ours:
            about += f"\n\n`{task.library}` opens it as {architecture}."
        form = CardForm("regard" if is_ours else task.library, about)
    fields: dict[str, Any] = {"license": history.license} if history.license else {}
    fields |= {"library_name": form.library, "tags": ["regard", kind]}
    if form.base is not None:
        fields["base_model"] = form.base
    if task.pipeline:
        fields["pipeline_tag"] = task.pipeline
    front = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    count = sum(parameter.numel() for parameter in dict.fromkeys(task.module.parameters()))
    parts = [
        f"# {title}",
        f"{architecture} with {count:,} parameters and a vocabulary of "
        f"{task.tokenizer.vocab_size:,} tokens ({task.tokenizer.kind}), for the task "
        f"{task.name}.",
        "## Loading",
        form.about,
        *([history.sections.rstrip("\n")] if history.sections else []),
    ]
    return "\n".join(["---", *front, "---", ""]) + "\n\n".join(parts) + "\n"


def _without_folders(value: Any) -> Any:
    """Tables with the names of files in place of paths, whose folders may identify a user."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, str) and PurePath(value).is_absolute():
        return PurePath(value).name
    return value
