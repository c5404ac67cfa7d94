"""Several models under equal conditions: the same data, tokenizer, search, scores, budget, seeds.

    compare(["lstm.toml", "transformer.toml"], seeds=(1, 2, 3), out="runs/compare")

Every run is a process of its own, so that its peak of memory is its own. What is finished stays:
the same call again goes on where it was stopped, and another seed or another recipe is added.

    OUT/
      conditions.json    what all runs share
      tokenizer/         learned once, for all
      NAME-seed1/        a run folder, and outcome.json: what it reached and what it cost
      comparison.json    the results, for programs
      report.html        the results, for people
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from regard.checkpoints import write_text
from regard.errors import ConfigError, RegardError
from regard.recipe import read, sha256
from regard.runs import load, read_recipe, resume, train
from regard.tasks import task_class
from regard.training import Interrupted
from regard.visual.comparison import Contestant
from regard.visual.comparison import compare as picture_of
from regard.visual.picture import Picture
from regard.visual.report import Report, Sample

OUTCOME, CONDITIONS = "outcome.json", "conditions.json"
BUDGET = ("tokens", "epochs", "updates")
SHARED = ("task", "data", "tokenizer", "decoding", "evaluation")
SAMPLES = 12  # sentences of the test data that the report shows


# ------------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Outcome:
    """What one run reached, and what it cost.

    scores: on the test data, each with its signature.  goal: the score of the validation that chose
    the weights, "max" or "min", and the best value.  curve: (tokens seen, that score) as it
    trained.  seconds: spent in updates.  memory: peak bytes of the process.  samples: (source,
    answer, reference) of the first test rows.
    """

    scores: list[dict[str, Any]]
    goal: tuple[str, str, float]
    curve: list[tuple[float, float]]
    updates: int
    tokens: int
    seconds: float
    parameters: int
    flops: float
    memory: int
    precision: str
    threads: int
    samples: list[tuple[str, str, str]]

    @property
    def quality(self) -> float:
        """The first score of the test, or the validation's where there is no test data."""
        return self.scores[0]["value"] if self.scores else self.goal[2]

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """The outcome of a finished run."""
        return cls(**json.loads((folder / OUTCOME).read_bytes()))


