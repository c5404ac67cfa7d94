"""Properties that every model of the table must have; a new model adds one line to TINY."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from captured_weights import heard_by
from random_weights import new_model, randomized
from torch import Tensor, nn

from regard.attention.capture import CapturePoint
from regard.attention.pruning import Prunable, attentions, heads_masked, prune_heads
from regard.attention.selection import PredictiveWindow
from regard.checkpoints.filling import load_weights
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.store import read_tensors, write_tensors
from regard.data.batches import Sequences
from regard.data.images import REGIONS
from regard.decoding.steps import start
from regard.errors import ConfigError, RegardError
from regard.experiments.runs import plan, read_recipe
from regard.layers.softmax import Softmax
from regard.models import MODELS, model_class
from regard.models import name_of as models_name
from regard.models.conversions import exchange_vocabulary
from regard.models.encoder_with_heads import HEADS, EncoderWithHeads
from regard.models.protocols import Encoder, Generator, LanguageModel
from regard.models.wrappers import EncoderWrapper, GeneratorWrapper
from regard.tasks import task_class
from regard.tasks.folders import load, save
from regard.text import train as train_tokenizer

V, PAD, BOS, EOS = 19, 0, 1, 2
SEQ2SEQ = dict(d_model=8, layers=2, dropout=0.3)
RECURRENT = dict(d_model=8, layers=2, dropout=0.3)
AWD = dict(
    d_model=8, d_hidden=12, layers=2, embedding_dropout=0.2, input_dropout=0.3, weight_dropout=0.4,
    hidden_dropout=0.3, output_dropout=0.3, inner=5,
)  # fmt: skip
BYTENET = dict(d_model=8, dilations=(1, 2), sets=1, dropout=0.2)
CONV = dict(d_model=8, encoder=((3, 8), (5, 6)), decoder=((3, 8), (2, 6)), dropout=0.3)
REGION = 6  # numbers of a region of an image
CAPTIONER = dict(d_model=8, d_embedding=5, d_region=REGION, dropout=0.3)
TRANSFORMER = dict(
    d_model=8, d_ff=16, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.3,
    attention_dropout=0.3, activation_dropout=0.3,
)  # fmt: skip
GPT = dict(
    d_model=8, heads=2, layers=2, dropout=0.3, attention_dropout=0.3, embedding_dropout=0.3,
    max_length=16,
)  # fmt: skip
TRANSFORMER_XL = dict(
    d_model=8, d_ff=16, heads=2, layers=2, dropout=0.3, attention_dropout=0.3, memory_length=16,
    target_length=4, cutoffs=(7, 12),
)  # fmt: skip
BERT = dict(
    d_model=8, d_ff=12, heads=2, layers=2, dropout=0.3, attention_dropout=0.3, max_length=16
)
DEBERTA = dict(BERT, d_embedding=8, position_buckets=4, max_relative_positions=8)
T5_ENCODER = dict(
    d_model=8, d_ff=12, heads=3, head_dim=4, layers=2, buckets=8, max_distance=6, dropout=0.3
)
T5 = dict(T5_ENCODER, decoder_layers=2)
ELMO = dict(
    d_model=8, d_cell=6, layers=2, d_character=3, filters=((1, 3), (2, 4), (4, 2)), word_length=9,
    dropout=0.3,
)  # fmt: skip
LLAMA = dict(
    d_model=8, d_ff=12, heads=4, key_value_heads=2, layers=2, max_length=32, rope_theta=50.0,
    attention_dropout=0.3,
)  # fmt: skip
XLNET = dict(d_model=8, d_ff=12, heads=2, layers=2, dropout=0.3)

BILSTM = dict(d_words=6, d_model=8, d_character=4, d_characters=6, word_length=9)
KIM = dict(d_words=6, filters=((2, 4), (3, 4)))
# How the names of parameters end that get no gradient from the prediction of the next token:
# XLNet's of segments, and a compression, which has a loss of its own.
UNREAD = {
    "xlnet": ("segment_bias", "attention.segments", "start"),
    "compressive-transformer": ("kernel.weight", "kernel.bias"),
}

# model -> variants of a tiny configuration
TINY: dict[str, list[dict]] = {
    "lstm-lm": [
        dict(RECURRENT, cell="lstm", tied=True), dict(RECURRENT, cell="gru"),
        dict(RECURRENT, cell="rnn", layers=1),
    ],
    "awd-lstm": [
        AWD, dict(AWD, layers=3, tied=False, window=2, learning_windows=1),
        dict(AWD, d_hidden=6, backward=True),
    ],
    "rnnsearch": [dict(d_model=4, d_embedding=6, d_score=5, d_maxout=7, dropout=0.3)],
    "lstm-seq2seq": [
        dict(SEQ2SEQ, attention=kind) for kind in ("none", "additive", "dot", "general")
    ] + [
        dict(SEQ2SEQ, attention="location", max_length=16),
        dict(SEQ2SEQ, attention="dot", d_embedding=6, tied=False),
        dict(SEQ2SEQ, attention="none", d_embedding=6, tied=False),
        dict(SEQ2SEQ, attention="scaled-dot", window="local-m", half_width=2),
        dict(SEQ2SEQ, attention="general", window="local-p", half_width=3),
        dict(SEQ2SEQ, attention="content-based", selection="hard"),
        dict(SEQ2SEQ, attention="cosine", window="local-p", selection="hard-expected",
             choice_seed=3),
    ],
    "bytenet": [
        dict(BYTENET, dropout=0.3), dict(BYTENET, length_ratio=0.5),
        dict(BYTENET, length_ratio=2.5, extra_columns=2, sets=2),
    ],
    "conv-seq2seq": [
        dict(CONV, max_length=16),
        dict(CONV, tied=True, encoder=((1, 4),), decoder=((1, 4), (4, 4), (2, 10))),
    ],
    "transformer": [
        TRANSFORMER, dict(TRANSFORMER, positions="learned"),
        dict(TRANSFORMER, activation="gelu", decoder_heads=4, decoder_d_ff=12, output_bias=True),
        dict(TRANSFORMER, positions="shaw", clip_distance=2),
        dict(TRANSFORMER, positions="t5", decoder_heads=4),
        dict(TRANSFORMER, positions="transformer-xl", decoder_heads=1),
    ],
    "transformer-prenorm": [TRANSFORMER, dict(TRANSFORMER, positions="shaw", clip_distance=3)],
    "bart": [TRANSFORMER, dict(TRANSFORMER, scale_embedding=True, max_length=16)],
    "bart-as-encoder": [TRANSFORMER, dict(TRANSFORMER, head_dropout=0.3, max_length=16)],
    "mbart": [TRANSFORMER],
    "mbart-as-encoder": [TRANSFORMER],
    "m2m-100": [
        dict(TRANSFORMER, d_model=12, heads=3, scale_embedding=False), dict(TRANSFORMER, d_ff=12),
    ],
    "elmo": [
        ELMO, dict(ELMO, output="none", filters=((2, 4),), highway_layers=0, activation="tanh"),
        dict(ELMO, layers=1, residual=False, cell_clip=None, projection_clip=None),
        dict(ELMO, layers=3, negative_samples=4, cell_clip=0.1, projection_clip=0.05),
    ],
    "gpt": [
        GPT, dict(GPT, output="own"), dict(GPT, positions="sinusoidal"),
        dict(GPT, positions="shaw", clip_distance=2), dict(GPT, positions="t5"),
    ],
    "gpt2": [
        GPT, dict(GPT, d_ff=12, output="own", scaled=False, scaled_by_layer=True),
        dict(GPT, positions="none"), dict(GPT, positions="transformer-xl"),
        dict(GPT, positions="shaw", clip_distance=4, scaled_by_layer=True),
    ],
    "gpt3": [
        dict(GPT, window=3), dict(GPT, window=1, attention_kinds=("local",), layers=3),
        dict(GPT, layers=3, attention_kinds=("local", "local", "global"), window=2,
             positions="shaw", clip_distance=2),
    ],
    "gpt-neo": [
        dict(GPT, window=3),
        dict(GPT, layers=3, window=2, attention_kinds=("local", "global"), output="own", d_ff=12),
    ],
    "llama": [
        LLAMA, dict(LLAMA, key_value_heads=1, head_dim=6, output="tied", attention_bias=True),
        dict(LLAMA, key_value_heads=None, feed_bias=True, rope_scaling="llama3", rope_factor=4.0,
             rope_original_length=16),
    ],
    "adaptive-transformer": [dict(GPT, cutoffs=(7, 12), divisor=2), dict(GPT, divisor=1)],
    "transformer-xl": [
        dict(TRANSFORMER_XL, divisor=2, head_dim=6, tied_projections=(False, True, True)),
        dict(TRANSFORMER_XL, memory_length=3, same_length=True, memory_start="zeros", norm="pre",
             d_embedding=4, max_distance=2, cutoffs=(11,), tied_projections=(True, False)),
        dict(TRANSFORMER_XL, cutoffs=(), output="own", shared_biases=True, max_distance=3),
    ],
    "sega-transformer-xl": [
        dict(TRANSFORMER_XL, sentence_ends=(5, 7), paragraph_ends=(9,)),
        dict(TRANSFORMER_XL, memory_length=3, same_length=True, memory_start="zeros", norm="pre",
             sentence_ends=(5, 7), paragraph_ends=(9, 11), max_distance=2),
    ],
    "compressive-transformer": [
        dict(TRANSFORMER_XL, compressed_length=4, compression_rate=2, divisor=2),
        dict(TRANSFORMER_XL, compressed_length=3, compression_rate=3, norm="pre",
             cutoffs=()),
    ],
    "bert": [
        BERT, dict(BERT, segments=3), dict(BERT, positions="sinusoidal"),
        dict(BERT, positions="shaw", clip_distance=2), dict(BERT, positions="t5"),
        dict(BERT, positions="transformer-xl"),
    ],
    "roberta": [BERT],
    "xlm-roberta": [BERT],
    "mpnet": [BERT],
    "segabert": [BERT, dict(BERT, paragraphs=2, sentences=3, sentence_length=5)],
    "xlnet": [
        XLNET,
        dict(XLNET, attention="uni", same_length=True, memory_length=3, max_distance=2,
             output="own"),
    ],
    "electra": [dict(BERT, d_embedding=8), dict(BERT, d_embedding=6)],
    "albert": [
        dict(BERT, d_embedding=6), dict(BERT, layers=4, groups=2),
        dict(BERT, layers=6, groups=2, layers_per_group=2),
    ],
    "bigbird": [
        dict(BERT, block_size=2, random_blocks=1), dict(BERT, block_size=1, random_blocks=0),
        dict(BERT, attention="full", scaled_embedding=True, projection_bias=False),
    ],
    "deberta": [
        DEBERTA, dict(DEBERTA, d_embedding=6, position_buckets=0, max_relative_positions=3),
        dict(DEBERTA, positions="learned", segments=2, share_att_key=False, conv_kernel_size=3),
        dict(DEBERTA, relative_attention=False, norm_rel_ebd=False, positions="learned"),
    ],
    "distilbert": [BERT],
    "t5": [
        T5, dict(T5, activation="gelu-tanh", gated=True, tied=False, scale_output=False),
        dict(T5, bias_per_layer=True),
    ],
    "t5-encoder": [T5_ENCODER, dict(T5_ENCODER, bias_per_layer=True, gated=True)],
    "decoder-only": [
        dict(base_model=dict(GPT, max_length=32)), dict(decoder="llama", base_model=LLAMA),
        dict(decoder="lstm-lm", base_model=dict(RECURRENT, cell="gru", tied=True)),
    ],
    "show-attend-tell": [
        CAPTIONER, dict(CAPTIONER, attention="mean"), dict(CAPTIONER, attention="hard"),
        dict(CAPTIONER, attention="hard-expected", choice_seed=5, d_embedding=8),
    ],
    "region-transformer": [dict(TRANSFORMER, d_region=REGION)],
    "bilstm": [
        BILSTM, dict(BILSTM, characters="cnn", layers=2), dict(BILSTM, characters="none"),
    ],
    "kim-cnn": [
        KIM, dict(KIM, vectors="static", filters=((1, 3), (4, 5))),
        dict(KIM, vectors="multichannel"),
    ],
    "features": [
        dict(base_model=BERT, combine="mix", d_model=8, dropout=0.3),
        dict(base_model=ELMO, encoder="elmo", combine="mix", d_model=8, d_words=3, dropout=0.3),
        dict(base_model=GPT, encoder="gpt2", feature_layers=-2, d_model=8, lstm_layers=1,
             dropout=0.3),
    ],
}  # fmt: skip


def cases(verb: str) -> list[tuple[str, int]]:
    """The models that have this verb, in all their variants."""
    named = [name for name in MODELS if hasattr(model_class(name), verb)]
    return [(name, n) for name in named for n in range(len(TINY.get(name, [{}])))]


# Attentions for each layer: one in the encoder, and in the decoder one of each kind.
ATTENTIONS = {"bart-as-encoder": 3, "mbart-as-encoder": 3}
CHARACTER_ENCODERS = {"elmo", "bilstm"}  # they read characters, and have no attention
CASES, ENCODERS = cases("step"), cases("new_head")


class Words:
    """A tokenizer of V words, for encoders that read more than ids."""

    bos_id, eos_id = BOS, EOS

    def token(self, number: int) -> str:
        return "abcde"[number % 5] * (1 + number // 5)


def read_by(encoder: nn.Module, batch: Sequences) -> Sequences:
    """A batch with all that an encoder reads of it."""
    reads_characters = models_name(body_of(encoder)) in CHARACTER_ENCODERS
    return encoder.complete(batch, Words()) if reads_characters else batch


def body_of(encoder: nn.Module) -> nn.Module:
    """An encoder, without the biLSTM over its features."""
    return encoder.encoder if models_name(encoder) == "features" else encoder


def build(case: tuple[str, int]) -> nn.Module:
    name, n = case
    assert name in TINY, f"give {name} a tiny configuration in {__name__}"
    torch.manual_seed(0)
    known = {field.name for field in fields(model_class(name).Config)}
    special = {"pad": PAD, "bos": BOS, "eos": EOS}
    special = {role: number for role, number in special.items() if role in known}
    return randomized(new_model(name, V, **special, **TINY[name][n])).eval()


def reads_source(model: nn.Module | type) -> bool:
    return "source" in inspect.signature(model.forward).parameters


def name_of(case: tuple[str, int]) -> str:
    return f"{case[0]}-{case[1]}"


def ids(rows: int, count: int, seed: int = 1) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(3, V, (rows, count), generator=made)


def source_of(ids: Tensor, lengths: Tensor) -> Sequences:
    """A source; of models that read images every id stands for the numbers of a region."""
    numbers = torch.randn(V, REGION, generator=torch.Generator().manual_seed(7))
    return Sequences(ids, lengths, extras={REGIONS: numbers[ids]})


def source(width: int = 5) -> Sequences:
    """Three sources of different lengths, with arbitrary ids behind their ends."""
    return source_of(ids(3, width, seed=2), torch.tensor([5, 1, 3]))


def hidden(model: nn.Module, target: Tensor, read: Sequences | None = None) -> Tensor:
    if reads_source(model):
        return model(read or source(), Sequences.full(target)).hidden
    return model(target).hidden


def logits(model: nn.Module, target: Tensor, read: Sequences | None = None) -> Tensor:
    return model.head.logits(hidden(model, target, read))


def start_decoding(model: nn.Module, read: Sequences | None = None):
    """A state for three rows, and the tokens that come first."""
    if reads_source(model):
        return start(model, read or source())
    return start(model, Sequences.of([[4], [5], [6]], PAD))


TRANSLATORS = [case for case in CASES if reads_source(model_class(case[0]))]
LANGUAGE_MODELS = [case for case in CASES if case not in TRANSLATORS]


def tied_names(model: nn.Module) -> set[tuple[str, str]]:
    """Pairs of names of one parameter."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {(first[one], name) for name, one in every if name != first[one]}


