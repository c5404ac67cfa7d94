"""Compares a folder with `transformers`, layer by layer on the same inputs.

    report = verify("folder")           report.equal, report.layers, report.notes

The sequences of the batch have lengths from one token to the longest, padded on the right and then
on the left; a few texts go through both tokenizers, special tokens and segments included. No other
file imports `transformers`, and this one does so only inside `verify`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor, nn

from regard.checkpoints.formats import layout_of, type_of
from regard.checkpoints.hub import CONFIG
from regard.checkpoints.model_folder import (
    OURS,
    AdapterFolder,
    ModelFolder,
    exported,
    open_folder,
    read_model,
    write_model,
)
from regard.data.batches import Sequences
from regard.errors import CheckpointError, DataError, MissingExtra
from regard.file_writing import write_text
from regard.layers.span_search import SpanSearchHead
from regard.layers.task_heads import ClassificationHead, LastToken, LastTokenWithId
from regard.models.bigbird import BigBirdConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder, EncoderDecoder, LanguageModel, Model
from regard.schema import read_json
from regard.text import Tokenizer
from regard.text.templates import Template

TOLERANCE, LONGEST, SEQUENCES = 1e-4, 64, 8
# kind of head -> the fields of their output that may hold its logits; the first that is there does
LOGITS = {
    "pooler": ("pooler_output",),
    "masked_lm": ("prediction_logits", "logits"),
    "lm": ("logits",),
    "next_sentence": ("seq_relationship_logits", "logits"),
    "sentence_order": ("sop_logits",),
    "multiple_choice": ("mc_logits", "logits"),
}
TEXTS = (
    "The animal didn't cross the street because it was too tired.",
    "  two  spaces\tand\nlines  ",
    "Ünïcödé, naïve café; 東京タワー 🙂👍🏽",
    "in 1,234.5 ways: a/b@c.org (e-mail) don't!",
    "[CLS] [MASK] </s> <mask> <|endoftext|> are pieces somewhere",
    "Donaudampfschifffahrtsgesellschaft xqzwv ﬁﬀ ① ½",
    "",
)
Outputs = dict[str, Tensor]  # by name of layer or head: (B, T, ...) or (B, ...)


@dataclass(frozen=True)
class LayerDifference:
    """max|Δ| of one layer or head, padded on the right and on the left; None: not comparable."""

    name: str
    right: float | None
    left: float | None


@dataclass(frozen=True)
class TokenizerDifference:
    """Texts through both tokenizers; `different` holds those whose ids or segments differ."""

    name: str
    texts: int
    different: list[dict[str, Any]]


@dataclass(frozen=True)
class Verification:
    """What was compared, and what was not and why (`notes`)."""

    folder: Path
    architecture: str
    tolerance: float
    layers: list[LayerDifference]
    tokenizers: list[TokenizerDifference]
    notes: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest difference of all; NaN where one is NaN."""
        found = [d for one in self.layers for d in (one.right, one.left) if d is not None]
        return float(torch.tensor(found).max())  # Python's max would lose a NaN

    @property
    def equal(self) -> bool:
        """Whether all differences are within the tolerance and all ids equal."""
        return self.largest <= self.tolerance and not any(t.different for t in self.tokenizers)


def verify(
    path: str | Path, tolerance: float = TOLERANCE, device: str | torch.device = "cpu"
) -> Verification:
    """Compare what we compute from a folder with what `transformers` does, in float32.

    Quantized weights, which no other library reads, are given to both as float32.

    tolerance: the largest absolute difference that counts as equal.
    device: where both compute.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: no other library has this model, or the folder cannot be read.
    """
    transformers, notes = _transformers(), list[str]()
    given = open_folder(path)
    if isinstance(given, AdapterFolder):
        raise CheckpointError(
            f"{given.path} holds an adapter, and no whole model. Verify its base, "
            f"{given.base.path}, or the folder of the adapted model: "
            "regard.save(regard.load(ADAPTER), FOLDER)."
        )
    with TemporaryDirectory() as temporary:
        folder = _comparable(given, Path(temporary), notes)
        config = read_json(folder / CONFIG)
        ours: Any = read_model(folder).float().eval().to(device)
        theirs = _their_model(transformers, folder, config, notes).to(device)
        batch = random_batch(ours).to(device)
        if batch.width == _with_full_attention(ours.config):
            notes.append(f"texts of up to {batch.width} tokens, read with full attention")
        order = layout_of(config["model_type"]).in_their_order
        with torch.no_grad():
            layers = _compare_layers(ours, theirs, batch, order, notes)
        tokenizers = _compare_tokenizers(transformers, folder, ours, notes)
    return Verification(given.path, type(theirs).__name__, tolerance, layers, tokenizers, notes)


