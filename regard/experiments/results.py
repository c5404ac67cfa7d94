"""What the runs of a study and the trials of a sweep reached and cost, as tables, pictures and a
page."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self

import numpy as np

from regard.errors import ConfigError
from regard.executors import Json
from regard.experiments.runs import report_links
from regard.experiments.training_plan import REPORT
from regard.file_writing import write_json
from regard.metrics.score import better_direction
from regard.schema import checked
from regard.visual.charts import Curves, Series, short
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table, fragment
from regard.visual.report import RunReport, duration, score_table, spread

COMPARISON, RESULTS = "comparison.json", "results.jsonl"
# What a model costs, by its name in a row of the table: the title of its chart, and its unit.
COSTS = {
    "parameters": ("parameters", "parameters"),
    "flops": ("training FLOPs", "FLOPs"),
    "tokens_per_second": ("speed", "{} a second"),
    "memory": ("memory", "peak bytes"),
    "seconds": ("time", "seconds"),
}


def what_matters(signature: str) -> frozenset[str]:
    """The parts of a score's signature that must be equal where scores are ranked.

    How much context a likelihood was measured with is a property of the model, as are its tokens
    where the likelihood is divided by words, characters or bytes; so are thresholds.
    """
    parts = signature.split("|")
    facts = dict(part.partition(":")[::2] for part in parts)
    if "unit" not in facts:
        return frozenset(part for part in parts if not part.startswith("threshold:"))
    names = {"unit", "count", "unk"} | ({"tok"} if facts["unit"] == "token" else set())
    return frozenset(part for part in parts if part.partition(":")[0] in names)


@dataclass(frozen=True)
class Outcome:
    """What one run reached, and what it cost.

    scores: on the test data, each with its signature.  goal: the validation score that chose the
    weights, "max" or "min", and the best value.  curves: (items seen, value) by the names of
    metrics.jsonl.  seconds: spent in steps.  memory: peak bytes of the process; None
    where another one has trained.  samples:
    (source, output, reference) of the first test examples.  items: what `tokens` counts, such as
    "examples".  valid: all scores of the weights that are kept on the validation data.
    """

    scores: list[dict[str, Any]]
    goal: tuple[str, str, float]
    curves: dict[str, list[tuple[float, float]]]
    steps: int
    tokens: int
    seconds: float
    parameters: int
    flops: float
    memory: int | None
    precision: str
    threads: int
    samples: list[tuple[str, str, str]]
    items: str = "tokens"
    valid: dict[str, float | None] = field(default_factory=dict)

    @property
    def quality(self) -> float:
        """The first test score, or the best validation score where there is no test data."""
        return self.scores[0]["value"] if self.scores else self.goal[2]

    @property
    def quality_name(self) -> str:
        """The name of the quality: "test BLEU", or "valid loss" where there is no test data."""
        return f"test {self.scores[0]['name']}" if self.scores else f"valid {self.goal[0]}"

    def validation_curve(self) -> tuple[tuple[float, float], ...]:
        """(items seen, validation score)"""
        return tuple((items, score) for items, score in self.curves[f"valid/{self.goal[0]}"])

    @classmethod
    def of_row(cls, row: Mapping[str, Any], folder: Path) -> Self:
        """The outcome in a row of results.jsonl of a study.

        Raises:
            CheckpointError: the row is damaged; the message names the field.
        """
        return checked(row.get("outcome"), cls, folder / RESULTS, field=f"{row['run']}.outcome")


def run_name(trial: str, seed: int) -> str:
    """The name of the folder of a run: NAME-seed1."""
    return f"{trial}-seed{seed}"


class StudyResults(ABC):
    """The results of a study, as a picture, a page and plain values.

    folder: that of the study.
    """

    folder: Path

    @abstractmethod
    def picture(self) -> Picture:
        """The tables and charts."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Plain values, for JSON."""

    @abstractmethod
    def report(self) -> RunReport:
        """A page, to be saved in the folder, since it links to the pages of the runs."""

    def write(self, file: str) -> None:
        """Write the plain values and the page into the folder."""
        write_json(self.folder / file, self.facts())
        self.report().save(self.folder / REPORT)

    def __str__(self) -> str:
        return self.picture().text(width=160).rstrip()

    def _repr_html_(self) -> str:
        return fragment(self.picture().body())


