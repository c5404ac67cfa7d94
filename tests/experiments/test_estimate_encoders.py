"""Estimates of training a task on an encoder: against the formula of a layer of BERT, and against
the parameters that `transformers` counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments.estimate import estimate

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

D, FF, LAYERS, ROWS = 16, 24, 2, 4
TEXT = "a dog runs after a red ball ."
QUESTION = "who sleeps ?"
CHOICES = ["the old cat", "the red dog"]


def data_of(task: str) -> tuple[str, str]:
    """The name and the contents of a file with eight examples, all of one length."""
    if task in ("classification", "regression"):
        labels = ("1", "3", "2", "3") if task == "classification" else ("0.5",)
        return "train.tsv", "".join(f"{TEXT}\t{labels[i % len(labels)]}\n" for i in range(8))
    if task == "tagging":
        tags = "O B-X O O B-Y O O O".split()
        words = "".join(f"{w} {t}\n" for w, t in zip(TEXT.split(), tags, strict=True))
        return "train.conll", f"{words}\n" * 8
    if task == "multiple-choice":
        one = {"context": TEXT, "question": QUESTION, "choices": CHOICES, "answer": 1}
        return "train.jsonl", (json.dumps(one) + "\n") * 8
    answers = [{"text": "dog", "answer_start": 2}]
    asked = [{"id": str(i), "question": QUESTION, "answers": answers} for i in range(8)]
    paragraphs = [{"context": TEXT, "qas": asked}]
    return "train.json", json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    from tiny_folders import folder

    return folder(tmp_path_factory.mktemp("start") / "small", "bert", "Model")


def write(workdir: Path, task: str, start: Path, *, more: str = "", data: bool = True) -> Path:
    name, contents = data_of(task)
    if data:
        (workdir / name).write_text(contents)
    recipe = workdir / f"{task}.toml"
    recipe.write_text(
        f'task = "{task}"\n[data]\ntrain = "{name}"\nbatch_size = {ROWS}\n'
        f'[model]\npath = "{start}"\n{more}\n[training]\nepochs = 3\n'
    )
    return recipe


def length(start: Path, *texts: str) -> int:
    """Of a row, as the folder's own tokenizer has it."""
    return len(transformers.AutoTokenizer.from_pretrained(start)(*texts).input_ids)


def layers(tokens: int, read: int) -> int:
    """Multiply-adds of the forward pass of a row: four projections, two of the feed, attention.

    Of the last layer `read` positions are computed, from the keys and values of all.
    """
    whole = tokens * (4 * D * D + 2 * D * FF) + 2 * tokens * tokens * D
    last = tokens * 2 * D * D + read * (2 * D * D + 2 * D * FF) + 2 * read * tokens * D
    return (LAYERS - 1) * whole + last


def theirs(start: Path, ending: str, labels: int) -> dict[str, int]:
    """The parameters of their model with a head; what pools belongs to the head."""
    config = transformers.AutoConfig.from_pretrained(start, num_labels=labels)
    whole = getattr(transformers, f"BertFor{ending}")(config)
    parts = (whole.bert.embeddings, whole.bert.encoder)
    encoder = sum(one.numel() for part in parts for one in part.parameters())
    return {"encoder": encoder, "heads": whole.num_parameters() - encoder}


POOLED = "SequenceClassification"
# task -> items, items in a batch, its rows, the texts of a row, the head that transformers has for
# it with so many outputs, and its multiply-adds for a row of t tokens
CASES = {
    "classification": ("examples", 4, 4, (TEXT,), POOLED, 3, lambda t: D * D + 3 * D),
    "regression": ("examples", 4, 4, (TEXT,), POOLED, 1, lambda t: D * D + D),
    "tagging": ("words", 32, 4, (TEXT,), "TokenClassification", 3, lambda t: t * 3 * D),
    "question-answering": (
        *("windows", 4, 4, (QUESTION, TEXT)),
        *("QuestionAnswering", 2, lambda t: t * 2 * D),
    ),
    "multiple-choice": (
        *("examples", 4, 8, (TEXT, f"{QUESTION} {CHOICES[0]}")),
        *("MultipleChoice", 1, lambda t: D * D + D),
    ),
}


@pytest.mark.parametrize("task", CASES)
def test_the_flops_and_parameters_of_a_fine_tuned_model_equal_the_formulas(task, start, tmp_path):
    items, counted, rows, texts, ending, labels, head = CASES[task]
    found = estimate(write(tmp_path, task, start), measure=False)
    tokens = length(start, *texts)
    assert f"({rows}, {tokens}) tokens" in found.batch and "mean of 2 of 2" in found.batch
    assert found.parameters == theirs(start, ending, labels)
    assert (found.items, found.count, found.steps) == (items, counted, 6)
    read = tokens if task in ("tagging", "question-answering") else 1
    assert found.flops == 6 * rows * (layers(tokens, read) + head(tokens))
    assert found.model == "bert, 2 layers of 16, started from small"
    assert (
        found.memory["weights"] == found.memory["gradients"] == 4 * sum(found.parameters.values())
    )
    said = found.text()
    assert f"for {counted} {items}" in said and "predicted tokens" not in said
    assert found.totals()["count"] == 6 * counted


def test_a_task_whose_targets_are_unknown_without_its_data_needs_them(start, tmp_path):
    with pytest.raises(DataError, match="train.conll"):
        estimate(write(tmp_path, "tagging", start, data=False), measure=False)


