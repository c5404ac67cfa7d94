"""Tiny encoders of `transformers` with every head that it has for them, and what they compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import random_weights
import torch
from torch import Tensor, nn

from regard.checkpoints.formats import from_published
from regard.checkpoints.formats.bert import (
    ALBERT,
    BERT,
    BIG_BIRD,
    DISTILBERT,
    ELECTRA,
    MPNET,
    ROBERTA,
    XLM_ROBERTA,
)
from regard.checkpoints.formats.deberta import DEBERTA
from regard.checkpoints.formats.encoder_layout import EncoderLayout
from regard.data.batches import Sequences
from regard.models.encoder_with_heads import EncoderWithHeads

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SAME = dict(atol=1e-5, rtol=0)
PER_TOKEN = ("masked_lm", "tags", "span", "replaced")
V, T = 31, 10  # words, and the longest row


@dataclass(frozen=True)
class Family:
    """`segments`: how many token types there are; 0: the model knows none."""

    name: str  # that of its classes
    layout: EncoderLayout
    options: dict[str, Any]
    segments: int

    def config(self, **options: Any) -> Any:
        made = getattr(transformers, f"{self.name}Config")
        return made(**(self.options | {"attn_implementation": "eager", "num_labels": 2} | options))

    def model(self, ending: str, *arguments: Any, **options: Any) -> nn.Module:
        """Such as "ForMaskedLM", with random weights everywhere."""
        torch.manual_seed(0)
        kind = getattr(transformers, self.name + ending)
        return randomized(kind(self.config(**options), *arguments)).eval()


BODY = dict(
    vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
DEBERTA_V2 = dict(
    BODY, max_position_embeddings=T, relative_attention=True, position_buckets=4, type_vocab_size=2,
    norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p", conv_kernel_size=3,
    embedding_size=7,
)  # fmt: skip
FAMILIES = {
    "bert": Family("Bert", BERT, dict(BODY, max_position_embeddings=T), 2),
    "roberta": Family(
        "Roberta", ROBERTA, dict(BODY, max_position_embeddings=T + 5, type_vocab_size=3), 3
    ),
    "xlm-roberta": Family(
        "XLMRoberta", XLM_ROBERTA, dict(BODY, max_position_embeddings=T + 5, type_vocab_size=1), 1
    ),
    "mpnet": Family("MPNet", MPNET, dict(BODY, max_position_embeddings=T + 2), 0),
    "electra": Family(
        "Electra", ELECTRA,
        dict(BODY, max_position_embeddings=T, embedding_size=7, summary_last_dropout=0.0), 2,
    ),
    "albert": Family(
        "Albert", ALBERT,
        dict(
            BODY, max_position_embeddings=T, embedding_size=7, num_hidden_layers=5,
            num_hidden_groups=2, classifier_dropout_prob=0.0,
        ), 2,
    ),
    "big_bird": Family("BigBird", BIG_BIRD, dict(BODY, max_position_embeddings=T), 2),
    "deberta-v2": Family("DebertaV2", DEBERTA, DEBERTA_V2, 2),
    "distilbert": Family(
        "DistilBert", DISTILBERT,
        dict(
            vocab_size=V, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=T,
            dropout=0.0, attention_dropout=0.0, qa_dropout=0.0, seq_classif_dropout=0.0,
        ), 0,
    ),
}  # fmt: skip

# ending of the class -> our heads
ENDINGS = {
    "Model": ("pooler",),
    "ForMaskedLM": ("masked_lm",),
    "ForNextSentencePrediction": ("next_sentence",),
    "ForPreTraining": ("masked_lm", "next_sentence"),
    "ForSequenceClassification": ("classes",),
    "ForTokenClassification": ("tags",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("multiple_choice",),
}
CASES = [
    (family, ending)
    for family, one in FAMILIES.items()
    for ending in ENDINGS
    if hasattr(transformers, one.name + ending)
]


# Where a family differs.
OWN_HEADS = {
    ("distilbert", "Model"): (),
    ("electra", "Model"): (),
    ("deberta-v2", "Model"): (),
    ("electra", "ForPreTraining"): ("replaced",),
    ("albert", "ForPreTraining"): ("masked_lm", "sentence_order"),
    # Theirs have a pooler that nothing reads.
    ("big_bird", "ForMaskedLM"): ("masked_lm", "pooler"),
    ("big_bird", "ForSequenceClassification"): ("classes", "pooler"),
    ("big_bird", "ForTokenClassification"): ("pooler", "tags"),
}


def heads_of(family: str, ending: str) -> tuple[str, ...]:
    return OWN_HEADS.get((family, ending), ENDINGS[ending])


def randomized(model: nn.Module) -> nn.Module:
    """Every parameter away from its start: zeros and ones would hide a mistake."""
    torch.manual_seed(0)
    return random_weights.randomized(model)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def batch(segments: int, lengths: tuple[int, ...] = (T, 1, 4, 7)) -> Sequences:
    """Rows of one token up to the maximum, any ids in them, the padding's own too."""
    torch.manual_seed(1)
    rows = torch.tensor(lengths)
    keep = torch.arange(T) < rows[:, None]
    ids = torch.randint(0, V, (len(lengths), T))
    marks = torch.randint(0, segments, ids.shape) if segments else None
    return Sequences(ids * keep, rows, None if marks is None else marks * keep)


