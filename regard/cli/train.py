"""train, resume, find-lr, cross-validate, compare."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from typer import Argument, Option

from regard.cli.console import say, show, show_drawn
from regard.cli.options import AsJson, Device, On, Quiet
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.training import Result

Overrides = Annotated[
    list[str] | None, Argument(metavar="NAME=VALUE", help="Options of the recipe.")
]
Out = Annotated[Path | None, Option(help="The run's folder; runs/NAME without it.")]
RayOnly = Annotated[str | None, Option(help="Train on a Ray cluster: ray or ray://ADDRESS.")]
RayWorkers = Annotated[int | None, Option(min=1, help="With --on: how many processes.")]
Gpus = Annotated[
    int, Option(min=0, help="GPUs reserved for each run; 0: runs use those that they find.")
]


class RayOptions(TypedDict):
    """Of a training on Ray."""

    on: str
    workers: int
    show: Literal["none", "auto"]


def train(
    recipe: Annotated[Path, Argument(help="A TOML file.")],
    overrides: Overrides = None,
    out: Out = None,
    device: Device = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what it would cost.")] = False,
    devices: Annotated[
        int | None,
        Option(min=1, help="With --dry-run: the number of GPUs to shard the training over."),
    ] = None,
    on: RayOnly = None,
    workers: RayWorkers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train what a recipe asks for, in a new run folder."""
    _check_workers(on, workers)
    if devices is not None and not dry_run:
        raise ConfigError("--devices would be without effect: it belongs to --dry-run.")
    if dry_run:
        if device is not None:
            raise ConfigError("--device would be without effect: --dry-run measures on the CPU.")
        from regard.experiments.estimate import estimate

        found = estimate(recipe, overrides or (), devices=devices)
        show(found.facts(), found.text(), as_json)
        return
    if on is not None:
        from regard.experiments.ray_training import train_on_ray

        more: RayOptions = {"on": on, "workers": workers or 1, "show": progress_mode(quiet)}
        run = train_on_ray(recipe, overrides or (), out=out, device=device, **more)
    else:
        from regard.experiments import runs

        run = runs.train(recipe, overrides or (), out=out, device=device, show=progress_mode(quiet))
    _show_result(run.folder, run.result, as_json)


def resume(
    run: Annotated[Path, Argument(help="A run's folder.")],
    data_root: Annotated[Path | None, Option(help="Where the data was moved to.")] = None,
    device: Device = None,
    on: RayOnly = None,
    workers: RayWorkers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its newest undamaged checkpoint, as if it had never stopped.

    For a finished run, model/ and report.html are written where they are missing.
    """
    _check_workers(on, workers)
    if on is not None:
        if data_root is not None:
            raise ConfigError("--data-root has no effect with --on: leave out one of them.")
        from regard.experiments.ray_training import resume_on_ray

        more: RayOptions = {"on": on, "workers": workers or 1, "show": progress_mode(quiet)}
        result = resume_on_ray(run, device=device, **more).result
    else:
        from regard.experiments import runs

        result = runs.resume(run, data_root=data_root, device=device, show=progress_mode(quiet))
    _show_result(run, result, as_json)


def _check_workers(on: str | None, workers: int | None) -> None:
    """Raises ConfigError where `--workers` would be without effect."""
    if workers is not None and on is None:
        raise ConfigError(
            "--workers has an effect with --on ray only. On this machine, start several processes "
            "by: "
            f"torchrun --standalone --nproc-per-node {workers} -m regard train RECIPE"
        )


def progress_mode(quiet: bool) -> Literal["none", "auto"]:
    """How a training shows its progress; see `regard.progress.Show`."""
    return "none" if quiet else "auto"


def _show_result(folder: Path, result: Result, as_json: bool) -> None:
    from regard.training.distributed.torchrun import is_first

    if not is_first():  # of several processes one prints
        return
    found = result.labelled_scores().items()
    scores = [f"{name} {value:.4g}" for name, value in found if value is not None]
    text = "  ".join([f"{folder}", *scores, f"step {result.step:,} ({result.reason})"])
    show({"run": folder, **asdict(result)}, text, as_json)


def find_lr(
    recipe: Annotated[Path, Argument(help="A TOML file.")],
    overrides: Overrides = None,
    start: Annotated[float, Option(help="The rate of the first step.")] = 1e-7,
    end: Annotated[float, Option(help="The rate of the last step.")] = 10.0,
    steps: Annotated[int, Option(help="How many steps.")] = 100,
    out: Annotated[
        Path | None, Option(help="The folder of the chart; runs/NAME-find-lr without it.")
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Suggest a learning rate: train while the rate grows, and draw the loss.

    Prints the lines of the recipe. No run is written or changed.
    """
    from regard.experiments import runs
    from regard.experiments.find_lr import find_lr as run

    name = runs.name_of_run(recipe, runs.read_recipe(recipe, overrides or ()).name)
    folder = out or Path("runs") / f"{name}-find-lr"
    found = run(
        recipe,
        overrides or (),
        start=start,
        end=end,
        test_steps=steps,
        out=folder,
        device=device,
        show=progress_mode(quiet),
    )
    show(found.facts(), str(found), as_json)
    say(f"the chart: {folder / 'find-lr.html'}")


def cross_validate(
    recipe: Annotated[Path, Argument(help="A TOML file.")],
    overrides: Overrides = None,
    folds: Annotated[int, Option(help="How many parts of the training data.")] = 5,
    out: Annotated[Path | None, Option(help="The folder; runs/NAME-folds without it.")] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train once for each fold of the training data; print the mean and the spread of the scores.

    The same command again continues where it was stopped.
    """
    from regard.experiments.cross_validation import cross_validate as run

    given = overrides or ()
    found = run(recipe, given, folds=folds, out=out, device=device, show=progress_mode(quiet))
    show_drawn(found.facts(), found.table, as_json)
    say(f"the report: {found.folder / 'report.html'}")


def compare(
    recipes: Annotated[
        list[str], Argument(metavar="RECIPE", help="Recipes, and NAME=VALUE for all of them.")
    ],
    seeds: Annotated[str, Option(help="One run of each recipe for each seed: 1,2,3.")] = "1",
    out: Annotated[Path, Option(help="The comparison's folder.")] = Path("runs/compare"),
    on: On = "local",
    workers: Annotated[int, Option(help="How many runs at once.")] = 1,
    gpus: Gpus = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train several recipes under equal conditions; print a table and write a report."""
    from regard.experiments.compare import compare as run

    overrides = [one for one in recipes if "=" in one and not Path(one).exists()]
    paths = [one for one in recipes if one not in overrides]
    found = run(
        paths,
        overrides,
        seeds=numbers_of(seeds),
        out=out,
        on=on,
        workers=workers,
        gpus=gpus,
        show=progress_mode(quiet),
    )
    show_drawn(found.facts(), found.picture, as_json)
    say(f"the report: {out / 'report.html'}")


def numbers_of(seeds: str) -> list[int]:
    """The seeds of `--seeds`."""
    numbers = [part.strip() for part in seeds.split(",")]
    if not all(part.isdecimal() for part in numbers):
        raise ConfigError(f"`--seeds` must be whole numbers separated by commas, but is {seeds!r}.")
    return list(map(int, numbers))