@pytest.fixture(params=CASES, ids=name_of)
def model(request) -> nn.Module:
    return build(request.param)


@pytest.fixture(params=TRANSLATORS, ids=name_of)
def translator(request) -> nn.Module:
    """A model that reads a source."""
    return build(request.param)


@pytest.fixture(params=LANGUAGE_MODELS, ids=name_of)
def language_model(request) -> nn.Module:
    """A model that continues a prompt."""
    return build(request.param)


def test_later_tokens_do_not_change_earlier_states(model):
    target = ids(3, 7)
    before = hidden(model, target)
    for at in range(1, 7):
        changed = target.clone()
        changed[:, at] = 3 + (changed[:, at] - 2) % (V - 3)
        after = hidden(model, changed)
        assert torch.equal(after[:, :at], before[:, :at])
        assert not torch.allclose(after[:, at], before[:, at])


def test_every_source_token_and_no_padding_changes_the_states(translator):
    target, read = ids(3, 4), source()
    before = hidden(translator, target, read)
    for row in range(3):
        for at in range(5):
            changed = read.ids.clone()
            changed[row, at] = 3 + (changed[row, at] - 2) % (V - 3)
            after = hidden(translator, target, source_of(changed, read.lengths))
            same = torch.ones(3, dtype=torch.bool)
            same[row] = at >= read.lengths[row]
            assert torch.equal(after[same], before[same])
            assert torch.equal(after[row], before[row]) == bool(same[row])