@dataclass(frozen=True)
class Comparison:
    """The outcomes of all runs: for each model one a seed."""

    folder: Path
    conditions: dict[str, Any]
    seeds: tuple[int, ...]
    outcomes: dict[str, tuple[Outcome, ...]]

    @property
    def better(self) -> str:
        """Whether a higher ("max") or a lower ("min") quality is better."""
        return self._first.goal[1]

    @property
    def quality(self) -> str:
        """What the quality is: "BLEU" of the test data, "valid loss" without any."""
        first = self._first
        return first.scores[0]["name"] if first.scores else f"valid {first.goal[0]}"

    @property
    def _first(self) -> Outcome:
        return next(iter(self.outcomes.values()))[0]

    def table(self) -> list[dict[str, Any]]:
        """A row of plain values for each model."""
        return [{"model": name, **_summary(several)} for name, several in self.outcomes.items()]

    def best(self) -> str:
        """The name of the model with the best mean quality."""
        pick = max if self.better == "max" else min
        return pick(self.table(), key=lambda row: row["quality"]["mean"])["model"]

    def picture(self) -> Picture:
        """The table and the plots."""
        contestants = [self._contestant(row) for row in self.table()]
        return picture_of(contestants, self.quality, self.better)

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, for comparison.json."""
        runs = [
            {"model": name, "seed": seed, **asdict(one)}
            for name, several in self.outcomes.items()
            for seed, one in zip(self.seeds, several, strict=True)
        ]
        shown = {"quality": self.quality, "better": self.better, "best": self.best()}
        return {**shown, "conditions": self.conditions, "models": self.table(), "runs": runs}

    def report(
        self,
        title: str = "Comparison",
        pictures: Sequence[tuple[str, Picture]] = (),
        about: Mapping[str, str] | None = None,
    ) -> Report:
        """A page; `about`: facts to begin with; `pictures`: (heading, picture), at the end."""
        first, budget = self._first, self.conditions["budget"]
        facts = {
            **(about or {}),
            "budget": ", ".join(f"{limit:,} {name}" for name, limit in budget.items()),
            "seeds": ", ".join(map(str, self.seeds)),
            "threads": str(first.threads),
        } | {score["name"]: score["signature"] for score in first.scores}
        scores = {name: _scores(several) for name, several in self.outcomes.items()}
        samples = {
            name: [Sample(*row) for row in several[0].samples[:SAMPLES]]
            for name, several in self.outcomes.items()
            if several[0].samples
        }
        return Report(
            title, facts, scores, samples=samples, pictures=pictures, comparison=self.picture()
        )

    def _contestant(self, row: dict[str, Any]) -> Contestant:
        several, notes = self.outcomes[row["model"]], {"precision": row["precision"]}
        if len(several) > 1:
            low, high = row["quality"]["min"], row["quality"]["max"]
            notes = {"min to max": f"{low:.2f} to {high:.2f}", **notes}
        return Contestant(
            row["model"],
            tuple(one.quality for one in several),
            tuple(tuple((tokens, score) for tokens, score in one.curve) for one in several),
            notes=notes,
            **{name: row[name] for name in COSTS},
        )


COSTS = ("parameters", "tokens_per_second", "flops", "memory", "seconds")


def _summary(several: Sequence[Outcome]) -> dict[str, Any]:
    scores = [one.quality for one in several]
    spread = {"mean": mean(scores), "min": min(scores), "max": max(scores)}
    if len(scores) > 1:
        spread["sd"] = stdev(scores)
    return {
        "quality": spread,
        "parameters": several[0].parameters,
        "tokens": mean(one.tokens for one in several),
        "tokens_per_second": mean(one.tokens / one.seconds for one in several),
        "flops": mean(one.flops for one in several),
        "memory": max(one.memory for one in several),
        "seconds": mean(one.seconds for one in several),
        "precision": ", ".join(sorted({one.precision for one in several})),
    }


def _scores(several: Sequence[Outcome]) -> dict[str, float | str]:
    """Means over seeds: of each test score, and of the validation's best."""
    names = [score["name"] for score in several[0].scores]
    found: dict[str, float | str] = {
        f"test {name}": mean(one.scores[place]["value"] for one in several)
        for place, name in enumerate(names)
    }
    found[f"valid {several[0].goal[0]}"] = mean(one.goal[2] for one in several)
    return found


# ------------------------------------------------------------------------------ fairness


def conditions_of(recipe: Any, hashes: dict[str, str]) -> dict[str, Any]:
    """What must be equal: data by their content, tokenizer, search, scores, and the budget.

    hashes: SHA-256 of each file by its name; those that are met for the first time are added.
    """
    shared = recipe.model_dump(mode="json", include=set(SHARED))
    for name in task_class(recipe.task).files(recipe):
        hashes.setdefault(name, sha256(name))
    options = recipe.training
    budget = {name: getattr(options, name) for name in BUDGET if getattr(options, name)}
    if "updates" in budget:
        budget["batches an update"] = options.accumulate
    shared["data"] = _by_content(shared["data"], hashes)
    return {**shared, "budget": budget, "validation": asdict(options.validation)}


def refuse_unfair(conditions: Mapping[str, dict[str, Any]]) -> None:
    """Raises ConfigError naming every condition in which the recipes differ."""
    names = list(conditions)
    first = dict(_leaves(conditions[names[0]]))
    problems = []
    for name in names[1:]:
        other = dict(_leaves(conditions[name]))
        for key in dict.fromkeys([*first, *other]):
            if first.get(key) != other.get(key):
                told = f"{first.get(key)!r} in {names[0]}, {other.get(key)!r} in {name}"
                problems.append(f"{key}: {told}")
    if problems:
        raise ConfigError(
            "these recipes cannot be compared fairly, because they differ in\n  "
            + "\n  ".join(problems)
            + "\nMake them equal, for all at once with name=value."
        )


