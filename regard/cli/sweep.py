"""sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from regard.cli.console import say, show_drawn
from regard.cli.options import AsJson, Quiet, with_executor
from regard.cli.train import Gpus, Overrides, RecipeName, numbers_of
from regard.errors import ConfigError
from regard.executors.protocol import ExecutorOptions


@with_executor
def sweep(
    recipe: RecipeName,
    overrides: Overrides = None,
    param_space: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUES",
            help="An option and its values: 128,256, a range 1e-4..1e-2, or 5 points of a range, "
            "1e-4..1e-2:5; may be repeated.",
        ),
    ] = None,
    strategy: Annotated[
        str,
        Option(
            metavar="STRATEGY",
            help="Choose the trials by grid, random, tpe or successive-halving.",
        ),
    ] = "grid",
    trials: Annotated[
        int | None, Option(help="Draw N combinations of values, but for a grid; default: 16.")
    ] = None,
    num_rungs: Annotated[
        int, Option(help="Stop the worse half of the trials N times (successive halving).")
    ] = 2,
    seeds: Annotated[
        str, Option(metavar="SEEDS", help="Train each trial once for each seed, such as 1,2,3.")
    ] = "1",
    draw_seed: Annotated[int, Option(help="Draw the values with this seed.")] = 1,
    out: Annotated[
        Path | None, Option(help="The folder of the sweep; default: runs/NAME-sweep.")
    ] = None,
    workers: Annotated[int, Option(help="Train N runs at the same time.")] = 1,
    gpus: Gpus = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    *,
    executor: ExecutorOptions,
) -> None:
    """Train a recipe with many values of its options.

    The trials are ranked by their validation scores.

    After an interruption, the same command continues.
    """
    from regard.experiments.study import RunOptions
    from regard.experiments.sweep import sweep_file

    options = RunOptions(tuple(numbers_of(seeds)), executor, workers, gpus, not quiet)
    drawn = strategy, trials, num_rungs, draw_seed
    param_spaces = _values_by_name(param_space or ())
    found = sweep_file(recipe, overrides or (), param_spaces, drawn, options, out)
    show_drawn(found.facts(), found.table, as_json)
    if found.run is not None:
        say(f"the best run: {found.run}")
    say(f"the report: {found.folder / 'report.html'}")


def _values_by_name(texts: Sequence[str]) -> dict[str, str]:
    """The values of each option.

    Raises:
        ConfigError: a text is not NAME=VALUES, or two have the same name.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = map(str.strip, text.partition("="))
        if not equals or not name or not values:
            raise ConfigError(
                "`--param-space` must be NAME=VALUES, such as model.d_model=128,256, but is "
                f"{text!r}."
            )
        if name in found:
            raise ConfigError(
                f"`--param-space {name}` is given twice. Give all values at once: "
                f"--param-space {name}={found[name]},{values}"
            )
        found[name] = values
    return found