def cv_results(
    trials: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Sequence[float]]]],
    splits: int,
    better: str,
) -> dict[str, list[Any]]:
    """The columns of scikit-learn's `cv_results_`: `params`, `param_NAME`, and of each score
    `splitN_NAME`, `mean_NAME`, `std_NAME` and `rank_NAME`; with `trial` before them.

    trials: of each its name, its values, and its scores by name, one for each split (a seed or a
        fold); NaN stands where there is none.
    better: "max" or "min", of the first score.
    """
    params = dict.fromkeys(name for _, values, _ in trials for name in values)
    columns: dict[str, list[Any]] = {
        "trial": [name for name, _, _ in trials],
        "params": [dict(values) for _, values, _ in trials],
        **{f"param_{name}": [values.get(name) for _, values, _ in trials] for name in params},
    }
    for number, name in enumerate(dict.fromkeys(n for _, _, scores in trials for n in scores)):
        table = np.full((len(trials), splits), math.nan)
        for row, (_, _, scores) in zip(table, trials, strict=True):
            row[: len(scores.get(name, ()))] = scores.get(name, ())
        if np.isnan(table).all():
            continue
        means = table.mean(1)
        columns |= {f"split{i}_{name}": table[:, i].tolist() for i in range(splits)}
        columns |= {f"mean_{name}": means.tolist(), f"std_{name}": table.std(1).tolist()}
        if number == 0:
            ordered = np.where(np.isnan(means), math.inf, -means if better == "max" else means)
            columns[f"rank_{name}"] = [1 + int((ordered < mean).sum()) for mean in ordered]
    return columns


