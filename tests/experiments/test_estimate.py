"""Estimates of a training against formulas written by hand and against real passes."""

from __future__ import annotations

import json
import re
import time
import tomllib
from pathlib import Path

import pytest
import torch
from recipe_files import written
from tiny_folders import folder

from regard.data.batches import PairBatch, Sequences
from regard.errors import CheckpointError, ConfigError, DataError
from regard.experiments import estimate as estimating
from regard.experiments.estimate import (
    activations_of,
    estimate,
    memory_of,
    sharded_memory,
    steps_of,
)
from regard.models import model_class
from regard.tasks import task_class
from regard.training.flops import count, stored_by
from regard.training.options import DefaultEpochs, OptimizerOptions, TrainingOptions

RECIPES = Path(__file__).parents[2] / "recipes"


def transformer_flops(rows, s, t, d, ff, layers, vocabulary):
    """2 a multiply-add, times 3 for both ways; s source and t target positions in each row."""
    encoder = s * (4 * d * d + 2 * d * ff) + 2 * s * s * d
    decoder = t * (4 * d * d + 2 * d * ff) + 2 * t * t * d
    cross = 2 * t * d * d + 2 * s * d * d + 2 * t * s * d
    return 6 * rows * (layers * (encoder + decoder + cross) + t * d * vocabulary)


@pytest.mark.parametrize(
    ("name", "parameters", "d", "steps"),
    [("base", 63_082_496, 512, 100_000), ("big", 214_245_376, 1024, 300_000)],
)
def test_the_estimates_of_the_papers_transformers_equal_the_formulas(
    name, parameters, d, steps, monkeypatch
):
    monkeypatch.delenv("WMT14", raising=False)
    found = estimate(RECIPES / f"wmt14-transformer-{name}.toml", measure=False)
    totals = found.totals()
    assert totals["parameters"] == sum(found.parameters.values()) == parameters
    assert found.parameters["embedding"] == 37_000 * d and found.parameters["head (tied)"] == 0
    rows = 25_000 // 30
    assert (found.items, found.count) == ("tokens", rows * 29)
    assert found.flops == transformer_flops(rows, 30, 29, d, 4 * d, 6, 37_000)
    assert totals["flops"] == found.flops * steps
    assert found.memory["weights"] == 4 * parameters
    assert found.memory["adam's tables"] == 8 * parameters
    text = found.text()
    assert f"{parameters:,}" in text
    assert "sentences of 30 tokens are assumed" in found.batch and "$WMT14" in found.batch


def pairs(rows, s, t):
    def side(words):
        return Sequences(torch.full((rows, words), 5), torch.full((rows,), words))

    return PairBatch(side(s), side(t))


def on_meta(task, name, vocabulary, **options):
    model = model_class(name)
    with torch.device("meta"):
        return task_class(task)(model(model.Config(vocab_size=vocabulary, **options)), None)


