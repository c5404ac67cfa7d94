"""The published encoder-decoders against `transformers`, both ways, and their generation."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import decoding
from regard.checkpoints.formats import from_published, layout_for, layout_of, to_published
from regard.checkpoints.model_folder import open_folder
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.models.transformer import Transformer

transformers = pytest.importorskip("transformers")

V = 31
SIZES = dict(
    vocab_size=V, d_model=12, encoder_ffn_dim=20, decoder_ffn_dim=20, encoder_attention_heads=3,
    decoder_attention_heads=3, encoder_layers=2, decoder_layers=2, max_position_embeddings=24,
    pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, dropout=0.1,
    attention_dropout=0.2, activation_dropout=0.3, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
)  # fmt: skip
UNEQUAL = dict(
    decoder_ffn_dim=8, encoder_attention_heads=2, decoder_attention_heads=6, encoder_layers=1,
    decoder_layers=3,
)  # fmt: skip
CLASSES = {
    "marian": ("MarianMTModel", "MarianConfig"),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig"),
    "bart": ("BartForConditionalGeneration", "BartConfig"),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig"),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config"),
}
BIASED = ("marian", "pegasus", "bart", "mbart")
VARIANTS = {
    "usual": {},
    "unequal": UNEQUAL,
    "scaled": dict(scale_embedding=True, activation_function="swish"),
    "not-scaled": dict(scale_embedding=False, activation_function="gelu_new"),
    "untied": dict(tie_word_embeddings=False),
}
CASES = [(kind, variant) for kind in CLASSES for variant in VARIANTS]


def theirs(kind: str, **options: Any) -> nn.Module:
    model, config = CLASSES[kind]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**(SIZES | options)))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if kind in BIASED:
            made.final_logits_bias.add_(torch.randn_like(made.final_logits_bias))
    return made.eval()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def ours_of(model: nn.Module) -> Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return from_published(model.config.to_dict(), weights(model)).eval()


def batch() -> tuple[Sequences, Tensor, Tensor]:
    source = Sequences.of([[4, 5, 6, 7, 2], [9, 2], [3], [13, 3, 8, 2]], pad=1)
    target = torch.tensor([[2, 5, 6, 7], [2, 9, 4, 4], [2, 20, 22, 4], [2, 3, 4, 4]])
    labels = torch.tensor([[5, 6, 7, 2], [9, 2, -100, -100], [20, 22, 4, 2], [3, -100, -100, -100]])
    return source, target, labels


def their_logits(model: nn.Module, source: Sequences, target: Tensor) -> Tensor:
    mask = source.keep.long()
    return model(input_ids=source.ids, attention_mask=mask, decoder_input_ids=target).logits


def our_logits(model: Transformer, source: Sequences, target: Tensor) -> Tensor:
    return model.head.logits(model(source, Sequences.full(target)).hidden)


@pytest.mark.parametrize("kind, variant", CASES)
def test_logits_and_gradients_are_those_of_transformers(kind, variant):
    model = theirs(kind, **VARIANTS[variant])
    ours = ours_of(model)
    source, target, labels = batch()
    expected, found = their_logits(model, source, target), our_logits(ours, source, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.1

    F.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    hidden = ours(source, Sequences.full(target)).hidden.flatten(0, 1)
    ours.head.loss(hidden, labels.flatten())[0].backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    # Their bias is a constant; ours is learned.
    given = {n: p.grad for n, p in ours.named_parameters() if n != "head.bias"}
    grads["final_logits_bias"] = torch.zeros(1, ours.config.vocab_size)
    converted = layout_of(kind).names_of(ours).read(grads, weights(ours))
    for name, gradient in given.items():
        torch.testing.assert_close(gradient, converted[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind, variant", CASES)
def test_a_saved_model_opens_in_transformers_and_is_read_again_unchanged(kind, variant, tmp_path):
    ours = ours_of(theirs(kind, **VARIANTS[variant]))
    config, tensors = to_published(ours)
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tensors(tmp_path / "model.safetensors", tensors)
    opened, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(opened).__name__ == CLASSES[kind][0]
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    source, target, _ = batch()
    torch.testing.assert_close(
        their_logits(opened.eval(), source, target), our_logits(ours, source, target),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip
    back = from_published(config, tensors)
    assert back.config == ours.config and layout_for(back) is layout_of(kind)
    for name, tensor in weights(back).items():
        assert torch.equal(tensor, weights(ours)[name]), name


@torch.no_grad()
@pytest.mark.parametrize("kind", CLASSES)
def test_untied_folders_of_release_4_have_one_embedding_and_an_output(kind):
    """There the embeddings of source and target are `shared`, also where the output is untied."""
    model = theirs(kind, tie_word_embeddings=False)
    shared = model.model.shared.weight
    for part in (model.model.encoder, model.model.decoder):
        part.embed_tokens.weight.copy_(shared)
    absent = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = {k: v for k, v in weights(model).items() if not k.endswith(absent)}
    ours = from_published(model.config.to_dict(), tensors).eval()
    source, target, _ = batch()
    expected = their_logits(model, source, target)
    torch.testing.assert_close(our_logits(ours, source, target), expected, atol=1e-5, rtol=1e-5)
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
    model = theirs(kind)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=2, pad_token_id=1, eos_token_id=2, **GENERATION[method]
    )
    model.save_pretrained(tmp_path)
    ours = open_folder(tmp_path).model().eval()
    source, _, _ = batch()
    with torch.no_grad():
        wanted = model.generate(input_ids=source.ids, attention_mask=source.keep.long())
        found = decoding.generate(ours, source, decoding.load(tmp_path, ours))
    for row, hypotheses in zip(wanted.tolist(), found, strict=True):
        ids = row[1:]
        ids = ids[: ids.index(2)] if 2 in ids else [i for i in ids if i != 1]
        assert [i for i in hypotheses[0].tokens if i != 2] == ids
