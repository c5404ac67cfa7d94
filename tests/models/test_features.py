"""A biLSTM over a frozen encoder: against torch's own over the same states, and as a run."""

from __future__ import annotations

import warnings
from dataclasses import asdict

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.data.batches import Sequences
from regard.experiments import runs
from regard.layers.pooling import choice_of
from regard.models.bert import Bert
from regard.models.composed import Features
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.embedding import Embedder
from regard.text import Tokenizer

SIZES = dict(d_model=8, d_ff=12, heads=2, layers=4, max_length=24)
TEXTS = Sequences(
    torch.randint(5, 30, (3, 7), generator=torch.Generator().manual_seed(2)),
    torch.tensor([4, 7, 1]),
)


def encoder() -> Bert:
    torch.manual_seed(1)
    made = Bert(Bert.Config(30, **SIZES))
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.3)
    return made


def theirs(model: Features) -> nn.LSTM:
    """Torch's own biLSTM with the same weights."""
    levels, width = model.recurrent, model.config.d_model // 2
    lstm = nn.LSTM(levels.ahead[0].input.in_features, width, len(levels.ahead),
                   batch_first=True, bidirectional=True)  # fmt: skip
    with torch.no_grad():
        for level, both in enumerate(zip(levels.ahead, levels.back, strict=True)):
            for ending, one in zip(("", "_reverse"), both, strict=True):
                getattr(lstm, f"weight_ih_l{level}{ending}").copy_(one.input.weight)
                getattr(lstm, f"weight_hh_l{level}{ending}").copy_(one.recurrent.weight)
                getattr(lstm, f"bias_ih_l{level}{ending}").copy_(one.input.bias)
                getattr(lstm, f"bias_hh_l{level}{ending}").zero_()
    return lstm


@pytest.mark.parametrize(
    ("layers", "combine"), [(0, "concat"), ((1, 4), "sum"), (None, "concat"), (None, "mix")]
)
def test_features_equal_a_torch_bilstm_over_the_chosen_layers(layers, combine):
    inner = encoder().eval()
    options = dict(feature_layers=layers, combine=combine, d_model=6)
    model = Features.over(inner, "bert", options).eval()
    if combine == "mix":  # it starts as the mean of all layers
        known = choice_of(range(5), "mean")
    else:
        known = choice_of((-4, -3, -2, -1) if layers is None else layers, combine)
    feature, hidden = model.states(TEXTS)
    wanted = known(inner.states(TEXTS))
    torch.testing.assert_close(feature, wanted)
    packed = pack_padded_sequence(wanted, TEXTS.lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(theirs(model)(packed)[0], batch_first=True)
    torch.testing.assert_close(hidden[TEXTS.keep], expected[TEXTS.keep], atol=1e-6, rtol=1e-5)
    assert torch.equal(model.encode(TEXTS), hidden)


def test_the_encoder_of_features_is_frozen_and_without_dropout():
    model = Features.over(encoder(), "bert", dict(combine="mix", d_model=6, dropout=0.0)).train()
    assert model.training and not model.encoder.training
    hidden = model.encode(TEXTS)
    assert torch.equal(hidden, model.encode(TEXTS))
    hidden.square().sum().backward()
    frozen = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert frozen == {f"encoder.{name}" for name, _ in model.encoder.named_parameters()}
    assert (model.choice.scalars.grad != 0).all()


def test_a_tagger_on_features_is_trained_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentences = ["jim lives in rome", "anna likes jim", "rome is old"] * 3
    words = " ".join(sentences).split()
    tags = {"jim": "B-PER", "anna": "B-PER", "rome": "B-LOC"}
    (tmp_path / "train").write_text(
        "\n".join("".join(f"{w} {tags.get(w, 'O')}\n" for w in s.split()) for s in sentences)
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *dict.fromkeys(words)]))
    inner = EncoderWithHeads(Bert(Bert.Config(len(special) + len(set(words)), **SIZES)), {})
    runs.save(Embedder(inner, Tokenizer.load(tmp_path)), "start")
    (tmp_path / "r.toml").write_text(
        'task = "tagging"\n[model]\npath = "start"\n[model.features]\ncombine = "mix"\n'
        'd_model = 16\nlstm_layers = 1\ndropout = 0.0\n[data]\ntrain = "train"\nvalid = "train"\n'
        "[training]\nepochs = 30\nvalidation.eval_steps = 60\n"
        '[training.schedule]\nname = "constant"\n'
        "[training.optimizer]\nlearning_rate = 0.02\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = runs.train("r.toml", progress=False)
        folder, result = trained.folder, trained.result
    task = runs.load(folder)
    assert result.scores["f1"] == 1
    assert task.predict([["anna", "likes", "jim"]]) == [["B-PER", "O", "B-PER"]]
    trained = task.module.encoder
    for name, weight in inner.encoder.state_dict().items():
        assert torch.equal(weight, trained.encoder.state_dict()[name]), name
    assert trained.config.base_model["layers"] == 4 and trained.choice.scalars.abs().max() > 0
    mixed = task.embed("anna likes rome", layers=0, granularity="token")
    known = runs.load("start").embed("anna likes rome", layers=trained.choice, granularity="token")
    torch.testing.assert_close(torch.tensor(mixed), torch.tensor(known))
    assert asdict(trained.config)["combine"] == "mix"