def test_padding_and_batch_do_not_change_states(model):
    target, read = ids(3, 6), source()
    together = hidden(model, target, read)
    for row in (2, 0, 1):
        length = int(read.lengths[row])
        alone = source_of(read.ids[row : row + 1, :length], read.lengths[row : row + 1])
        torch.testing.assert_close(
            hidden(model, target[row : row + 1], alone)[0], together[row], atol=1e-5, rtol=1e-5
        )
    order = torch.tensor([2, 0, 1, 0])
    moved = hidden(model, target[order], read.select(order))
    torch.testing.assert_close(moved, together[order], atol=1e-5, rtol=1e-5)
    wider = source_of(torch.cat([read.ids, ids(3, 9)], 1), read.lengths)
    torch.testing.assert_close(hidden(model, target, wider), together, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pieces", [[1] * 7, [2, 1, 3, 1]], ids=str)
def test_steps_equal_the_full_pass(model, pieces):
    state, first = start_decoding(model)
    assert first.shape == (3, 1)
    target = torch.cat([first, ids(3, 6)], 1)
    expected = logits(model, target).log_softmax(-1)
    said, at = [], 0
    for count in pieces:
        scores, state = model.step(target[:, at : at + count], state)
        assert scores.shape == (3, count, V)
        said.append(scores.log_softmax(-1))
        at += count
    assert state.rows == 3
    torch.testing.assert_close(torch.cat(said, 1), expected, atol=1e-5, rtol=1e-5)


def test_select_commutes_with_step(model):
    target, rows = ids(3, 4), torch.tensor([2, 0, 0, 1, 1, 2])
    again = torch.tensor([5, 1, 0, 3])
    state, _ = start_decoding(model)
    _, state = model.step(target[:, :2], state)
    scores, late = model.step(target[:, 2:3], state.copy())
    empty = state.select(torch.tensor([], dtype=torch.long))
    chosen = state.select(rows)
    assert chosen.rows == 6 and state.rows == 3
    early, chosen = model.step(target[rows, 2:3], chosen)
    torch.testing.assert_close(early, scores[rows], atol=1e-5, rtol=1e-5)
    last, _ = model.step(target[rows[again], 3:], chosen.select(again))
    expected, _ = model.step(target[rows[again], 3:], late.select(rows[again]))
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-5)
    assert empty.rows == 0
    assert model.step(ids(0, 1), empty)[0].shape == (0, 1, V)


