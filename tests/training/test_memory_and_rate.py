"""Activation checkpointing changes no bit and saves memory; the MFU is reported."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from toy import Toy

from regard.data import PairBatch, Sequences
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer_prenorm import PreNormTransformer
from regard.training import TrainingOptions, flops, train
from regard.training.compiling import activation_checkpointing, blocks_of
from regard.training.flops import Utilization, count, published_rate, rate_of, stored_by, twin
from regard.training.task import Trainable

WORDS, ROWS, LENGTH, WIDTH, LAYERS = 31, 3, 17, 24, 3
PAIR = dict(d_model=WIDTH, d_ff=48, heads=2, encoder_layers=LAYERS, decoder_layers=LAYERS)
MODELS = {
    "bert": lambda: Bert(BertConfig(WORDS, d_model=WIDTH, d_ff=48, heads=2, layers=LAYERS)),
    "gpt2": lambda: GPT2(GPT2Config(WORDS, d_model=WIDTH, heads=2, layers=LAYERS)),
    "transformer": lambda: Transformer(TransformerConfig(WORDS, **PAIR)),
    "pre-norm": lambda: PreNormTransformer(TransformerConfig(WORDS, **PAIR)),
}


def texts(seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, WORDS, (ROWS, LENGTH), generator=draw)
    return Sequences(ids, torch.tensor([LENGTH, LENGTH - 5, 4]))


def hidden_of(model):
    given = texts()
    if isinstance(model, Transformer):
        return model(given, Sequences.full(given.ids)).hidden
    return model(given).hidden if isinstance(model, Bert) else model(given.ids).hidden


def passed(model, low_precision, blocks):
    model.zero_grad()
    torch.manual_seed(4)
    cast = torch.autocast("cpu", torch.bfloat16) if low_precision else nullcontext()
    with cast, activation_checkpointing(blocks):
        total = hidden_of(model).float().square().sum()
    total.backward()
    return [
        total,
        torch.get_rng_state(),
        *(p.grad for p in model.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize("low_precision", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_activation_checkpointing_changes_no_bit(name, low_precision):
    """With dropout; afterwards the random generator is in the same state."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    blocks = blocks_of(model)
    assert len(blocks) == LAYERS * (2 if isinstance(model, Transformer) else 1)
    before, after = passed(model, low_precision, []), passed(model, low_precision, blocks)
    assert len(before) == len(after) > 2 + LAYERS
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all("forward" not in vars(block) for block in blocks)


def test_activation_checkpointing_stores_only_the_input_of_each_block():
    model = MODELS["bert"]().train()
    whole = stored_by(model, lambda: hidden_of(model))
    few = stored_by(model, lambda: hidden_of(model), blocks_of(model))
    entering = LAYERS * ROWS * LENGTH * WIDTH * 4
    assert entering <= few < entering + 8 * ROWS * LENGTH * WIDTH * 4 < whole / 2


def test_activation_checkpointing_without_blocks_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="but Model has none"):
        train(
            Toy(),
            TrainingOptions(max_steps=1, activation_checkpointing=True),
            tmp_path / "run",
            progress=False,
        )
    with pytest.raises(
        ConfigError, match="`activation_checkpointing` is for models that are made of blocks"
    ):
        blocks_of(torch.nn.Linear(2, 2))


# ---- the share of the device's rate


class Translating(Trainable):
    """A task as the loop knows it, which counts the words of its batch."""

    def __init__(self):
        self.module = MODELS["transformer"]()

    def counts(self, batch):
        return {"loss": batch.count}

    def losses(self, batch, carry):
        batch = batch.to(self.module.head.weight.device)
        target = Sequences.full(batch.target.ids[:, :-1])
        hidden = self.module(batch.source, target).hidden.flatten(0, 1)
        return {"loss": self.module.head.loss(hidden, batch.target.ids[:, 1:].flatten())}, None


def test_mfu_is_flops_per_second_over_the_rate(monkeypatch):
    """Positions of padding do nothing, so that their FLOPs do not count."""
    monkeypatch.setattr(flops, "rate_of", lambda device, precision: 1e9)
    task = Translating()
    batch = PairBatch(texts(0), texts(1))
    work = Utilization(task, torch.device("cpu"), "float32")
    state = torch.get_rng_state()
    work.add([batch, batch])
    share = work.share(work.tokens, 0.5)
    task.module = twin(task.module, "meta")
    filled = int(texts().lengths.sum()) / (ROWS * LENGTH)
    assert filled < 1 and work.tokens == 4 * filled * ROWS * LENGTH
    assert share == pytest.approx(2 * filled * count(task, batch)[1] / 0.5 / 1e9)
    assert torch.equal(state, torch.get_rng_state()), "counting draws no number of the training's"


def test_a_task_that_cannot_be_counted_has_no_mfu(tmp_path):
    work = Utilization(Toy(), torch.device("cpu"), "float32")
    work.add([(1, 2)])
    assert work.share(work.tokens, 1.0) is None
    train(Toy(), TrainingOptions(max_steps=2, logging_steps=1), tmp_path / "run", progress=False)
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert events and not any("mfu" in event for event in events)


def test_the_peak_rate_is_known_or_measured(monkeypatch):
    assert 1e8 < rate_of(torch.device("cpu"), "float32") < 1e15
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert rate_of(torch.device("cuda"), "bfloat16") == 312e12
    for name, rate in (("NVIDIA L40", 181e12), ("NVIDIA L4", 121e12), ("NVIDIA L40S", 362e12)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert rate_of(torch.device("cuda"), "bfloat16") == rate
    measured = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA RTX A4000")
    monkeypatch.setattr(flops, "_measured", lambda *asked: measured.append(asked) or 5e12)
    assert rate_of(torch.device("cuda"), "bfloat16") == 5e12 and len(measured) == 1


@pytest.mark.parametrize(
    "name, teraflops",
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250), ("NVIDIA GB200", 2500), ("Tesla V100-SXM2-32GB", 112),
        ("Tesla T4", 65), ("NVIDIA A10G", 70), ("NVIDIA A10", 125), ("NVIDIA A40-48Q", 150),
        ("NVIDIA RTX A4000", None), ("NVIDIA RTX A1000 Laptop GPU", None), ("NVIDIA L400", None),
        ("NVIDIA T400 4GB", None), ("NVIDIA T4000", None), ("NVIDIA A100X", None),
    ],
)  # fmt: skip
def test_a_rate_is_of_a_whole_name_and_not_of_a_part_of_another(name, teraflops):
    assert published_rate(name) == (None if teraflops is None else teraflops * 1e12)


def test_the_flops_of_a_head_at_few_positions_are_counted():
    encoder = MODELS["bert"]()
    model = EncoderWithHeads(encoder, {"masked_lm": encoder.new_head("masked_lm")})
    assert blocks_of(model) == list(encoder.blocks)
