"""Compares a folder with `transformers`, layer by layer on the same inputs.

    report = verify("folder")           report.equal, report.differences, report.notes

The hidden states are compared for sequences from one token to the longest, padded on the right, and
the logits for the longest. No other file imports `transformers`, and this one does so only inside
`verify`.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.formats import layout_of, type_of
from regard.checkpoints.hub import CONFIG
from regard.checkpoints.model_folder import OURS, ModelFolder, open_folder, read_model
from regard.checkpoints.store import read_weights
from regard.data.batches import Sequences
from regard.errors import CheckpointError, MissingExtra
from regard.layers.task_heads import ClassificationHead, LastTokenWithId
from regard.models.bigbird import BigBirdConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder, EncoderDecoder, LanguageModel, Model
from regard.schema import read_json

TOLERANCE, LONGEST, SEQUENCES = 1e-4, 64, 8
# kind of head -> the fields of their output that may hold its logits; the first that is there does
LOGITS = {
    "pooler": ("pooler_output",),
    "masked_lm": ("prediction_logits", "logits"),
    "next_sentence": ("seq_relationship_logits", "logits"),
    "sentence_order": ("sop_logits",),
}
NOT_COMPARED = {"multiple_choice"}  # theirs needs inputs of another form


@dataclass(frozen=True)
class Verification:
    """What was compared, and what was not and why (`notes`).

    differences: of each layer and head, max|ours - theirs| / max|theirs|.
    """

    folder: Path
    architecture: str
    tolerance: float
    differences: dict[str, float]
    notes: list[str]

    @property
    def largest(self) -> float:
        """The largest difference of all; NaN where one is NaN."""
        return float(torch.tensor([*self.differences.values()]).max())  # max() would lose a NaN

    @property
    def equal(self) -> bool:
        """Whether all differences are within the tolerance."""
        return self.largest <= self.tolerance


def verify(path: str | Path, tolerance: float = TOLERANCE) -> Verification:
    """Compare what we compute from a folder with what `transformers` does, in float32 on the CPU.

    tolerance: the largest difference that counts as equal, relative to the largest number.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: no other library has this model, or the folder cannot be read.
    """
    transformers, notes = _transformers(), list[str]()
    opened = open_folder(path)
    folder, model_type = opened.path, opened.config.get("model_type")
    is_ours = type(opened) is not ModelFolder or model_type == OURS
    if is_ours or type_of(opened.config, read_weights(folder)) != model_type:
        raise CheckpointError(f"{folder}: no other library opens this folder as a whole model.")
    ours: Any = read_model(folder).float().eval()
    theirs = _their_model(transformers, folder, notes)
    compare = _compare_pair if isinstance(ours, EncoderDecoder) else _compare_encoder
    with torch.no_grad():
        outputs = compare(ours, theirs, random_batch(ours), notes)
    order = layout_of(theirs.config.model_type).in_their_order
    differences = {
        name: _difference(name, mine if name.startswith("head") else order(mine), other)
        for name, (mine, other) in outputs.items()
    }
    return Verification(folder, type(theirs).__name__, tolerance, differences, notes)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "verify", "Comparing with another library") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _their_model(transformers: Any, folder: Path, notes: list[str]) -> Any:
    """Their model; what they could not fill from the folder is noted."""
    name = (read_json(folder / CONFIG).get("architectures") or ["AutoModel"])[0]
    try:
        model, info = getattr(transformers, name).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # their library may raise anything
        message = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise CheckpointError(f"{folder}: not opened as a {name}: {message}") from error
    if missing := sorted(info["missing_keys"]):
        notes.append(f"{name} has random numbers where the folder has none: {', '.join(missing)}")
    if extra := sorted(info["unexpected_keys"]):
        notes.append(f"{name} leaves out what the folder has: {', '.join(extra)}")
    if model.config.pad_token_id is None:
        model.config.pad_token_id = 0  # by which some find the last token
    return model.eval()


# ----------------------------------------------------------------------------------- inputs


def random_batch(model: Model) -> Sequences:
    """Sequences of random ids, from one token to the longest, without the padding's id."""
    config, body = model.config, model.encoder if isinstance(model, EncoderWithHeads) else model
    longest = min(LONGEST, config.max_length or LONGEST)
    if isinstance(config, BigBirdConfig) and config.attention != "full":
        # Beyond it theirs counts the first block once more for each random block in evaluation.
        longest = min(longest, config.full_length)
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


