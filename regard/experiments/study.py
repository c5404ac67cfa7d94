"""A study: named trials in a folder, each a training in its run folder, that an executor runs.

    conditions.json    what all runs share
    tokenizer/         trained once, for all runs that train one
    recipes/, data/    what was given in Python
    results.jsonl      a row for each run that has ended, from which the same call goes on

`compare`, `cross_validate` and `sweep` are studies: their trials differ in the recipe, the fold of
the training data, or the values of options.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from itertools import count
from operator import getitem
from pathlib import Path
from typing import Any

import torch

from regard.checkpoints.store import FACTS
from regard.data import hash_of
from regard.errors import ConfigError, RegardError, check_at_least
from regard.executors import ExecutorOptions, Job, Json, make_executor, print_line, results_of
from regard.executors.local import HereExecutor
from regard.experiments import recipe_options
from regard.experiments.estimate import estimate
from regard.experiments.recipe_options import checked_recipe, read_recipe, schema_of
from regard.experiments.results import ERROR, RESULTS, Outcome, Row, Trial, run_name
from regard.experiments.runs import check_new, check_out, load, name_of_run, resume, train_recipe
from regard.experiments.training_plan import check_start, holds_tokenizer
from regard.file_writing import locked, write_json
from regard.progress import Lines, Silent, clock
from regard.recipe import read, write
from regard.schema import change_lines, differences, read_json
from regard.tasks import task_class
from regard.tasks.task import Task
from regard.training import Interrupted, Paused, Result
from regard.training.callbacks import RESULT
from regard.training.checkpointing import Facts, RunFolder
from regard.training.metrics_log import read_events
from regard.training.options import DefaultEpochs

BUDGET = ("tokens", "epochs", "max_steps")
# Options of [data] that make batches: without effect on how much is read, unless steps are counted.
BATCHING = ("batch_size", "max_tokens_per_batch", "sequence_length")
HINT = "Make them equal, for all recipes at once with name=value."
MAX_DIFFERENCES = 12  # in one message
SHARED = ("task", "data", "tokenizer", "decoding", "answers", "evaluation")


def conditions_of(recipe: Any, checksums: dict[str, str]) -> dict[str, Any]:
    """What must be equal: data by their content, tokenizer, decoding, scores, and the budget.

    checksums: SHA-256 of each file by its name; those of further files are added.
    """
    whole = recipe.model_dump(mode="json")
    shared = {name: whole[name] for name in SHARED if name in whole}
    for name in recipe.data.files():
        checksums.setdefault(name, hash_of(name))
    options = recipe.training
    budget = {name: getattr(options, name) for name in BUDGET if getattr(options, name)}
    if "max_steps" in budget:
        budget["batches a step"] = options.gradient_accumulation_steps
    data = _by_content(shared["data"], checksums)
    batching = () if "max_steps" in budget else BATCHING
    shared["data"] = {name: value for name, value in data.items() if name not in batching}
    score_options = task_class(recipe.task).score_options
    scored = {name: reduce(getitem, name.split("."), whole) for name in score_options}
    return {**shared, **scored, "budget": budget, "validation": asdict(options.validation)}


def scored_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Those on which the scores of a model depend that was trained in whatever way."""
    data, read_for_scores = conditions["data"], {"valid", "test"}
    if isinstance(data.get("valid"), float | dict):  # a part of the training data
        read_for_scores |= {"train", "split_seed", "stratified", "group"}
    without = ("budget", "validation", "tokenizer", "data")
    others = {name: value for name, value in conditions.items() if name not in without}
    return {**others, "data": {name: data[name] for name in data if name in read_for_scores}}


def check_equal(conditions: Mapping[str, Mapping[str, Any]], hint: str = HINT) -> None:
    """Check that the conditions of all recipes, by their names, are those of the first.

    hint: the end of the message, which says what to do.

    Raises:
        ConfigError: they are not; the first differences are named.
    """
    (first, expected), *others = conditions.items()
    problems = [
        f"\n  {key}: {before!r} in {first}, {now!r} in {name}"
        for name, other in others
        for key, before, now in differences(expected, other)
    ]
    if problems:
        listed = "".join(problems[:MAX_DIFFERENCES])
        raise ConfigError(f"recipes cannot be compared fairly: they differ in{listed}\n{hint}")