def _by_content(value: Any, hashes: Mapping[str, str]) -> Any:
    """A section with each file's name replaced by its sum: a copy elsewhere is the same data."""
    if isinstance(value, dict):
        return {key: _by_content(one, hashes) for key, one in value.items()}
    if isinstance(value, list):
        return [_by_content(one, hashes) for one in value]
    return f"sha256:{hashes[value][:16]}" if value in hashes else value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], place: Path) -> None:
    """What `place` was begun with must be what is asked for now."""
    then, asked = dict(_leaves(before)), dict(_leaves(now))
    problems = [
        f"{key}: was {then.get(key)!r}, is {asked.get(key)!r}"
        for key in dict.fromkeys([*then, *asked])
        if then.get(key) != asked.get(key)
    ]
    if problems:
        raise ConfigError(
            f"{place} was begun under other conditions:\n  "
            + "\n  ".join(problems)
            + "\nPut them back, remove the folder, or choose another one with --out."
        )


# ------------------------------------------------------------------------------ comparing


@dataclass(frozen=True)
class Run:
    """One training of a comparison."""

    path: Path
    overrides: tuple[str, ...]
    folder: Path
    recipe: Any

    def refuse_changes(self) -> None:
        """A folder that is there must hold this run and no other."""
        written = self.folder / "recipe.toml"
        if written.exists():
            before = read_recipe(written).model_dump(mode="json")
            _refuse_changes(before, self.recipe.model_dump(mode="json"), self.folder)
            hashes = read(written).run.get("data", {})
            _refuse_changes(hashes, {name: sha256(name) for name in hashes}, self.folder)


def compare(
    recipes: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (1,),
    out: str | Path = "runs/compare",
    show: str = "auto",
) -> Comparison:
    """Train each recipe with each seed, measure, and write comparison.json and report.html.

    Args:
        overrides: `dotted.name=value`, for every recipe.
        seeds: each is a run of every recipe; the spread over them is shown.
        out: the folder; what is finished in it is not done again.
        show: how progress is shown: "auto", "bar", "lines" or "none".

    Raises:
        ConfigError: the recipes differ in what must be equal, or `out` holds something else.
        RegardError: a run has failed; the others are kept.
        Interrupted: after Ctrl-C; the run that was under way is saved.
    """
    out = Path(out)
    named = _named(recipes, overrides)
    shared = _shared(named)
    given = [*overrides, *_tokenizer(next(iter(named.values()))[1], shared, out)]
    runs = {
        name: [_run(path, given, seed, out / f"{name}-seed{seed}") for seed in seeds]
        for name, (path, _) in named.items()
    }
    for run in (run for several in runs.values() for run in several):
        run.refuse_changes()
    for name, several in runs.items():
        for seed, run in zip(seeds, several, strict=True):
            if not (run.folder / OUTCOME).exists():
                if show != "none":
                    print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
                _in_a_process(run, show)
    outcomes = {n: tuple(Outcome.read(run.folder) for run in many) for n, many in runs.items()}
    result = Comparison(out, shared, tuple(seeds), outcomes)
    write_text(out / "comparison.json", json.dumps(result.facts(), indent=1) + "\n")
    result.report().save(out / "report.html")
    return result


def _named(recipes: Sequence[str | Path], overrides: Sequence[str]) -> dict[str, tuple[Path, Any]]:
    """Each recipe under the name that the results have for it."""
    named: dict[str, tuple[Path, Any]] = {}
    for path in map(Path, recipes):
        recipe = read_recipe(path, overrides)
        name = recipe.name or path.stem
        if name in named:
            raise ConfigError(
                f"{named[name][0]} and {path} are both named {name!r}. Give one of them another "
                "`name`."
            )
        named[name] = path, recipe
    if not named:
        raise ConfigError("`recipes` must name at least one recipe, but is empty.")
    return named


