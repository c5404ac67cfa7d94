"""Random configurations of published families: equal to `transformers`, or refused by name.

They are read by `regard.checkpoints.formats.config_table` and the tables of families, such as
`regard.checkpoints.formats.transformer` and `regard.checkpoints.formats.t5`.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_configs import (
    COMMON,
    DRAWN_ENCODER_DECODERS,
    DRAWN_ENCODERS,
    XLNET,
    saved_config,
)
from test_xlnet import permuted, random_batch
from their_encoder_decoders import our_logits, their_logits
from their_encoders import SAME, V, answers, assert_same_outputs, batch, transformers, weights
from torch import nn
from torch.nn import functional as F

from regard import decoding
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.model_folder import open_folder
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")
FAMILIES = DRAWN_ENCODERS | DRAWN_ENCODER_DECODERS | {"xlnet": XLNET}
SEEDS = range(8)
FORMS = ("whole", "shards", "bin", "half", "bfloat16")
HALVES = {"half": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_that_transformers_knows_is_drawn(family):
    one = FAMILIES[family]
    assert one.fields() <= {*COMMON, *one.values}


def save(model: nn.Module, folder: Path, form: str) -> None:
    """A folder in one of the forms that are published; the types of half precision round the model,
    too.
    """
    if form == "bin":
        (folder / "config.json").write_text(json.dumps(saved_config(model)))
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        return
    if form in HALVES:
        dtype = HALVES[form]
        with torch.no_grad():
            computed = [one for one in model.parameters() if not one.requires_grad]
            for tensor in model.state_dict(keep_vars=True).values():
                if not any(tensor is one for one in computed):
                    tensor.copy_(tensor.to(dtype).float())
        copy.deepcopy(model).to(dtype).save_pretrained(folder)
        return
    model.save_pretrained(folder, max_shard_size="8KB" if form == "shards" else "1GB")


def written(ours: nn.Module, folder: Path, kind: Any) -> nn.Module:
    """Our model written, as `transformers` opens it."""
    config, tensors = to_published(ours)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", tensors)
    model, report = kind.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    # Of encoder-decoders: zeros, tables that are computed, an embedding that nothing reads.
    unread = ("final_logits_bias", "positions.weight", "positions.weights", "shared.weight")
    assert all(name.endswith(unread) for name in report["missing_keys"])
    return model.double().eval()


# ------------------------------------------------------------------------------------ encoders


def drop_rates(model: nn.Module) -> set[float]:
    """The rates of all dropout in a model."""
    return {
        value
        for part in model.modules()
        for name, value in vars(part).items()
        if isinstance(value, float) and ("drop" in name or name in ("p", "probability"))
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", DRAWN_ENCODERS)
def test_drawn_encoders_are_those_of_transformers_both_ways(family, seed, tmp_path):
    one = DRAWN_ENCODERS[family]
    ending = one.endings[seed % len(one.endings)]
    model = one.model(ending, seed)
    save(model, tmp_path, FORMS[seed % len(FORMS)])
    ours = open_folder(tmp_path).model().double().eval()
    texts = batch(one.drawn(seed).get("type_vocab_size", 0))
    assert_same_outputs(model.double(), ours, texts)
    rates = [drop_rates(model), drop_rates(ours)]
    for name, value in one.drawn(seed).items():  # in evaluation nothing drops
        if "drop" in name and value:
            assert (value in rates[0]) == (value in rates[1]), name
    again = written(ours, tmp_path / "again", type(model))
    assert again.config.architectures == [type(model).__name__]
    assert_same_outputs(again, ours, texts)


# ---------------------------------------------------------------------------- encoder-decoders


@torch.no_grad()
@pytest.mark.parametrize("seed", SEEDS[:5])
@pytest.mark.parametrize("family", DRAWN_ENCODER_DECODERS)
def test_drawn_encoder_decoders_are_those_of_transformers_both_ways(family, seed, tmp_path):
    one = DRAWN_ENCODER_DECODERS[family]
    model = one.model(one.endings[0], seed)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    options = one.drawn(seed)
    model.generation_config = generation = transformers.GenerationConfig(
        num_beams=1 + 2 * (seed % 2), max_new_tokens=7, pad_token_id=options["pad_token_id"],
        eos_token_id=options["eos_token_id"],
        decoder_start_token_id=options["decoder_start_token_id"],
    )  # fmt: skip
    save(model, tmp_path, FORMS[seed % len(FORMS)])
    generation.save_pretrained(tmp_path)
    folder = open_folder(tmp_path)
    ours: Any = folder.model().double().eval()
    model.double()
    source = Sequences.of([[4, 5, 6, 7, 2, 8, 9, 10, 11], [9, 2], [3], [13, 3, 8]], pad=0)
    target = torch.randint(2, V - 2, (4, 5))
    found, expected = our_logits(ours, source, target), their_logits(model, source, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    hidden = ours(source, Sequences.full(target)).hidden.flatten(0, 1)
    labels = torch.randint(0, V, (20,))
    loss = F.cross_entropy(expected.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(ours.head.loss(hidden, labels)[0], loss, atol=1e-5, rtol=1e-5)
    mask = source.keep.long()  # their cache has as many layers as the encoder
    wanted = model.generate(input_ids=source.ids, attention_mask=mask, use_cache=False)
    for row, several in zip(
        wanted.tolist(), decoding.generate(ours, source, decoding.load(tmp_path, ours)), strict=True
    ):
        end, ids = options["eos_token_id"], row[1:]
        ids = ids[: ids.index(end)] if end in ids else ids
        assert several[0].tokens[: len(ids)] == ids
    again = written(ours, tmp_path / "again", type(model))
    expected = their_logits(again, source, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


BART_HEADS = {"ForSequenceClassification": "classes", "ForQuestionAnswering": "span"}


@torch.no_grad()
@pytest.mark.parametrize("seed", range(len(FORMS)))
@pytest.mark.parametrize("family", ["bart", "mbart"])
@pytest.mark.parametrize("ending", BART_HEADS)
def test_drawn_barts_under_heads_are_those_of_transformers_both_ways(
    ending, family, seed, tmp_path
):
    """Row by row: theirs wants as many ends of a text in each row of a batch."""
    one, kind = DRAWN_ENCODER_DECODERS[family], BART_HEADS[ending]
    model = one.model(ending, seed, tie_word_embeddings=True)
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    save(model, tmp_path, FORMS[seed])
    ours: Any = open_folder(tmp_path).model().double().eval()
    rows = [[4, end, 6, 7, end], [end], [9, 8, end], [3, end, 9, 13, 14, 15, 16, end]]
    scores = ours.scores(kind, Sequences.of(rows, pad))
    for theirs in (model.double(), written(ours, tmp_path / "again", type(model))):
        for found, row in zip(scores, rows, strict=True):
            ids = torch.tensor([row])
            output = theirs(input_ids=ids, attention_mask=torch.ones_like(ids))
            if kind == "classes":
                torch.testing.assert_close(found, output.logits[0], **SAME)
                continue
            wanted = torch.stack([output.start_logits[0], output.end_logits[0]], -1)
            torch.testing.assert_close(found[: len(row)], wanted, **SAME)


# ------------------------------------------------------------------------- one token, and too many

SINUSOIDAL = ("marian", "marian-separate", "pegasus")  # theirs ends with its table
ANY_LENGTH = ("m2m_100", "t5", "mt5", "umt5")


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", DRAWN_ENCODER_DECODERS)
def test_sources_up_to_the_limit_equal_transformers_and_longer_ones_raise_an_error(family, seed):
    one = DRAWN_ENCODER_DECODERS[family]
    model = one.model(one.endings[0], seed).double()
    ours: Any = from_published(saved_config(model), weights(model)).double().eval()
    limit, target = ours.config.max_length or 40, torch.tensor([[2, 5]])
    draw = torch.Generator().manual_seed(seed)
    for length in (1, limit, limit + 1, limit + 9):
        source = Sequences.full(torch.randint(3, 28, (1, length), generator=draw))
        if length <= limit or family in ANY_LENGTH:
            expected = their_logits(model, source, target)
            torch.testing.assert_close(our_logits(ours, source, target), expected, **SAME)
        elif family in SINUSOIDAL:
            assert our_logits(ours, source, target).isfinite().all()
        else:
            with pytest.raises(ValueError, match=f"position {length}, but .* only {limit}"):
                our_logits(ours, source, target)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", DRAWN_ENCODERS)
def test_texts_up_to_the_limit_equal_transformers_and_longer_ones_raise_an_error(family, seed):
    one = DRAWN_ENCODERS[family]
    model = one.model("Model", seed, chunk_size_feed_forward=0).double()  # it divides no 1
    ours: Any = from_published(saved_config(model), weights(model)).double().eval()
    limit, pad = ours.config.max_length, model.config.pad_token_id
    endless = family == "llama" or not saved_config(model).get("position_biased_input", True)
    draw = torch.Generator().manual_seed(seed)
    for length in (1, limit, limit + 1, limit + 9):
        ids = torch.randint(0, V - 1, (1, length), generator=draw)
        texts = Sequences.full(ids.masked_fill(ids == pad, V - 1))
        if length <= limit or endless:
            expected = model(input_ids=texts.ids).last_hidden_state
            torch.testing.assert_close(ours.encoder.encode(texts), expected, **SAME)
            continue
        with pytest.raises(ValueError, match=f"position {length}, but .* only {limit}"):
            ours.encoder.encode(texts)


# --------------------------------------------------------------------------------------- XLNet


def ask(model: nn.Module, texts: Sequences, **given: Any) -> Any:
    """Their output for full rows; with "uni" a mask would have to be that of one row."""
    given = {"input_ids": texts.ids, "token_type_ids": texts.segments} | given
    if "MultipleChoice" in type(model).__name__:
        given |= {name: given[name][None] for name in ("input_ids", "token_type_ids")}
    return model(**given, output_hidden_states=True)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(14))
def test_drawn_xlnets_are_those_of_transformers_both_ways(seed, tmp_path):
    ending = XLNET.endings[seed % len(XLNET.endings)]
    model = XLNET.model(ending, seed)
    save(model, tmp_path, FORMS[seed % len(FORMS)])
    permutes = ending == "LMHeadModel" and model.config.attn_type == "bi"
    kind = torch.float32 if permutes else torch.float64  # theirs of two streams is float32 alone
    ours: Any = open_folder(tmp_path).model().to(kind).eval()
    for theirs in (model.to(kind), written(ours, tmp_path / "again", type(model)).to(kind)):
        compare_segments(theirs, ours, permutes)
        for kind in getattr(ours, "heads", ()):
            texts = random_batch((9, 9, 9, 9))
            output = ask(theirs, texts)
            wanted = answers(output, kind)
            torch.testing.assert_close(ours.scores(kind, texts), wanted, **SAME)


def compare_segments(model: nn.Module, ours: Any, permutes: bool) -> None:
    """Both streams over segments of unequal lengths, with the memory that is carried."""
    memory = mems = None
    predicts = type(model).__name__ == "XLNetLMHeadModel"
    body = ours.encoder if hasattr(ours, "encoder") else ours
    for length in (6, 9, 1, 4):
        texts, given = random_batch((length,) * 4), {} if mems is None else {"mems": mems}
        if permutes and length > 3:
            texts, more = permuted(texts)
            given |= more
        expected, found = ask(model, texts, **given), body.encode_segment(texts, memory)
        if predicts:
            scores = body.head.logits(found.hidden)
            torch.testing.assert_close(scores, expected.logits, **SAME)
        last = expected.hidden_states[-2 if "targets" in texts.extras else -1]
        torch.testing.assert_close(found.extras["content"], last, **SAME)
        memory, mems = found.state, expected.mems
        assert (memory is None) == (mems is None)


# ------------------------------------------------------------------------------------- refused


def test_an_m2m_that_starts_with_the_padding_is_refused():
    """Theirs counts positions without it, in the middle of a text as well."""
    model = DRAWN_ENCODER_DECODERS["m2m_100"].model("ForConditionalGeneration", 0)
    config = saved_config(model, decoder_start_token_id=model.config.pad_token_id)
    with pytest.raises(ConfigError, match="`decoder_start_token_id` must be another id than"):
        from_published(config, weights(model))


REFUSED = [(family, name) for family, one in FAMILIES.items() for name in one.refused]


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_values_that_no_model_here_computes_are_refused_by_name(family, name):
    one = FAMILIES[family]
    seed = random.Random(name).randrange(100)
    model = one.model(one.endings[0], seed)
    with pytest.raises(ConfigError, match=f"`{name}`"):
        from_published(saved_config(model, **{name: one.refused[name]}), weights(model))