def test_the_flops_of_an_lstm_with_attention_equal_the_formula():
    rows, s, t, d, vocabulary, layers = 4, 7, 5, 8, 50, 2
    task = on_meta("translation", "lstm-seq2seq", vocabulary, d_model=d, layers=layers)
    encoder = layers * s * 2 * (d * 2 * d + d // 2 * 2 * d)  # two ways, half as wide, four gates
    bridge, keys = layers * d * 2 * d, s * d * d
    decoder = t * (d * 4 * d + layers * 2 * d * 4 * d + 2 * d * d + 2 * s * d)
    wanted = 6 * rows * (encoder + bridge + keys + decoder + t * d * vocabulary)
    assert count(task, pairs(rows, s, t + 1))[:2] == (rows * t, wanted)


@pytest.mark.parametrize("name", ["transformer", "lstm-seq2seq"])
def test_estimated_activations_are_those_that_a_whole_batch_stores(name):
    model = model_class(name)
    torch.manual_seed(1)
    config = model.Config(vocab_size=300, d_model=32, dropout=0.1)
    task = task_class("translation")(model(config), None)
    task.module.train()
    options = TrainingOptions(max_steps=1)
    batch = pairs(24, 9, 9)
    whole = stored_by(task.module, lambda: task.losses(batch, None))
    assert activations_of(task, batch, options, 12) == pytest.approx(whole, rel=0.05)
    assert activations_of(task, batch, options, 24) == whole
    meta = on_meta("translation", name, 300, d_model=32, dropout=0.1)
    assert 0.4 * whole < count(meta, batch)[2] < 1.5 * whole  # other kernels keep other things


def test_a_recipe_with_data_is_estimated_from_its_batches(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b c\td e f g\n" * 60)
    small = dict(
        task="translation", model=dict(name="transformer", size="tiny", d_model=8, heads=2),
        data=dict(train=["pairs.tsv"], valid=["pairs.tsv"], max_tokens_per_batch=60),
        tokenizer=dict(kind="words", vocab_size=11),
        training=dict(epochs=3, gradient_accumulation_steps=2),
    )  # fmt: skip
    small["training"]["optimizer"] = dict(name="sgd", learning_rate=1.0)
    found = estimate(written(tmp_path / "small.toml", small))
    assert found.vocabulary.startswith("11 tokens, trained")
    # Six positions a target (<s> d e f g </s>), ten rows a batch, six batches an epoch.
    assert found.steps == 9 and found.count == 2 * 50
    assert found.flops == 2 * transformer_flops(10, 4, 5, 8, 256, 4, 11)
    assert found.memory["sgd's tables"] == 0
    assert found.seconds is not None and found.totals()["seconds"] == 9 * found.seconds
    assert "examples of a batch, on this machine" in found.measured


def test_the_first_limit_decides_the_estimated_updates():
    def steps(batches_per_epoch=None, **limits):
        return steps_of(TrainingOptions(**limits), batches_per_epoch, items=100.0)

    assert steps(max_steps=7) == 7
    assert steps(epochs=2, batches_per_epoch=5) == 10
    assert steps(epochs=2, batches_per_epoch=5, gradient_accumulation_steps=2) == 6
    assert steps(tokens=250) == 3
    assert steps(max_steps=2, tokens=250, epochs=9) == 2
    assert steps(epochs=9) is None
    # epochs that nobody has set: as many as a run takes of small data
    assert steps(epochs=DefaultEpochs(2), batches_per_epoch=10) == 200
    assert steps(epochs=DefaultEpochs(2), batches_per_epoch=5) == 150
    assert steps(epochs=DefaultEpochs(2), batches_per_epoch=400) == 800


UNKNOWN = '^task = "(classification|crf-tagging|tagging|parsing)"|^name = "kneser-ney"'
LABELLED = re.compile(UNKNOWN, re.MULTILINE)
NEW_MODELS = [  # the targets of labelled data are unknown without them, as are numbers of n-grams
    path.stem
    for path in sorted(RECIPES.glob("*.toml"))
    if '\npath = "$' not in path.read_text() and not LABELLED.search(path.read_text())
]


def kind(name: str) -> tuple[str, str]:
    """The task and the model of a recipe."""
    tables = tomllib.loads((RECIPES / f"{name}.toml").read_text())
    return tables["task"], tables["model"]["name"]


FIRST = {kind(name): name for name in reversed(NEW_MODELS)}.values()
MORE = pytest.mark.slow("recipes", "regard/experiments/estimate.py", "regard/training/flops.py")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else MORE) for name in NEW_MODELS]
)
def test_the_recipes_of_new_models_are_estimated_without_their_data(name, monkeypatch):
    for variable in set(re.findall(r"\$\{?(\w+)", (RECIPES / f"{name}.toml").read_text())):
        monkeypatch.delenv(variable, raising=False)
    if name != "demo-transformer":  # the sentences of the examples are there: one recipe reads them
        monkeypatch.setattr(estimating, "MAX_BYTES", 0)
    found = estimate(RECIPES / f"{name}.toml", measure=False)
    assert found.totals()["parameters"] > 0 and found.flops != 0


def test_the_estimate_says_that_memory_is_too_small(monkeypatch, tmp_path):
    monkeypatch.setattr(estimating, "free_memory", lambda: 1000)
    found = estimate(RECIPES / "ptb-lstm-small.toml", ["data.batch_size=2"])
    assert found.seconds is None and "GB of memory would be needed" in found.measured


def test_the_memory_of_each_optimizer_is_that_of_its_tables():
    model = torch.nn.Linear(10, 1, bias=False)

    def tables(**options):
        chosen = TrainingOptions(max_steps=1, optimizer=OptimizerOptions(**options))
        return memory_of(model, chosen, 0)[f"{options['name']}'s tables"]

    assert tables(name="adam") == tables(name="adamw") == 80
    assert tables(name="sgd", learning_rate=1.0, momentum=0.9) == 40
    assert tables(name="sgd", learning_rate=1.0) == 0


# ---- estimate encoders

transformers = pytest.importorskip("transformers")

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
    return folder(tmp_path_factory.mktemp("start") / "small", "bert", "Model")


def write(
    workdir: Path, task: str, start: Path, *, more: dict | None = None, data: bool = True
) -> Path:
    name, contents = data_of(task)
    if data:
        (workdir / name).write_text(contents)
    data = dict(train=name, batch_size=ROWS)
    recipe = dict(task=task, data=data, model=dict(path=start), training=dict(epochs=3))
    return written(workdir / f"{task}.toml", recipe, more or {})


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


def test_a_frozen_encoder_has_no_backward_flops_and_no_gradients(start, tmp_path):
    features = dict(model=dict(features=dict(layers=-1, d_model=8, lstm_layers=1)))
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
    with pytest.raises(
        CheckpointError, match="some/model: neither here nor in the .* it was not asked"
    ):
        estimate(recipe, ["model.path=some/model"])
    assert asked == [True]
    monkeypatch.delenv("NO_SUCH_MODEL", raising=False)
    unset = write(tmp_path, "regression", Path("${NO_SUCH_MODEL}"))
    with pytest.raises(ConfigError, match=r"there is no variable for \$\{NO_SUCH_MODEL\}"):
        estimate(unset)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        estimate(recipe, ["model.path=./nowhere/at/all"])