def test_a_state_that_was_used_raises_an_error(model):
    target = ids(3, 3)
    state, _ = start_decoding(model)
    kept = state.copy()
    scores, after = model.step(target[:, :1], state)
    for use in (
        lambda: model.step(target[:, :1], state),
        lambda: state.select(torch.arange(3)),
        state.copy,
    ):
        with pytest.raises(RegardError, match="was consumed by an earlier step"):
            use()
    _, other = model.step(target[:, 1:2], kept.copy())  # writes into memory of its own
    again, after_again = model.step(target[:, :1], kept)
    assert torch.equal(again, scores)
    both = [model.step(target[:, 2:], one)[0] for one in (after, after_again)]
    assert torch.equal(*both)


def test_a_state_is_restored_from_its_tensors(model):
    target = ids(3, 3)
    state, _ = start_decoding(model)
    _, state = model.step(target[:, :1], state)
    copy = state.with_tensors({name: t.clone() for name, t in state.tensors().items()}).detach()
    torch.testing.assert_close(
        model.step(target[:, 1:], copy)[0], model.step(target[:, 1:], state)[0]
    )


def test_prompts_of_different_lengths_continue_as_each_alone(language_model):
    prompts = [[4, 5, 6, 7], [8], [9, 10]]
    state, first = start(language_model, Sequences.of(prompts, PAD))
    assert first.flatten().tolist() == [7, 8, 10]
    following = torch.cat([first, ids(3, 3)], 1)
    scores, _ = language_model.step(following, state)
    for row, prompt in enumerate(prompts):
        whole = torch.tensor([[*prompt, *following[row, 1:].tolist()]])
        expected = logits(language_model, whole)[0, len(prompt) - 1 :]
        torch.testing.assert_close(
            scores[row].log_softmax(-1), expected.log_softmax(-1), atol=1e-5, rtol=1e-5
        )