def _ends(model: Model) -> set[int]:
    """The ids at which heads sum up a text."""
    heads = model.heads.values() if isinstance(model, EncoderWithHeads) else ()
    poolings = [head.pooling for head in heads if isinstance(head, ClassificationHead)]
    return {one.id for one in poolings if isinstance(one, LastTokenWithId)}


# ----------------------------------------------------------------------------------- models

Pairs = dict[str, tuple[Tensor, Tensor]]  # name of layer or head -> ours and theirs


def _compare_encoder(ours: Any, theirs: Any, batch: Sequences, notes: list[str]) -> Pairs:
    """Of models that give hidden states of each layer (`states`), and heads on the last."""
    body = ours.encoder if isinstance(ours, EncoderWithHeads) else ours
    output = theirs.base_model(**_inputs(theirs.base_model, batch), output_hidden_states=True)
    if "decoder_hidden_states" in output:  # a text is read twice
        hidden = (output.encoder_hidden_states[0], *output.decoder_hidden_states[1:])
    else:
        hidden = output.hidden_states
    pairs: Pairs = {
        f"layer {i}" if i else "embeddings": (mine[batch.keep], other[batch.keep])
        for i, (mine, other) in enumerate(zip(body.states(batch), hidden, strict=True))
    }
    heads: dict[str, Any] = dict(ours.heads) if isinstance(ours, EncoderWithHeads) else {}
    if isinstance(body, LanguageModel) and theirs.get_output_embeddings() is not None:
        heads["lm"] = lambda states, texts: body.head.logits(states)
    for kind in heads.keys() & NOT_COMPARED:
        notes.append(f"head {kind}: not compared")
        del heads[kind]
    if not heads:
        return pairs
    segments = None if batch.segments is None else batch.segments[-1:]
    longest = Sequences(batch.ids[-1:], batch.lengths[-1:], segments)
    output, last = theirs(**_inputs(theirs, longest)), list(body.states(longest))[-1]
    for kind, head in heads.items():
        if kind == "span":
            logits = torch.stack([output.start_logits, output.end_logits], -1)
        else:
            fields = [name for name in LOGITS.get(kind, ("logits",)) if name in output]
            if not fields:
                notes.append(f"{type(theirs).__name__} has no head {kind}: not compared")
                continue
            logits = output[fields[0]]
        ours_of_head = head(last, longest)
        pairs[f"head {kind}"] = ours_of_head.reshape(logits.shape), logits
    return pairs


def _inputs(theirs: Any, batch: Sequences) -> dict[str, Tensor]:
    arguments = {"input_ids": batch.ids, "attention_mask": batch.keep.long()}
    accepted = inspect.signature(theirs.forward).parameters
    if batch.segments is not None and "token_type_ids" in accepted:
        arguments["token_type_ids"] = batch.segments
    if "question_lengths" in accepted:  # 0: else an answer may not stand before any [SEP]
        arguments["question_lengths"] = torch.zeros_like(batch.lengths)[:, None]
    return arguments


def _compare_pair(ours: Any, theirs: Any, batch: Sequences, notes: list[str]) -> Pairs:
    """Of models that read a source and predict a target; a batch serves as both."""
    hidden = ours(batch, Sequences.full(batch.ids)).hidden
    output = theirs(
        input_ids=batch.ids,
        attention_mask=batch.keep.long(),
        decoder_input_ids=batch.ids,
        output_hidden_states=True,
    )
    pairs: Pairs = {
        "encoder": (ours.encode(batch), output.encoder_last_hidden_state),
        "decoder": (hidden / ours.output_scale, output.decoder_hidden_states[-1]),
        "head lm": (ours.head.logits(hidden), output.logits),
    }
    return {name: (mine[batch.keep], other[batch.keep]) for name, (mine, other) in pairs.items()}


def _difference(name: str, ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        shapes = f"{tuple(ours.shape)} here and {tuple(theirs.shape)} in the other library"
        raise CheckpointError(f"{name} is {shapes}.")
    return float((ours - theirs).abs().max() / theirs.abs().max())
