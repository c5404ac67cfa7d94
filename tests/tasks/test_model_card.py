"""The card beside a model: what is known of it, in the form of the hub.

Tests of `regard.tasks.folders`.
"""

from __future__ import annotations

import hashlib

import pytest
from huggingface_hub import ModelCard

import regard
from regard.models.gpt2 import GPT2, GPT2Config
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.model_card import is_generated
from regard.text import train

ROWS = [("a good film", "good"), ("simply bad", "bad"), ("good fun", "good"), ("dull", "bad")] * 8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    for part in ("train", "valid", "test"):
        text = "".join(f"{text}\t{label}\n" for text, label in ROWS)
        (folder / f"{part}.tsv").write_text(text)
    return regard.train(
        task="classification",
        model={"name": "bert", "d_model": 16, "d_ff": 32, "heads": 2, "layers": 1},
        tokenizer={"kind": "wordpiece", "vocab_size": 60},
        train=str(folder / "train.tsv"),
        valid=str(folder / "valid.tsv"),
        test=str(folder / "test.tsv"),
        columns=(0, 1),
        epochs=2,
        out=folder / "run",
        progress=False,
    )


def test_the_card_of_a_run_has_its_data_recipe_and_scores_with_their_signatures(run):
    card = ModelCard.load(run.folder / "model" / "README.md")
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification" and card.data.license is None
    for name, value in run.test_scores.items():
        assert f"| test.tsv | {name} | {value:.5g} |" in card.text
    checksum = hashlib.sha256((run.folder.parent / "train.tsv").read_bytes()).hexdigest()
    assert f"| train.tsv | `{checksum}` |" in card.text
    for signature in run.result.test_signatures.values():
        assert signature.replace("|", r"\|") in card.text
    assert "[training]\nepochs = 2" in card.text
    assert str(run.folder.parent) not in card.content  # no folder of the machine


def test_a_card_that_a_person_has_written_or_changed_is_not_overwritten(tmp_path):
    words = train("characters", ["a dog"], 20)
    task = TextGenerator(GPT2(GPT2Config(words.vocab_size, 8, heads=2, layers=1)), words)
    (tmp_path / "README.md").write_text("# Mine\n")
    regard.save(task, tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
    regard.save(task, tmp_path / "new", license="apache-2.0")
    path = tmp_path / "new" / "README.md"
    first = path.read_text()
    assert is_generated(first) and first.startswith('---\nlicense: "apache-2.0"\n')
    regard.save(task, tmp_path / "new")
    assert "license" not in path.read_text()
    path.write_text(first.replace("gpt2", "my GPT-2", 1))
    regard.save(task, tmp_path / "new")
    assert "my GPT-2" in path.read_text()


def test_adapters_have_a_card_that_names_their_model(run, tmp_path):
    adapted = regard.train(
        task="classification",
        model={"path": str(run.folder), "lora": {"rank": 2}},
        train=ROWS,
        max_steps=1,
        out=tmp_path / "adapted",
        progress=False,
    )
    card = ModelCard.load(adapted.folder / "adapter" / "README.md")
    assert card.data.library_name == "peft" and card.data.base_model == "run"
    assert "rank 2" in card.text and "[model.lora]" in card.text
    assert str(run.folder.parent) not in card.content


def test_a_quantized_folder_takes_the_licence_of_a_card_but_not_its_text(tmp_path):
    words = train("characters", ["a dog"], 20)
    task = TextGenerator(GPT2(GPT2Config(words.vocab_size, 8, heads=2, layers=1)), words)
    for text, license in (
        ("---\nlicense: mit\n---\n## Scores\nmine\n", "mit"),
        ("license: mit", None),
        ("---\nlicense: [a, b]\n---\n", None),
    ):
        folder = tmp_path / f"{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        (folder / "README.md").write_text(text)
        regard.save(task, folder)
        small = regard.quantize(folder, tmp_path / f"{folder.name}-small")
        made = (small / "README.md").read_text()
        assert ModelCard(made).data.license == license and "mine" not in made
