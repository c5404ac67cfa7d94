"""What the trials of a sweep reached: a table, pictures, a page, plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from regard.errors import RegardError
from regard.executors import Json
from regard.experiments.results import Outcome, StudyResults, cv_results, run_name
from regard.experiments.run_folder import report_links
from regard.experiments.study import ERROR, Row, Study
from regard.visual.curves import Curves, Series, short
from regard.visual.picture import Picture, PictureColumn, Table
from regard.visual.report import RunReport, spread

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

    @cached_property
    def options(self) -> dict[str, str]:
        """The swept options, and what the table calls them: the last part, where it is unique."""
        last_parts = {name: name.rpartition(".")[2] for name in self.trials[0].values}
        every = [*last_parts.values()]
        return {name: last if every.count(last) == 1 else name for name, last in last_parts.items()}

    def table(self) -> Table:
        """A row for each trial."""
        tests = next((trial.outcomes[0].scores for trial in self.trials if trial.test), [])
        head = ["trial", *self.options.values(), f"valid {self.goal[0]}"]
        head += [f"test {tests[0]['name']}"] if tests else []
        head += ["trained to", self.items]
        failed = any(trial.error for trial in self.trials)
        rows = []
        for trial in self.trials:
            row = [trial.name, *(_shown(trial.values[name]) for name in self.options)]
            row += [_spread(trial.scores)]
            row += [_spread(trial.test)] if tests else []
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
        title = f"Sweep over {', '.join(self.options.values())}"
        return RunReport(title, self.about, comparison=self.picture(), links=links)

    def __repr__(self) -> str:
        best = self.trials[0]
        score = "" if best.score is None else f", valid {self.goal[0]} {best.score:.4g}"
        trials = f"{len(self.trials)} trials, the best {best.values}{score}"
        return f"SweepResults({str(self.folder)!r}: {trials})"


def _spread(scores: Sequence[float]) -> str:
    """`spread`, with four significant digits for a single score."""
    if len(scores) > 1:
        return spread(scores)
    return f"{scores[0]:.4g}" if scores else ""


def _shown(value: Json) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def mean_score(rows: Sequence[Row]) -> float | None:
    """The mean score of the runs of a trial, negative where lower is better; None where one has
    failed."""
    if any(row.get("score") is None for row in rows):
        return None
    return mean(row["score"] for row in rows) * (1 if rows[0]["goal"][1] == "max" else -1)


def results_of_sweep(
    study: Study, trials: Mapping[str, Values], about: Mapping[str, str]
) -> SweepResults:
    """The results of a sweep that has ended.

    trials: of each its values.

    Raises:
        RegardError: every trial has failed.
    """
    folder, seeds, ranked, goals = study.folder, study.options.seeds, [], list[list[str]]()
    for name, values in trials.items():
        newest = [study.newest(folder / run_name(name, seed), strict=False) for seed in seeds]
        rows = [row for row in newest if row is not None]
        score = mean_score(rows)
        until, tokens = max(row["until"] for row in rows), sum(row.get("tokens", 0) for row in rows)
        if score is None:
            errors = [str(row[ERROR]) for row in rows if ERROR in row]
            error = next(iter(errors), "no validation score is finite")
            trial = Trial(name, values, until, (), tokens, error=error)
        else:
            goals.append(rows[0]["goal"])
            outcomes = tuple(Outcome.of_row(row, folder) for row in rows if "outcome" in row)
            scores = tuple(row["score"] for row in rows)
            trial = Trial(name, values, until, scores, tokens, outcomes)
        ranked.append((score is None, -until, -(score or 0.0), trial))
    if not goals:
        reasons = dict.fromkeys(trial.error for *_, trial in ranked)
        raise RegardError(f"every trial has failed: {'; '.join(reasons)}")
    in_order = tuple(trial for *_, trial in sorted(ranked, key=lambda row: row[:3]))
    name, better = goals[0]
    results = SweepResults(folder, (name, better), seeds, in_order, about)
    spent = f"{results.tokens:,} {results.items}"
    return replace(results, about={**about, "read by all runs": spent})
