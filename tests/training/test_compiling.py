"""Compiled blocks: each is traced as one graph, and its results do not change.

On the meta device nothing is done that is for a CPU alone, as on a GPU. On the CPU what torch
compiles keeps away from the kernels that it cannot see through.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from test_memory_and_rate import MODELS, hidden_of, texts

from regard.data import EpochSampler, PairBatch, Sequences
from regard.errors import ConfigError
from regard.models.transformer import PreNormTransformer, TransformerConfig
from regard.training import CheckpointOptions, TrainingOptions, compiling, resume, train
from regard.training.compiling import blocks_of
from regard.training.task import Trainable

sys.path.append(str(Path(__file__).parents[1] / "models"))
from test_registry import build, ids, reads_source, source  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def anywhere(monkeypatch):
    """Compiling is allowed on a CPU, with a quick backend."""
    monkeypatch.setattr(compiling, "HAS_KERNELS", ())
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")


# The others are made of the same blocks.
BLOCKS = ["transformer", "transformer-prenorm", "gpt", "gpt2", "bert", "distilbert"]


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_is_traced_in_one_graph(monkeypatch, name):
    """In training, with dropout."""
    model = build((name, 0)).to("meta").train()
    for block in blocks_of(model):
        block.forward = torch.compile(block.forward, backend="eager", fullgraph=True)
    texts, target = source(7).to("meta"), Sequences.full(ids(3, 6).to("meta"))
    if not hasattr(model, "step"):
        hidden = model.encode(texts)
    else:
        hidden = (model(texts, target) if reads_source(model) else model(target.ids)).hidden
    hidden.square().sum().backward()
    learned = [p for block in blocks_of(model) for p in block.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in learned)


def without_dropout(model):
    for part in model.modules():
        for name in ("dropout", "probability"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return model.train()


@pytest.mark.slow("regard/training/compiling.py", "regard/models")
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_compiled_blocks_have_the_same_gradients(anywhere, name):
    torch.manual_seed(0)
    model = without_dropout(MODELS[name]())
    found = []
    for compiled, checkpointing in ((False, False), (True, False), (True, True)):
        here = torch.device("cpu")
        used = (
            compiling.compiled_blocks(model, here, checkpointing=checkpointing) if compiled else []
        )
        model.zero_grad()
        with compiling.compiling(used):
            hidden_of(model).square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
        assert all("forward" not in vars(block) for block in blocks_of(model))
    for grads in found[1:]:
        for one, other in zip(found[0], grads, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


SMALL = dict(d_model=8, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1)


class Translating(Trainable):
    """Batches of one text, which is the same in every epoch; dropout is not."""

    goal = ("loss", "min")

    def __init__(self):
        torch.manual_seed(1)
        self.module = PreNormTransformer(TransformerConfig(31, **SMALL))

    def train_batches(self):
        return EpochSampler(self)

    def epoch(self, number):
        return [PairBatch(texts(seed), texts(seed + 1)) for seed in range(3)]

    def identity(self):
        return {}

    def counts(self, batch):
        return {"loss": batch.target.ids[:, 1:].numel()}

    def losses(self, batch, carry):
        target = Sequences.full(batch.target.ids[:, :-1])
        hidden = self.module(batch.source, target).hidden.flatten(0, 1)
        return {"loss": self.module.head.loss(hidden, batch.target.ids[:, 1:].flatten())}, None

    def validate(self):
        return {}


def trained(folder, steps, begin=train, **changes):
    chosen = TrainingOptions(max_steps=steps, logging_steps=1, **changes)
    task = Translating()
    begin(task, chosen, folder, progress=False)
    return task.module.state_dict()


def test_a_run_with_compiled_blocks_resumes_in_every_bit(anywhere, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    kept = CheckpointOptions(save_steps=2, save_seconds=0, save_total_limit=9)
    whole = trained(tmp_path / "a", 4, compile=True, checkpoints=kept)
    assert whole.keys() == Translating().module.state_dict().keys()
    assert not any("_orig_mod" in name for name in whole)
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        if path.name > "step-000002":
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    (tmp_path / "a" / "result.json").unlink()
    torch.manual_seed(77)
    again = trained(tmp_path / "a", 4, resume, compile=True, checkpoints=kept)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    events = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").open()]
    assert [event["step"] for event in events if "train/loss" in event] == [1, 2, 3, 4]


def test_compiling_on_a_cpu_or_without_blocks_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="`compile` is for a GPU, .* Leave it out: compile=false"):
        trained(tmp_path / "a", 1, compile=True)
    with pytest.raises(ConfigError, match="`compile` is for models that are made of blocks"):
        compiling.compiled_blocks(torch.nn.Linear(2, 2), torch.device("cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_gpu_trains_the_same_with_compiled_blocks(tmp_path):
    losses = []
    for compile in (False, True):
        torch.manual_seed(0)
        model = without_dropout(MODELS["gpt2"]()).cuda()
        here = torch.device("cuda")
        used = compiling.compiled_blocks(model, here) if compile else []
        with compiling.compiling(used):
            losses.append(model(texts().ids.cuda()).hidden.square().mean())
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)
