"""The demo in miniature, and the sentences that are shipped with it."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import pytest

from regard.experiments.study import RunOptions

ROOT = Path(__file__).parents[1]
DATA = ROOT / "examples/tatoeba"
sys.path[:0] = [str(ROOT / "examples"), str(DATA)]

import demo  # noqa: E402
import excerpt  # noqa: E402

TINY = (
    "training.tokens=800",
    "training.threads=1",
    "training.precision=float32",
    "training.validation.eval_steps=1000",
    "evaluation.valid_sentences=4",
    "decoding.max_tokens=6",
    "model.d_model=16",
)


def pairs(part: str) -> list[tuple[str, ...]]:
    with gzip.open(DATA / f"{part}.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
        return [tuple(line.rstrip("\n").split("\t")) for line in file]


@pytest.fixture(scope="module")
def parts():
    return {part: pairs(part) for part in ("train", "valid", "test")}


# ----------------------------------------------------------------------------------- data


def test_no_sentence_is_in_two_parts(parts):
    def told(part: str, side: int) -> set[str]:
        return {re.sub(r"\W+", " ", row[side]).strip().lower() for row in parts[part]}

    for side in (0, 1):
        train, valid, test = (told(part, side) for part in ("train", "valid", "test"))
        assert not train & valid and not train & test and not valid & test


def test_notice_and_readme_name_the_source_of_the_sentences():
    for page in (ROOT / "NOTICE", DATA / "README.md"):
        text = page.read_text(encoding="utf-8")
        for part in ("Tatoeba", "manythings.org/anki", "creativecommons.org/licenses/by/2.0/fr"):
            assert part in text, f"{page.name} does not name {part}"


@pytest.mark.slow("examples/tatoeba")
def test_the_same_source_gives_the_same_excerpt(shared, parts):
    import zipfile

    with zipfile.ZipFile(shared("tatoeba_fra_eng/fra-eng.zip")) as archive:
        lines = archive.read("fra.txt").decode("utf-8").splitlines()
    assert excerpt.parts(lines) == parts


def test_families_are_pairs_that_share_a_sentence():
    rows = [("Go on!", "Va !"), ("go on", "Allez !"), ("Walk.", "ALLEZ"), ("Stop.", "Halte !")]
    found = sorted(map(sorted, excerpt.families(rows)))
    assert found == sorted([sorted(rows[:3]), rows[3:]])


# ----------------------------------------------------------------------------------- demo


def test_the_shown_sentences_are_in_the_test_part(parts):
    test = {english for english, _ in parts["test"]}
    assert {*demo.UNSEEN, *demo.LOOKED_AT, demo.SEARCHED, demo.PROMPT[0]} <= test


def test_the_demo_in_miniature_prints_and_draws(tmp_path, monkeypatch, capfd):
    here = lambda workers, progress: RunOptions(executor="here", progress=progress)  # noqa: E731
    monkeypatch.setattr(demo, "RunOptions", here)
    monkeypatch.setattr(demo, "UNSEEN", demo.UNSEEN[:2])
    monkeypatch.setattr(demo, "LOOKED_AT", demo.LOOKED_AT[:1])
    for part, count in (("train", 300), ("valid", 20), ("test", 20)):
        text = "".join(f"{e}\t{f}\n" for e, f in pairs(part)[:count])
        (tmp_path / f"{part}.tsv").write_text(text, encoding="utf-8")
    data = [f'data.{part}=["{tmp_path / part}.tsv"]' for part in ("train", "valid", "test")]
    given = (*TINY, *data, "tokenizer.vocab_size=200")
    out = tmp_path / "demo"
    assert demo.main(demo.RECIPES, given, out, 0.0, progress=False) == 0

    said = capfd.readouterr().out
    for told in ("lstm-attention", "transformer", "parameters", demo.UNSEEN[1], "report.html"):
        assert told in said
    page = (out / "report.html").read_text()
    for told in (
        "manythings.org/anki",
        "rg-heads",
        "How a sentence is searched",
        "Je suis",
        "layer 2, mean of 4 heads",
    ):
        assert told in page, told
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page
