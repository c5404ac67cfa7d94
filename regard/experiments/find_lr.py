"""A learning rate for a recipe, by the range test of `regard.training.range_test`.

found = find_lr("recipe.toml")
found.suggestion
found.picture.save("rates.html")
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from regard.experiments import keywords
from regard.experiments.keyword_types import RecipeOptions
from regard.experiments.recipe_options import checked_recipe, schema_of
from regard.experiments.run_folder import check_out
from regard.experiments.training_plan import plan
from regard.file_writing import write_json
from regard.recipe import RawRecipe
from regard.training.options import ScheduleOptions
from regard.training.progress import Progress, check_progress, display_of
from regard.training.range_test import RangeTest, check_range, range_test
from regard.training.schedules import noam
from regard.visual.curves import Curves, Series

DIGITS = 2  # significant digits of a suggestion
HIGHEST = 2  # losses above the first one times this are drawn at this height
PICTURE, FACTS = "find-lr.html", "find-lr.json"


@dataclass(frozen=True)
class FoundRate:
    """The result of a range test for a recipe.

    test: the rates and losses.
    factor: the largest factor by which the recipe's schedule multiplies `learning_rate`: 1 for all
        schedules but noam.
    """

    test: RangeTest
    factor: float = 1.0

    @property
    def suggestion(self) -> float | None:
        """The `learning_rate` to try first; None where the loss never falls."""
        return self._option(self.test.suggestion)

    @property
    def steepest(self) -> float | None:
        """The `learning_rate` where the loss falls fastest."""
        return self._option(self.test.steepest)

    @property
    def minimum(self) -> float | None:
        """The `learning_rate` with the lowest loss; with higher ones the loss grows."""
        return self._option(self.test.minimum)

    def _option(self, rate: float | None) -> float | None:
        """The `learning_rate` of the recipe that gives this rate at the peak of the schedule."""
        return None if rate is None else float(f"{rate / self.factor:.{DIGITS}g}")

    @cached_property
    def picture(self) -> Curves:
        """The loss against the logarithm of the rate, with the suggestion."""
        means = self.test.smoothed
        logs = [math.log10(rate) for rate in self.test.rates]
        most = HIGHEST * means[0] if means else 0.0  # else the last losses, which diverge, hide all
        series = [
            Series(name, tuple((x, min(y, most)) for x, y in zip(logs, ys, strict=True)))
            for name, ys in (("loss", self.test.losses), ("smoothed", means))
        ]
        if (rate := self.test.suggestion) is not None:
            nearest = min(range(len(logs)), key=lambda i: abs(logs[i] - math.log10(rate)))
            point = ((math.log10(rate), means[nearest]),)
            series.append(Series(f"suggestion, {rate:.{DIGITS}g}", point, joined=False))
        title = "Loss while the learning rate grows"
        return Curves(tuple(series), title, "log10 of the learning rate", "loss")

    def facts(self) -> dict[str, Any]:
        """The contents of find-lr.json."""
        return {
            "learning_rate": self.suggestion,
            "steepest": self.steepest,
            "minimum": self.minimum,
            "diverged": self.test.diverged,
            "rates": list(self.test.rates),
            "losses": list(self.test.losses),
        }

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write find-lr.html, a chart, and find-lr.json; returns the path of the chart."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FACTS, self.facts())
        return self.picture.save(folder / PICTURE)

    def __str__(self) -> str:
        tried = len(self.test.rates)
        if self.suggestion is None:
            return f"no learning rate is suggested: the loss did not fall in {tried} steps"
        end = "the loss diverged" if self.test.diverged else "the end of the range"
        return (
            "[training.optimizer]\n"
            f"learning_rate = {self.suggestion!r}\n"
            f"# The loss falls fastest at {self.steepest:g} and is lowest at {self.minimum:g};\n"
            f"# {tried} steps, to {end} at {self.test.rates[-1] / self.factor:.{DIGITS}g}."
        )

    def _repr_html_(self) -> str:
        return self.picture._repr_html_()


def find_lr(
    recipe: str | PathLike[str] | None = None,
    *,
    start_lr: float = 1e-7,
    end_lr: float = 10.0,
    num_steps: int = 100,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
    **options: Unpack[RecipeOptions],
) -> FoundRate:
    """Suggest a learning rate: train for some steps while the rate grows from `start_lr` to
    `end_lr`.

    The steps are those of `regard.train` (batches, accumulation, clipping, dropout, optimizer);
    the recipe's learning rate, schedule and limits (`epochs`, `max_steps`) have no effect. The test
    ends early if the loss diverges. No run is written or changed, and the weights are discarded.

        find_lr("recipe.toml").suggestion
        find_lr(task="classification", model="a folder", train=dataframe)

    Args:
        recipe, device, progress, options: as for `regard.train`.
        start_lr, end_lr: the learning rates of the first and the last step.
        num_steps: the number of steps.
        out: a folder for find-lr.html and find-lr.json; None: nothing is written.

    Raises:
        ConfigError: not 0 < start_lr < end_lr < infinity, or `num_steps` is less than 20.
        Others as `regard.train`.
    """
    if recipe is None and not {"training", "epochs", "max_steps"} & options.keys():
        options["max_steps"] = num_steps  # the length has no effect, but a recipe must state it
    raw = keywords.recipe_from_keywords(recipe, options)
    return find_lr_of_recipe(raw, start_lr, end_lr, num_steps, out, device, progress)


def find_lr_of_recipe(
    raw: RawRecipe,
    start_lr: float = 1e-7,
    end_lr: float = 10.0,
    num_steps: int = 100,
    out: str | PathLike[str] | None = None,
    device: str | None = None,
    progress: bool | Progress = True,
) -> FoundRate:
    """As `find_lr`, for a recipe that was read."""
    check_progress(progress)
    check_range(start_lr, end_lr, num_steps)
    check_out(out)
    schema = schema_of(raw)
    raw = keywords.with_options_in_sections(raw, schema)
    checked_recipe(keywords.with_placeholder_paths(raw, schema))
    with TemporaryDirectory() as folder, closing(display_of(progress)) as shown:
        with keywords.data_in_files(raw, schema, Path(folder)) as raw:
            checked = checked_recipe(raw)
            with raw.locating(type(checked)):
                task: Any = plan(checked, device=device).task
                found = range_test(
                    task,
                    checked.training,
                    shown,
                    seed=checked.seed,
                    start=start_lr,
                    end=end_lr,
                    steps=num_steps,
                )
    rate = FoundRate(found, _largest_factor(checked.training.schedule))
    if out is not None:
        rate.save(out)
    return rate


def _largest_factor(schedule: ScheduleOptions) -> float:
    """The largest factor by which a schedule multiplies the rate."""
    if schedule.name != "noam":
        return 1.0
    return noam(round(schedule.warmup), schedule.d_model, schedule.warmup)
