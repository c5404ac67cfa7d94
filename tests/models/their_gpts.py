"""Tiny GPTs of `transformers` with every head that it has for them, and what they compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from random_weights import randomized
from their_encoders import SAME, on_the_left, on_the_right, transformers, weights
from torch import Tensor, nn

from regard.checkpoints.formats import from_published
from regard.checkpoints.formats.gpt import GPT2_LAYOUT, GPT_LAYOUT, GPTLayout
from regard.data.batches import Sequences
from regard.models.encoder_with_heads import EncoderWithHeads

V, T = 31, 10  # words, and the longest row
PAD = 30
BODY = dict(
    vocab_size=V, n_embd=12, n_layer=3, n_head=3, n_positions=T, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=PAD, num_labels=3,
    attn_implementation="eager",
)  # fmt: skip

# ending of the class -> our head
ENDINGS = {
    "Model": None,
    "LMHeadModel": None,
    "DoubleHeadsModel": "multiple_choice",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "span",
}


@dataclass(frozen=True)
class Family:
    """`name`: that of its classes."""

    name: str
    layout: GPTLayout

    def __str__(self) -> str:
        """In the names of tests."""
        return self.name

    def config(self, **options: Any) -> Any:
        return getattr(transformers, f"{self.name}Config")(**(BODY | options))

    def model(self, ending: str, **options: Any) -> Any:
        """With random weights everywhere: zeros and ones would hide a mistake."""
        torch.manual_seed(0)
        return randomized(getattr(transformers, self.name + ending)(self.config(**options))).eval()


FAMILIES = {"gpt": Family("OpenAIGPT", GPT_LAYOUT), "gpt2": Family("GPT2", GPT2_LAYOUT)}
CASES = [
    (family, ending)
    for family, one in FAMILIES.items()
    for ending in ENDINGS
    if hasattr(transformers, one.name + ending)
]


def batch(segments: bool = False, lengths: tuple[int, ...] = (T, 1, 4, 7)) -> Sequences:
    """Rows of one token up to the maximum."""
    made = torch.Generator().manual_seed(1)
    rows = torch.tensor(lengths)
    ids = torch.randint(0, PAD, (len(lengths), T), generator=made)
    marks = torch.randint(0, V, ids.shape, generator=made) if segments else None
    return Sequences(ids, rows, marks)


def ask(model: Any, texts: Sequences, left: bool = False) -> Any:
    """Their output for our batch, with the padding on either side."""
    ids = texts.ids.masked_fill(~texts.keep, PAD)
    given = {"input_ids": ids, "attention_mask": texts.keep.long()}
    given["position_ids"] = torch.arange(T).expand_as(ids)
    if texts.segments is not None:
        given["token_type_ids"] = texts.segments
    if left:
        given = on_the_left(given, texts)
    if "DoubleHeads" in type(model).__name__:
        last = torch.full_like(texts.lengths, T - 1) if left else texts.lengths - 1
        given["mc_token_ids"] = last
    return model(**given, output_hidden_states=True, return_dict=True)


def answers(output: Any, kind: str) -> Tensor:
    """What their head said, in our shape."""
    if kind == "span":
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.mc_logits[:, None] if kind == "multiple_choice" else output.logits


def config_of(model: nn.Module) -> dict[str, Any]:
    found = json.loads(model.config.to_json_string(use_diff=False))
    return found | {"architectures": [type(model).__name__]}


def ours_of(model: nn.Module) -> Any:
    return from_published(config_of(model), weights(model)).eval()


def encoder_of(model: nn.Module) -> Any:
    return model.encoder if isinstance(model, EncoderWithHeads) else model


@torch.no_grad()
def assert_same_outputs(
    theirs: nn.Module,
    ours: Any,
    texts: Sequences,
    kind: str | None,
    *,
    predicts: bool,
    left: bool,
) -> None:
    """The states of each layer, the scores of a head and, where the model `predicts` tokens, the
    logits; `left`: theirs have padding on the left.
    """
    expected = ask(theirs, texts, left)
    found = list(encoder_of(ours).states(texts))
    assert len(found) == len(expected.hidden_states)
    for one, other in zip(found, expected.hidden_states, strict=True):
        other = on_the_right(other, texts) if left else other
        torch.testing.assert_close(one[texts.keep], other[texts.keep], **SAME)
    if kind is not None:
        said, wanted = ours.scores(kind, texts), answers(expected, kind)
        if kind in ("tags", "span"):
            wanted = on_the_right(wanted, texts) if left else wanted
            said, wanted = said[texts.keep], wanted[texts.keep]
        torch.testing.assert_close(said, wanted, **SAME)
    if predicts:
        logits = encoder_of(ours).head.logits(found[-1])
        wanted = on_the_right(expected.logits, texts) if left else expected.logits
        torch.testing.assert_close(logits[texts.keep], wanted[texts.keep], **SAME)
