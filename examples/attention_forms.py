"""Forms of attention by one recipe: python examples/attention_forms.py [FORM...] [NAME=VALUE...]

The recipe is recipes/attention-forms.toml, a small LSTM translator from English to French. Each
form of docs/reports/attention-forms.md is trained on the same tokens, one after the other. The
table is printed, and runs/attention-forms/report.html shows the curves. Interrupted, it goes on
where it was stopped.

    python examples/attention_forms.py dot local-p training.tokens=100_000    two of them, shorter

Translators of other kinds follow, whose recipes have the same data, tokenizer and tokens.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from regard.experiments.compare import compare_files
from regard.experiments.results import StudyResults

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/attention-forms.toml"
# Name of a row -> options of the recipe's section [model] that replace its own; with another `name`
# they are the whole section.
FORMS: dict[str, dict[str, str | int | float]] = {
    "none": {"attention": "none"},
    "dot": {"attention": "dot"},
    "scaled-dot": {"attention": "scaled-dot"},
    "general": {},
    "additive": {"attention": "additive"},
    "location": {"attention": "location"},
    "cosine": {"attention": "cosine"},
    "content-based": {"attention": "content-based"},
    "local-m": {"window": "local-m", "half_width": 2},
    "local-p": {"window": "local-p", "half_width": 2},
    "hard": {"selection": "hard"},
    "hard-expected": {"selection": "hard-expected"},
}
# Name of a row -> the recipe of another translator
OTHERS = {name: f"tatoeba-{name}.toml" for name in ("rnnsearch", "transformer", "conv", "bytenet")}


def main(
    forms: Sequence[str], overrides: Sequence[str], out: Path = Path("runs/attention-forms")
) -> StudyResults:
    """Train a model with each form of attention, and compare them."""
    folder = out.with_name(f"{out.name}-recipes")
    folder.mkdir(parents=True, exist_ok=True)
    found = compare_files([variant(form, folder) for form in forms], overrides, out=out)
    found.picture().show()
    return found


def variant(form: str, folder: Path) -> Path:
    """The recipe with another form of attention, and paths that hold in its folder; or that of
    another translator.
    """
    if form in OTHERS:
        return ROOT / "recipes" / OTHERS[form]
    text = RECIPE.read_text(encoding="utf-8")
    own = {} if "name" in FORMS[form] else tomllib.loads(text)["model"]
    lines = (f"{name} = {json.dumps(value)}" for name, value in (own | FORMS[form]).items())
    section = "[model]\n" + "\n".join(lines) + "\n"
    text = re.sub(
        r"(?s)\[model\]\n.*?\n(?=\n\[)", section, text.replace('"general"', f'"{form}"', 1)
    )
    path = folder / f"{form}.toml"
    path.write_text(text.replace('"../', f'"{ROOT.as_posix()}/'), encoding="utf-8")
    return path


if __name__ == "__main__":
    options = [word for word in sys.argv[1:] if "=" in word]
    main([word for word in sys.argv[1:] if "=" not in word] or [*FORMS, *OTHERS], options)
