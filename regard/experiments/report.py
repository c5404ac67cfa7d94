"""Of a finished run: report.html (what was trained, curves, scores, samples and attention), and
the cards of its model and adapters."""

import warnings
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from regard.attention.capture import CapturePoint
from regard.checkpoints.hub import CONFIG
from regard.errors import warn
from regard.experiments.training_plan import ADAPTER, REPORT, TrainingPlan
from regard.metrics.score import ClassReport, LabelReport, ScoreReport
from regard.models import described
from regard.schema import read_json
from regard.tasks import model_card
from regard.tasks.classification import TextClassifier
from regard.tasks.multi_label import MultiLabelClassifier
from regard.tasks.tagging import Tagger
from regard.tasks.task import Task
from regard.training import Result
from regard.training.metrics_log import read_events
from regard.visual.attention_record import look
from regard.visual.charts import Heatmap
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table
from regard.visual.report import RunReport, score_table, training_curves

SCORED_BY_LABEL = (TextClassifier, MultiLabelClassifier, Tagger)
LARGEST_MATRIX = 30  # labels whose confusion matrix can be read


def write_report(folder: Path, task: Task, recipe: Any, result: Result) -> Path:
    """Write report.html of a finished run; `task` has its final weights."""
    title = f"{recipe.name or folder.name}: {described(task.module)}, {recipe.task}"
    pictures: list[tuple[str, Picture]] = []
    if scores := _scores(result):
        pictures.append(("Scores", score_table({recipe.model.name: scores})))
    if charts := training_curves(read_events(folder)).parts:
        pictures.append(("Training", PictureRow(charts)))
    if samples := task.samples(recipe):
        columns = 3 if any(any(sample[2:]) for sample in samples) else 2
        head = ("source", "hypothesis", "reference")[:columns]
        rows = [sample[:columns] for sample in samples]
        pictures.append(("Samples", Table.of(head, rows, recipe.model.name)))
    pictures += [*_by_label(task, recipe), *_attention(task, recipe)]
    report = RunReport(title, _facts(task, recipe, result), pictures)
    return report.save(folder / REPORT)


def _by_label(task: Task, recipe: Any) -> list[tuple[str, Picture]]:
    """Scores of each label, type or number on the validation data; a classifier's confusion."""
    if not isinstance(task, SCORED_BY_LABEL) or recipe.data.valid is None:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training has warned of truncated texts before
        report = task.evaluate(recipe.data.records("valid")).report
    if report is None:
        return []
    if everywhere := _only_prediction(report):
        warn(
            f"the model predicts {everywhere}: train it for more steps (epochs, or a smaller "
            "batch_size), or with another learning_rate",
        )
    table = report.table()
    title = f"Validation data; {table.note}" if table.note else "Validation data"
    parts: list[Picture] = [Table.of(table.head, table.rows, title)]
    if isinstance(report, ClassReport) and len(report.classes) <= LARGEST_MATRIX:
        parts.append(_confusion(report))
    return [(table.heading, PictureColumn(tuple(parts)))]


def _only_prediction(report: ScoreReport) -> str:
    """What a classifier or tagger predicts everywhere, though its targets differ; "": nothing."""
    if isinstance(report, ClassReport):
        predicted = [scores.label for scores in report.classes if scores.predicted]
        if len(predicted) == 1 < sum(scores.targets > 0 for scores in report.classes):
            return f"{predicted[0]!r} for every validation example"
    if isinstance(report, LabelReport) and not report.scores.micro.predicted:
        return "'O' for every word of the validation data" if report.scores.micro.targets else ""
    return ""


def _confusion(report: ClassReport) -> Heatmap:
    labels = [scores.label for scores in report.classes]
    rows = [report.confusion.get(label, {}) for label in labels]
    shares = [[row.get(label, 0) / max(1, sum(row.values())) for label in labels] for row in rows]
    name = "Confusion: shares of each target's examples, by prediction"
    return Heatmap.of(shares, labels, labels, name, peak=1.0)


def _facts(task: Task, recipe: Any, result: Result) -> dict[str, str]:
    parameters = sum(weight.numel() for weight in task.module.parameters())
    start = recipe.model.model_dump().get("path")  # of fine-tuning alone
    origin = f", started from {recipe.model.name}" if start else ""
    items = "predicted tokens" if task.items == "tokens" else task.items
    return {
        "task": recipe.task,
        "model": f"{described(task.module)}{origin}, {parameters:,} parameters",
        "tokenizer": f"{task.tokenizer.kind}, {task.tokenizer.vocab_size:,} tokens",
        "data": ", ".join(Path(file).name for file in recipe.data.files()),
        "training": f"{result.step:,} steps, {result.tokens:,} {items}",
        "time": f"{result.seconds:,.0f} s in steps",
        "weights": result.weights,
        "seed": str(recipe.seed),
    } | {f"test {name}": signature for name, signature in result.test_signatures.items()}


def _scores(result: Result) -> dict[str, float]:
    """The scores that are finite numbers."""
    return {name: n for name, n in result.labelled_scores().items() if n is not None}


def _attention(task: Task, recipe: Any) -> list[tuple[str, Picture]]:
    """What the model attends to over the first sample that it can read whole; nothing, if it has no
    attention.
    """
    if not any(isinstance(module, CapturePoint) for module in task.module.modules()):
        return []
    inputs = task.attention_inputs(recipe)
    whole = next((sample for sample in inputs if not task.over_limit([sample])), None)
    with look(task) as attention, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a truncated sample is good enough for a picture
        if whole is not None:
            task.predict([whole])
    if not attention.passes:
        return []
    heads = attention.plot()
    return [("What it attends to", PictureColumn((Note((heads.text_of(0),)), heads)))]


# ---- cards


def write_run_card(planned: TrainingPlan, folder: Path, result: Result) -> None:
    """Write the cards of model/ and adapter/ of a finished run, which is `folder`, as `write_card`
    does.
    """
    recipe = planned.recipe.model_dump(mode="json", exclude_none=True, exclude={"data"})
    _, checksums = planned.recorded or (None, planned.checksums)
    scores = list(_card_scores(planned, result))
    history = model_card.CardHistory.of_training(planned.task, recipe, checksums, scores)
    config = read_json(folder / "model" / CONFIG)
    model_card.write_card(planned.task, folder / "model", config, history)
    if planned.lora is not None:
        form = model_card.adapter_form(planned.lora.options(), planned.recipe.model.path)
        model_card.write_card(planned.task, folder / ADAPTER, config, history, form)


def _card_scores(planned: TrainingPlan, result: Result) -> Iterator[model_card.CardScore]:
    """Those of the weights in model/, on validation and test data."""
    data = planned.recipe.data.model_dump(mode="json")
    for part, scores in (("valid", result.scores), ("test", result.test_scores)):
        for name, value in scores.items():
            if value is not None:
                signature = result.test_signatures.get(name, "") if part == "test" else ""
                yield model_card.CardScore(_files(part, data.get(part)), name, value, signature)


def _files(part: str, value: Any) -> str:
    """The names of the files of a part, or what the part is where they are not named."""
    files = value if isinstance(value, list) else [value]
    if files and all(isinstance(name, str) for name in files):
        return ", ".join(PurePath(name).name for name in files)
    return {"valid": "validation data", "test": "test data"}[part]
