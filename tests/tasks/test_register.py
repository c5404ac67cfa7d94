"""Models and tasks of one's own: registered, trained, saved, opened; errors.

Tests of `regard.tasks.task`.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import CheckpointError, ConfigError
from regard.layers.softmax import Softmax
from regard.models import MODELS
from regard.models.config import Size, TokenId
from regard.models.protocols import LanguageModel, Output
from regard.models.recurrent import RecurrentLanguageModel
from regard.state import Cells
from regard.tasks import TASKS, register
from regard.tasks.classification import TextClassifier

TEXTS = ["the cat sleeps .", "the dog runs after the cat .", "a dog sleeps ."] * 12


@dataclass(frozen=True)
class Config:
    vocab_size: Size
    d_model: Size = 8
    max_length: Size | None = None
    pad: TokenId = 0
    bos: TokenId = 1
    eos: TokenId = 2


class Bigram(nn.Module, LanguageModel[Cells]):
    """The next token from this one alone; its state carries nothing."""

    Config: type = Config

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.head = Softmax(config.d_model, config.vocab_size, tied=None, bias=True)

    def forward(self, ids: Tensor, state: Cells | None = None) -> Output:
        return Output(self.embedding(ids), self.empty(len(ids)) if state is None else state.copy())

    def empty(self, sequences: int, dtype: torch.dtype | None = None) -> Cells:
        nothing = self.embedding.weight.new_zeros(sequences, 1, 1)
        return Cells(nothing, nothing)

    def prefill(self, tokens: Tensor, state: Cells, lengths: Tensor | None = None) -> Cells:
        state.consume()
        return self.empty(len(tokens))

    def step(self, tokens: Tensor, state: Cells) -> tuple[Tensor, Cells]:
        state.consume()
        return self.head.logits(self.embedding(tokens)), self.empty(len(tokens))


@pytest.fixture
def tables():
    """What a test registers is gone after it."""
    before = dict(MODELS), dict(TASKS)
    yield
    for table, old in zip((MODELS, TASKS), before, strict=True):
        table.clear()
        table.update(old)


def train(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regard.train(progress=False, kind="words", **options)


def test_a_registered_model_is_trained_saved_and_opened(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register("bigram", Bigram)
    run = train(
        task="language-modeling", model={"name": "bigram", "d_model": 4}, train=TEXTS, valid=0.2,
        batch_size=2, sequence_length=6, epochs=2,
    )  # fmt: skip
    model = regard.load(run.folder)
    assert type(model.module) is Bigram and model.generate("the", max_tokens=2)
    assert json.loads((run.folder / "model/config.json").read_text())["regard"]["model"] == "bigram"
    assert repr(model).startswith("<TextGenerator: bigram, ")
    del MODELS["bigram"]
    with pytest.raises(CheckpointError, match="`regard.model` is 'bigram'"):
        regard.load(run.folder)


def test_a_task_of_ones_own_has_its_name(tables):
    class Stars(TextClassifier):
        """Classes with another name."""

    register("stars", Stars)
    assert TASKS["stars"] is Stars and Stars.name == "stars" and TextClassifier.name != "stars"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("x", 5, "5 cannot be registered: it must be a class that inherits Model"),
        ("x", nn.Linear, "cannot be registered: it must be a class that inherits Model"),
        ("bert", Bigram, "The name 'bert' is taken: choose another one for Bigram"),
        ("x", type("NoConfig", (RecurrentLanguageModel,), {"Config": None}), "is no dataclass"),
    ],
)
def test_registering_no_model_or_under_a_taken_name_raises_an_error(tables, name, kind, said):
    with pytest.raises(ConfigError, match=said):
        register(name, kind)