def ask(model: nn.Module, texts: Sequences, left: bool = False, pad: int = 0) -> Any:
    """Their output for our batch, with the padding on either side; rows are choices of one item."""
    keep, ids = texts.keep, texts.ids.masked_fill(~texts.keep, pad)
    given = {"input_ids": ids, "attention_mask": keep.long(), "position_ids": torch.arange(T)}
    given["position_ids"] = given["position_ids"].expand_as(ids)
    if texts.segments is not None:
        given["token_type_ids"] = texts.segments
    if left:
        given = on_the_left(given, texts)
    if any(name in type(model).__name__ for name in ("Roberta", "MPNet")):
        del given["position_ids"]  # they come from the ids
    if "MultipleChoice" in type(model).__name__:
        flat = "position_ids" if "Distil" in type(model).__name__ else ""
        given = {n: v if n == flat else v[None] for n, v in given.items()}
    return model(**given, output_hidden_states=True, return_dict=True)


def on_the_left(given: dict[str, Tensor], texts: Sequences) -> dict[str, Tensor]:
    """Our columns (B, T), padded on the left."""
    width = texts.width
    moved = (torch.arange(width) - (width - texts.lengths[:, None])) % width
    return {name: values.gather(1, moved) for name, values in given.items()}


def on_the_right(values: Tensor, texts: Sequences) -> Tensor:
    """(B, T, ...) of a batch padded on the left, as ours are."""
    width, rows = texts.width, torch.arange(len(texts))[:, None]
    return values[rows, (torch.arange(width) + width - texts.lengths[:, None]) % width]


def answers(output: Any, kind: str) -> Tensor:
    """What their head said, in our shape."""
    if kind == "pooler":
        return output.pooler_output
    if kind == "span":
        return torch.stack([output.start_logits, output.end_logits], -1)
    if kind == "multiple_choice":
        return output.logits.flatten()[:, None]
    if kind == "replaced":
        return output.logits[..., None]
    if kind == "sentence_order":
        return output.sop_logits
    if kind == "next_sentence" and "seq_relationship_logits" in output:
        return output.seq_relationship_logits
    return output.prediction_logits if "prediction_logits" in output else output.logits


def ours_of(model, **changes) -> EncoderWithHeads:
    config = json.loads(model.config.to_json_string(use_diff=False)) | changes
    config["architectures"] = [type(model).__name__]
    return from_published(config, weights(model)).eval()


def assert_same_outputs(
    model, ours: EncoderWithHeads, texts: Sequences, *, left: bool = False
) -> None:
    """Hidden states of every layer, and what every head says."""
    theirs = ask(model, texts, left, ours.config.pad or 0)
    turned = (lambda values: on_the_right(values, texts)) if left else (lambda values: values)
    layers = list(ours.encoder.states(texts))
    assert len(layers) == len(theirs.hidden_states)
    for found, expected in zip(layers, theirs.hidden_states, strict=True):
        expected = turned(expected)
        torch.testing.assert_close(found[texts.keep], expected[texts.keep], **SAME)
    for kind in ours.heads:
        if kind == "pooler" and "pooler_output" not in theirs:
            continue  # nothing there reads it
        found, expected = ours.scores(kind, texts), answers(theirs, kind)
        if kind in PER_TOKEN:
            found, expected = found[texts.keep], turned(expected)[texts.keep]
        elif left:
            continue  # their first position is padding: nobody reads rows so
        assert expected.std() > 0.02  # there was something to compare
        torch.testing.assert_close(found, expected, **SAME)


def read(family: str, ending: str, config: dict | None = None, drop: str = "", **tensors: Tensor):
    """A model of theirs with a changed configuration and changed tensors."""
    model = FAMILIES[family].model(ending)
    saved = json.loads(model.config.to_json_string(use_diff=False))
    saved["architectures"] = [FAMILIES[family].name + ending]
    held = {k: v for k, v in weights(model).items() if not drop or k != drop} | tensors
    return from_published(saved | (config or {}), held)
