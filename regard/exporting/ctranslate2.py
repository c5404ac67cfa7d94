"""CTranslate2: GPT-2, BERT, the Transformer, Marian and T5, as its own specifications.

Its matrices have our shapes, (out, in), and its projections of queries, keys and values are one
matrix as ours. Tables of positions are written out: its own sinusoids are other ones.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.attend import Dot, Score
from regard.attention.multihead import CrossAttention, SelfAttention
from regard.attention.relative import RelativeBias
from regard.data.batches import Sequences
from regard.exporting import Comparison, Difference, ExportSource, WeightsInFile, array, package
from regard.layers.feedforward import FeedForward
from regard.models.bert import Bert
from regard.models.gpt2 import GPT2
from regard.models.t5 import T5, T5DecoderBlock, T5EncoderBlock
from regard.models.transformer import PreNormTransformer, Transformer

# ours -> theirs
ACTIVATIONS = {
    "gelu": "GELU",
    "gelu-tanh": "GELUTanh",
    "quick-gelu": "GELUSigmoid",
    "relu": "RELU",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
ABSOLUTE = ("learned", "sinusoidal")

Spec = Any  # a part of a specification: CTranslate2 declares no types, and sets attributes by name
Runner = Any  # its Generator, Encoder or Translator: compiled classes without declared types
NormLayer = nn.LayerNorm | nn.RMSNorm


class CTranslate2:
    """Folders that CTranslate2 opens."""

    name = "CTranslate2"
    ending = "-ctranslate2"
    package = "ctranslate2"
    distribution = "ctranslate2"
    tolerance = 1e-4
    quantizes = True

    def write(
        self, source: ExportSource, out: Path, weights: WeightsInFile | None
    ) -> tuple[str, ...]:
        specs = package("ctranslate2.specs")
        source.check_architecture(WRITERS)
        spec = WRITERS[type(source.body)](source, specs)
        spec.validate()
        spec.optimize(quantization=weights or "float32")
        out.mkdir()
        spec.save(str(out))
        source.tokenizer.save(out)
        if not isinstance(source.body, Bert):
            return ()
        return ("it gives hidden states: the vector of a text is pooled by its caller",)

    def compare(self, source: ExportSource, out: Path) -> Comparison:
        engine = package("ctranslate2")
        options = {"device": "cpu", "intra_threads": 1, "inter_threads": 1}
        with torch.no_grad():
            if isinstance(source.body, GPT2):
                return (_compare_logits(source, engine.Generator(str(out), **options)),), ()
            if isinstance(source.body, Bert):
                return _compare_encoder(source, engine.Encoder(str(out), **options)), ()
            return (_compare_scores(source, engine.Translator(str(out), **options)),), ()


# ----------------------------------------------------------------------------------- parts


def _linear(spec: Spec, layer: nn.Linear) -> None:
    """A layer, or several of one input one below the other."""
    spec.weight = array(layer.weight)
    if layer.bias is not None:
        spec.bias = array(layer.bias)


def _norm(spec: Spec, norm: NormLayer) -> None:
    """A layer norm, or one with neither mean nor bias."""
    spec.gamma = array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = array(norm.bias)


def _self_attention(spec: Spec, attention: SelfAttention, norm: NormLayer) -> None:
    _linear(spec.linear[0], attention.query_key_value)
    _linear(spec.linear[1], attention.output)
    _norm(spec.layer_norm, norm)
    _scale(spec, attention.score)


def _cross_attention(spec: Spec, attention: CrossAttention, norm: NormLayer) -> None:
    _linear(spec.linear[0], attention.query)
    _linear(spec.linear[1], attention.key_value)
    _linear(spec.linear[2], attention.output)
    _norm(spec.layer_norm, norm)
    _scale(spec, attention.score)


def _scale(spec: Spec, score: Score) -> None:
    """What queries are multiplied with, where it is not 1 / sqrt(K)."""
    assert isinstance(score, Dot)  # as all of `WRITERS` have
    if score.scale is not None:
        spec.queries_scale = np.float32(score.scale)


def _feed_forward(spec: Spec, feed: FeedForward, norm: NormLayer) -> None:
    _linear(spec.linear_0, feed.inner)
    _linear(spec.linear_1, feed.outer)
    _norm(spec.layer_norm, norm)


def _activation(source: ExportSource, specs: ModuleType) -> Any:
    source.check_field("activation", ACTIVATIONS)
    return specs.common_spec.Activation[ACTIVATIONS[source.body.config.activation]]


def _named(source: ExportSource, id: int | None) -> str:
    """A token's name in their vocabulary; "" for none."""
    return "" if id is None else source.tokens[id]


# ----------------------------------------------------------------------------------- models


