"""A folder of weights computed by us and by `transformers`, on the same inputs, layer by layer.

    report = verify("folder")           report.equal, report.rows, report.notes

The rows of the batch are of all lengths from one token to the longest, padded on the right and then
on the left; a few texts go through both tokenizers, specials and segments included. This is the one
place that imports `transformers`, and only when it is asked to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import AddedToken
from torch import Tensor, nn

from regard.checkpoints.formats.published import LAYOUTS, layout_of
from regard.checkpoints.model_folder import (
    CONFIG,
    ModelFolder,
    exported,
    open_folder,
    read_model,
    write_model,
)
from regard.checkpoints.names import Names
from regard.data.batches import Sequences
from regard.errors import CheckpointError, DataError, MissingExtra
from regard.layers.heads import Answers, last
from regard.models.headed import Headed
from regard.models.protocols import Encoder, EncoderDecoder, LanguageModel
from regard.schema import read_json
from regard.text import Tokenizer
from regard.text.templates import Template

TOLERANCE, LONGEST, ROWS = 1e-4, 64, 8
# kind of head -> the fields of their output that may hold its answer, the first that is there does
ANSWERS = {
    "pooler": ("pooler_output",),
    "masked_lm": ("prediction_logits", "logits"),
    "lm": ("logits",),
    "next_sentence": ("seq_relationship_logits", "logits"),
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
Outputs = dict[str, Tensor]  # by name: (B, T, ...) or (B, ...)


@dataclass(frozen=True)
class Row:
    """max|Δ| of one layer or head, padded on the right and on the left; None: not comparable."""

    name: str
    right: float
    left: float | None


@dataclass(frozen=True)
class Words:
    """Texts through both tokenizers; `wrong` holds those whose ids or segments differ."""

    name: str
    texts: int
    wrong: list[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """What was compared, and what was not and why (`notes`)."""

    folder: Path
    architecture: str
    tolerance: float
    rows: list[Row]
    words: list[Words]
    notes: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest difference of all; not a number where one is none."""
        found = [d for row in self.rows for d in (row.right, row.left) if d is not None]
        return float(torch.tensor(found).max())  # Python's max would lose a NaN

    @property
    def equal(self) -> bool:
        """Whether all differences are within the tolerance and all ids equal."""
        return self.largest <= self.tolerance and not any(words.wrong for words in self.words)


def verify(path: str | Path, tolerance: float = TOLERANCE) -> Report:
    """Compare what we compute from a folder with what `transformers` does, in float32.

    Quantized weights, which no other library reads, are given to both as float32.

    Raises:
        MissingExtra: `transformers` is not installed.
        CheckpointError: no other library has this model, or the folder cannot be read.
    """
    theirs_of, notes = _transformers(), list[str]()
    given = open_folder(path)
    with TemporaryDirectory() as temporary:
        folder = given.path
        if given.dtype is not None:
            folder = Path(temporary)
            _write_dequantized(given, folder)
        config = read_json(folder / CONFIG)
        if config.get("model_type") not in LAYOUTS:
            raise CheckpointError(
                f"{given.path}: this model has no published architecture, so there is nothing to "
                "compare with."
            )
        if given.dtype is not None:
            notes.append("quantized weights were given to both as float32")
        ours: Any = read_model(folder).float().eval()
        theirs = _opened(theirs_of, folder, config, notes)
        batch = _batch(ours.config, config)
        with torch.no_grad():
            rows = _compared(ours, theirs, batch, _order(config), notes)
        words = _texts_compared(theirs_of, folder, ours, notes)
    return Report(given.path, type(theirs).__name__, tolerance, rows, words, notes)