def _comparable(given: ModelFolder, temporary: Path, notes: list[str]) -> Path:
    """A folder that both libraries open: this one, or one in which what they need is added.

    Raises:
        CheckpointError: no other library has this model.
    """
    model: Any = given.model() if given.dtype is None else given.dequantized_model()
    config, tensors = exported(model)
    if config["model_type"] == OURS or type_of(config, tensors) != config["model_type"]:
        raise CheckpointError(
            f"{given.path}: no other library has this model ({config['architectures'][0]}), so "
            "there is nothing to compare with."
        )
    if given.dtype is not None:
        notes.append("quantized weights were given to both as float32")
        write_model(temporary, config, tensors, given.tokenizer(), model.config.max_length)
        return temporary
    stated = read_json(given.path / CONFIG)
    missing = [name for name in ("model_type", "architectures") if not stated.get(name)]
    if not missing:
        return given.path
    for file in given.path.iterdir():
        if file.name != CONFIG:
            (temporary / file.name).symlink_to(file.resolve())
    added = {name: config[name] for name in missing}
    write_text(temporary / CONFIG, json.dumps(stated | added))
    notes.append(f"config.json was completed for both: {json.dumps(added)}")
    return temporary


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "verify", "Comparing with another library") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _their_model(
    transformers: Any, folder: Path, config: Mapping[str, Any], notes: list[str]
) -> Any:
    """Their model; what they could not fill from the folder is noted."""
    name = (config.get("architectures") or ["AutoModel"])[0]
    kind: Any = getattr(transformers, name, None) if isinstance(name, str) else None
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if name != "AutoModel" and not is_model:
        raise CheckpointError(
            f"{folder / CONFIG}: `architectures` names {name!r}, which transformers "
            f"{transformers.__version__} does not have."
        )
    try:
        model, info = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # their library may raise anything
        said = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: transformers {transformers.__version__} does not open this folder as "
            f"{name}: {type(error).__name__}: {said:.300}"
        ) from error
    for part in model.modules():
        if "chunk_size_feed_forward" in vars(part):  # which must divide the length of a row
            part.chunk_size_feed_forward = 0
    if missing := sorted(info["missing_keys"]):
        notes.append(f"{name} has random numbers where the folder has none: {', '.join(missing)}")
    if extra := sorted(info["unexpected_keys"]):
        notes.append(f"{name} leaves out what the folder has: {', '.join(extra)}")
    return model.eval()


# ----------------------------------------------------------------------------------- inputs


def random_batch(model: Model) -> Sequences:
    """Sequences of random ids, from one token to the longest, without the padding's id."""
    config, body = model.config, model.encoder if isinstance(model, EncoderWithHeads) else model
    longest = min(LONGEST, config.max_length or LONGEST, _with_full_attention(config) or LONGEST)
    lengths = torch.linspace(1, longest, SEQUENCES).round().long().unique()
    pad = config.pad or 0
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, config.vocab_size - 1, (len(lengths), longest), generator=generator)
    keep = torch.arange(longest) < lengths[:, None]
    ids = torch.where(keep, drawn + (drawn >= pad), pad)
    for end in _ends(model):  # once in each sequence, as `transformers` wants it
        other = next(i for i in range(config.vocab_size) if i not in (pad, end))
        ids = ids.masked_fill(ids == end, other)
        ids[torch.arange(len(ids)), lengths - 1] = end
    kinds = body.segment_types if isinstance(body, Encoder) else 1
    segments = torch.randint(0, kinds, ids.shape, generator=generator) * keep if kinds > 1 else None
    return Sequences(ids, lengths, segments)


def _with_full_attention(config: Any) -> int | None:
    """The longest text that a BigBird reads with full attention; None: any, of every other model.

    Beyond it theirs counts the first block once more for each random block in evaluation.
    """
    sparse = isinstance(config, BigBirdConfig) and config.attention != "full"
    return config.full_length if sparse else None


def _ends(model: Model) -> set[int]:
    """The ids at which heads sum up a text."""
    heads = model.heads.values() if isinstance(model, EncoderWithHeads) else ()
    poolings = [head.pooling for head in heads if isinstance(head, ClassificationHead)]
    return {one.id for one in poolings if isinstance(one, LastTokenWithId)}


