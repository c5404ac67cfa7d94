"""XLNet against that of `transformers`: streams, memory, permutations, heads, both ways."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from their_encoders import (
    SAME,
    on_the_left,
    on_the_right,
    ours_of,
    randomized,
    transformers,
    weights,
)
from torch import Tensor, nn

from regard.attention.relative_attention import SegmentMemory
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.formats.transformer_xl import XLNET
from regard.data.batches import Sequences
from regard.errors import RegardError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.xlnet import Xlnet, XlnetConfig

V, T, D = 31, 9, 12
OPTIONS = dict(
    vocab_size=V, d_model=D, n_layer=2, n_head=3, d_inner=20, dropout=0.0, summary_last_dropout=0.0,
    num_labels=2,
)  # fmt: skip
# ending of their class -> our head; none: the model alone
ENDINGS = {
    "Model": None,
    "LMHeadModel": None,
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "tags",
    "ForQuestionAnsweringSimple": "span",
    "ForMultipleChoice": "multiple_choice",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "uni": dict(attn_type="uni"),
    "clamped": dict(clamp_len=2),
    "same length": dict(attn_type="uni", same_length=True),
    "other parts": dict(ff_activation="relu", layer_norm_eps=1e-3, n_head=4),
}


def theirs(ending: str = "LMHeadModel", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.XLNetConfig(**(OPTIONS | options))
    return randomized(getattr(transformers, f"XLNet{ending}")(config)).eval()


def body(model: Any) -> Xlnet:
    return model.encoder if isinstance(model, EncoderWithHeads) else model


def random_batch(lengths: tuple[int, ...] = (T, 1, 4, 7), segments: int = 3) -> Sequences:
    torch.manual_seed(1)
    rows, width = torch.tensor(lengths), max(lengths)
    ids = torch.randint(0, V, (len(lengths), width))
    marks = torch.randint(0, segments, ids.shape) if segments else None
    return Sequences(ids, rows, marks)


def ask(model: nn.Module, batch: Sequences, *, left: bool = False, **more: Any) -> Any:
    """Their output for our batch, padded on either side."""
    given = {"input_ids": batch.ids, "attention_mask": batch.keep.float()}
    if batch.segments is not None:
        given["token_type_ids"] = batch.segments
    if left:
        given = on_the_left(given, batch)
    if "MultipleChoice" in type(model).__name__:
        given = {name: values[None] for name, values in given.items()}
    given |= more
    if model.config.attn_type == "bi":
        return model(**given, output_hidden_states=True)
    # With "uni" and a mask their program reads one row alone.
    mems = given.pop("mems", None)
    rows = [
        model(
            **{name: values[row : row + 1] for name, values in given.items()},
            mems=None if mems is None else [one[:, row : row + 1] for one in mems],
            output_hidden_states=True,
        )
        for row in range(len(batch))
    ]
    return joined(rows)


def joined(rows: list[Any]) -> SimpleNamespace:
    """The outputs of several rows as that of one batch."""
    layers = [torch.cat(parts) for parts in zip(*(row.hidden_states for row in rows), strict=True)]
    mems = [torch.cat(parts, 1) for parts in zip(*(row.mems or () for row in rows), strict=True)]
    logits = torch.cat([row.logits for row in rows]) if "logits" in rows[0] else None
    return SimpleNamespace(hidden_states=layers, mems=mems or None, logits=logits)


def permuted(batch: Sequences, predicted: int = 3) -> tuple[Sequences, dict[str, Tensor]]:
    """A random order of each row, as ours reads it and as theirs."""
    torch.manual_seed(2)
    rows, width = len(batch), batch.width
    rank = torch.rand(rows, width).argsort(1).argsort(1)
    rank[:, 0] = -1
    allowed = rank[:, None, :] < rank[:, :, None]
    targets = 1 + torch.rand(rows, width - 1).argsort(1)[:, :predicted]
    ours = Sequences(
        batch.ids, batch.lengths, batch.segments, {"allowed": allowed, "targets": targets}
    )
    mapping = nn.functional.one_hot(targets, width).float()
    return ours, dict(perm_mask=(~allowed).float(), target_mapping=mapping)


# ------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_states_equal_those_of_transformers_with_padding_on_either_side(variant, left):
    if VARIANTS[variant].get("same_length") and left:
        pytest.skip("nothing but padding is seen without memory")
    model = theirs("Model", **VARIANTS[variant])
    ours, batch = body(ours_of(model)), random_batch()
    expected = ask(model, batch, left=left).hidden_states
    found = list(ours.states(batch))
    assert len(found) == len(expected) == 3
    for layer, other in zip(found, expected, strict=True):
        other = on_the_right(other, batch) if left else other
        torch.testing.assert_close(layer[batch.keep], other[batch.keep], **SAME)


@pytest.mark.parametrize("segments", [0, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_streams_and_their_gradients_equal_those_of_transformers(variant, segments):
    """Permutation masks and targets, train mode without dropout, full rows."""
    model = theirs(**VARIANTS[variant]).train()
    ours = ours_of(model).train()
    batch, given = permuted(random_batch((T,) * 4, segments))
    if VARIANTS[variant].get("same_length"):  # with a long memory there is something to see
        given["mems"] = list(torch.randn(2, T, 4, D).unbind(0))
    memory = (
        SegmentMemory(torch.stack(given["mems"]).permute(2, 0, 1, 3)) if "mems" in given else None
    )
    expected = ask(model, batch, **given)
    found = ours.encode_segment(batch, memory)
    scores = ours.head.logits(found.hidden)
    assert scores.shape == (4, 3, V) and expected.logits.std() > 0.05
    torch.testing.assert_close(scores, expected.logits, **SAME)
    torch.testing.assert_close(found.extras["content"], expected.hidden_states[-2], **SAME)
    targets = torch.randint(0, V, (4, 3))
    ours.head.loss(found.hidden.flatten(0, 1), targets.flatten())[0].backward()
    (nn.functional.cross_entropy(expected.logits.flatten(0, 1), targets.flatten()) * 12).backward()
    assert_same_gradients(ours, model)


def assert_same_gradients(ours: Any, model: nn.Module) -> None:
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    named = XLNET.names_of(ours).read(gradients, ours.state_dict())
    for name, parameter in ours.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(grad, named[name], atol=1e-4, rtol=1e-4, msg=name)


def test_gradients_with_memory_equal_those_of_transformers():
    model = theirs(mem_len=6, use_mems_train=True).train()
    ours = ours_of(model).train()
    first, (second, given) = random_batch((5,) * 4), permuted(random_batch((T,) * 4))
    expected = ask(model, second, mems=ask(model, first).mems, **given).logits
    found = ours.encode_segment(second, ours.encode_segment(first).state)
    mix = torch.randn_like(expected)
    (ours.head.logits(found.hidden) * mix).sum().backward()
    (expected * mix).sum().backward()
    assert_same_gradients(ours, model)


def test_memory_of_padded_segments_raises_an_error_and_a_memory_is_used_once():
    ours = Xlnet(XlnetConfig(V, d_model=D, d_ff=8, heads=3, layers=1)).eval()
    with pytest.raises(RegardError, match="must not be padded"):
        ours.encode_segment(random_batch())
    memory = ours.encode_segment(random_batch((3, 3))).state
    ours.encode_segment(random_batch((3, 3)), memory)
    with pytest.raises(RegardError, match="was consumed"):
        ours.encode_segment(random_batch((3, 3)), memory)


def test_rows_that_are_read_backward_equal_the_reversed_text():
    torch.manual_seed(0)
    ours = Xlnet(XlnetConfig(V, d_model=D, d_ff=8, heads=3, layers=2)).eval()
    batch = random_batch((T, T), 0)
    backward = Sequences(batch.ids, batch.lengths, None, {"backward": torch.tensor([False, True])})
    found, plain = ours.encode(backward), ours.encode(batch)
    reversed_text = ours.encode(Sequences.full(batch.ids[1:].flip(1))).flip(1)
    torch.testing.assert_close(found[0], plain[0], **SAME)
    torch.testing.assert_close(found[1], reversed_text[0], **SAME)


# ------------------------------------------------------------------------ language model


def in_order(ids: Tensor) -> dict[str, Tensor]:
    """What `transformers` is given so that it predicts each next token from those before it."""
    rows, count = ids.shape
    width = count + 1
    hidden = torch.ones(width, width).triu(1)  # the content of later tokens
    hidden[-1, -1] = 1
    mapping = torch.eye(width)[1:]
    mask = hidden + torch.eye(width)
    return dict(
        input_ids=nn.functional.pad(ids, (0, 1)), perm_mask=mask.expand(rows, -1, -1),
        target_mapping=mapping.expand(rows, -1, -1),
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, dict(clamp_len=3)], ids=str)
def test_next_tokens_equal_those_of_transformers_under_the_permutation_in_order(options):
    model = theirs(**options)
    ours, ids = ours_of(model), random_batch((T,) * 3, 0).ids
    expected = model(**in_order(ids)).logits
    torch.testing.assert_close(ours.head.logits(ours(ids).hidden), expected, **SAME)


def test_next_tokens_of_a_model_in_one_direction_equal_those_of_transformers():
    model = theirs(attn_type="uni")
    ours, ids = ours_of(model), random_batch((T,) * 3, 0).ids
    torch.testing.assert_close(ours.head.logits(ours(ids).hidden), model(ids).logits, **SAME)


# --------------------------------------------------------------------------------- heads


def answers(output: Any, kind: str) -> Tensor:
    if kind == "span":
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits.flatten()[:, None] if kind == "multiple_choice" else output.logits


HEADS = {ending: kind for ending, kind in ENDINGS.items() if kind}


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("ending", HEADS)
def test_heads_equal_those_of_transformers(ending, left):
    model, kind = theirs(ending), HEADS[ending]
    ours, batch = ours_of(model), random_batch() if left else random_batch((T, T, T))
    found, expected = ours.scores(kind, batch), answers(ask(model, batch, left=left), kind)
    if kind in ("tags", "span"):
        expected = (on_the_right(expected, batch) if left else expected)[batch.keep]
        found = found[batch.keep]
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, **SAME)


@pytest.mark.parametrize(
    "options",
    [dict(summary_type="first"), dict(summary_type="mean"), dict(summary_type="cls_index"),
     dict(summary_activation="gelu"), dict(summary_activation="")],
    ids=str,
)  # fmt: skip
def test_summaries_equal_those_of_transformers(options):
    model = theirs("ForSequenceClassification", **options)
    batch = random_batch((T, T, T))
    torch.testing.assert_close(
        ours_of(model).scores("classes", batch), ask(model, batch).logits, **SAME
    )


# ---------------------------------------------------------------------------- both ways


def test_a_classifier_begun_from_a_language_model_keeps_the_bias_of_its_output():
    ours = randomized(EncoderWithHeads(Xlnet(XlnetConfig(V, d_model=D, heads=3, layers=1)), {}))
    ours = ours.with_new_head("classes", 3)
    config, tensors = to_published(ours)
    assert config["architectures"] == ["XLNetForSequenceClassification"]
    back = from_published(config, tensors)
    assert torch.equal(back.encoder.head.bias, ours.encoder.head.bias)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_tensors_and_labels_tell_the_head(ending):
    model = theirs(ending)
    config = json.loads(model.config.to_json_string(use_diff=False)) | {"architectures": None}
    if ending == "ForSequenceClassification":
        config["id2label"] = {"0": "no", "1": "yes"}
    ours = from_published(config, weights(model))
    kind = ENDINGS[ending]
    assert list(ours.heads) == [kind] if kind else isinstance(ours, Xlnet)
