"""What the trials of a study reached and cost, as tables, pictures and a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Self

import numpy as np

from regard.executors import Json
from regard.experiments.training_plan import REPORT
from regard.file_writing import write_json
from regard.metrics.score import better_direction
from regard.schema import checked
from regard.visual.charts import Curves, Series, short
from regard.visual.picture import Note, Picture, PictureColumn, PictureRow, Table, fragment
from regard.visual.report import RunReport, duration, spread

RESULTS = "results.jsonl"
ERROR = "error"  # in a row of it, of a run that has failed
Row = dict[str, Any]
Values = dict[str, Json]  # of the swept options, by their dotted names
# What a trial costs: the column of the table and how its numbers are written; {} is what the task
# counts, such as tokens.
COSTS = {
    "parameters": ("parameters", short),
    "speed": ("{}/s", short),
    "flops": ("FLOPs", short),
    "memory": ("memory", lambda number: short(number) + "B"),
    "seconds": ("time", duration),
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

    def validation_curve(self, name: str = "") -> tuple[tuple[float, float], ...]:
        """(items seen, validation score): that of a name, or that which chose the weights."""
        return tuple(self.curves.get(f"valid/{name or self.goal[0]}", ()))

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


@dataclass(frozen=True)
class Trial:
    """A configuration, and what its runs reached: one for each seed or fold.

    rows: of results.jsonl, the newest of each run.  outcomes: of the runs that were trained to the
    end.  values: of the swept options.
    """

    name: str
    rows: Sequence[Row]
    outcomes: tuple[Outcome, ...]
    values: Values = field(default_factory=dict)

    @property
    def until(self) -> float:
        """The part of the budget to which it was trained."""
        return max(row["until"] for row in self.rows)

    @property
    def tokens(self) -> int:
        """What all runs have read: tokens, or what else the task counts."""
        return sum(row.get("tokens", 0) for row in self.rows)

    @property
    def error(self) -> str:
        """Why it has failed; "": it has not."""
        errors = [str(row[ERROR]) for row in self.rows if ERROR in row]
        if not errors and any(row.get("score") is None for row in self.rows):
            return "no validation score is finite"
        return errors[0] if errors else ""

    @property
    def score(self) -> float:
        """The mean of the validation score that selects the weights, negative where lower is
        better; NaN: a run has failed."""
        if self.error:
            return math.nan
        return mean(row["score"] for row in self.rows) * (
            1 if self.rows[0]["goal"][1] == "max" else -1
        )

    @cached_property
    def scores(self) -> dict[str, tuple[float, ...]]:
        """By name, such as "valid loss" and "test BLEU", the score of each run; NaN where it is not
        finite. The first selects the weights: its best value so far. The others are those of the
        weights that are kept. {}: a run has failed."""
        if self.error:
            return {}
        goal, *_ = self.rows[0]["goal"]
        columns = {f"valid {goal}": [row["score"] for row in self.rows]}
        for outcome in self.outcomes:
            scores = {f"valid {name}": value for name, value in outcome.valid.items()}
            scores |= {f"test {score['name']}": score["value"] for score in outcome.scores}
            for name, value in scores.items():
                if name != f"valid {goal}":
                    columns.setdefault(name, []).append(value)
        return {
            name: tuple(math.nan if value is None else value for value in column)
            for name, column in columns.items()
        }

    @property
    def costs(self) -> dict[str, float]:
        """By the names of `COSTS` means over the runs, and the largest of their peak memories."""
        if not self.outcomes:
            return {}
        costs = {
            "parameters": self.outcomes[0].parameters,
            "speed": mean(run.tokens / run.seconds for run in self.outcomes),
            "flops": mean(run.flops for run in self.outcomes),
            "seconds": mean(run.seconds for run in self.outcomes),
        }
        memories = [run.memory for run in self.outcomes if run.memory is not None]
        return costs | ({"memory": max(memories)} if memories else {})

    @property
    def protocol(self) -> str:
        """How the first test score was measured: its signature."""
        scores = self.outcomes[0].scores if self.outcomes else ()
        return scores[0]["signature"] if scores else ""

    def facts(self) -> dict[str, Any]:
        """Plain values; a number that is not finite is None."""

        def finite(value: float) -> float | None:
            return value if math.isfinite(value) else None

        scores = {
            name: {
                "mean": finite(mean(values)),
                "sd": finite(float(np.std(values, ddof=1))) if len(values) > 1 else None,
                "runs": [finite(value) for value in values],
            }
            for name, values in self.scores.items()
        }
        facts = {"trial": self.name, "values": self.values, "until": self.until}
        facts |= {"tokens": self.tokens, "scores": scores, **self.costs}
        return facts | ({ERROR: self.error} if self.error else {})


@dataclass(frozen=True)
class StudyResults:
    """The trials of a study: a comparison, a cross-validation or a sweep.

    trials: those of a sweep from the best to the worst.  conditions: what all share.  tested: they
    are ranked by test data, where there are some, and else by the score that selects the weights.
    about: facts for the page.
    """

    folder: Path
    trials: tuple[Trial, ...]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    tested: bool = False
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """What the runs of each trial reached that were trained to the end."""
        return {trial.name: trial.outcomes for trial in self.trials if trial.outcomes}

    @property
    def goal(self) -> tuple[str, str]:
        """The validation score that selects the weights, and "max" or "min"."""
        name, better = next(row["goal"] for t in self.trials for row in t.rows if "goal" in row)
        return name, better

    @property
    def ranked_by(self) -> str:
        """The name of the score that ranks the trials: "test BLEU" or "valid loss"."""
        first = next(iter(self.outcomes.values()), ())
        return first[0].quality_name if self.tested and first else f"valid {self.goal[0]}"

    @property
    def drawn(self) -> str:
        """The validation score that is drawn: the one that is named as what ranks the trials, such
        as "perplexity per word", else the one that selects the weights."""
        names = [name for runs in self.outcomes.values() for name in runs[0].valid]
        ranking = self.ranked_by.partition(" ")[2]
        return next((name for name in reversed(names) if name.startswith(ranking)), self.goal[0])

    @property
    def better(self) -> str:
        """Whether a higher ("max") or a lower ("min") score is better."""
        part, _, name = self.ranked_by.partition(" ")
        # A score of test data is not always the one that validation minimizes or maximizes.
        return better_direction(name, self.goal) if part == "test" else self.goal[1]

    @property
    def protocols(self) -> dict[str, str]:
        """How the first test score of each trial was measured."""
        return {trial.name: trial.protocol for trial in self.trials if trial.outcomes}

    @property
    def ranked(self) -> bool:
        """Whether trials can be ranked: their protocols agree in what matters."""
        return not self.tested or len({*map(what_matters, self.protocols.values())}) < 2

    @cached_property
    def best(self) -> Trial | None:
        """The trial with the best mean score of those trained to the end; None: there is none, or
        the protocols of the scores differ in what matters."""
        name = self.ranked_by
        rivals = [t for t in self.trials if t.until == 1 and name in t.scores and self.ranked]
        pick = max if self.better == "max" else min
        return pick(rivals, key=lambda trial: mean(trial.scores[name]), default=None)

    @property
    def run(self) -> Path | None:
        """The folder of the first run of the best trial."""
        return self.folder / self.best.rows[0]["run"] if self.best else None

    @property
    def tokens(self) -> int:
        """What all runs together have read: tokens, or what else the task counts."""
        return sum(trial.tokens for trial in self.trials)

    @property
    def items(self) -> str:
        """What the task counts, such as "tokens"."""
        return next((runs[0].items for runs in self.outcomes.values()), "tokens")

    @property
    def cv_results(self) -> dict[str, list[Any]]:
        """The columns of scikit-learn's `cv_results_`: `params`, `param_NAME`, and of each score
        `splitN_NAME`, `mean_NAME`, `std_NAME` and `rank_NAME`; with `trial` before them. A row is a
        trial, a split is a seed or a fold.

        pandas.DataFrame(results.cv_results)
        """
        trials, splits = self.trials, max(len(trial.rows) for trial in self.trials)
        columns: dict[str, list[Any]] = {
            "trial": [trial.name for trial in trials],
            "params": [dict(trial.values) for trial in trials],
            **{f"param_{n}": [trial.values[n] for trial in trials] for n in trials[0].values},
        }
        for score in dict.fromkeys(name for trial in trials for name in trial.scores):
            table, name = np.full((len(trials), splits), math.nan), score.replace(" ", "_", 1)
            for row, trial in zip(table, trials, strict=True):
                row[: len(trial.scores.get(score, ()))] = trial.scores.get(score, ())
            means = table.mean(1)
            columns |= {f"split{i}_{name}": table[:, i].tolist() for i in range(splits)}
            columns |= {f"mean_{name}": means.tolist(), f"std_{name}": table.std(1).tolist()}
            if score == f"valid {self.goal[0]}":
                signed = -means if self.goal[1] == "max" else means
                ordered = np.where(np.isnan(means), math.inf, signed)
                columns[f"rank_{name}"] = [1 + int((ordered < mean).sum()) for mean in ordered]
        return columns

    def table(self) -> Table:
        """A row for each trial: values, scores and costs, without columns that are empty."""
        trials, valid = self.trials, f"valid {self.goal[0]}"
        tests = (name for trial in trials for name in trial.scores if name.startswith("test "))
        count = 1 + ("unit:" in trials[0].protocol)  # a likelihood is also shown in bits per byte
        shown = dict.fromkeys([self.ranked_by, *islice(dict.fromkeys(tests), count), valid])
        columns = {"trial": [trial.name for trial in trials]}
        columns |= {n: [_shown(trial.values[n]) for trial in trials] for n in trials[0].values}
        columns |= {n: [spread(trial.scores.get(n, ())) for trial in trials] for n in shown}
        costs = [trial.costs for trial in trials]
        for name, (head, text) in COSTS.items():
            cells = [text(cost[name]) if name in cost else "" for cost in costs]
            columns[head.format(self.items)] = cells
        precisions = [", ".join(dict.fromkeys(r.precision for r in t.outcomes)) for t in trials]
        reached = ["the end" if t.until == 1 else str(Fraction(t.until)) for t in trials]
        differing = {"precision": precisions, "trained to": reached}
        differing["protocol"] = [trial.protocol for trial in trials]
        columns |= {name: cells for name, cells in differing.items() if len({*cells} - {""}) > 1}
        columns["failed"] = [trial.error.split("\n")[0][:80] for trial in trials]
        columns = {name: cells for name, cells in columns.items() if any(cells)}
        best = None if self.best is None else trials.index(self.best)
        return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)), "", best)

    def runs(self) -> Table:
        """A row for each run, with all of its scores."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.scores)
        rows = []
        for trial in self.trials:
            for index, row in enumerate(trial.rows):
                scores = (trial.scores.get(name, ())[index : index + 1] for name in names)
                rows.append([row["run"], *map(spread, scores)])
        return Table.of(["run", *names], rows)

    def picture(self) -> Picture:
        """The validation scores while training, what is compared, and the table."""
        several = max(len(trial.rows) for trial in self.trials) > 1
        parts: list[Picture] = [Note((self.summary,)), self.table()]
        curves = [_mean_curve(name, runs, self.drawn) for name, runs in self.outcomes.items()]
        if curves:
            title = f"valid {self.drawn} while training"
            band = "band: the range over runs" if several else ""
            ratio = self.drawn.startswith("perplexity")
            chart = Curves(tuple(curves), title, self.items, band, 640, 360, logarithmic=ratio)
            parts.insert(0, chart)
        charts = []
        for cost, (head, _) in COSTS.items():
            series = [
                Series(
                    trial.name,
                    tuple((trial.costs[cost], y) for y in trial.scores.get(self.ranked_by, ())),
                    joined=False,
                )
                for trial in self.trials
                if cost in trial.costs
            ]
            if len(series) > 1:
                unit = head.format(self.items)
                title = f"{self.ranked_by} and {unit}"
                charts.append(Curves(tuple(series), title, unit, self.ranked_by))
        costs = [PictureRow(tuple(charts))] if charts else []
        return PictureColumn((*parts, *([self.runs()] if several else []), *costs))

    @property
    def summary(self) -> str:
        """What is compared, in a paragraph."""
        limits, kind = self.conditions.get("budget", {}), "models" if self.tested else "trials"
        units = {"tokens": self.items, "epochs": "epochs", "max_steps": "steps"}
        budget = [f"{limits[name]:,} {unit}" for name, unit in units.items() if name in limits]
        time = f" (as many as fit into {limits['time']})" if "time" in limits else ""
        better = "low" if self.better == "min" else "high"
        return (
            f"{len(self.trials)} {kind} under equal conditions: the same data and scores. The "
            f"budget of each run was {' or '.join(budget)}{time}. All together have read "
            f"{self.tokens:,} {self.items}. A {better} {self.ranked_by} is good."
        )

    def facts(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "ranked_by": self.ranked_by,
            "better": self.better,
            "best": self.best and self.best.name,
            "run": self.run and str(self.run),
            "items": self.items,
            "tokens": self.tokens,
            "protocols": self.protocols,
            "conditions": self.conditions,
            "trials": [trial.facts() for trial in self.trials],
            "runs": [row for trial in self.trials for row in trial.rows],
        }

    def report(self, title: str = "", pictures: Sequence[tuple[str, Picture]] = ()) -> RunReport:
        """A page, to be saved in the folder, since it links to the pages of the runs.

        pictures: (heading, picture), at the end.
        """
        runs = [run for runs in self.outcomes.values() for run in runs]
        facts = {
            **self.about,
            "precision": ", ".join({run.precision: "" for run in runs if run.precision}),
            "threads": ", ".join(dict.fromkeys(str(run.threads) for run in runs)),
        }
        for name, of_trial in self.outcomes.items():
            for score in of_trial[0].scores:
                facts[f"{score['name']} of {name}"] = score["signature"]
        if not self.ranked:
            facts["ranking"] = "none: the protocols differ in what matters"
        parts = [("Comparison", self.picture())]
        if all(run.samples for run in runs):
            parts.append(("The first rows of the test data", self.samples()))
        measured = Table.of(["", ""], list(facts.items()))
        pages = {row["run"]: f"{row['run']}/{REPORT}" for t in self.trials for row in t.rows}
        links = {run: page for run, page in pages.items() if (self.folder / page).exists()}
        parts += [*pictures, ("How it was measured", measured)]
        return RunReport(title or self.folder.name, {}, parts, links)

    def samples(self) -> Picture:
        """The first test examples, and the output of the first run of each trial."""
        rows = zip(*(runs[0].samples for runs in self.outcomes.values()), strict=True)
        cells = [[row[0][0], *(output for _, output, _ in row), row[0][2]] for row in rows]
        return Table.of(["source", *self.outcomes, "reference"], cells)

    def write(self, file: str) -> None:
        """Write the plain values and the page into the folder."""
        write_json(self.folder / file, self.facts())
        self.report().save(self.folder / REPORT)

    def __str__(self) -> str:
        return self.picture().text(width=160).rstrip()

    def __repr__(self) -> str:
        best = f", the best {self.best.name}" if self.best else ""
        scores = self.best.scores.items() if self.best else ()
        text = "".join(f", {name} {spread(values)}" for name, values in scores)
        return f"StudyResults({str(self.folder)!r}: {len(self.trials)} trials{best}{text})"

    def _repr_html_(self) -> str:
        return fragment(self.picture().body())


def _mean_curve(name: str, runs: Sequence[Outcome], score: str) -> Series:
    """The mean over runs and their range, point by point, as far as all of them go."""
    points, ranges = [], []
    for together in zip(*(run.validation_curve(score) for run in runs), strict=False):
        ys = [y for _, y in together if math.isfinite(y)]
        if ys:
            points.append((together[0][0], mean(ys)))
            ranges.append((min(ys), max(ys)))
    return Series(name, tuple(points), tuple(ranges) if len(runs) > 1 else ())


def _shown(value: Json) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
