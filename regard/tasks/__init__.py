"""What we ask of a model: examples, objective, prediction and metric, one task a file.

A task object bundles a model, its tokenizer and how they are used. `regard.load` gives one, the
training loop trains one. A new task is one file and one line.

Internal: names that `regard` itself does not have may change with every version.
"""

import dataclasses
from typing import Any

from regard.errors import ConfigError
from regard.habit_names import REGISTERED
from regard.lazy import entry
from regard.models import MODELS, model_class

# name -> module:Class
TASKS: dict[str, Any] = {
    "embedding": "regard.tasks.embedding:Embedder",
    "translation": "regard.tasks.pair_tasks:Translator",
    "summarization": "regard.tasks.pair_tasks:Summarizer",
    "text-to-text": "regard.tasks.text_to_text:TextToText",
    "dialogue": "regard.tasks.pair_tasks:DialogueModel",
    "captioning": "regard.tasks.captioning:Captioner",
    "span-corruption": "regard.tasks.span_corruption:SpanCorruption",
    "language-modeling": "regard.tasks.language_modeling:TextGenerator",
    "hybrid-language-modeling": "regard.tasks.hybrid_language_modeling:HybridLanguageModel",
    "permutation-language-modeling": (
        "regard.tasks.permutation_language_modeling:PermutationLanguageModel"
    ),
    "bidirectional-language-modeling": (
        "regard.tasks.bidirectional_language_modeling:BidirectionalLanguageModel"
    ),
    "classification": "regard.tasks.classification:TextClassifier",
    "multi-label-classification": "regard.tasks.multi_label:MultiLabelClassifier",
    "regression": "regard.tasks.classification:TextRegressor",
    "relation-extraction": "regard.tasks.relation_extraction:RelationExtraction",
    "multiple-choice": "regard.tasks.multiple_choice:MultipleChoice",
    "fill-mask": "regard.tasks.masked_language_modeling:MaskFiller",
    "masked-language-modeling": "regard.tasks.masked_language_modeling:MaskedLanguageModel",
    "replaced-tokens": "regard.tasks.replaced_tokens:ReplacedTokenDetector",
    "next-sentence": "regard.tasks.masked_language_modeling:NextSentencePredictor",
    "tagging": "regard.tasks.tagging:Tagger",
    "parsing": "regard.tasks.parsing:Parser",
    "sequence-parsing": "regard.tasks.sequence_parsing:SequenceParser",
    "crf-tagging": "regard.tasks.tagging:CRFTagger",
    "question-answering": "regard.tasks.question_answering:QuestionAnswerer",
}


def task_class(name: str) -> Any:
    """The class of this name, imported now.

    Raises:
        ConfigError: no task has this name; the nearest one is offered.
    """
    return entry(TASKS, name, "task")


def register(name: str, kind: type) -> None:
    """Make a model or a task of one's own known by a name, in this process.

    It can then be named in recipes and in `regard.train`, and folders that hold it can be opened.
    A process that opens such a folder must register it before. Registering a class again, as a
    notebook does when a cell runs twice, replaces it.

    Args:
        kind: a subclass of `regard.models.protocols.Model` with a dataclass `Config`, or of
            `Task`.

    Raises:
        ConfigError: the class is neither, or another class has this name.
    """
    from regard.models.protocols import Model
    from regard.tasks.task import Task

    if not isinstance(kind, type) or not issubclass(kind, Model | Task):
        raise ConfigError(
            f"{kind!r:.80} cannot be registered: it must be a class that inherits Model (or "
            "LanguageModel, Encoder, EncoderDecoder) or Task."
        )
    if issubclass(kind, Model) and not dataclasses.is_dataclass(getattr(kind, "Config", None)):
        raise ConfigError(f"{kind.__name__} cannot be registered: its `Config` is no dataclass.")
    table = MODELS if issubclass(kind, Model) else TASKS
    before = table.get(name)
    if before is not None and getattr(before, "__qualname__", "") != kind.__qualname__:
        raise ConfigError(f"The name {name!r} is taken: choose another one for {kind.__name__}.")
    if issubclass(kind, Task):
        kind.name = name
    table[name] = kind
    REGISTERED.add(name)


@dataclasses.dataclass(frozen=True)
class ListedModel:
    """A model by its name: the tasks that it can be trained for, and the names of its sizes."""

    name: str
    tasks: tuple[str, ...]
    sizes: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f" ({', '.join(self.sizes)})" if self.sizes else ""
        return f"{self.name}{sizes}: {', '.join(self.tasks)}"


def list_models(task: str | None = None) -> list[ListedModel]:
    """The registered models, in the order of history.

    task: only those that can be trained for it; None: all.

    Raises:
        ConfigError: there is no such task.
    """
    chosen = [task_class(name) for name in (TASKS if task is None else [task])]
    listed = []
    for name in MODELS:
        model = model_class(name)
        tasks = tuple(kind.name for kind in chosen if kind.Recipe and kind.trains(model))
        if tasks or task is None:
            listed.append(ListedModel(name, tasks, tuple(model.SIZES)))
    return listed