def _write_dequantized(given: ModelFolder, out: Path) -> None:
    """What a folder with quantized weights holds, with float32 weights as others read them."""
    model: Any = given.dequantized_model()
    write_model(out, *exported(model), given.tokenizer(), model.config.max_length)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "verify", "Comparing with another library") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _opened(transformers: Any, folder: Path, config: Mapping[str, Any], notes: list[str]) -> Any:
    """Their model; what they could not fill from the folder is told."""
    name = (config.get("architectures") or ["AutoModel"])[0]
    kind: Any = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (name == "AutoModel" or _is_model(transformers, kind)):
        raise CheckpointError(
            f"{folder / 'config.json'}: `architectures` names {name!r}, which transformers "
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
    except Exception as error:  # theirs: whatever it is that they miss
        said = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: transformers {transformers.__version__} does not open this folder as "
            f"{name}: {type(error).__name__}: {said:.300}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        notes.append(f"{name} has random numbers where the folder has none: {', '.join(missing)}")
    if extra := sorted(info["unexpected_keys"]):
        notes.append(f"{name} leaves out what the folder has: {', '.join(extra)}")
    return model.eval()


def _is_model(transformers: Any, kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


# ----------------------------------------------------------------------------------- inputs


def _batch(config: Any, published: Mapping[str, Any]) -> Sequences:
    """Rows from one token to the longest of random ids, the padding's own left out."""
    longest = min(LONGEST, config.max_length or LONGEST)
    lengths = torch.linspace(1, longest, ROWS).round().long().unique()
    pad = config.pad or 0
    chance = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, config.vocab_size - 1, (len(lengths), longest), generator=chance)
    keep = torch.arange(longest) < lengths[:, None]
    ids = torch.where(keep, drawn + (drawn >= pad), pad)
    kinds = published.get("type_vocab_size", 0)
    segments = torch.randint(0, kinds, ids.shape, generator=chance) * keep if kinds > 1 else None
    return Sequences(ids, lengths, segments)


def _shifted(values: Tensor, lengths: Tensor, *, left: bool) -> Tensor:
    """(B, T, ...) whose tokens stand on the right side of the rows, or come back from there."""
    rows, longest = torch.arange(len(values))[:, None], values.size(1)
    free = longest - lengths[:, None]
    places = torch.arange(longest) - free if left else torch.arange(longest) + free
    return values[rows, places % longest]


# ----------------------------------------------------------------------------------- models


def _compared(
    ours: Any, theirs: Any, batch: Sequences, order: Callable[[Tensor], Tensor], notes: list[str]
) -> list[Row]:
    """One row for each layer and each head."""
    pair = _EncoderDecoders if _is_pair(ours) else _Encoders
    asked = pair(ours, theirs, order)
    mine, right = asked.mine(batch), asked.other(batch, left=False)
    left = asked.other(batch, left=True) if asked.may_pad_left else {}
    if not asked.may_pad_left:
        notes.append(f"{type(theirs).__name__} counts positions from the padding: left is left out")
    rows = []
    for name, values in mine.items():
        if name not in right:
            notes.append(f"{type(theirs).__name__} has no {name}: not compared")
            continue
        other = left.get(name)
        beside = None if other is None else _difference(name, values, other, batch)
        rows.append(Row(name, _difference(name, values, right[name], batch), beside))
        if left and other is None:
            notes.append(f"{name} reads the first column, where padding on the left stands")
    return rows


def _difference(name: str, ours: Tensor, theirs: Tensor, batch: Sequences) -> float:
    if ours.shape != theirs.shape:
        raise CheckpointError(
            f"{name} is {tuple(ours.shape)} here and {tuple(theirs.shape)} in the other library."
        )
    between = (ours - theirs).abs()
    return float((between[batch.keep] if between.dim() == 3 else between).max())


def _is_pair(model: Any) -> bool:
    return isinstance(model, EncoderDecoder)


def _order(config: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Our hidden states with their dimensions in their order, which is that of the embedding."""
    names = getattr(layout_of(config["model_type"]), "names", None)
    rows = names.rows if isinstance(names, Names) else []
    found = [row.transform for row in rows if row.ours == ("embedding.weight",)]
    if not found:
        return lambda hidden: hidden
    return lambda hidden: found[0].write([hidden.flatten(0, -2)])[0].view(hidden.shape)


class _Encoders:
    """Models that give hidden states of each layer (`layers`), and heads on the last."""

    def __init__(self, ours: Any, theirs: Any, order: Callable[[Tensor], Tensor]):
        self.body: Any = ours.encoder if isinstance(ours, Headed) else ours
        self.heads: dict[str, Any] = dict(ours.heads) if isinstance(ours, Headed) else {}
        if isinstance(self.body, LanguageModel) and theirs.get_output_embeddings() is not None:
            words: Any = self.body.head  # type: ignore[union-attr]
            self.heads["lm"] = lambda hidden, texts: words.logits(hidden)
        self.theirs, self.order = theirs, order
        self.accepted = set(inspect.signature(theirs.forward).parameters)
        base = inspect.signature(theirs.base_model.forward).parameters
        # Where the embeddings count the tokens by themselves, nobody has to.
        self.counted = any(
            hasattr(part, "create_position_ids_from_input_ids") for part in theirs.modules()
        )
        self.may_pad_left = self.counted or "position_ids" in base
        if theirs.config.pad_token_id is None:
            theirs.config.pad_token_id = 0  # by which some find the last token

    def mine(self, batch: Sequences) -> Outputs:
        hidden = list(self.body.layers(batch))
        found = {_layer(i): self.order(one) for i, one in enumerate(hidden)}
        return found | {f"head {k}": head(hidden[-1], batch) for k, head in self.heads.items()}

    def other(self, batch: Sequences, *, left: bool) -> Outputs:
        output = self.theirs(**self._inputs(batch, left), output_hidden_states=True)
        rows, longest = batch.ids.shape
        found = {
            _layer(i): one.reshape(rows, longest, -1) for i, one in enumerate(output.hidden_states)
        }
        for kind in self.heads:
            answer = self._answer(output, kind)
            # Their heads that sum up a text read the first column, on the left that of a padding.
            if answer is not None and not (left and self._reads_first(kind, answer)):
                found[f"head {kind}"] = answer
        back = (lambda one: _shifted(one, batch.lengths, left=False)) if left else (lambda one: one)
        return {name: back(one) if one.dim() == 3 else one for name, one in found.items()}

    def _inputs(self, batch: Sequences, left: bool) -> dict[str, Tensor]:
        given = {"input_ids": batch.ids, "attention_mask": batch.keep.long()}
        if batch.segments is not None and "token_type_ids" in self.accepted:
            given["token_type_ids"] = batch.segments
        if left:
            given = {name: _shifted(v, batch.lengths, left=True) for name, v in given.items()}
        if left and not self.counted:
            given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        if (
            "multiple_choice" in self.heads
        ):  # they take several answers to a question: here it is one
            given["input_ids"] = given["input_ids"][:, None]
        if "mc_token_ids" in self.accepted:
            end = batch.lengths - 1 if not left else torch.full_like(batch.lengths, -1)
            given["mc_token_ids"] = end[:, None] % batch.ids.size(1)
        return given

    def _reads_first(self, kind: str, answer: Tensor) -> bool:
        head = self.heads[kind]
        reads_last = isinstance(head, Answers) and head.place is last
        return answer.dim() == 2 and not reads_last

    def _answer(self, output: Any, kind: str) -> Tensor | None:
        if kind == "span":
            return torch.stack([output.start_logits, output.end_logits], -1)
        found = [getattr(output, name, None) for name in ANSWERS.get(kind, ("logits",))]
        answer = next((one for one in found if one is not None), None)
        if answer is None:
            return None
        if kind == "multiple_choice":
            return answer.flatten()[:, None]
        return answer.flatten(0, 1) if answer.dim() == 4 else answer  # (B, 1, T, V) -> (B, T, V)


class _EncoderDecoders:
    """Models that read a source and write a target; the rows of a batch serve as both."""

    may_pad_left = False

    def __init__(self, ours: Any, theirs: Any, order: Callable[[Tensor], Tensor]):
        self.ours, self.theirs, self.order = ours, theirs, order

    def mine(self, batch: Sequences) -> Outputs:
        found: Outputs = {}
        hooks = [
            block.register_forward_hook(_noted(found, f"{side} layer {i}"))
            for side in ("encoder", "decoder")
            for i, block in enumerate(getattr(self.ours, side), 1)
        ]
        try:
            hidden = self.ours(batch, batch.ids).hidden
        finally:
            for hook in hooks:
                hook.remove()
        # Behind the last layer there may be a norm.
        found[f"encoder layer {len(self.ours.encoder)}"] = self.ours.encode(batch)
        found[f"decoder layer {len(self.ours.decoder)}"] = hidden
        found = {name: self.order(one) for name, one in found.items()}
        return found | {"head lm": self.ours.head.logits(hidden)}

    def other(self, batch: Sequences, *, left: bool) -> Outputs:
        output = self.theirs(
            input_ids=batch.ids,
            attention_mask=batch.keep.long(),
            decoder_input_ids=batch.ids,
            output_hidden_states=True,
        )
        found = {"head lm": output.logits}
        for side in ("encoder", "decoder"):
            states = getattr(output, f"{side}_hidden_states")
            found |= {f"{side} layer {i}": one for i, one in enumerate(states)}
        return found


def _noted(found: Outputs, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        found[name] = output

    return note


def _layer(number: int) -> str:
    return f"layer {number}" if number else "embeddings"


# ----------------------------------------------------------------------------------- texts


def _texts_compared(transformers: Any, folder: Path, model: Any, notes: list[str]) -> list[Words]:
    """Every text alone, and each with the next where the model reads pairs."""
    try:
        ours = Tokenizer.load(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except DataError as error:
        notes.append(f"no texts were compared: {error}")
        return []
    except Exception as error:  # theirs: whatever it is that they miss
        notes.append(f"no texts were compared, transformers does not open the tokenizer: {error}")
        return []
    _let_swallow(ours, theirs, notes)
    body = model.encoder if isinstance(model, Headed) else model
    template = ours.template or (body.template(ours) if isinstance(body, Encoder) else None)
    alone = [(text,) for text in TEXTS]
    # For them an empty second text is none; the last is empty.
    pairs = [] if _is_pair(model) else list(zip(TEXTS, TEXTS[1:-1], strict=False))
    return [
        Words(name, len(texts), list(_wrong(ours, theirs, template, texts)))
        for name, texts in (("texts", alone), ("pairs of texts", pairs))
        if texts
    ]


def _let_swallow(ours: Tokenizer, theirs: Any, notes: list[str]) -> None:
    """Their mask takes the space before it where ours does, as RoBERTa's own program has it.

    Where no file of the folder says whether, their releases differ.
    """
    mask = ours.mask_id
    taken = {token["id"]: token["lstrip"] for token in ours.to_json()["added_tokens"]}
    found = theirs.added_tokens_decoder.get(mask)
    if mask is None or found is None or found.lstrip or not taken.get(mask):
        return
    swallowing = AddedToken(found.content, lstrip=True, normalized=found.normalized)
    theirs.add_tokens([swallowing], special_tokens=True)
    notes.append(
        f"transformers was told that {found.content} takes the space before it, as RoBERTa's own "
        "program lets it: nothing in the folder says so"
    )


def _wrong(
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
