"""The Transformers against those of `transformers`, through the real tables, in both directions."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.formats.transformer import MARIAN, PEGASUS
from regard.checkpoints.store import read_tensors, write_tensors
from regard.data.batches import Sequences
from regard.decoding.steps import start
from regard.errors import CheckpointError, ConfigError
from regard.models.transformer import PreNormTransformer, Transformer, TransformerConfig

transformers = pytest.importorskip("transformers")

CONFIG = TransformerConfig(
    vocab_size=23, d_model=12, d_ff=20, heads=3, encoder_layers=2, decoder_layers=3, dropout=0.1,
    attention_dropout=0.2, activation_dropout=0.3, max_length=40,
)  # fmt: skip
PAIRS = {
    "marian": (Transformer, "MarianMTModel", "MarianConfig", MARIAN),
    "pegasus": (
        PreNormTransformer, "PegasusForConditionalGeneration", "PegasusConfig", PEGASUS,
    ),
}  # fmt: skip


def randomize(model: nn.Module) -> nn.Module:
    """Every parameter away from its start: biases and norms would hide a mistake otherwise."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def theirs(kind: str, **options) -> nn.Module:
    _, model, config, layout = PAIRS[kind]
    values = layout.config.write(CONFIG) | {"forced_eos_token_id": None} | options
    made = getattr(transformers, config)(**values)
    return randomize(getattr(transformers, model)(made))


def batch() -> tuple[Sequences, Tensor, Tensor]:
    source = Sequences.of([[4, 5, 6, 7, 2], [9, 2], [3, 3, 8, 2]], pad=0)
    target = torch.tensor([[1, 5, 6, 7], [1, 9, 0, 0], [1, 20, 22, 4]])
    labels = torch.tensor([[5, 6, 7, 2], [9, 2, -100, -100], [20, 22, 4, 2]])
    return source, target, labels


def their_logits(model: nn.Module, source: Sequences, target: Tensor) -> Tensor:
    mask = source.keep.long()
    return model(input_ids=source.ids, attention_mask=mask, decoder_input_ids=target).logits


def our_logits(model: Transformer, source: Sequences, target: Tensor) -> Tensor:
    return model.head.logits(model(source, Sequences.full(target)).hidden)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "silu"])
@pytest.mark.parametrize("kind", PAIRS)
def test_logits_and_gradients_equal_those_of_transformers(kind, activation):
    model = theirs(kind, activation_function=activation)
    ours = from_published(model.config.to_dict(), weights(model)).eval()
    assert type(ours) is PAIRS[kind][0]
    source, target, labels = batch()
    expected, found = their_logits(model, source, target), our_logits(ours, source, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.1  # there was something to compare

    F.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    hidden = ours(source, Sequences.full(target)).hidden.flatten(0, 1)
    ours.head.loss(hidden, labels.flatten())[0].backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    converted = PAIRS[kind][3].names_of(ours).read(grads, weights(ours))
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, converted[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", PAIRS)
def test_exported_models_open_in_transformers_and_are_read_again_unchanged(kind, tmp_path):
    ours = randomize(PAIRS[kind][0](CONFIG))
    config, tensors = to_published(ours)
    # What a run's folder adds must not disturb them.
    (tmp_path / "config.json").write_text(json.dumps(config | {"regard": {"task": "translation"}}))
    ids = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
    (tmp_path / "generation_config.json").write_text(json.dumps({n: config[n] for n in ids}))
    write_tensors(tmp_path / "model.safetensors", tensors)
    opened, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert type(opened).__name__ == PAIRS[kind][1]
    computed = {"final_logits_bias"}  # zeros, and positions
    assert {n for n in report["missing_keys"] if "embed_positions" not in n} <= computed
    assert not report["unexpected_keys"] and not report["mismatched_keys"]
    source, target, _ = batch()
    expected = our_logits(ours, source, target)
    torch.testing.assert_close(
        their_logits(opened.eval(), source, target), expected, atol=1e-5, rtol=0
    )

    config = json.loads((tmp_path / "config.json").read_text())
    back = from_published(config, read_tensors(tmp_path / "model.safetensors"))
    assert back.config == CONFIG
    assert weights(back).keys() == weights(ours).keys()
    for name, tensor in weights(back).items():
        assert torch.equal(tensor, weights(ours)[name]), name


@torch.no_grad()
@pytest.mark.parametrize("kind", PAIRS)
def test_greedy_steps_give_the_tokens_of_transformers(kind):
    model = theirs(kind)
    model.generation_config.update(
        decoder_start_token_id=1, pad_token_id=0, eos_token_id=2, forced_eos_token_id=None
    )
    ours = from_published(model.config.to_dict(), weights(model)).eval()
    source, _, _ = batch()
    expected = model.generate(
        input_ids=source.ids, attention_mask=source.keep.long(), do_sample=False, num_beams=1,
        min_new_tokens=8, max_new_tokens=8,
    )  # fmt: skip
    state, tokens = start(ours, source)
    said = [tokens]
    for _ in range(8):
        scores, state = ours.step(said[-1], state)
        scores[..., 2] = -torch.inf
        said.append(scores[:, -1:].argmax(-1))
    assert torch.equal(torch.cat(said, 1), expected)


# ---- what cannot be honoured is refused by name --------------------------------------------------


@pytest.mark.parametrize(
    "kind, name, value",
    [
        ("marian", "share_encoder_decoder_embeddings", "no"),
        ("marian", "decoder_vocab_size", 24),
        ("marian", "activation_function", "gelu_newer"),
        ("marian", "decoder_ffn_dim", 2100),
        ("marian", "eos_token_id", "2"),
        ("marian", "num_hidden_layers", 9),
        ("marian", "quantization_config", {"bits": 4}),
    ],
)
def test_unsupported_config_values_raise_an_error_that_names_the_field(kind, name, value):
    config, tensors = to_published(PAIRS[kind][0](CONFIG))
    with pytest.raises(ConfigError, match=rf"config.json: `{name}` must be .*but is "):
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


def test_tensors_that_do_not_fit_raise_an_error_that_names_them():
    config, tensors = to_published(Transformer(CONFIG))
    bias = torch.zeros(1, 23)
    from_published(config, tensors | {"final_logits_bias": bias})
    wrong = {
        "final_logits_bias": (bias + 1)[:, 1:],
        "lm_head.weight": torch.zeros(23, 12),
        "model.encoder.layers.0.fc1.weight": torch.zeros(12, 20),
    }
    told = {"model.encoder.layers.0.fc1.weight": "encoder.0.feed.inner.weight must be"}
    for name, tensor in wrong.items():
        with pytest.raises(CheckpointError, match=told.get(name, name)):
            from_published(config, tensors | {name: tensor})
    del tensors["model.decoder.layers.2.encoder_attn.k_proj.bias"]
    with pytest.raises(CheckpointError, match="missing: model.decoder.layers.2.encoder_attn.k_pro"):
        from_published(config, tensors)


# ---- sizes ---------------------------------------------------------------------------------------