def _gpt2(source: ExportSource, specs: ModuleType) -> Spec:
    model, config = source.body, source.body.config
    source.check_heads(())
    source.check_field("positions", ABSOLUTE)
    source.check_field("output", ("tied", "own"))
    activation = _activation(source, specs)
    spec = specs.TransformerDecoderModelSpec.from_config(
        config.layers, config.heads, pre_norm=True, activation=activation
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = array(model.embedding.weight)
    decoder.position_encodings.encodings = array(model.positions(config.max_length))
    for layer, block in zip(decoder.layer, model.blocks, strict=True):
        _self_attention(layer.self_attention, block.attention, block.attention_norm)
        _feed_forward(layer.ffn, block.feed, block.feed_norm)
    _norm(decoder.layer_norm, model.norm)
    decoder.projection.weight = array(model.head.weight)
    spec.register_vocabulary(source.tokens)
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.eos_token = _named(source, config.eos)
    spec.config.bos_token = _named(source, config.eos if config.bos is None else config.bos)
    spec.config.unk_token = source.tokenizer.roles.get("unk", "")
    return spec


def _bert(source: ExportSource, specs: ModuleType) -> Spec:
    model, config = source.body, source.body.config
    source.check_heads(("pooler",))
    source.check_field("positions", ABSOLUTE)
    encoder = specs.TransformerEncoderSpec(
        config.layers,
        config.heads,
        pre_norm=False,
        activation=_activation(source, specs),
        layernorm_embedding=True,
        num_source_embeddings=2,
        embeddings_merge=specs.common_spec.EmbeddingsMerge.ADD,
    )
    pooler: Any = source.heads.get("pooler")
    spec = specs.TransformerEncoderModelSpec(encoder, pooling_layer=pooler is not None)
    encoder.scale_embeddings = False
    for part, table in zip(encoder.embeddings, (model.embedding, model.segments), strict=True):
        part.weight = array(table.weight)
    encoder.position_encodings.encodings = array(model.positions(config.max_length))
    _norm(encoder.layernorm_embedding, model.norm)
    for layer, block in zip(encoder.layer, model.blocks, strict=True):
        _self_attention(layer.self_attention, block.attention, block.attention_norm)
        _feed_forward(layer.ffn, block.feed, block.feed_norm)
    if pooler is not None:
        _linear(spec.pooler_dense, pooler.inner.dense)
    spec.register_vocabulary(source.tokens)
    spec.config.unk_token = source.tokenizer.roles.get("unk", "")
    spec.config.layer_norm_epsilon = config.norm_eps
    return spec


def _transformer(source: ExportSource, specs: ModuleType) -> Spec:
    model, config = source.body, source.body.config
    source.check_field("positions", ABSOLUTE)
    options = {
        "pre_norm": isinstance(model, PreNormTransformer),
        "activation": _activation(source, specs),
    }
    encoder = specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **options)
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, config.decoder.heads, **options)
    positions = array(model.positions(config.max_length))
    for side in (encoder, decoder):
        side.scale_embeddings = np.float32(model.scale)
        side.position_encodings.encodings = positions
    encoder.embeddings[0].weight = array(model.words_of_source.weight)
    decoder.embeddings.weight = array(model.embedding.weight)
    _fill_stacks(encoder, decoder, model)
    if isinstance(model, PreNormTransformer):
        _norm(encoder.layer_norm, model.encoder_norm)
        _norm(decoder.layer_norm, model.decoder_norm)
    decoder.projection.weight = array(model.head.weight)
    if model.head.bias is not None:
        decoder.projection.bias = array(model.head.bias)
    return _sequence_to_sequence(source, specs, encoder, decoder, 1e-5)


def _fill_stacks(encoder: Spec, decoder: Spec, model: Transformer) -> None:
    """The layers of encoder and decoder."""
    for layer, block in zip(encoder.layer, model.encoder, strict=True):
        _self_attention(layer.self_attention, block.attention, block.attention_norm)
        _feed_forward(layer.ffn, block.feed, block.feed_norm)
    for layer, target in zip(decoder.layer, model.decoder, strict=True):
        _self_attention(layer.self_attention, target.attention, target.attention_norm)
        _cross_attention(layer.attention, target.cross, target.cross_norm)
        _feed_forward(layer.ffn, target.feed, target.feed_norm)


def _sequence_to_sequence(
    source: ExportSource, specs: ModuleType, encoder: Spec, decoder: Spec, epsilon: float
) -> Spec:
    """Both stacks together, with their vocabularies and special tokens."""
    spec, ours = specs.TransformerSpec(encoder, decoder), source.body.config
    spec.register_source_vocabulary(source.source_tokens)
    spec.register_target_vocabulary(source.tokens)
    spec.config.layer_norm_epsilon = epsilon
    spec.config.decoder_start_token = spec.config.bos_token = _named(source, ours.bos)
    spec.config.eos_token = _named(source, ours.eos)
    spec.config.unk_token = source.tokenizer.roles.get("unk", "")
    spec.config.add_source_bos = spec.config.add_source_eos = False
    return spec