def check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder was started under the conditions of now.

    Raises:
        ConfigError: it was not; every difference is named.
    """
    if changes := change_lines(before, now):
        hint = "Use the same settings again, or choose another folder (`out`, --out)."
        raise ConfigError(f"{folder} was started with other settings:{changes}\n{hint}")


def check_same_run(folder: Path, recipe: Any) -> None:
    """Check that a folder, where it exists, holds a run of this recipe on the same data.

    Raises:
        ConfigError: its recipe, its data or the model that it started from differ.
    """
    written = folder / "recipe.toml"
    if written.exists():
        before = read_recipe(written).model_dump(mode="json")
        now = recipe.model_dump(mode="json")
        for section in ("optimizer", "schedule"):
            # What is not set now was the model's default; the run has its value.
            resolved, asked = before["training"][section], now["training"][section]
            unset = {name: resolved[name] for name, value in asked.items() if value is None}
            now["training"][section] = asked | unset
        if isinstance(recipe.training.epochs, DefaultEpochs):
            now["training"]["epochs"] = before["training"]["epochs"]
        check_unchanged(before, now, folder)
        record = read(written).run
        checksums = record.get("data", {})
        check_unchanged(checksums, {name: hash_of(name) for name in checksums}, folder)
        check_start(recipe.model, record.get("start", {}), folder)


def _by_content(value: Any, checksums: Mapping[str, str]) -> Any:
    """A section with the checksum of each file for its name: a copy elsewhere is the same data."""
    if isinstance(value, dict):
        return {key: _by_content(item, checksums) for key, item in value.items()}
    if isinstance(value, list):
        return [_by_content(item, checksums) for item in value]
    return f"sha256:{checksums[value][:16]}" if value in checksums else value


CONDITIONS, RECIPES = "conditions.json", "recipes"
# of a study that was killed before it wrote its conditions
LEFTOVERS = {RECIPES, recipe_options.DATA_FOLDER, "tokenizer", RESULTS}
CONTINUES = "Finished runs are kept: the same command continues from there."
FUNCTION = "regard.experiments.study:trained_until"
Overrides = Sequence[str]


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a study are trained: the seeds of each trial, and where, as of
    `regard.compare`.

    Raises:
        ConfigError: there are no seeds, or one twice; or no worker.
    """

    seeds: tuple[int, ...] = (1,)
    executor: str | ExecutorOptions = "local"
    workers: int = 1
    gpus: int = 0
    progress: bool = True
    device: str | None = None

    def __post_init__(self) -> None:
        check_at_least(1, workers=self.workers)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"`seeds` must be different numbers, but is {self.seeds!r}.")


@dataclass(frozen=True)
class StudyRun:
    """A training of a study.

    recipe: the checked recipe.  path, overrides: where it is read from.  params: the values that
    make the trial.  split: {"seed": 1} or {"fold": 1}.
    """

    trial: str
    folder: Path
    recipe: Any
    path: Path
    overrides: tuple[str, ...] = ()
    split: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, Json] = field(default_factory=dict)


def runs_by_seed(
    trial: str,
    path: Path,
    overrides: Overrides,
    seeds: Sequence[int],
    folder: Path,
    params: Mapping[str, Json] | None = None,
) -> list[StudyRun]:
    """The run of each seed of a trial, in the folder of a study."""
    runs = []
    for seed in seeds:
        with_seed = (*overrides, f"seed={seed}")
        recipe, run = read_recipe(path, with_seed), folder / run_name(trial, seed)
        runs.append(StudyRun(trial, run, recipe, path, with_seed, {"seed": seed}, params or {}))
    return runs