def _shared(named: Mapping[str, tuple[Path, Any]]) -> dict[str, Any]:
    """The conditions, which are those of every recipe."""
    hashes: dict[str, str] = {}
    conditions = {name: conditions_of(recipe, hashes) for name, (_, recipe) in named.items()}
    refuse_unfair(conditions)
    return next(iter(conditions.values()))


def _tokenizer(recipe: Any, shared: Mapping[str, Any], out: Path) -> list[str]:
    """Learn the tokenizer that all runs read, unless it is there or the recipe names one."""
    place = out / CONDITIONS
    if place.exists():
        _refuse_changes(json.loads(place.read_bytes()), json.loads(json.dumps(shared)), out)
    else:
        out.mkdir(parents=True, exist_ok=True)
        if recipe.tokenizer.path is None:
            kind = task_class(recipe.task)
            recipe.tokenizer.build(lambda: kind.texts(recipe)).save(out / "tokenizer")
        write_text(place, json.dumps(shared, indent=1) + "\n")
    own = recipe.tokenizer.path is None
    return [f"tokenizer.path={json.dumps(str((out / 'tokenizer').absolute()))}"] if own else []


def _run(path: Path, given: Sequence[str], seed: int, folder: Path) -> Run:
    overrides = (*given, f"seed={seed}")
    return Run(path, overrides, folder, read_recipe(path, overrides))


# ------------------------------------------------------------------------------ processes


def _in_a_process(run: Run, show: str) -> None:
    """Train and measure in a child. It saves and stops when its standard input is closed, which
    happens too when this process is killed; Ctrl-C does not reach it in a session of its own."""
    words = [sys.executable, "-m", "regard.compare", str(run.folder), show, str(run.path)]
    with subprocess.Popen(
        [*words, *run.overrides], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
            raise Interrupted(
                f"stopped; {run.folder} is saved. The same command goes on from there.", 130
            ) from None
    if code:
        raise RegardError(
            f"the run in {run.folder} has failed (exit code {code}); what it said stands above. "
            "What is finished stays: the same command goes on from there."
        )


def _measure(folder: Path, path: str, overrides: Sequence[str], show: Any) -> None:
    """In the child: train, or go on; then test, and write the outcome."""
    if (folder / "recipe.toml").exists():
        result = resume(folder, show=show)
    else:
        _, result = train(path, overrides, out=folder, show=show)
    memory = peak_memory()
    from regard.estimate import estimate

    cost = estimate(folder / "recipe.toml", measure=False).totals()
    task: Any = load(folder)
    recipe: Any = read_recipe(folder / "recipe.toml")
    scores, samples = task.test(recipe)
    name, direction = task.goal
    outcome = Outcome(
        scores=[{k: getattr(s, k) for k in ("name", "value", "signature")} for s in scores],
        goal=(name, direction, result.best),
        curve=_curve(folder, name),
        updates=result.update,
        tokens=result.tokens,
        seconds=result.seconds,
        parameters=cost["parameters"],
        flops=cost["flops_per_token"] * result.tokens,
        memory=memory,
        precision=_precision(folder),
        threads=recipe.training.threads or _threads(),
        samples=samples[:SAMPLES],
    )
    write_text(folder / OUTCOME, json.dumps(asdict(outcome)) + "\n")


def _curve(folder: Path, goal: str) -> list[tuple[float, float]]:
    """(tokens seen, the score of the validation) from metrics.jsonl."""
    events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    key = f"valid/{goal}"
    return [(e["tokens"], e[key]) for e in events if e.get(key) is not None and "tokens" in e]


def _precision(folder: Path) -> str:
    """What the training has taken where the recipe left it the choice."""
    newest = max((folder / "checkpoints").glob("step-*/facts.json"))
    return json.loads(newest.read_bytes())["precision"]


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def peak_memory() -> int:
    """The most bytes that this process has held at once."""
    try:  # getrusage would count the process that started this one too, as Linux has it
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _stop_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


def _child(folder: str, show: str, path: str, *overrides: str) -> int:
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        _measure(Path(folder), path, overrides, show)
    except Interrupted as stopped:
        return stopped.code
    except RegardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
