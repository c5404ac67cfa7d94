"""The published encoder-decoders against `transformers`, both ways, and their generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from their_encoder_decoders import (
    CLOSE,
    assert_same_logits_and_gradients,
    batch,
    our_logits,
    ours_of,
    their_logits,
    transformers,
    weights,
)
from torch import nn

from regard import decoding
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.model_folder import open_folder
from regard.errors import CheckpointError, ConfigError
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig

SIZES = dict(
    vocab_size=31, d_model=12, encoder_ffn_dim=20, decoder_ffn_dim=20, encoder_attention_heads=3,
    decoder_attention_heads=3, encoder_layers=2, decoder_layers=2, max_position_embeddings=24,
    pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, dropout=0.1,
    attention_dropout=0.2, activation_dropout=0.3, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
)  # fmt: skip
CLASSES = {
    "marian": ("MarianMTModel", "MarianConfig", Transformer),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", PreNormTransformer),
    "bart": ("BartForConditionalGeneration", "BartConfig", Transformer),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", Transformer),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", PreNormTransformer),
}
VARIANTS = {
    "usual": {},
    "unequal": dict(
        decoder_ffn_dim=8, encoder_attention_heads=2, decoder_attention_heads=6, encoder_layers=1,
        decoder_layers=3,
    ),
    "scaled": dict(scale_embedding=True, activation_function="swish"),
    "not-scaled": dict(scale_embedding=False, activation_function="gelu_new"),
    "untied": dict(tie_word_embeddings=False, activation_function="silu"),
}  # fmt: skip
CASES = [(kind, variant) for kind in CLASSES for variant in VARIANTS]
ROWS = batch(pad=1, start=2, eos=2)


def theirs(kind: str, **options: Any) -> nn.Module:
    model, config, _ = CLASSES[kind]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**(SIZES | options)))
    with torch.no_grad():
        for parameter in filter(lambda one: one.requires_grad, made.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if kind != "m2m_100":
            made.final_logits_bias.add_(torch.randn_like(made.final_logits_bias))
    return made.eval()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind, variant", CASES)
def test_logits_and_gradients_are_those_of_transformers(kind, variant):
    model = theirs(kind, **VARIANTS[variant])
    ours = ours_of(model)
    assert isinstance(ours, CLASSES[kind][2])
    assert_same_logits_and_gradients(model, ours, kind, ROWS)


@torch.no_grad()
@pytest.mark.parametrize("kind", CLASSES)
def test_untied_folders_of_release_4_have_one_embedding_and_an_output(kind):
    """There the embeddings of source and target are `shared`, also where the output is untied."""
    model = theirs(kind, tie_word_embeddings=False)
    for part in (model.model.encoder, model.model.decoder):
        part.embed_tokens.weight.copy_(model.model.shared.weight)
    absent = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = {k: v for k, v in weights(model).items() if not k.endswith(absent)}
    ours = from_published(model.config.to_dict(), tensors).eval()
    expected = their_logits(model, *ROWS[:2])
    torch.testing.assert_close(our_logits(ours, *ROWS[:2]), expected, **CLOSE)
    del tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match="missing: lm_head.weight"):
        from_published(model.config.to_dict(), tensors)


GENERATION = {
    "greedy": dict(max_new_tokens=9),
    "beams": dict(num_beams=4, length_penalty=0.6, early_stopping=True, max_new_tokens=9),
    "summary": dict(
        num_beams=4, length_penalty=2.0, no_repeat_ngram_size=2, min_length=5, max_length=10,
        early_stopping=True, forced_bos_token_id=0, forced_eos_token_id=2,
    ),
    "language": dict(num_beams=3, forced_bos_token_id=17, max_length=8),
    "no-padding": dict(num_beams=4, bad_words_ids=[[1]], max_length=9, forced_eos_token_id=2),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("method", GENERATION)
def test_generation_is_that_of_transformers(kind, method, tmp_path):
    model, source = theirs(kind), ROWS[0]
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=2, pad_token_id=1, eos_token_id=2, **GENERATION[method]
    )
    model.save_pretrained(tmp_path)
    ours = open_folder(tmp_path).model().eval()
    with torch.no_grad():
        wanted = model.generate(input_ids=source.ids, attention_mask=source.keep.long())
        found = decoding.generate(ours, source, decoding.load(tmp_path, ours))
    for row, hypotheses in zip(wanted.tolist(), found, strict=True):
        ids = row[1:]
        ids = ids[: ids.index(2)] if 2 in ids else [i for i in ids if i != 1]
        assert [i for i in hypotheses[0].tokens if i != 2] == ids


# ---- what cannot be honoured is refused by name

CONFIG = TransformerConfig(23, d_model=12, d_ff=20, heads=3, encoder_layers=2, decoder_layers=3)


@pytest.mark.parametrize(
    "name, value",
    [
        ("share_encoder_decoder_embeddings", "no"),
        ("decoder_vocab_size", 24),
        ("activation_function", "gelu_newer"),
        ("eos_token_id", "2"),
        ("num_hidden_layers", 9),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_unsupported_config_values_raise_an_error_that_names_the_field(name, value):
    config, tensors = to_published(Transformer(CONFIG))
    with pytest.raises(ConfigError, match=rf"config.json: `{name}` (must be .*but )?is "):
        from_published(config | {name: value}, tensors)


def test_positions_in_a_file_must_be_those_that_the_model_computes():
    config, tensors = to_published(Transformer(CONFIG))
    theirs = transformers.MarianConfig(**{k: v for k, v in config.items() if k != "regard"})
    model = transformers.MarianMTModel(theirs)
    name = "model.encoder.embed_positions.weight"
    table = model.state_dict()[name]
    for dtype in (torch.float32, torch.bfloat16):
        from_published(config, tensors | {name: table.to(dtype)})
    with pytest.raises(CheckpointError, match=f"{name} must be the sines and cosines"):
        from_published(config, tensors | {name: table + 0.1})