# ---- estimate gpt3

RECIPE = Path(__file__).parents[2] / "recipes" / "gpt3.toml"
V = 50_257


@pytest.fixture(autouse=True)
def no_text(monkeypatch):
    monkeypatch.delenv("TEXT", raising=False)


def asked(*overrides, **options):
    return estimate(RECIPE, overrides, measure=False, **options)


def keys_read(length: int, window: int, size: int) -> int:
    """Of one row computed by blocks: (query, key) pairs, every block with as many keys as the one
    of its group that has most; the groups are those that make the fewest pairs.
    """
    count = -(-length // size)
    blocks = [n - max(0, (n * size - window + 1) // size) + 1 for n in range(count)]
    ordered = sorted(blocks)
    totals = [few * ordered[few - 1] + (count - few) * ordered[-1] for few in range(1, count + 1)]
    return min(totals) * size * size


@pytest.mark.parametrize("length, window", [(256, 256), (512, 256), (1024, 256), (2048, 256)])
def test_the_flops_equal_the_formula_with_dense_and_local_layers(length, window):
    found = asked(
        "model.layers=4", "model.d_model=64", "model.heads=2", f"data.sequence_length={length}",
        "data.batch_size=3", "training.tokens=6144000",
    )  # fmt: skip
    rows, width, layers = 3, 64, 4
    matrices = 6 * rows * length * (12 * layers * width**2 + width * V)
    dense = 12 * rows * length**2 * width
    by_blocks = length >= 4 * window
    local = 12 * rows * width * (keys_read(length, window, 64) if by_blocks else length**2)
    assert found.attention_flops == 2 * dense + 2 * local
    assert found.flops == matrices + found.attention_flops
    totals = found.totals()
    assert totals["attention_flops_per_item"] == found.attention_flops / (rows * length)
    share = found.attention_flops / found.flops
    assert f"{share:.1%}" in found.text() and "of attention" in found.text()


def test_175_billion_parameters_are_estimated_in_seconds():
    began = time.process_time()
    found = asked("model.size=175B", "data.batch_size=64", devices=64)
    assert time.process_time() - began < 60
    totals = found.totals()
    assert totals["parameters"] == 174_604_259_328
    assert found.memory["weights"] == 4 * totals["parameters"]
    assert found.memory["adamw's tables"] == 8 * totals["parameters"]
    # The paper counts 6 FLOPs for each parameter and each of 300 billion tokens, and no attention.
    without_attention = totals["flops"] * (1 - found.attention_flops / found.flops)
    assert without_attention == pytest.approx(3.14e23, rel=2e-3)
    assert totals["memory_per_device"] == sum(found.shards.values()) < 100e9


OPTIONS = TrainingOptions(max_steps=1, optimizer=OptimizerOptions(name="adamw"))


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["gpt3", "bert", "transformer"])
def test_shards_are_those_of_fsdp2(name, devices):
    """Sizes that the devices do not divide; the first device has the largest parts."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    model = model_class(name)(model_class(name).Config(50, d_model=32, heads=4))
    wanted = sharded_memory(model, OPTIONS, 900, 9, devices)
    whole = memory_of(model, OPTIONS, 900)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    try:
        mesh = init_device_mesh("cpu", (devices,))
        for block in model.repeated_blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        kept = sum(one.to_local().numel() * 4 for one in model.parameters())
    finally:
        distributed.destroy_process_group()
    assert wanted["weights"] == wanted["gradients"] == kept
    assert wanted["adamw's tables"] == 2 * kept
    assert wanted["activations"] == 900 * -(-9 // devices) // 9
    assert kept >= whole["weights"] / devices
    if devices == 1:
        assert {use: wanted[use] for use in whole} == whole


def test_gathered_bytes_are_two_blocks_the_gradients_of_one_and_parameters_in_no_block():
    kind = model_class("gpt3")
    model = kind(kind.Config(50, d_model=32, heads=4, layers=3, max_length=16))
    found = sharded_memory(model, OPTIONS, 0, 4, 4)
    block = 4 * (12 * 32**2 + 13 * 32)
    assert found["gathered"] == 4 * (50 + 16 + 2) * 32 + 3 * block
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    assert sharded_memory(model, OPTIONS, 0, 4, 4)["gathered"] == 4 * (50 + 16 + 2) * 32 + 2 * block


def test_more_devices_than_rows_are_refused():
    with pytest.raises(ConfigError, match="`devices` must be at most 2, the rows of a batch: 3"):
        asked("model.layers=1", "data.batch_size=2", "data.sequence_length=8", devices=3)