class Study:
    """The runs of a folder, and the rows of results.jsonl: what each run has reached at each part
    of its budget. `opened` makes it."""

    def __init__(self, folder: Path, options: RunOptions):
        self.folder, self.options = folder, options
        self.executor = make_executor(options.executor, options.workers, print_line)
        self.every = Lines().every if options.progress else 1e9
        self.rows: list[Row] = []

    def say(self, message: str) -> None:
        """Show a message."""
        if self.options.progress:
            Lines().say(message)

    def train(self, runs: Sequence[StudyRun], until: float = 1.0, *, strict: bool = False) -> None:
        """Train runs to a part of their budget, and add a row for each.

        Those that have ended before are not repeated, but those that have failed where `strict`,
        with which a failure is an error. Else the row of a run that has failed has `error`.

        Raises:
            ConfigError: the folder of a run holds another one, or the model that runs of this
                folder started from has changed.
            RegardError: a run has failed.
            Interrupted: after Ctrl-C; the runs in progress are saved.
        """
        starts = self._recorded_starts()
        for run in runs:  # before any is trained
            check_same_run(run.folder, run.recipe)
            model = run.recipe.model.model_dump().get("path")
            check_start(run.recipe.model, starts.get(model, {}), self.folder)
        left = {r.folder.name: r for r in runs if not self.newest(r.folder, until, strict)}
        jobs = [self._job(run, until) for run in left.values()]
        try:
            with closing(results_of(self.executor, jobs)) as results:
                for job, future in results:
                    run = left[job.name]
                    row: Row = {"run": job.name, "trial": run.trial, "params": dict(run.params)}
                    row |= {**run.split, "until": until}
                    try:
                        reached: Any = future.result()
                        row |= reached
                    except RegardError as error:
                        row[ERROR] = str(error)
                    self._append(row)
                    if ERROR in row:
                        failure = f"the run in {run.folder} has failed: {row[ERROR]}"
                        if strict:
                            raise RegardError(f"{failure}\n{CONTINUES}")
                        self.say(failure)
        except Interrupted as stopped:
            saved = ", ".join(str(run.folder) for run in left.values() if run.folder.exists())
            state = f"what was in progress is saved in {saved}" if saved else "no run was begun"
            message = f"stopped; {state}. The same command continues from there."
            raise Interrupted(message, stopped.code) from None

    def newest(self, run: Path, until: float | None = None, strict: bool = True) -> Row | None:
        """The newest row of a run, at this part of its budget.

        strict: a row of a run that has failed, or whose folder is gone, does not count.
        """
        for row in reversed(self.rows):
            if row["run"] == run.name and until in (None, row["until"]):
                counts = not strict or (ERROR not in row and run.exists())
                return row if counts else None
        return None

    def trial(self, runs: Sequence[StudyRun], until: float | None = None) -> Trial:
        """What the runs of a trial have reached at this part of their budget, or last.

        Raises:
            CheckpointError: a row is damaged.
        """
        newest = [self.newest(run.folder, until, strict=False) for run in runs]
        rows = [row for row in newest if row is not None]
        outcomes = (Outcome.of_row(row, self.folder) for row in rows if "outcome" in row)
        return Trial(runs[0].trial, rows, tuple(outcomes), dict(runs[0].params))

    def _job(self, run: StudyRun, until: float) -> Job:
        arguments: dict[str, Json] = {
            "folder": str(run.folder),
            "recipe": str(run.path),
            "overrides": run.overrides,
            "every": self.every,
            "until": until,
            "device": self.options.device,
            "label": f"{run.folder.name}: " if isinstance(self.executor, HereExecutor) else "",
        }
        threads = run.recipe.training.threads
        return Job(FUNCTION, arguments, run.folder.name, threads, self.options.gpus)

    def _recorded_starts(self) -> dict[str, dict[str, str]]:
        """The checksums of the models that runs of this folder started from, by their paths."""
        written = (read(file) for file in sorted(self.folder.glob("*/recipe.toml")))
        return {raw.text_at("model.path"): raw.run.get("start", {}) for raw in written}

    def _append(self, row: Row) -> None:
        """Write a row, and wait until it is on the disk."""
        line = json.dumps(row)
        self.rows.append(json.loads(line))  # as it is read again
        with (self.folder / RESULTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def opened(
    folder: Path, conditions: Mapping[str, Any], options: RunOptions, doing: str
) -> Iterator[Study]:
    """The study in a folder, which is locked for this process.

    conditions: what all runs share; they are written into a new folder.

    Raises:
        ConfigError: the folder was started under other conditions, or another process is `doing`
            something in it.
    """
    study = Study(folder, options)
    with locked(folder, doing):
        file, results = folder / CONDITIONS, folder / RESULTS
        if results.exists():
            whole, _, torn = results.read_bytes().rpartition(b"\n")
            study.rows = [json.loads(line) for line in whole.splitlines()]
            if torn:  # the process was killed while it wrote this line
                os.truncate(results, results.stat().st_size - len(torn))
        begun = any(ERROR not in row for row in study.rows) or any(folder.glob("*/recipe.toml"))
        if file.exists() and begun:
            check_unchanged(read_json(file), json.loads(json.dumps(conditions)), folder)
        else:
            _check_new(folder)
            write_json(file, conditions)
        yield study


def _check_new(folder: Path) -> None:
    """Raise a ConfigError where a study would begin in the folder of a run or of a model."""
    if not (folder / CONDITIONS).exists():
        check_new(folder, LEFTOVERS)


def with_tokenizer(recipes: Sequence[Any], out: Path) -> Callable[[Any, Overrides], list[str]]:
    """From a recipe and its overrides to those where [tokenizer] is the path of a shared tokenizer.

    It is trained here, unless that was done before or the recipes name one. Models that are started
    from folders have their own.
    """

    def trains(recipe: Any) -> bool:
        return recipe.tokenizer is not None and recipe.tokenizer.path is None

    tokenizer = (out / "tokenizer").absolute()
    first = next(filter(trains, recipes), None)
    if first is not None and not holds_tokenizer(tokenizer):
        first.tokenizer.build(first.data.texts).save(tokenizer)

    def exchanged(recipe: Any, overrides: Overrides) -> list[str]:
        if not trains(recipe):
            return [*overrides]
        others = [text for text in overrides if not text.startswith("tokenizer.")]
        return [*others, f"tokenizer={{path={json.dumps(str(tokenizer))}}}"]

    return exchanged


def recipe_in_file(
    path: Path | None, options: Mapping[str, Any], out: Path, names: Sequence[str] = ()
) -> Path:
    """The file with a recipe and keywords, its data in files, too.

    names: those that other files have.

    Raises:
        ConfigError: the recipe is wrong, or the folder holds other data.
    """
    _check_new(out)
    raw = recipe_options.recipe_from_keywords(path, options)
    schema = schema_of(raw)
    raw = recipe_options.with_options_in_sections(raw, schema)
    checked_recipe(recipe_options.with_placeholder_paths(raw, schema))  # before data are written
    has_runs = bool(names) or any(out.glob("*/recipe.toml"))
    with recipe_options.data_in_files(raw, schema, out, has_runs) as raw:
        recipe = checked_recipe(raw)
    if isinstance(recipe.training.epochs, DefaultEpochs):  # each run decides by its data
        training = replace(recipe.training, epochs=None)
        recipe = recipe.model_copy(update={"training": training})
    name = recipe.name or (path.stem if path else recipe.model.name)
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    file = out / RECIPES / f"{next(name for name in numbered if name not in names)}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, recipe)
    return file


def folder_of_study(path: Any, options: Mapping[str, Any], out: Any, ending: str) -> Path:
    """`out`, or runs/NAME-ENDING by the name of the recipe.

    Raises:
        ConfigError: `out` is no path, or the name cannot be a folder's.
    """
    check_out(out)
    if out is not None:
        return Path(out)
    name = options.get("name") or ("" if path is None else read(path).text_at("name"))
    return Path("runs") / f"{name_of_run(path or options.get('task', ''), name)}-{ending}"


SAMPLES = 12  # of the test data, in the report
POLL_INTERVAL = 1.0  # seconds between two checks whether another process has ended
YEAR = 3e7  # seconds


def trained_until(
    folder: str,
    recipe: str,
    overrides: Sequence[str],
    every: float,
    until: float,
    device: str | None,
    label: str = "",
) -> dict[str, Any]:
    """The job of a run: train or resume it to a part of its budget; test and measure it at the end.

    until: the part of the budget; 1 is the end.  every: seconds between messages about progress,
    each after the `label`.

    Returns the best validation score so far as "score", None where none is finite, its "goal",
    "steps" and "tokens"; at the end also "outcome", the fields of `Outcome`.
    """
    path, progress = Path(folder), WorkerProgress(every, label)
    _wait_for_other_process(path)
    finished, stop = (path / RESULT).exists(), until if until < 1 else None
    train = partial(train_recipe, read(recipe, overrides), path, device)
    if (path / "recipe.toml").exists():
        train = partial(resume, path, device=device)
    try:
        result = train(progress=progress, stop_after_fraction=stop).result
    except Paused as paused:
        return _reached(paused.goal, paused.best, paused.step, paused.tokens)
    memory = None if finished else peak_memory()
    task: Any = load(path, device=device)
    score = result.scores.get(task.goal[0])
    reached = _reached(task.goal, score, result.step, result.tokens)
    if until < 1:  # it ended before: `patience` validations without a better score
        return reached
    outcome = _measured(path, task, result, memory)
    scores = {f"valid {task.goal[0]}": score, outcome.quality_name: outcome.quality}
    shown = [f"{name} {value:.4g}" for name, value in scores.items() if value is not None]
    progress.write(" · ".join(["100%", *shown, f"{result.seconds:.0f} s of training"]))
    return reached | {"outcome": asdict(outcome)}


def _reached(goal: Sequence[str], score: float | None, steps: int, tokens: int) -> dict[str, Any]:
    return {"goal": [*goal], "score": score, "steps": steps, "tokens": tokens}


def _wait_for_other_process(folder: Path) -> None:
    """Wait while another process trains in this folder.

    It can be the job of a command that was killed: on a cluster its jobs end later than it does.
    """
    while folder.is_dir():
        try:
            with locked(folder, "training in"):
                return
        except ConfigError as error:
            print(f"{error} This one waits.", file=sys.stderr, flush=True)
        time.sleep(POLL_INTERVAL)


def _measured(folder: Path, task: Any, result: Result, memory: int | None) -> Outcome:
    """What a finished run has reached, and what it cost."""
    recipe: Any = read_recipe(folder / "recipe.toml")
    cost = estimate(folder / "recipe.toml", measure=False).totals()
    name, direction = task.goal
    saved = RunFolder(folder).saved()  # [] where nothing but counting was done
    return Outcome(
        scores=_test_scores(task, recipe, result),
        goal=(name, direction, result.scores.get(name)),
        curves=curves_of(folder, task.items),
        steps=result.step,
        tokens=result.tokens,
        seconds=result.seconds,
        parameters=cost["parameters"] or sum(p.numel() for p in task.module.parameters()),
        flops=cost["flops_per_item"] * result.tokens,
        memory=memory,
        precision=read_json(saved[-1] / FACTS, Facts, finite=False).precision if saved else "",
        threads=recipe.training.threads or torch.get_num_threads(),
        samples=task.test_samples(recipe)[:SAMPLES],
        items=task.items,
        valid={**result.scores},
    )


def _test_scores(task: Task, recipe: Any, result: Result) -> list[dict[str, Any]]:
    """Those of the training; they are measured where it ended without them."""
    if result.test_scores:
        return [
            {"name": name, "value": math.nan if value is None else value, "signature": signature}
            for name, signature in result.test_signatures.items()
            for value in [result.test_scores[name]]
        ]
    return [
        {"name": score.name, "value": score.value, "signature": score.signature}
        for score in task.test(recipe)
    ]


def curves_of(folder: Path, items: str) -> dict[str, list[tuple[float, float]]]:
    """The losses and scores of metrics.jsonl against the items seen."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for event in read_events(folder):
        for key, value in event.items():
            if key.startswith(("train/", "valid/")) and value is not None and items in event:
                curves.setdefault(key, []).append((event[items], value))
    return curves


def peak_memory() -> int:
    """Peak memory of this process in bytes: of the GPU, where it has used one."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:  # on Linux getrusage includes the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class WorkerProgress(Silent):
    """Progress for the process that waits; the results repeat what is only said.

    every: seconds between two lines; a year means none.  label: what each line begins with.
    """

    def __init__(self, every: float, label: str = ""):
        super().__init__()
        self.every, self.label = every, label

    def _print(self, line: str) -> None:
        super()._print(self.label + line)

    def write(self, text: str) -> None:
        """A line that tells how far the run is."""
        if self.every < YEAR:
            self._print(text)

    def show(self, status: Any) -> None:
        rate, left = f"{status.tokens_per_s:,.0f} {status.items}/s", f"{clock(status.left)} left"
        self.write(f"{status.fraction:.0%} · loss {status.loss:.2f} · {rate} · {left}")