def _rolled(values: Tensor, shifts: Tensor) -> Tensor:
    """(B, T, ...) each sequence moved to the left by its shift, around the end."""
    sequences = torch.arange(len(values), device=values.device)[:, None]
    positions = torch.arange(values.size(1), device=values.device)
    return values[sequences, (positions + shifts[:, None]) % values.size(1)]


# ----------------------------------------------------------------------------------- models


def _compare_layers(
    ours: Any, theirs: Any, batch: Sequences, order: Callable[[Tensor], Tensor], notes: list[str]
) -> list[LayerDifference]:
    """The difference of each layer and each head."""
    kind = _EncoderDecoders if isinstance(ours, EncoderDecoder) else _Encoders
    models = kind(ours, theirs, order)
    right = models.their_outputs(batch, left=False)
    left = models.their_outputs(batch, left=True) if models.may_pad_left else {}
    if not models.may_pad_left:
        notes.append(f"{type(theirs).__name__} counts positions from the padding: left is left out")
    found = []
    for name, values in models.our_outputs(batch).items():
        if name not in right and name not in left:
            notes.append(f"{type(theirs).__name__} has no {name}: not compared")
            continue
        if left and name not in left:
            notes.append(f"{name} reads the first position, which is padding on the left")
        if name not in right:
            notes.append(f"{name} reads the last position, which is padding on the right")
        differences = [
            _difference(name, values, side[name], batch) if name in side else None
            for side in (right, left)
        ]
        found.append(LayerDifference(name, *differences))
    return found


def _difference(name: str, ours: Tensor, theirs: Tensor, batch: Sequences) -> float:
    if ours.shape != theirs.shape:
        raise CheckpointError(
            f"{name} is {tuple(ours.shape)} here and {tuple(theirs.shape)} in the other library."
        )
    difference = (ours - theirs).abs()
    return float((difference[batch.keep] if difference.dim() == 3 else difference).max())


