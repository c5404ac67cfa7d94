"""The head that searches for answers against that of `transformers`: beams, loss and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.checkpoints.formats import from_published
from regard.checkpoints.formats.transformer_xl import XLNET
from regard.data.batches import Sequences
from regard.layers.task_heads import SpanSearchHead

transformers = pytest.importorskip("transformers")

V, D, T = 31, 12, 9
SAME = dict(atol=1e-5, rtol=1e-5)
LENGTHS = torch.tensor([T, 4, 7, 3])


def both(starts: int = 3, ends: int = 2) -> tuple[Any, Any]:
    """Their model, and ours with the same weights."""
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=V, d_model=D, n_layer=2, n_head=3, d_inner=20, dropout=0.0,
        start_n_top=starts, end_n_top=ends, layer_norm_eps=1e-3,
    )  # fmt: skip
    model = transformers.XLNetForQuestionAnswering(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    config.architectures = ["XLNetForQuestionAnswering"]
    return model, from_published(config.to_dict(), model.state_dict()).double().eval()


def texts() -> tuple[Sequences, Tensor]:
    """Padded texts, and the tokens of which answers consist: all but the first and the last two."""
    torch.manual_seed(1)
    batch = Sequences(torch.randint(6, V, (4, T)), LENGTHS, torch.randint(0, 3, (4, T)))
    positions = torch.arange(T)
    return batch, (positions > 0) & (positions < LENGTHS[:, None] - 2)


def asked(batch: Sequences, answers: Tensor, left: bool) -> tuple[dict[str, Tensor], Tensor]:
    """What their model is given, padded on either side, and where our position 0 is in it."""
    last = batch.lengths - 1
    banned = ~(answers | (torch.arange(T) == last[:, None]))
    given = {
        "input_ids": batch.ids, "token_type_ids": batch.segments,
        "attention_mask": batch.keep.double(), "p_mask": banned.double(),
    }  # fmt: skip
    shift = T - batch.lengths if left else torch.zeros_like(batch.lengths)
    moved = (torch.arange(T) - shift[:, None]) % T
    given = {name: values.gather(1, moved) for name, values in given.items()}
    return given | {"cls_index": last + shift}, shift


@torch.no_grad()
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(("starts", "ends"), [(3, 2), (1, 4), (2, 1)])
def test_beams_equal_those_of_transformers_with_padding_on_either_side(starts, ends, left):
    model, ours = both(starts, ends)
    batch, answers = texts()
    given, shift = asked(batch, answers, left)
    expected = model(**given)
    last = batch.lengths - 1
    allowed = answers | (torch.arange(T) == last[:, None])
    head: SpanSearchHead = ours.heads["span_search"]
    beams = head.search(ours.encoder.encode(batch), allowed, last)
    torch.testing.assert_close(beams.no_answer, expected.cls_logits.float(), **SAME)
    firsts, lasts = expected.start_top_index, expected.end_top_index
    their_ends = expected.end_top_log_probs.view(4, ends, starts).transpose(1, 2)
    lasts = lasts.view(4, ends, starts).transpose(1, 2)
    # What they call log-probabilities are probabilities; where these are 0 any token may stand.
    their_starts = expected.start_top_log_probs.float()
    torch.testing.assert_close(beams.start_scores.exp(), their_starts, **SAME)
    possible = beams.start_scores > -30
    their_ends = their_ends.float()[possible]
    torch.testing.assert_close(beams.end_scores[possible].exp(), their_ends, **SAME)
    assert torch.equal(beams.starts[possible], (firsts - shift[:, None])[possible])
    both_possible = possible[..., None] & (beams.end_scores > -30)
    found = (lasts - shift[:, None, None])[both_possible]
    assert torch.equal(beams.ends[both_possible], found) and both_possible.sum() > 4


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_loss_and_gradients_equal_those_of_transformers(left):
    model, ours = both()
    batch, answers = texts()
    given, shift = asked(batch, answers, left)
    last = batch.lengths - 1
    spans = torch.tensor([[2, 5], [1, 1], [0, 0], [2, 2]])
    spans[2:] = last[2:, None]  # no answer
    expected = model(
        **given, start_positions=spans[:, 0] + shift, end_positions=spans[:, 1] + shift,
        is_impossible=torch.tensor([0.0, 0.0, 1.0, 1.0]).double(),
    ).loss  # fmt: skip
    allowed = answers | (torch.arange(T) == last[:, None])
    head: SpanSearchHead = ours.heads["span_search"]
    loss, count = head.loss(ours.encoder.encode(batch), spans, allowed, last)
    assert count == 4
    torch.testing.assert_close(loss / count, expected.float(), **SAME)
    (loss / count).backward()
    expected.backward()
    for name, ours_of, theirs_of in pairs(ours, model):
        torch.testing.assert_close(ours_of, theirs_of, atol=1e-4, rtol=1e-4, msg=name)


def pairs(ours: nn.Module, model: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    """The gradients of all parameters, under our names."""
    theirs = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    named = XLNET.names_of(ours).read(theirs, ours.state_dict())
    found = []
    for name, parameter in ours.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found.append((name, grad, named[name]))
    return found
