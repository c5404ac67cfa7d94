"""train, resume, cross-validate, compare, sweep."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from regard.cli import console, options
from regard.cli.options import AsJson, Device, Quiet, StudyFlags, check_none, flag

if TYPE_CHECKING:
    from regard.training import Result


Overrides = Annotated[
    list[str] | None,
    Argument(metavar="NAME=VALUE", help="Options of the recipe that replace those in its file."),
]
RecipeName = Annotated[
    Path,
    Argument(help="The name of a recipe (regard list recipes), or its file."),
]
Out = Annotated[
    Path | None, Option(help="The folder of the run; default: runs/NAME. --dry-run writes none.")
]
Seeds = Annotated[str, Option(help="Train once for each of these seeds, such as 1,2,3.")]
with_study = options.with_flags("study", StudyFlags)


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Out = None,
    device: Device = None,
    dry_run: bool = flag("Print what the training would cost, and do not train.", False),
    devices: int | None = flag("With --dry-run: shard the training over N GPUs.", min=1),
    force: bool = flag("Train again in the folder of an earlier run, and replace it.", False),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe, in a new run folder."""
    if out is None:
        check_none("without --out, the folder of a run that is replaced", {"force": force})
    if not dry_run:
        check_none("without --dry-run", {"devices": devices})
    else:
        check_none("with --dry-run", {"device": device, "force": force})
        from regard.experiments.estimate import estimate

        costs = estimate(recipe, overrides or (), devices=devices)
        console.show(costs.facts(), costs.text(), as_json)
        return
    if force and out is not None and (out / "recipe.toml").exists():
        from regard.experiments.recipe_options import checked_recipe
        from regard.recipe import read

        checked_recipe(read(recipe, overrides or ()))  # a wrong recipe replaces nothing
        shutil.rmtree(out)
    from regard.experiments import runs
    from regard.recipe import read

    run = runs.train_recipe(read(recipe, overrides or ()), out, device, not quiet)
    _show_result(run.folder, run.result, as_json)


def resume(
    run: Annotated[Path, Argument(help="The folder of the run.")],
    overrides: Annotated[
        list[str] | None,
        Argument(metavar="NAME=PATH", help="Data that have moved: data.train=NEW."),
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its newest intact checkpoint.

    It ends as if it had never stopped.

    For a finished run, report.html is written where it is missing.
    """
    from regard.experiments import runs

    resumed = runs.resume(run, overrides or (), device=device, progress=not quiet)
    _show_result(resumed.folder, resumed.result, as_json)


def _show_result(folder: Path, result: Result, as_json: bool) -> None:
    from regard.training.distributed import is_first

    if not is_first():  # of several processes one prints
        return
    labelled = result.labelled_scores().items()
    scores = [f"{name} {value:.4g}" for name, value in labelled if value is not None]
    end = f"ended at step {result.step:,} ({result.reason})"
    text = "  ".join([f"{folder}", *scores, result.weights, end])
    console.show({"run": folder, **asdict(result)}, text, as_json)


@options.with_flags(
    "study",
    StudyFlags,
    executor={"help": "Where the runs are: here, local, slurm or ray.", "default": "here"},
)
def cross_validate(
    recipe: RecipeName,
    overrides: Overrides = None,
    folds: int = flag("Divide the training data into N parts.", 5),
    out: Path | None = flag("The folder of the runs; default: runs/NAME-folds."),
    device: Device = None,
    as_json: AsJson = False,
    *,
    study: StudyFlags,
) -> None:
    """Train once for each fold of the training data.

    Prints the mean and the spread of the scores.

    The same command again continues where it was stopped.
    """
    from regard.experiments.compare import cross_validate_file

    run_options = study.options(device=device)
    scores = cross_validate_file(recipe, overrides or (), folds, run_options, out)
    console.show_drawn(scores.facts(), scores.picture, as_json)
    console.say(f"the report: {scores.folder / 'report.html'}")


@with_study
def compare(
    recipes: Annotated[
        list[str],
        Argument(
            metavar="RECIPE",
            help="Names or files of recipes, or how several names begin (road), and NAME=VALUE for "
            "all of them.",
        ),
    ],
    seeds: Seeds = "1",
    out: Path = flag("The folder of the comparison.", Path("runs/compare")),
    data: Path | None = flag("Train language models on this text; parts of it are held out."),
    budget: str = flag("Read as many tokens as fit into a time on this machine: 90s, 20m, 2h.", ""),
    as_json: AsJson = False,
    *,
    study: StudyFlags,
) -> None:
    """Train recipes under equal conditions, and compare them.

    Prints a table and writes a report.
    """
    from regard.experiments.compare import compare_files

    overrides = [text for text in recipes if "=" in text and not Path(text).exists()]
    paths = [text for text in recipes if text not in overrides]
    comparison = compare_files(paths, overrides, study.options(seeds), out, budget, data)
    console.show_drawn(comparison.facts(), comparison.picture, as_json)
    console.say(f"the report: {out / 'report.html'}")


@with_study
def sweep(
    recipe: RecipeName,
    overrides: Overrides = None,
    param_space: list[str] | None = flag(
        "An option and its values: 128,256, a range 1e-4..1e-2, or 5 points of a range, "
        "1e-4..1e-2:5; may be repeated.",
        metavar="NAME=VALUES",
    ),
    strategy: str = flag("Choose the trials by grid, random, tpe or successive-halving.", "grid"),
    trials: int | None = flag("Draw N combinations of values, but for a grid; default: 16."),
    num_rungs: int = flag("Stop the worse half of the trials N times (successive halving).", 2),
    seeds: Seeds = "1",
    draw_seed: int = flag("Draw the values with this seed.", 1),
    out: Path | None = flag("The folder of the sweep; default: runs/NAME-sweep."),
    as_json: AsJson = False,
    *,
    study: StudyFlags,
) -> None:
    """Train a recipe with many values of its options.

    The trials are ranked by their validation scores.

    After an interruption, the same command continues.
    """
    from regard.experiments.sweep import sweep_file

    drawn = strategy, trials, num_rungs, draw_seed
    spaces, run_options = _values_by_name(param_space or ()), study.options(seeds)
    results = sweep_file(recipe, overrides or (), spaces, drawn, run_options, out)
    console.show_drawn(results.facts(), results.table, as_json)
    if results.run is not None:
        console.say(f"the best run: {results.run}")
    console.say(f"the report: {results.folder / 'report.html'}")


def _values_by_name(texts: Sequence[str]) -> dict[str, str]:
    """The values of each option; those that are given apart belong together.

    Raises:
        ConfigError: a text is not NAME=VALUES.
    """
    values_of: dict[str, str] = {}
    for text in texts:
        name, values = options.parts_of(
            "--param-space", text, r" *([^ =]+) *= *(.+)", "model.d_model=128,256"
        )
        values_of[name] = f"{values_of[name]},{values}" if name in values_of else values
    return values_of