class _Encoders:
    """Models that give hidden states of each layer (`layers`), and heads on the last."""

    def __init__(self, ours: Any, theirs: Any, order: Callable[[Tensor], Tensor]):
        self.body: Any = ours.encoder if isinstance(ours, EncoderWithHeads) else ours
        self.heads: dict[str, Any] = dict(ours.heads) if isinstance(ours, EncoderWithHeads) else {}
        if isinstance(self.body, LanguageModel) and theirs.get_output_embeddings() is not None:
            lm_head = self.body.head
            self.heads["lm"] = lambda hidden, texts: lm_head.logits(hidden)
        if "span_search" in self.heads:
            self.heads["span_search"] = partial(_span_probabilities, self.heads["span_search"])
        self.theirs, self.order = theirs, order
        self.accepted = set(inspect.signature(theirs.forward).parameters)
        base = inspect.signature(theirs.base_model.forward).parameters
        # Whether their embeddings count positions from the ids.
        self.counts_positions = any(
            hasattr(part, f"create_position_ids_from_{what}")
            for part in theirs.modules()
            for what in ("input_ids", "inputs_embeds")
        )
        # Whether they have distances alone, so that they need no positions and read the last one.
        self.reads_distances = "perm_mask" in base
        may = self.counts_positions or self.reads_distances or "position_ids" in base
        # XLNet's in one direction takes no mask of several rows: its padding must be behind them.
        self.takes_mask = getattr(theirs.config, "attn_type", "bi") != "uni"
        self.may_pad_left = may and self.takes_mask
        if theirs.config.pad_token_id is None:
            theirs.config.pad_token_id = 0  # by which some find the last token

    def our_outputs(self, batch: Sequences) -> Outputs:
        """Of each layer and head."""
        hidden = list(self.body.states(batch))
        found = {_layer(i): self.order(one) for i, one in enumerate(hidden)}
        return found | {f"head {k}": head(hidden[-1], batch) for k, head in self.heads.items()}

    def their_outputs(self, batch: Sequences, *, left: bool) -> Outputs:
        """Of each layer and head, padded on the right; they read it padded on the right or left."""
        output = self.theirs(**self._inputs(batch, left), output_hidden_states=True)
        found = {
            _layer(i): one.reshape(*batch.ids.shape, -1)  # (B, 1, T, D) -> (B, T, D)
            for i, one in enumerate(_hidden_states(output))
        }
        for kind in self.heads:
            logits = self._logits(output, kind)
            # Their heads that sum up a text read one position, which may be padding.
            if logits is not None and not self._reads_padding(kind, logits, left):
                found[f"head {kind}"] = logits
        if not left:
            return found
        back = batch.width - batch.lengths  # to padding on the right
        return {k: _rolled(one, back) if one.dim() == 3 else one for k, one in found.items()}

    def _inputs(self, batch: Sequences, left: bool) -> dict[str, Tensor]:
        given = {"input_ids": batch.ids, "attention_mask": batch.keep.long()}
        if batch.segments is not None and "token_type_ids" in self.accepted:
            given["token_type_ids"] = batch.segments
        if left:
            shifts = batch.lengths - batch.width
            given = {name: _rolled(values, shifts) for name, values in given.items()}
        if left and not self.counts_positions and not self.reads_distances:
            given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        if "multiple_choice" in self.heads:  # several choices for a question: here it is one
            given["input_ids"] = given["input_ids"][:, None]
        if "span_search" in self.heads:
            given["p_mask"] = 1 - given["attention_mask"]
            given["cls_index"] = torch.full_like(batch.lengths, batch.width - 1)
            given["cls_index"] = given["cls_index"] if left else batch.lengths - 1
        if "question_lengths" in self.accepted:  # 0: else an answer may not stand before any [SEP]
            given["question_lengths"] = torch.zeros_like(batch.lengths)[:, None]
        if not self.takes_mask:
            del given["attention_mask"]
        if "mc_token_ids" in self.accepted:
            end = batch.lengths - 1 if not left else torch.full_like(batch.lengths, -1)
            given["mc_token_ids"] = end[:, None] % batch.ids.size(1)
        return given

    def _reads_padding(self, kind: str, logits: Tensor, left: bool) -> bool:
        head = self.heads[kind]
        if kind == "span_search":  # it is told where the text ends
            return False
        reads_last = isinstance(head, ClassificationHead) and isinstance(head.pooling, LastToken)
        found = not reads_last if left else reads_last and self.reads_distances
        return logits.dim() == 2 and found

    def _logits(self, output: Any, kind: str) -> Tensor | None:
        if kind == "span":
            return torch.stack([output.start_logits, output.end_logits], -1)
        if kind == "span_search":
            starts = output.start_top_log_probs  # which are probabilities
            ends = output.end_top_log_probs.unflatten(1, (-1, starts.size(1))).transpose(1, 2)
            return _joined(starts, ends, output.cls_logits)
        found = [getattr(output, name, None) for name in LOGITS.get(kind, ("logits",))]
        logits = next((one for one in found if one is not None), None)
        if logits is None:
            return None
        if kind == "replaced":
            return logits[..., None]  # (B, T) -> (B, T, 1)
        if kind == "multiple_choice":
            return logits.flatten()[:, None]  # (B, 1) or (B,) -> (B, 1)
        return logits.flatten(0, 1) if logits.dim() == 4 else logits  # (B, 1, T, V) -> (B, T, V)


def _span_probabilities(head: SpanSearchHead, hidden: Tensor, batch: Sequences) -> Tensor:
    """Of the best spans of any tokens; see `_joined`."""
    beams = head.search(hidden, batch.keep, batch.lengths - 1)
    return _joined(beams.start_scores.exp(), beams.end_scores.exp(), beams.no_answer)


def _joined(starts: Tensor, ends: Tensor, no_answer: Tensor) -> Tensor:
    """p(a) (B, S), p(a) p(b | a) from p(b | a) (B, S, E), and a logit (B,): (B, S + S * E + 1).

    What follows an impossible first token depends on which one is taken.
    """
    return torch.cat([starts, (starts[..., None] * ends).flatten(1), no_answer[:, None]], 1)


def _hidden_states(output: Any) -> Sequence[Tensor]:
    """Of the embeddings and each layer; where a text is read twice, as ours gives them."""
    if "decoder_hidden_states" not in output:
        found: Sequence[Tensor] = output.hidden_states
        return found
    return (output.encoder_hidden_states[0], *output.decoder_hidden_states[1:])