def test_sequences_that_join_others_continue_as_each_alone(language_model):
    prompts, fed = [[4, 5, 6, 7], [8], [9, 10]], ids(3, 3)
    started = [start(language_model, Sequences.of([prompt], PAD)) for prompt in prompts]
    tokens = torch.cat([torch.cat([first for _, first in started]), fed], 1)
    states = [state for state, _ in started]
    if not states[0].JOINS:
        with pytest.raises(TypeError, match="cannot join"):
            states[0].joined(states[1])
        return
    kept = [state.copy() for state in states]
    together = states[0].joined(states[1])
    _, together = language_model.step(tokens[:2, :1], together)
    _, late = language_model.step(tokens[2:, :1], states[2])
    scores, _ = language_model.step(tokens[:, 1:], together.joined(late))
    for row, state in enumerate(kept):
        _, state = language_model.step(tokens[row : row + 1, :1], state)
        alone, _ = language_model.step(tokens[row : row + 1, 1:], state)
        torch.testing.assert_close(scores[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def test_an_empty_prompt_is_one_sequence(language_model):
    state, first = start(language_model, None)
    assert first.shape == (1, 1) and language_model.step(first, state)[0].shape == (1, 1, V)


def test_windows_with_a_carried_state_equal_one_long_pass(language_model):
    target = ids(3, 8)
    whole = language_model(target)
    empty, _ = start_decoding(language_model)
    first = language_model(target[:, :5], empty)
    second = language_model(target[:, 5:], first.state.detach())
    torch.testing.assert_close(
        torch.cat([first.hidden, second.hidden], 1), whole.hidden, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("learning", [False, True])
def test_a_carried_state_equals_one_restored_from_its_tensors_through_a_long_text(
    language_model, learning
):
    """A state that is used for long moves within its buffers; a restored one has new buffers."""
    longest = language_model.config.max_length or 150
    carried, restored = (language_model.empty(2) for _ in range(2))
    with torch.set_grad_enabled(learning):
        for piece in ids(2, longest).split(5, 1):
            tensors = {name: tensor.clone() for name, tensor in restored.tensors().items()}
            restored = restored.with_tensors(tensors)
            one, other = language_model(piece, carried), language_model(piece, restored)
            torch.testing.assert_close(one.hidden, other.hidden, atol=1e-5, rtol=1e-5)
            carried, restored = one.state.detach(), other.state.detach()


def test_every_parameter_gets_a_finite_gradient_in_training(model):
    model.train()
    torch.manual_seed(3)
    target = ids(3, 8)
    out = hidden(model, target[:, :-1]).flatten(0, 1)
    total, count = model.head.loss(out, target[:, 1:].flatten(), 0.1)
    total.backward()
    assert count == 21
    unread = UNREAD.get(models_name(model), ())
    for name, parameter in model.named_parameters():
        if parameter.grad is None and name.endswith(unread):
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name


def test_an_empty_source_gives_finite_scores_and_gradients(translator):
    read = source_of(torch.tensor([[4, 5], [PAD, PAD]]), torch.tensor([2, 0]))
    out = logits(translator, ids(2, 3), read)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in translator.parameters() if p.grad is not None)


def test_saved_weights_are_loaded_unchanged(model, tmp_path):
    target = ids(3, 5)
    before = logits(model, target)
    write_tensors(tmp_path / "model.safetensors", model.state_dict())
    other = type(model)(model.config).eval()
    assert not torch.equal(logits(other, target), before)
    load_weights(other, read_tensors(tmp_path / "model.safetensors"))
    assert torch.equal(logits(other, target), before)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert tied_names(other) == tied_names(model)


@pytest.mark.parametrize("case", sorted({*CASES, *ENCODERS}), ids=name_of)
def test_self_attention_without_a_context_has_a_limit_which_a_wrapped_model_passes_on(case):
    model = build(case)
    kinds = {part.kind for part in model.modules() if isinstance(part, CapturePoint)}
    assert model.text_limit is not None or kinds <= {"cross"}
    if case[0] == "features":
        assert model.text_limit == model.encoder.text_limit
    if case[0] == "decoder-only":
        inner = model.decoder.text_limit
        assert model.text_limit == (inner and inner // 2)


@pytest.fixture(params=ENCODERS, ids=name_of)
def encoder(request) -> nn.Module:
    """A model that gives a hidden state for each token of a text."""
    return build(request.param)


def test_padding_and_batch_do_not_change_the_states_of_an_encoder(encoder):
    texts, close = read_by(encoder, source(7)), dict(atol=1e-5, rtol=1e-5)
    together = list(encoder.states(texts))
    whole = encoder.mix(together) if models_name(encoder) == "elmo" else together[-1]
    assert torch.equal(encoder.encode(texts), whole)
    for row, length in enumerate(texts.lengths.tolist()):
        alone = Sequences(texts.ids[row : row + 1, :length], texts.lengths[row : row + 1])
        for layer, hidden in zip(together, encoder.states(read_by(encoder, alone)), strict=True):
            torch.testing.assert_close(hidden[0], layer[row, :length], **close)
    order = torch.tensor([2, 0, 1, 0])
    keep = texts.keep[order]
    for pad in (PAD, 7):
        padded = torch.where(texts.keep, texts.ids, pad)
        wider = Sequences(torch.cat([padded, padded], 1), texts.lengths).select(order)
        moved = encoder.encode(read_by(encoder, wider))[:, :7]
        torch.testing.assert_close(moved[keep], whole[order][keep], **close)


@torch.no_grad()
def test_a_row_of_the_tables_of_words_changes_the_vectors_of_its_word_alone(encoder):
    batch = read_by(encoder, source())
    before = next(iter(encoder.states(batch)))
    for table in encoder.word_tables:
        table.weight[int(batch.ids[0, 1])] += torch.arange(table.embedding_dim)
    after = next(iter(encoder.states(batch)))
    changed = (after != before).any(-1) & batch.keep
    same_word = (batch.ids == batch.ids[0, 1]) & batch.keep
    assert torch.equal(changed, same_word if encoder.word_tables else torch.zeros_like(same_word))


def test_an_encoder_is_causal_where_nothing_leaks_from_the_future_and_it_predicts(encoder):
    texts = Sequences.full(ids(2, 6))
    changed = texts.ids.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % (V - 3)
    before, after = (
        encoder.encode(read_by(encoder, one))[:, :-1] for one in (texts, Sequences.full(changed))
    )
    predicts = isinstance(encoder, LanguageModel)
    assert encoder.is_causal == (predicts and torch.equal(before, after))


def test_attention_capture_does_not_change_the_states_of_an_encoder(encoder):
    texts, recorder = read_by(encoder, source(7)), Recorder(encoder)
    for mode in (False, True):
        results = []
        for listener in (None, recorder):
            torch.manual_seed(4)
            with heard_by(listener):
                results.append(encoder.train(mode).encode(texts)[texts.keep])
        torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    points = [m for m in encoder.modules() if isinstance(m, CapturePoint) and m.kind != "query"]
    uses = sum(point.uses for point in points)
    layers = encoder.config.layers if points else 0  # recurrent encoders have no attention
    layers *= ATTENTIONS.get(models_name(encoder), 1)
    assert len(recorder.kinds) == 2 * uses == 2 * layers


@pytest.mark.parametrize(
    "name", [name for name in MODELS if issubclass(model_class(name), LanguageModel)]
)
def test_a_trained_language_model_is_fine_tuned_as_classifier_and_tagger(name, tmp_path):
    """From its folder, with the tokenizer as it is there; texts get the same alone and in a batch,
    before and after the result is saved.
    """
    lines = ["a b c d e f g h", "i j k l m n o p q r s t", "b"]
    added = {"sep": "<sep>", "cls": "<cls>"} if name == "xlnet" else {}  # by its pre-training
    tokenizer = train_tokenizer("words", lines, V - len(added)).with_roles(added)
    assert tokenizer.vocab_size == V
    language_model = task_class("language-modeling")(build((name, 0)), tokenizer, format="lines")
    save(language_model, tmp_path / "lm")
    tables = {"classification": "a b c\tx\ni j\ty\n", "tagging": "a\tx\nb\ty\n\ni\tx\n"}
    for task, table in tables.items():
        (tmp_path / f"{task}.tsv").write_text(table)
        recipe = f'task = "{task}"\n[model]\npath = "lm"\n[data]\ntrain = "{task}.tsv"\n'
        recipe += 'scheme = "none"\n' * (task == "tagging") + "[training]\nmax_steps = 1\n"
        (tmp_path / "recipe.toml").write_text(recipe)
        tuned = plan(read_recipe(tmp_path / "recipe.toml")).task
        total, count = tuned.losses(next(tuned.train_batches()))[0]["loss"]
        total.backward()
        learning = [p.grad for p in tuned.module.parameters() if p.grad is not None]
        assert count and learning and all(one.isfinite().all() for one in learning)
        assert any(p.grad is not None and p.grad.any() for p in tuned.module.encoder.parameters())
        save(tuned, tmp_path / task)
        loaded = load(tmp_path / task)
        texts = lines if task == "classification" else [line.split() for line in lines]
        for text, found in zip(texts, tuned.predict(texts, return_proba=True), strict=True):
            for alone in (
                *tuned.predict([text], return_proba=True),
                *loaded.predict([text], return_proba=True),
            ):
                assert alone.values() == near(found.values())


def near(value: Any) -> Any:
    """What equals a prediction up to rounding."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-5)
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    return type(value)(map(near, value)) if isinstance(value, list | tuple) else value


def test_encoders_in_bfloat16_have_finite_states_and_gradients(encoder):
    texts = read_by(encoder, source(7))
    with torch.autocast("cpu", torch.bfloat16):
        encoder.train().encode(texts)[texts.keep].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)
    assert encoder.eval().to(torch.bfloat16).encode(texts)[texts.keep].isfinite().all()


def test_with_head_keeps_existing_heads_and_the_pooler(encoder):
    """A head that exists is kept; a new one gets the pooler if the family has one."""
    made = {}
    for kind in HEADS:
        with suppress(ConfigError):
            made[kind] = encoder.new_head(kind, 3)
    whole = EncoderWithHeads(encoder, made).eval()
    for kind, own in made.items():
        same = whole.with_head(kind, getattr(own, "outputs", 1))
        assert list(same.heads) == [kind] and same.heads[kind] is own
        assert same.encoder is encoder and not same.training
    fresh = whole.with_head("classes", 5)
    assert fresh.heads["classes"].outputs == 5 and not fresh.heads["classes"].training
    assert fresh.scores("classes", read_by(encoder, source(7))).shape == (3, 5)
    for kind in encoder.pooled:
        bare = EncoderWithHeads(encoder, {"pooler": made["pooler"]}).with_head(kind, 3)
        pooler = made["pooler"].inner.dense
        if kind != "pooler":
            assert bare.heads[kind].inner.dense is not pooler
        assert torch.equal(bare.heads[kind].inner.dense.weight, pooler.weight)


def test_every_head_of_an_encoder_has_finite_scores_and_gradients(encoder):
    texts, kinds = read_by(encoder, source(7)), []
    for kind in HEADS:
        try:
            head = encoder.new_head(kind, 3)
        except ConfigError:
            continue
        kinds.append(kind)
        answers = EncoderWithHeads(encoder.train(), {kind: head}).scores(kind, texts)
        answers[:1].square().sum().backward()
        assert answers.shape[0] == 3 and answers.isfinite().all()
        learned = [p.grad for p in head.parameters() if p.requires_grad]
        assert learned and all(g is not None and g.isfinite().all() for g in learned), kind
    assert {"classes", "tags", "span", "multiple_choice"} <= set(kinds)


PRUNABLE = [
    case
    for case in dict.fromkeys((*CASES, *ENCODERS))
    if issubclass(model_class(case[0]), Prunable)
]


@pytest.mark.parametrize("case", PRUNABLE, ids=name_of)
@torch.no_grad()
def test_pruned_heads_compute_what_masked_ones_do_also_when_they_are_read_again(case):
    """A head of the first layer and the last one of the last layer, in each kind of attention."""

    def computed(model: nn.Module) -> Tensor:
        whole = logits(model, ids(3, 5)) if hasattr(model, "step") else ids(3, 5)[:0]
        texts = source(7)
        return whole, model.encode(texts)[texts.keep]

    kinds = {m.kind for m in build(case).modules() if isinstance(m, CapturePoint)}
    for kind in sorted(kinds):
        model = build(case)
        layers = attentions(model, kind)
        heads = {1: [1]} | {len(layers): [layers[len(layers)].heads]}
        with heads_masked(model, heads, kind):
            expected = computed(model)
        prune_heads(model, heads, kind)
        torch.testing.assert_close(computed(model), expected, atol=1e-5, rtol=1e-5)
        own = hasattr(model, "step")
        published = to_published(model if own else EncoderWithHeads(model, {}))
        if published is not None:
            again = from_published(*published).eval()
            again = computed(again if own else again.encoder)
            torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)


class Recorder:
    def __init__(self, model: nn.Module):
        self.kinds: list[str] = []
        # Local-p multiplies the weights after the softmax.
        self.smaller = any(isinstance(part, PredictiveWindow) for part in model.modules())

    def wants(self, point: CapturePoint) -> bool:
        return True

    def take(self, point: CapturePoint, weights: Tensor) -> None:
        assert weights.dim() == 4 and weights.size(0) == 3  # (B, H, T, S)
        total = weights.sum(-1)
        assert (total > 0).all() and (total < 1.00001).all()
        assert self.smaller or torch.allclose(total, torch.ones_like(total))
        self.kinds.append(point.kind)

    def label(self, source: object, target: object) -> None: ...


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_capture_does_not_change_states_and_gradients(model, mode):
    model.train(mode == "train")
    target, results, recorder = ids(3, 5), [], Recorder(model)
    for listener in (None, recorder):
        torch.manual_seed(4)
        model.zero_grad()
        with heard_by(listener):
            out = hidden(model, target)
            model.head.loss(out.flatten(0, 1), target.flatten())[0].backward()
        results.append([out.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)
    kinds = {m.kind for m in model.modules() if isinstance(m, CapturePoint)}
    assert kinds - {"query"} <= set(recorder.kinds) <= kinds  # XLNet may have one stream alone


def test_attention_capture_does_not_change_the_scores_of_a_beam(translator):
    state, _ = start_decoding(translator, source_of(ids(3, 5, seed=2)[:1], torch.tensor([5])))
    recorder, beam = Recorder(translator), state.select(torch.zeros(3, dtype=torch.long))
    expected, _ = translator.step(ids(3, 1), beam.select(torch.arange(3)))
    with heard_by(recorder):
        scores, _ = translator.step(ids(3, 1), beam)
    torch.testing.assert_close(scores, expected)
    assert bool(recorder.kinds) == any(isinstance(m, CapturePoint) for m in translator.modules())


def test_models_in_bfloat16_have_finite_scores_and_gradients(model):
    model.train()
    target = ids(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        out = hidden(model, target)
        model.head.loss(out.flatten(0, 1), target.flatten())[0].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    half = model.eval().to(torch.bfloat16)
    state, first = start_decoding(half)
    assert half.step(first, state)[0].isfinite().all()


# Their vocabulary is divided into clusters, or has a row more for words outside of it.
DIVIDED = {"adaptive-transformer-0", "transformer-xl-0"} | {
    *("transformer-xl-1", "sega-transformer-xl-0", "sega-transformer-xl-1"),
    *("compressive-transformer-0", "features-1"),
}
# The choices of their hard attention depend on the ids that they read.
DRAWS_BY_IDS = {"lstm-seq2seq-10", "show-attend-tell-3"}


@pytest.mark.parametrize(
    "case",
    [case for case in dict.fromkeys((*CASES, *ENCODERS)) if name_of(case) not in DRAWS_BY_IDS],
    ids=name_of,
)
@torch.no_grad()
def test_a_model_for_another_vocabulary_computes_the_same_for_the_words_it_had(case):
    model = build(case)
    rows = [PAD, BOS, EOS, -1, *range(V - 1, 4, -1), -1, 3]  # 4 is left out
    if name_of(case) in DIVIDED:
        with pytest.raises(ConfigError, match="cannot be exchanged"):
            exchange_vocabulary(model, rows)
        return
    made = exchange_vocabulary(model, rows)
    assert made.config.vocab_size == len(rows)
    new_id = torch.tensor([rows.index(n) if n in rows else 0 for n in range(V)])
    target, read = (torch.where(ids == 4, 5, ids) for ids in (ids(3, 7), source().ids))
    if hasattr(model, "states"):
        before, after = (
            list(one.states(read_by(one, Sequences(here, source().lengths))))
            for one, here in ((model, read), (made, new_id[read]))
        )
        if models_name(body_of(model)) not in CHARACTER_ENCODERS:  # other ids, other characters
            keep = Sequences(read, source().lengths).keep
            for one, other in zip(before, after, strict=True):
                torch.testing.assert_close(one[keep], other[keep])
    if hasattr(model, "step"):
        whole = source_of(read, source().lengths)  # regions are those of the old ids
        sides = (replace(whole, ids=one) for one in (read, new_id[read]))
        before, after = (
            one.head.logits(hidden(one, here, there))
            for one, here, there in zip((model, made), (target, new_id[target]), sides, strict=True)
        )
        kept = torch.tensor([n for n in rows if n >= 0])
        shares = (after[..., new_id[kept]].softmax(-1), before[..., kept].softmax(-1))
        torch.testing.assert_close(*shares)
        if isinstance(model.head, Softmax):
            mean = model.head.weight.double().mean(0)
            torch.testing.assert_close(made.head.weight[[3, -2]].double(), mean.expand(2, -1))


def test_every_model_is_registered_and_an_unknown_name_raises_an_error():
    assert set(TINY) == set(MODELS)
    for name in MODELS:
        kind = model_class(name)
        for size in getattr(kind, "SIZES", {}).values():
            kind.Config(vocab_size=10, **size)
    with pytest.raises(ConfigError, match="There is no model 'transfomer'. Did you mean 'transf"):
        model_class("transfomer")


def test_first_tokens_alone_equal_those_of_the_whole_batch(encoder):
    """The states of first tokens and their gradients, without the last layer's other tokens."""
    batch = read_by(encoder, source())
    whole, alone = encoder.encode(batch)[:, :1], encoder.encode(batch, batch.first_tokens())
    assert alone.shape == whole.shape and torch.allclose(alone, whole, atol=1e-6)
    mix = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3))
    found = []
    for hidden in (whole, alone):
        encoder.zero_grad()
        (hidden * mix).sum().backward()
        found.append(
            {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None}
        )
    assert found[0].keys() == found[1].keys()
    assert all(torch.allclose(found[1][n], one, atol=1e-5) for n, one in found[0].items())


def members(protocol: type) -> set[str]:
    """The public names that a protocol promises, those of its bases included."""
    kinds = [kind for kind in protocol.__mro__ if kind.__module__ == protocol.__module__]
    names = {name for kind in kinds for name in (*vars(kind), *inspect.get_annotations(kind))}
    return {name for name in names if not name.startswith("_")}


def answers_as_its_model(wrapper: Generator | Encoder, protocol: type, monkeypatch) -> None:
    model = wrapper.model
    for name in members(protocol) - {"train", "eval"}:
        promised = getattr(protocol, name, None)
        if not inspect.isfunction(promised):
            assert getattr(wrapper, name) == getattr(model, name), name
            continue
        given = [object() for _ in list(inspect.signature(promised).parameters)[1:]]
        with monkeypatch.context() as patch:  # the method gives back what reaches it
            patch.setattr(model, name, lambda *arguments: arguments)
            assert getattr(wrapper, name)(*given) == tuple(given), name
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lambda *arguments, **named: (arguments, named))
        assert wrapper(1, 2, state=3) == ((1, 2), {"state": 3})
    assert wrapper.train() is wrapper and model.training and wrapper.training
    assert wrapper.eval() is wrapper and not model.training and not wrapper.training


def test_a_generator_around_a_model_answers_as_the_model(model, monkeypatch):
    assert {"config", "head", "step", "prefill", "first_token", "tokens_per_pass"} <= members(
        Generator
    )
    answers_as_its_model(GeneratorWrapper(model), Generator, monkeypatch)


def test_an_encoder_around_a_model_answers_as_the_model(encoder, monkeypatch):
    assert {"config", "embedding", "states", "chosen", "repeated_blocks"} <= members(Encoder)
    answers_as_its_model(EncoderWrapper(encoder), Encoder, monkeypatch)
