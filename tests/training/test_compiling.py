"""Compiled blocks: each is traced as one graph, and its results do not change.

On the meta device nothing is done that is for a CPU alone, as on a GPU. On the CPU what torch
compiles keeps away from the kernels that it cannot see through.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from quick_meta import QuickMeta
from test_registry import LANGUAGE_MODELS, UNREAD, build, ids, name_of, reads_source, source
from toy import Toy, options

from regard.data.batches import IGNORE, PairBatch, Sequences, StreamBatch
from regard.data.sampler import EpochSampler
from regard.models.bert import Bert, BertConfig
from regard.models.gpt2 import GPT2, GPT2Config
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig
from regard.training import compiling
from regard.training.callbacks import Trainable
from regard.training.compiling import activation_checkpointing, blocks_of
from regard.training.flops import stored_by
from regard.training.loop import Loop
from regard.training.options import CheckpointOptions, TrainingOptions, ValidationOptions
from regard.training.run import resume, train


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
            compiling.compiled_blocks(model, here, checkpointing=checkpointing) if compiled else {}
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_gpu_trains_the_same_with_compiled_blocks(tmp_path):
    losses = []
    for compile in (False, True):
        torch.manual_seed(0)
        model = without_dropout(MODELS["gpt2"]()).cuda()
        here = torch.device("cuda")
        used = compiling.compiled_blocks(model, here) if compile else {}
        with compiling.compiling(used):
            losses.append(model(texts().ids.cuda()).hidden.square().mean())
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)


# ---- memory and rate

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


# ---- waiting

# These look at the ids or lengths of a batch: which words are in a cluster of the vocabulary, how
# far paragraphs are apart, which blocks of a text there are, where the cells of a row end.
LOOKING = {
    ("awd-lstm", 1),  # texts of more windows than learn
    ("transformer-xl", 0),
    ("transformer-xl", 1),
    ("compressive-transformer", 0),
    ("adaptive-transformer", 0),
    ("bigbird", 1),
    ("lstm-seq2seq", 5),
}


def looks(case):
    """Whether a model waits for the device."""
    return case in LOOKING or case[0] == "sega-transformer-xl"


class Counted(Toy):
    """A batch on the CPU, whose counts need no wait for a device."""

    def counts(self, batch):
        with torch._C.DisableTorchFunction():
            return super().counts(batch)


@pytest.fixture(params=["adam", "sgd"])
def steps(request, monkeypatch, device_waits, tmp_path, no_kernels):
    """The names of the calls that waited for the device, for each step."""
    found, step = [], Loop.step

    def watched(loop):
        with device_waits() as seen:
            step(loop)
        found.append(seen.found)

    monkeypatch.setattr(Loop, "step", watched)
    chosen = options(max_steps=6, logging_steps=100, validation=ValidationOptions(eval_steps=3))
    object.__setattr__(chosen.optimizer, "name", request.param)
    object.__setattr__(chosen.checkpoints, "words_per_epoch", 0)
    train(Counted(), chosen, tmp_path, progress=False)
    return found


def test_an_update_waits_for_the_device_once(steps):
    assert steps == [["tolist"]] * 6


# ---- models and losses -------------------------------------------------------------------------


@pytest.fixture
def quick_meta():
    with QuickMeta():
        yield


def learn(head, hidden, targets, count):
    loss, counted = head.loss(hidden.flatten(0, 1), targets.flatten(), 0.1, count)
    loss.backward()
    assert counted == count


@pytest.mark.usefixtures("quick_meta")
@pytest.mark.parametrize("case", [c for c in LANGUAGE_MODELS if not looks(c)], ids=name_of)
def test_the_loss_of_a_language_model_does_not_wait_for_the_device(case):
    model = build(case).to("meta").train()
    targets = ids(3, 7)
    targets[1, 5:] = IGNORE
    batch = StreamBatch(ids(3, 7), targets, fresh=True).to("meta")
    learn(model.head, model(batch.tokens, None).hidden, batch.targets, batch.count)
    unread = UNREAD.get(case[0], ())
    assert all(p.grad is not None for n, p in model.named_parameters() if not n.endswith(unread))


def test_counted_masked_positions_do_not_wait_for_the_device():
    encoder = build(("bert", 0))
    head = encoder.new_head("masked_lm").to("meta")
    targets = torch.full((3, 7), IGNORE)
    targets[0, 2] = targets[2, 4] = 5
    hidden = torch.zeros(3, 7, 8, device="meta", requires_grad=True)
    learn(head, hidden, targets.to("meta"), 2)
    assert hidden.grad is not None and hidden.grad.shape == hidden.shape


# ---- batches -----------------------------------------------------------------------------------