@dataclass(frozen=True)
class Comparison(StudyResults):
    """The outcomes of all runs.

    conditions: what all runs share.  outcomes: of each model by its name, one for each seed.
    """

    folder: Path
    conditions: dict[str, Any]
    seeds: tuple[int, ...]
    outcomes: dict[str, tuple[Outcome, ...]]

    def __repr__(self) -> str:
        rows = (f"{row['model']} {row['quality']['mean']:.4g}" for row in self.table())
        return f"Comparison({str(self.folder)!r}: {self.quality} {', '.join(rows)})"

    @property
    def better(self) -> str:
        """Whether a higher ("max") or a lower ("min") quality is better."""
        first = self._first
        if not first.scores:
            return first.goal[1]
        # A score of test data is not always the one that validation minimizes or maximizes.
        return better_direction(first.scores[0]["name"], first.goal[:2])

    @property
    def quality(self) -> str:
        """The name of the quality: "test BLEU", or "valid loss" where there is no test data."""
        return self._first.quality_name

    @property
    def _first(self) -> Outcome:
        return next(iter(self.outcomes.values()))[0]

    def table(self) -> list[dict[str, Any]]:
        """A row of plain values for each model."""
        return [{"model": name, **_summary(runs)} for name, runs in self.outcomes.items()]

    @property
    def protocols(self) -> dict[str, str]:
        """How the quality of each model was measured: the signature of its score."""
        scores = {name: runs[0].scores for name, runs in self.outcomes.items()}
        return {
            name: of_model[0]["signature"] if of_model else "" for name, of_model in scores.items()
        }

    @property
    def ranked(self) -> bool:
        """Whether the models can be ranked: their protocols agree in what matters."""
        names = {runs[0].quality_name for runs in self.outcomes.values()}
        return len(names) == len({what_matters(text) for text in self.protocols.values()}) == 1

    def best(self) -> str:
        """The name of the model with the best mean quality.

        Raises:
            ConfigError: the scores were measured by protocols that differ in what matters.
        """
        if not self.ranked:
            protocols = "\n  ".join(f"{name}: {text}" for name, text in self.protocols.items())
            raise ConfigError(f"models with different protocols cannot be ranked:\n  {protocols}")
        pick = max if self.better == "max" else min
        return pick(self.table(), key=lambda row: row["quality"]["mean"])["model"]

    @property
    def cv_results(self) -> dict[str, list[Any]]:
        """Columns as of scikit-learn's `cv_results_`: a row for each model, a split for each seed.

        pandas.DataFrame(found.cv_results)
        """
        rows: list[tuple[str, dict[str, Any], dict[str, list[float]]]] = []
        for name, runs in self.outcomes.items():
            scores = {f"valid_{runs[0].goal[0]}": [run.goal[2] for run in runs]}
            for index, score in enumerate(runs[0].scores):
                scores[f"test_{score['name']}"] = [run.scores[index]["value"] for run in runs]
            rows.append((name, {}, scores))
        return cv_results(rows, len(self.seeds), self._first.goal[1])

    def picture(self) -> Picture:
        """The table, the validation scores while training, and the quality against each cost."""
        rows, items = self.table(), self._first.items
        several = max(map(len, self.outcomes.values())) > 1
        note = Note(("± is the standard deviation over seeds.",))
        curves = tuple(_mean_curve(name, runs) for name, runs in self.outcomes.items())
        title = f"valid {self._first.goal[0]} while training"
        charts = [Curves(curves, title, items, "band: the range over seeds" if several else "")]
        for cost, (name, unit) in COSTS.items():
            series = [
                Series(
                    row["model"],
                    tuple((float(row[cost]), run.quality) for run in self.outcomes[row["model"]]),
                    joined=False,
                )
                for row in rows
                if row[cost] is not None
            ]
            if series:
                title = f"{self.quality} and {name}"
                charts.append(Curves(tuple(series), title, unit.format(items), self.quality))
        parts = (self._costs(rows), *([note] if several else []), PictureRow(tuple(charts)))
        return PictureColumn(parts)

    def _costs(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Of each model the quality and the costs, without columns that are empty."""
        qualities = [[run.quality for run in runs] for runs in self.outcomes.values()]
        columns = {
            "model": [*self.outcomes],
            self.quality: [*map(spread, qualities)],
            "parameters": [short(row["parameters"]) for row in rows],
            f"{self._first.items}/s": [short(row["tokens_per_second"]) for row in rows],
            "FLOPs": [short(row["flops"]) for row in rows],
            "memory": ["" if row["memory"] is None else short(row["memory"]) + "B" for row in rows],
            "time": [duration(row["seconds"]) for row in rows],
        }
        if len(self._precisions()) > 1:
            columns["precision"] = [row["precision"] for row in rows]
        if len({*self.protocols.values()}) > 1:
            columns["protocol"] = [*self.protocols.values()]
        if max(map(len, qualities)) > 1:
            columns["min to max"] = [f"{min(of):.2f} to {max(of):.2f}" for of in qualities]
        columns = {name: cells for name, cells in columns.items() if any(cells)}
        best = [*self.outcomes].index(self.best()) if self.ranked else None
        return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)), "", best)

    def facts(self) -> dict[str, Any]:
        """Plain values, for comparison.json."""
        return {
            "quality": self.quality,
            "better": self.better,
            "best": self.best() if self.ranked else None,
            "protocols": self.protocols,
            "items": self._first.items,
            "conditions": self.conditions,
            "models": self.table(),
            "runs": [
                {"model": name, "seed": seed, **asdict(outcome)}
                for name, runs in self.outcomes.items()
                for seed, outcome in zip(
                    self.seeds, runs, strict=False
                )  # of a run that there was: one
            ],
        }

    def report(
        self,
        title: str = "",
        pictures: Sequence[tuple[str, Picture]] = (),
        about: Mapping[str, str] | None = None,
    ) -> RunReport:
        """A page, to be saved in the folder, since it links to the pages of the runs.

        title: by default the names of the models.  about: facts before the others.  pictures:
        (heading, picture), at the end.
        """
        title = title or f"Comparison of {', '.join(self.outcomes)}"
        first = self._first
        facts = {
            **(about or {}),
            "budget": ", ".join(
                f"{limit:,} {first.items if name == 'tokens' else name.removeprefix('max_')}"
                for name, limit in self.conditions.get("budget", {}).items()
            ),
            "seeds": ", ".join(map(str, self.seeds)),
            "precision": ", ".join(self._precisions()),
            "threads": str(first.threads),
            **self._protocol_facts(),
        }
        scores = score_table({name: _scores(runs) for name, runs in self.outcomes.items()})
        parts = [("Comparison", self.picture()), ("Scores", scores)]
        parts.append(("Losses while training", self.losses()))
        if first.samples:
            parts.append(("The first rows of the test data", self.samples()))
        links = report_links(self.folder, self._runs())
        return RunReport(title, facts, [*parts, *pictures], links)

    def _protocol_facts(self) -> dict[str, str]:
        """How each score was measured: once where that is equal for all models."""
        facts: dict[str, str] = {}
        for name, runs in self.outcomes.items():
            for score in runs[0].scores:
                facts[f"{score['name']} of {name}"] = score["signature"]
        if len({*self.protocols.values()}) == 1:
            return {score["name"]: score["signature"] for score in self._first.scores}
        if not self.ranked:
            facts["ranking"] = "none: the protocols differ in what matters"
        return facts

    def _runs(self) -> list[str]:
        """The names of the folders of all runs."""
        return [run_name(name, seed) for name in self.outcomes for seed in self.seeds]

    def losses(self) -> Picture:
        """The loss on the training and on the validation data, for the first seed."""
        charts = []
        for key, data in (("train/loss", "training"), ("valid/loss", "validation")):
            series = [
                Series(name, tuple(runs[0].curves[key]))
                for name, runs in self.outcomes.items()
                if key in runs[0].curves
            ]
            unit = "nats" if self._first.items == "tokens" else ""
            title = f"Loss on the {data} data"
            charts.append(Curves(tuple(series), title, self._first.items, unit))
        return PictureRow(tuple(charts))

    def samples(self) -> Picture:
        """The first test examples, and the output of each model (of the first seed)."""
        rows = zip(*(runs[0].samples for runs in self.outcomes.values()), strict=True)
        cells = [[row[0][0], *(output for _, output, _ in row), row[0][2]] for row in rows]
        return Table.of(["source", *self.outcomes, "reference"], cells)

    def _precisions(self) -> list[str]:
        """The precisions of all runs."""
        return sorted({outcome.precision for runs in self.outcomes.values() for outcome in runs})


def _mean_curve(model: str, runs: Sequence[Outcome]) -> Series:
    """The mean over seeds and their range, point by point, as far as all of them go."""
    points, ranges = [], []
    for together in zip(*(run.validation_curve() for run in runs), strict=False):
        ys = [y for _, y in together if math.isfinite(y)]
        if ys:
            points.append((together[0][0], mean(ys)))
            ranges.append((min(ys), max(ys)))
    return Series(model, tuple(points), tuple(ranges) if len(runs) > 1 else ())


def _summary(runs: Sequence[Outcome]) -> dict[str, Any]:
    """The means over the runs of a model, and the largest of their peak memories."""
    scores = [outcome.quality for outcome in runs]
    spread = {"mean": mean(scores), "min": min(scores), "max": max(scores)}
    if len(scores) > 1:
        spread["sd"] = stdev(scores)
    return {
        "quality": spread,
        "parameters": runs[0].parameters,
        "tokens": mean(outcome.tokens for outcome in runs),
        "tokens_per_second": mean(outcome.tokens / outcome.seconds for outcome in runs),
        "flops": mean(outcome.flops for outcome in runs),
        "memory": max(
            (outcome.memory for outcome in runs if outcome.memory is not None), default=None
        ),
        "seconds": mean(outcome.seconds for outcome in runs),
        "precision": ", ".join(sorted({outcome.precision for outcome in runs})),
    }


def _scores(runs: Sequence[Outcome]) -> dict[str, float]:
    """Means over seeds: of each test score, and of the best validation score."""
    scores = {
        f"test {score['name']}": mean(outcome.scores[index]["value"] for outcome in runs)
        for index, score in enumerate(runs[0].scores)
    }
    scores[f"valid {runs[0].goal[0]}"] = mean(outcome.goal[2] for outcome in runs)
    return scores


Values = dict[str, Json]  # of the swept options, by their dotted names


@dataclass(frozen=True)
class Trial:
    """A configuration and what its runs reached, one for each seed.

    until: the part of the budget to which it was trained.  scores: the best validation score of
    each seed so far; () where one has failed.  tokens: that all runs have read.  outcomes: of the
    runs that were trained to the end.  error: why one has failed.
    """

    name: str
    values: Values
    until: float
    scores: tuple[float, ...]
    tokens: int
    outcomes: tuple[Outcome, ...] = ()
    error: str = ""

    @property
    def score(self) -> float | None:
        """The mean over the seeds."""
        return mean(self.scores) if self.scores else None

    @property
    def test(self) -> tuple[float, ...]:
        """The first score on the test data of each seed, where there are some."""
        return tuple(outcome.scores[0]["value"] for outcome in self.outcomes if outcome.scores)

    def facts(self) -> dict[str, Json]:
        """Plain values."""
        facts: dict[str, Json] = {
            "trial": self.name,
            "values": self.values,
            "until": self.until,
            "tokens": self.tokens,
        }
        if self.error:
            return facts | {"error": self.error}
        facts["valid"] = _spread_facts(self.scores)
        return facts | ({"test": _spread_facts(self.test)} if self.test else {})


def _spread_facts(scores: Sequence[float]) -> dict[str, Json]:
    facts: dict[str, Json] = {"mean": mean(scores), "seeds": [*scores]}
    return facts | ({"sd": stdev(scores)} if len(scores) > 1 else {})


@dataclass(frozen=True)
class SweepResults(StudyResults):
    """The trials of a sweep, the best first; those that have failed last.

    goal: the validation score that selects, and "max" or "min".  about: facts for the page.
    """

    folder: Path
    goal: tuple[str, str]
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> Trial | None:
        """The trial with the best mean validation score of those trained to the end."""
        first = self.trials[0]
        return first if first.until == 1 and not first.error else None

    @property
    def run(self) -> Path | None:
        """The folder of the best trial's run with the first seed."""
        return self.folder / run_name(self.best.name, self.seeds[0]) if self.best else None

    @property
    def tokens(self) -> int:
        """What all runs together have read: tokens, or what else the task counts."""
        return sum(trial.tokens for trial in self.trials)

    @cached_property
    def items(self) -> str:
        """What the task counts, such as "tokens"."""
        outcomes = [outcome for trial in self.trials for outcome in trial.outcomes]
        return outcomes[0].items if outcomes else "tokens"

    def table(self) -> Table:
        """A row for each trial."""
        tests = next((trial.outcomes[0].scores for trial in self.trials if trial.test), [])
        head = ["trial", *self.trials[0].values, f"valid {self.goal[0]}"]
        head += [f"test {tests[0]['name']}"] if tests else []
        head += ["trained to", self.items]
        failed = any(trial.error for trial in self.trials)
        rows = []
        for trial in self.trials:
            row = [trial.name, *map(_shown, trial.values.values())]
            row += [spread(trial.scores)]
            row += [spread(trial.test)] if tests else []
            row += [
                "the end" if trial.until == 1 else str(Fraction(trial.until)),
                short(trial.tokens),
            ]
            rows.append(tuple([*row, trial.error.split("\n")[0][:80]] if failed else row))
        head += ["failed"] if failed else []
        return Table(tuple(head), tuple(rows), "", 0 if self.best else None)

    @property
    def cv_results(self) -> dict[str, list[Any]]:
        """Columns as of scikit-learn's `cv_results_`: a row for each trial, a split for each seed.

        pandas.DataFrame(found.cv_results)
        """
        name = f"valid_{self.goal[0]}"
        rows = [
            (trial.name, trial.values, {name: trial.scores, "test": trial.test})
            for trial in self.trials
        ]
        return cv_results(rows, len(self.seeds), self.goal[1])

    def picture(self) -> Picture:
        """The table, and the validation scores while training."""
        series = [
            Series(trial.name, trial.outcomes[0].validation_curve())
            for trial in self.trials
            if trial.outcomes
        ]
        chart = Curves(tuple(series), f"valid {self.goal[0]} while training", self.items, "")
        return PictureColumn((self.table(), chart) if series else (self.table(),), "")

    def facts(self) -> dict[str, Any]:
        """The contents of results.json."""
        best = self.best
        return {
            "goal": self.goal[0],
            "better": self.goal[1],
            "best": None if best is None else best.name,
            "values": None if best is None else best.values,
            "run": None if self.run is None else str(self.run),
            "seeds": [*self.seeds],
            "tokens": self.tokens,
            "trials": [trial.facts() for trial in self.trials],
        }

    def report(self) -> RunReport:
        """A page, to be saved in the folder, since it links to the pages of the runs."""
        runs = [run_name(trial.name, seed) for trial in self.trials for seed in self.seeds]
        links = report_links(self.folder, runs)
        title = f"Sweep over {', '.join(self.trials[0].values)}"
        return RunReport(title, self.about, [("Comparison", self.picture())], links)

    def __repr__(self) -> str:
        best = self.trials[0]
        score = "" if best.score is None else f", valid {self.goal[0]} {best.score:.4g}"
        trials = f"{len(self.trials)} trials, the best {best.values}{score}"
        return f"SweepResults({str(self.folder)!r}: {trials})"


def _shown(value: Json) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
