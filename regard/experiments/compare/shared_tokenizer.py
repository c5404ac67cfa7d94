"""The tokenizer that the runs of a comparison share, and the conditions of its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.experiments.compare.conditions import check_unchanged
from regard.experiments.training_plan import holds_tokenizer
from regard.file_writing import write_json
from regard.schema import read_json

CONDITIONS = "conditions.json"


def shared_tokenizer(
    recipes: Sequence[Any], shared: Mapping[str, Any], out: Path
) -> Callable[[Any, Sequence[str]], list[str]]:
    """From a recipe and its overrides to those where [tokenizer] is the path of a shared tokenizer.

    It is trained here, unless that was done before or the recipes name one. Models that are started
    from folders have their own. The conditions are written into the folder.

    Raises:
        ConfigError: the folder was started under other conditions.
    """

    def trains(recipe: Any) -> bool:
        return recipe.tokenizer is not None and recipe.tokenizer.path is None

    conditions, tokenizer = out / CONDITIONS, (out / "tokenizer").absolute()
    if conditions.exists():
        check_unchanged(read_json(conditions), json.loads(json.dumps(shared)), out)
    first = next(filter(trains, recipes), None)
    if first is not None and not (conditions.exists() and holds_tokenizer(tokenizer)):
        first.tokenizer.build(first.data.texts).save(tokenizer)
    if not conditions.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(conditions, shared)

    def with_tokenizer(recipe: Any, overrides: Sequence[str]) -> list[str]:
        if not trains(recipe):
            return [*overrides]
        others = [one for one in overrides if not one.startswith("tokenizer.")]
        return [*others, f"tokenizer={{path={json.dumps(str(tokenizer))}}}"]

    return with_tokenizer
