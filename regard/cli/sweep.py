"""sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.cli.console import say, show_drawn
from regard.cli.options import AsJson, Quiet, with_executor
from regard.cli.train import Gpus, Overrides, numbers_of
from regard.errors import ConfigError
from regard.executors.protocol import ExecutorOptions


@with_executor
def sweep(
    recipe: Annotated[Path, Argument(help="A TOML file.")],
    overrides: Overrides = None,
    over: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUES",
            help="An option and its values: 128,256, a range 1e-4..1e-2, or 5 points of a range, "
            "1e-4..1e-2:5. Can be given several times.",
        ),
    ] = None,
    by: Annotated[
        str, Option(help="The method: grid, random, successive-halving or ray-tune:SEARCHER.")
    ] = "grid",
    trials: Annotated[
        int | None, Option(help="The number of random combinations of values; default: 16.")
    ] = None,
    rungs: Annotated[
        int, Option(help="How often successive halving stops the worse half of the trials.")
    ] = 2,
    seeds: Annotated[str, Option(help="One run of each trial for each seed: 1,2,3.")] = "1",
    draw_seed: Annotated[int, Option(help="The seed of the random combinations.")] = 1,
    out: Annotated[Path | None, Option(help="The folder; default: runs/NAME-sweep.")] = None,
    workers: Annotated[int, Option(help="How many runs at once.")] = 1,
    gpus: Gpus = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    *,
    executor: ExecutorOptions,
) -> None:
    """Train a recipe with many values of its options; rank them by their validation scores.

    After an interruption, the same command continues.
    """
    from regard.experiments.sweep import sweep as run

    found = run(
        recipe,
        overrides or (),
        over=_values_by_name(over or ()),
        by=by,
        trials=trials,
        rungs=rungs,
        seeds=numbers_of(seeds),
        draw_seed=draw_seed,
        out=out,
        executor=executor,
        workers=workers,
        gpus=gpus,
        progress=not quiet,
    )
    show_drawn(found.facts(), found.table, as_json)
    if found.run is not None:
        say(f"the best run: {found.run}")
    say(f"the report: {found.folder / 'report.html'}")


def _values_by_name(over: Sequence[str]) -> dict[str, str]:
    """The values of each option.

    Raises:
        ConfigError: a text is not NAME=VALUES, or two have the same name.
    """
    found: dict[str, str] = {}
    for text in over:
        name, equals, values = map(str.strip, text.partition("="))
        if not equals or not name or not values:
            raise ConfigError(
                f"`--over` must be NAME=VALUES, such as model.d_model=128,256, but is {text!r}."
            )
        if name in found:
            raise ConfigError(
                f"`--over {name}` is given twice. Give all values at once: "
                f"--over {name}={found[name]},{values}"
            )
        found[name] = values
    return found
