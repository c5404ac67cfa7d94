"""What is saved opens again and is the same: every registered model under every task it is for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_registry import TINY
from torch import nn

import regard
from regard.data.images import PATCH_FEATURES
from regard.errors import CheckpointError, RegardError
from regard.layers.task_heads import ClassificationHead, first_token
from regard.models import MODELS, is_encoder, model_class
from regard.models.encoder_with_heads import EncoderWithHeads, new_head
from regard.tasks import TASKS, task_class
from regard.tasks.folders import tasks_for
from regard.text import Tokenizer

LINES = ["the old cat sat on a warm mat", "a dog runs in the sun who where"]
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
LABELS = {
    **dict.fromkeys(("tagging", "crf-tagging"), ["B-X", "O"]),
    "parsing": ["a", "b"],
}
ONE_OUTPUT = ("regression", "multiple-choice")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer.train(LINES * 4, "words", 60, special_tokens=SPECIALS)


def tiny(name: str, options: dict[str, Any], words: Tokenizer, **special: Any) -> Any:
    kind = model_class(name)
    ids = {"pad": words.pad_id, "bos": words.bos_id, "eos": words.eos_id} | special
    ids = {role: ids[role] for role in ids if role in kind.Config.__dataclass_fields__}
    torch.manual_seed(0)
    regions = {"d_region": PATCH_FEATURES} if "d_region" in options else {}
    model = kind(kind.Config(words.vocab_size, **ids, **options | regions)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def made(model: Any, words: Tokenizer) -> list[Any]:
    """Every task with this model."""
    tasks = []
    for name in TASKS:
        body, tokenizer = model, words
        if is_encoder(type(model)) and (kind := task_class(name).head):
            try:
                body, tokenizer = task_class(name).prepared(EncoderWithHeads(model, {}), words)
                head = new_head(body.encoder, kind, 1 if name in ONE_OUTPUT else 2)
            except RegardError:
                continue  # it has no such head
            body = EncoderWithHeads(body.encoder, {kind: head})
        elif name == "embedding" and is_encoder(type(model)):
            body = EncoderWithHeads(model, {})
        elif name not in tasks_for(model):
            continue
        labels = LABELS.get(name, ["no", "yes"])
        labelled = "labels" in task_class(name).constructor_options()
        options: dict[str, Any] = {"labels": labels} if labelled else {}
        options |= {"regions": "patches"} if name == "captioning" else {}
        tasks.append(task_class(name)(body.eval(), tokenizer, **options))
    return tasks


def check_same(task: Any, again: Any) -> None:
    assert type(again) is type(task) and again.settings() == task.settings()
    assert type(again.tokenizer) is type(task.tokenizer)
    assert again.tokenizer.fingerprint() == task.tokenizer.fingerprint()
    weights, others = task.module.state_dict(), again.module.state_dict()
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name
    if task.decodes:
        assert vars(again.method) == vars(task.method)


WITH_ALL_TASKS = ("bert", "transformer", "gpt2")  # the others have a third of their tasks each


@pytest.mark.parametrize("name", MODELS)
def test_every_task_of_every_model_is_loaded_as_it_was_saved(name, words, tmp_path):
    for variant, options in enumerate(TINY[name]):
        tasks = made(tiny(name, options, words), words)
        assert tasks
        first = 0 if name in WITH_ALL_TASKS else [*MODELS].index(name) % min(3, len(tasks))
        step = 1 if name in WITH_ALL_TASKS else 3
        for task in tasks[first::step] if variant == 0 else tasks[:1]:
            task.save(tmp_path / "one")
            again = regard.load(tmp_path / "one", device="cpu")
            check_same(task, again)
            if task is not tasks[first if variant == 0 else 0]:
                continue
            again.save(tmp_path / "two")
            for file in (tmp_path / "one").glob("*.json"):
                assert file.read_text() == (tmp_path / "two" / file.name).read_text(), file


@pytest.mark.parametrize("name", ["lstm-lm", "transformer"])
def test_a_model_without_an_end_token_is_not_written(name, words, tmp_path):
    (task, *_) = made(tiny(name, TINY[name][0], words, eos=None), words)
    with pytest.raises(CheckpointError, match="was not written, for it could not be opened again"):
        task.save(tmp_path / "one")
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])  # published, and our own
def test_a_head_of_another_shape_is_not_written(positions, words, tmp_path):
    body = tiny("bert", TINY["bert"][0] | {"positions": positions}, words)
    head: nn.Module = ClassificationHead(8, 2, pooling=first_token)
    task = task_class("classification")(
        EncoderWithHeads(body, {"classes": head}).eval(), words, labels=["no", "yes"]
    )
    with pytest.raises(CheckpointError, match="missing"):
        task.save(tmp_path / "one")
    assert not (tmp_path / "one").exists()