class _EncoderDecoders:
    """Models that read a source and predict a target; the sequences of a batch serve as both."""

    may_pad_left = False

    def __init__(self, ours: Any, theirs: Any, order: Callable[[Tensor], Tensor]):
        self.ours, self.theirs, self.order = ours, theirs, order

    def our_outputs(self, batch: Sequences) -> Outputs:
        """Of each layer and head."""
        found: Outputs = {}
        blocks, last = self.ours.repeated_blocks, self.ours.config.decoder_layers
        sides = {"encoder": blocks[:-last], "decoder": blocks[-last:]}
        hooks = [
            block.register_forward_hook(_recorder(found, f"{side} layer {i}"))
            for side, blocks in sides.items()
            for i, block in enumerate(blocks, 1)
        ]
        try:
            hidden = self.ours(batch, Sequences.full(batch.ids)).hidden
        finally:
            for hook in hooks:
                hook.remove()
        # A norm may follow the last layer.
        found[f"encoder layer {len(sides['encoder'])}"] = self.ours.encode(batch)
        found[f"decoder layer {len(sides['decoder'])}"] = hidden / self.ours.output_scale
        found = {name: self.order(one) for name, one in found.items()}
        return found | {"head lm": self.ours.head.logits(hidden)}

    def their_outputs(self, batch: Sequences, *, left: bool) -> Outputs:
        """Of each layer and head, padded on the right; they read it padded on the right or left."""
        output = self.theirs(
            input_ids=batch.ids,
            attention_mask=batch.keep.long(),
            decoder_input_ids=batch.ids,
            output_hidden_states=True,
        )
        found = {"head lm": output.logits}
        sides = {"encoder": output.encoder_hidden_states, "decoder": output.decoder_hidden_states}
        for side, hidden in sides.items():
            found |= {f"{side} layer {i}": one for i, one in enumerate(hidden)}
        return found


def _recorder(found: Outputs, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
    def record(module: nn.Module, given: Any, output: Tensor) -> None:
        found[name] = output

    return record


def _layer(number: int) -> str:
    return f"layer {number}" if number else "embeddings"


# ----------------------------------------------------------------------------------- texts


def _compare_tokenizers(
    transformers: Any, folder: Path, model: Model, notes: list[str]
) -> list[TokenizerDifference]:
    """Every text alone, and each with the next where the model reads pairs."""
    try:
        ours = Tokenizer.load(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except DataError as error:
        notes.append(f"no texts were compared: {error}")
        return []
    except Exception as error:  # their library may raise anything
        notes.append(f"no texts were compared, transformers does not open the tokenizer: {error}")
        return []
    _let_mask_strip(ours, theirs, notes)
    body = model.encoder if isinstance(model, EncoderWithHeads) else model
    template = ours.template or (body.template(ours) if isinstance(body, Encoder) else None)
    alone = [(text,) for text in TEXTS]
    # For them an empty second text is none; the last is empty.
    reads_pairs = not isinstance(model, EncoderDecoder)
    pairs = list(zip(TEXTS, TEXTS[1:-1], strict=False)) if reads_pairs else []
    return [
        TokenizerDifference(name, len(texts), list(_different(ours, theirs, template, texts)))
        for name, texts in (("texts", alone), ("pairs of texts", pairs))
        if texts
    ]


def _let_mask_strip(ours: Tokenizer, theirs: Any, notes: list[str]) -> None:
    """Their mask takes the space before it where ours does, as RoBERTa's own program has it.

    Where no file of the folder says whether, their releases differ.
    """
    mask = ours.mask_id
    strips = {token["id"]: token["lstrip"] for token in ours.to_json()["added_tokens"]}
    found = theirs.added_tokens_decoder.get(mask)
    if mask is None or found is None or found.lstrip or not strips.get(mask):
        return
    stripping = AddedToken(found.content, lstrip=True, normalized=found.normalized)
    theirs.add_tokens([stripping], special_tokens=True)
    notes.append(
        f"transformers was told that {found.content} takes the space before it, as RoBERTa's own "
        "program lets it: nothing in the folder says so"
    )


def _different(
    ours: Tokenizer, theirs: Any, template: Template | None, several: Sequence[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    for texts in several:
        ids = ours.encode_many(list(texts))
        row = (template or Template.around((), (), ())).apply(ids)
        found = theirs(*texts, add_special_tokens=template is not None)
        segments = found.get("token_type_ids", row.segments)
        if row.ids != found["input_ids"] or row.segments != segments:
            yield {
                "texts": texts,
                "ours": row.ids,
                "theirs": found["input_ids"],
                "segments": row.segments,
                "their_segments": segments,
            }