def test_a_new_model_is_estimated_by_its_data(tmp_path):
    recipe = tmp_path / "new.toml"
    recipe.write_text(
        'task = "classification"\n[data]\ntrain = "train.tsv"\nbatch_size = 4\n[tokenizer]\n'
        'kind = "words"\nvocab_size = 16\n[model]\nname = "bert"\nsize = "tiny"\n'
        "[training]\nmax_steps = 5\n"
    )
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, num_labels=3,
    )  # fmt: skip
    wanted = transformers.BertForSequenceClassification(config).num_parameters()
    (tmp_path / "train.tsv").write_text(data_of("classification")[1])
    known = estimate(recipe, measure=False)
    missing = 16 - int(known.vocabulary.split()[0])  # the text has fewer words than were allowed
    assert known.totals()["parameters"] == wanted - 128 * missing
    assert known.steps == 5 and known.model == "bert, size tiny"
    assert [one.value for one in known.published] == [4.4e6]
    assert estimate(recipe, ["model.layers=1"], measure=False).published == ()


def test_a_frozen_encoder_has_no_backward_flops_and_no_gradients(start, tmp_path):
    features = "[model.features]\nlayers = -1\nd_model = 8\nlstm_layers = 1\n"
    found = estimate(write(tmp_path, "tagging", start, more=features), measure=False)
    encoder = theirs(start, "TokenClassification", 3)["encoder"]
    recurrent = torch.nn.LSTM(D, 4, bidirectional=True)
    assert found.parameters["encoder (frozen)"] == encoder
    assert found.parameters["heads"] == 8 * 3 + 3
    once = sum(one.numel() for name, one in recurrent.named_parameters() if "bias_hh" not in name)
    assert found.parameters["recurrent"] == once  # torch adds a second bias to the first
    learned = found.parameters["recurrent"] + found.parameters["heads"]
    assert found.memory["weights"] == 4 * (encoder + learned)
    assert (
        found.memory["gradients"] == 4 * learned and found.memory["adamw's tables"] == 8 * learned
    )
    tokens = length(start, TEXT)
    own = tokens * (2 * 4 * 4 * (D + 4) + 3 * 8)
    assert found.flops == ROWS * (2 * layers(tokens, tokens) + 6 * own)
    assert found.model == "features of bert, 2 layers of 16, started from small"
    assert "fewer of what is frozen" in found.text()


def test_the_auxiliary_lm_loss_adds_its_flops(tmp_path):
    from tiny_folders import folder

    start = folder(tmp_path / "small", "gpt2", "LMHeadModel")
    more = "[objective]\naux_lm_weight = 0.5\n"
    recipe = write(tmp_path, "classification", start, more=more)
    both, alone = (
        estimate(recipe, options, measure=False) for options in ((), ["objective.aux_lm_weight=0"])
    )
    config = transformers.AutoConfig.from_pretrained(start)
    tokens = int(both.batch.split(", ")[1].split(")")[0])
    vocabulary = config.vocab_size + 4  # start, delimiter, extract and padding are new
    # Every piece but the first of a row is predicted.
    assert both.flops - alone.flops == 6 * ROWS * (tokens - 1) * D * vocabulary
    assert both.count == ROWS


def test_multiple_choice_is_timed_by_questions(start, tmp_path):
    found = estimate(write(tmp_path, "multiple-choice", start))
    assert "of the 4 examples of a batch" in found.measured and found.seconds > 0


def test_estimating_a_model_that_is_not_in_the_cache_downloads_nothing(
    start, tmp_path, monkeypatch
):
    import huggingface_hub

    asked = []

    def download(name, *, local_files_only, **options):
        asked.append(local_files_only)
        raise huggingface_hub.errors.LocalEntryNotFoundError("not there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    # Tests before this one may have set them in this process, for libraries that ask the hub.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    recipe = write(tmp_path, "classification", start)
    with pytest.raises(CheckpointError, match="some/model: neither here nor on the hub"):
        estimate(recipe, ["model.path=some/model"])
    assert asked == [True]
    monkeypatch.delenv("NO_SUCH_MODEL", raising=False)
    unset = write(tmp_path, "regression", Path("${NO_SUCH_MODEL}"))
    with pytest.raises(ConfigError, match=r"there is no variable for \$\{NO_SUCH_MODEL\}"):
        estimate(unset)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        estimate(recipe, ["model.path=./nowhere/at/all"])


PRETRAINING = """
task = "{task}"
[data]
train = ["none.txt"]
max_length = 32
batch_size = {rows}
mlm_probability = 0.25
[tokenizer]
kind = "wordpiece"
vocab_size = 60
[model]
name = "{model}"
d_model = {d}
d_ff = {ff}
heads = 2
layers = {layers}
max_length = 32
{more}
[training]
max_steps = 3
gradient_accumulation_steps = 2
"""


def test_masked_language_modeling_without_data_is_counted_by_its_formula(tmp_path):
    sizes = dict(d=D, ff=FF, layers=LAYERS, rows=ROWS)
    text = PRETRAINING.format(task="masked-language-modeling", model="bert", more="", **sizes)
    (tmp_path / "r.toml").write_text(text)
    found = estimate(tmp_path / "r.toml", measure=False)
    tokens, chosen = 2 * ROWS * 32, 2 * ROWS * 8
    blocks = LAYERS * (4 * D * D + 2 * D * FF + 2 * 32 * D)  # products of one token
    words = int(found.vocabulary.split(" ")[0])
    assert found.count == chosen and found.batch_tokens == tokens
    assert found.flops == 6 * (tokens * blocks + chosen * (D * D + D * words))
