"""The tokenizer that the runs of a comparison share, and the conditions of its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.experiments.compare.conditions import check_unchanged
from regard.experiments.training_plan import holds_tokenizer
from regard.file_writing import write_json
from regard.schema import read_json

CONDITIONS = "conditions.json"


def with_shared_tokenizer(
    recipe: Any, overrides: Sequence[str], shared: Mapping[str, Any], out: Path
) -> list[str]:
    """The overrides of all runs: [tokenizer] is the path of the tokenizer that they share.

    It is trained here, unless that was done before or the recipe names one. Models that are started
    from folders have their own. The conditions are written into the folder.

    Raises:
        ConfigError: the folder was started under other conditions.
    """
    trained = recipe.tokenizer is not None and recipe.tokenizer.path is None
    conditions, tokenizer = out / CONDITIONS, (out / "tokenizer").absolute()
    if conditions.exists():
        check_unchanged(read_json(conditions), json.loads(json.dumps(shared)), out)
    if trained and not (conditions.exists() and holds_tokenizer(tokenizer)):
        recipe.tokenizer.build(recipe.data.texts).save(tokenizer)
    if not conditions.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(conditions, shared)
    if not trained:
        return list(overrides)
    others = [one for one in overrides if not one.startswith("tokenizer.")]
    return [*others, f"tokenizer={{path={json.dumps(str(tokenizer))}}}"]