def _t5(source: ExportSource, specs: ModuleType) -> Spec:
    model, config = source.body, source.body.config
    options = {
        "pre_norm": True,
        "activation": _activation(source, specs),
        "ffn_glu": config.gated,
        "relative_attention_bias": True,
        "rms_norm": True,
    }
    encoder = specs.TransformerEncoderSpec(config.layers, config.heads, **options)
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, config.heads, **options)
    for side in (encoder, decoder):
        side.scale_embeddings = False
    encoder.embeddings[0].weight = decoder.embeddings.weight = array(model.embedding.weight)
    for n, (layer, block) in enumerate(zip(encoder.layer, model.encoder.blocks, strict=True)):
        _t5_layer(layer, block, model.encoder.relative.table_of(n))
    for n, (layer, block) in enumerate(zip(decoder.layer, model.decoder, strict=True)):
        _t5_layer(layer, block, model.relative.table_of(n))
        _cross_attention(layer.attention, block.cross, block.cross_norm)
    _norm(encoder.layer_norm, model.encoder.norm)
    _norm(decoder.layer_norm, model.decoder_norm)
    decoder.projection.weight = array(model.head.weight)
    if model.output_scale != 1.0:
        decoder.scale_outputs = np.float32(model.output_scale)
    return _sequence_to_sequence(source, specs, encoder, decoder, config.norm_eps)


def _t5_layer(layer: Spec, block: T5EncoderBlock | T5DecoderBlock, table: RelativeBias) -> None:
    """Self-attention with its table of distances, and the feed-forward layer."""
    _self_attention(layer.self_attention, block.attention, block.attention_norm)
    layer.self_attention.relative_attention_bias = array(table.values.weight)
    layer.self_attention.relative_attention_max_distance = np.int32(table.max_distance)
    inner, parts = block.feed.inner.weight, [layer.ffn.linear_0]
    parts += [layer.ffn.linear_0_noact] if "linear_0_noact" in vars(layer.ffn) else []
    for part, weight in zip(parts, inner.chunk(len(parts)), strict=True):
        part.weight = array(weight)
    _linear(layer.ffn.linear_1, block.feed.outer)
    _norm(layer.ffn.layer_norm, block.feed_norm)


WRITERS: dict[type, Callable[[ExportSource, ModuleType], Spec]] = {
    GPT2: _gpt2,
    Bert: _bert,
    Transformer: _transformer,
    PreNormTransformer: _transformer,
    T5: _t5,
}


# ----------------------------------------------------------------------------------- comparison


def _rows(batch: Sequences) -> list[list[int]]:
    return [row[:count].tolist() for row, count in zip(batch.ids, batch.lengths, strict=True)]


def _padded(storage: Any) -> Tensor:
    return torch.from_numpy(np.array(storage, np.float32))


def _compare_logits(source: ExportSource, runner: Runner) -> Difference:
    batch, model = source.batch, source.body
    theirs = _padded(runner.forward_batch(_rows(batch)))[..., : model.config.vocab_size]
    ours = model.head.logits(model(batch.ids).hidden)
    return Difference.between("logits", ours[batch.keep], theirs[batch.keep])


def _compare_encoder(source: ExportSource, runner: Runner) -> tuple[Difference, ...]:
    batch, segments = source.batch, None
    if batch.segments is not None:
        segments = _rows(Sequences(batch.segments, batch.lengths))
    theirs = runner.forward_batch(_rows(batch), token_type_ids=segments)
    hidden = source.body.encode(batch)
    states = _padded(theirs.last_hidden_state)
    compared = [Difference.between("hidden states", hidden[batch.keep], states[batch.keep])]
    for head in source.heads.values():
        compared.append(
            Difference.between("pooler", head(hidden, batch), _padded(theirs.pooler_output))
        )
    return tuple(compared)


def _compare_scores(source: ExportSource, runner: Runner) -> Difference:
    """Of the log-probabilities of random targets and of their ends."""
    batch, model, config = source.batch, source.body, source.body.config
    read = [[source.source_tokens[i] for i in row] for row in _rows(batch)]
    written = [[source.tokens[i] for i in row] for row in source.targets]
    theirs = torch.tensor([scored.log_probs for scored in runner.score_batch(read, written)])
    rows = torch.tensor([[config.bos, *row, config.eos] for row in source.targets])
    hidden = model(batch, Sequences.full(rows[:, :-1])).hidden
    scores = model.head.logits(hidden).log_softmax(-1)
    ours = scores.gather(-1, rows[:, 1:, None])[..., 0]
    return Difference.between("log-probabilities", ours, theirs)
