"""Encoders of whole texts, as sentence-transformers publishes them: a folder with its pooling.

pooling = read_pooling(folder)          None where the folder says nothing of it
vectors = pooling(hidden, texts)        (B, T, D) -> (B, D), or side by side for several kinds
vectors = pooling.of(states, sizes)     the same of tokens end to end, (N, D) and (B,) -> (B, D)
write_sentence_transformers(folder, pooling, d_model)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError
from regard.file_writing import write_text
from regard.models.config import Size
from regard.schema import Fields, read_json
from regard.suggest import nearest

MODULES, POOLING, NORMALIZE = "modules.json", "1_Pooling", "2_Normalize"
AnyFields = TypeVar("AnyFields", bound=Fields)
ABOUT, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"


# ----------------------------------------------------------------------------------- pooling


def starts(sizes: Tensor) -> Tensor:
    """Where texts of these sizes begin that lie end to end: (B,)"""
    return sizes.cumsum(0) - sizes


def summed(states: Tensor, sizes: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum, or the weighted one, over the tokens of each text: (N, D) -> (B, D)."""
    # Of all that sums runs of lines this is by far the fastest, and each run has its own sum.
    every = torch.arange(len(states), device=states.device)
    return embedding_bag(every, states, starts(sizes), mode="sum", per_sample_weights=weights)


def mean(states: Tensor, sizes: Tensor) -> Tensor:
    """The mean over the tokens of each text."""
    return summed(states, sizes) / sizes.clamp(min=1)[:, None].to(states.dtype)


def highest(states: Tensor, sizes: Tensor) -> Tensor:
    """The largest value of each dimension over the tokens of each text."""
    return torch.segment_reduce(states, "max", lengths=sizes)


def mean_by_root(states: Tensor, sizes: Tensor) -> Tensor:
    """The sum over the tokens of each text by the root of their number."""
    return summed(states, sizes) / sizes.clamp(min=1)[:, None].to(states.dtype).sqrt()


def weighted_mean(states: Tensor, sizes: Tensor) -> Tensor:
    """The mean with weights 1, 2, 3, … along each text."""
    before = starts(sizes).repeat_interleave(sizes)  # (N,)
    weights = torch.arange(1, len(states) + 1, device=states.device) - before
    sums = (sizes * (sizes + 1) / 2).clamp(min=1)
    return summed(states, sizes, weights.to(states.dtype)) / sums[:, None].to(states.dtype)


def first(states: Tensor, sizes: Tensor) -> Tensor:
    """The first token of each text."""
    return states[starts(sizes)]


def last(states: Tensor, sizes: Tensor) -> Tensor:
    """The last token of each text."""
    return states[sizes.cumsum(0) - 1]


# From the tokens of texts end to end, (N, D), and how many each has, (B,), to (B, D).
Pooled = Callable[[Tensor, Tensor], Tensor]
# kind -> what it takes from hidden states, in the order in which theirs stand side by side
KINDS: dict[str, Pooled] = {
    "cls": first,
    "max": highest,
    "mean": mean,
    "mean_sqrt_len_tokens": mean_by_root,
    "weightedmean": weighted_mean,
    "lasttoken": last,
}
# Their names of before 2026; the field is true for each kind that is taken.
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """How the hidden states of a text become one vector.

    kinds: of `KINDS`; several stand side by side in the vector.
    normalize: whether the vector is given the length 1.
    max_length: how many of a text are read, special pieces included; None: as the model limits it.
    """

    kinds: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError(f"There is no pooling {kind!r}. {nearest(kind, KINDS)}")
        if not self.kinds:
            raise ConfigError(f"A pooling needs at least one kind of {', '.join(KINDS)}.")

    def __call__(self, hidden: Tensor, texts: Sequences) -> Tensor:
        """(B, T, D) -> (B, D), or (B, n * D) of n kinds."""
        return self.of(hidden[texts.keep], texts.lengths)

    def of(self, states: Tensor, sizes: Tensor) -> Tensor:
        """Of the tokens of texts end to end, (N, D), so many of each, (B,)."""
        found = [KINDS[kind](states, sizes) for kind in self.kinds]
        pooled = torch.cat(found, 1) if len(found) > 1 else found[0]
        return normalize(pooled, dim=1) if self.normalize else pooled


# ----------------------------------------------------------------------------------- reading

# Their field -> the values that change nothing here; a field that is not known must be empty.
ABOUT_TEXTS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": (True, False),
}
ABOUT_LENGTH = dict.fromkeys(("module_input_name", "module_output_name"), ("sentence_embedding",))


class Module(Fields):
    """One entry of modules.json."""

    type: str
    path: str = ""


class PoolingConfig(Fields):
    """config.json of the pooling; further fields that are not empty are refused."""

    pooling_mode: str | list[str] | None = None
    # Not read: a prompt is what `include_prompt` is about, and a folder with one is refused.
    word_embedding_dimension: Any = None
    embedding_dimension: Any = None
    include_prompt: Any = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class TextsConfig(Fields):
    """sentence_bert_config.json."""

    max_seq_length: Size | None = None
    do_lower_case: bool = False


class GeneralConfig(Fields):
    """config_sentence_transformers.json."""

    model_type: str = "SentenceTransformer"
    default_prompt_name: str | None = None
    prompts: dict[str, str] = {}


class TokenizerLimit(Fields):
    """tokenizer_config.json; int(1e30) is their "no limit"."""

    model_max_length: Annotated[int | float, Field(ge=1)] | None = None


def read_pooling(folder: str | Path) -> Pooling | None:
    """What a folder says of pooling; None where it is a plain encoder.

    Raises:
        CheckpointError: the folder computes a text's vector in a way that is not known here.
    """
    folder = Path(folder)
    if not (folder / MODULES).exists():
        return None
    modules = read_json(folder / MODULES, list[Module])
    kinds = [module.type.rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{folder / MODULES}: a text must pass Transformer, Pooling and perhaps Normalize, "
            f"but here it passes {', '.join(kinds) or 'nothing'}. No other way is known here."
        )
    places = [_inside(folder, module.path) for module in modules]
    if places[0] != folder:
        raise CheckpointError(f"{folder} holds its encoder in a folder of its own: {places[0]}.")
    _check_prompts(folder / GENERAL)
    for place in places[2:]:
        _check(place / "config.json", _read(place / "config.json", Fields), ABOUT_LENGTH)
    return Pooling(_kinds(places[1] / "config.json"), len(kinds) == 3, _max_tokens(folder))


def _inside(folder: Path, path: str) -> Path:
    """A folder that modules.json names.

    Raises:
        CheckpointError: it is none inside of this one.
    """
    parts = PurePosixPath(path).parts
    if "\\" in path or "\0" in path or ".." in parts or PurePosixPath(path).is_absolute():
        raise CheckpointError(
            f"{folder / MODULES}: `path` must be a folder inside of this one, but is {path!r:.80}."
        )
    return folder.joinpath(*parts)


def _kinds(path: Path) -> tuple[str, ...]:
    config = _read(path, PoolingConfig)
    _check(path, config, {})
    flagged = tuple(kind for kind, flag in FLAGS.items() if getattr(config, flag))
    named = config.pooling_mode
    if named is None:
        named = list(flagged) or "mean"
    try:
        return Pooling((named,) if isinstance(named, str) else tuple(named)).kinds
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _max_tokens(folder: Path) -> int | None:
    config = _read(folder / ABOUT, TextsConfig)
    if config.do_lower_case and not _lowercases(folder):
        raise CheckpointError(
            f"{folder / ABOUT}: `do_lower_case` is true, but the tokenizer keeps capitals. Let the "
            'normalizer of its tokenizer.json do it: {"type": "Lowercase"}.'
        )
    _check(folder / ABOUT, config, ABOUT_TEXTS)
    if config.max_seq_length is not None:
        return config.max_seq_length
    limit = _read(folder / "tokenizer_config.json", TokenizerLimit, any_size=True).model_max_length
    return int(limit) if limit is not None and limit < 1e9 else None


def _lowercases(folder: Path) -> bool:
    from regard.text import Tokenizer

    return Tokenizer.load(folder).words("A") == ["a"]


def _check_prompts(path: Path) -> None:
    """Refuse a prompt that is put before every text without being asked for."""
    config = _read(path, GeneralConfig)
    kind, name = config.model_type, config.default_prompt_name
    if kind != "SentenceTransformer":
        raise CheckpointError(f"{path}: `model_type` must be SentenceTransformer, but is {kind!r}.")
    if name is not None and config.prompts.get(name):
        raise CheckpointError(
            f"{path}: `default_prompt_name` {name!r} puts {config.prompts[name]!r} before every "
            "text, which is not done here. Put it there yourself and make the field null."
        )


def _check(path: Path, config: Fields, known: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse further fields with values that are not known to change nothing."""
    for name, value in (config.model_extra or {}).items():
        if name in known and value not in known[name]:
            must = " or ".join(repr(one) for one in known[name])
            raise CheckpointError(f"{path}: `{name}` must be {must}, but is {value!r:.80}.")
        if name not in known and value:
            raise CheckpointError(
                f"{path}: `{name}` (here {value!r:.60}) is a field that is not known here. Remove "
                "it if it changes nothing."
            )


def _read(path: Path, schema: type[AnyFields], *, any_size: bool = False) -> AnyFields:
    """The contents of a file; those of an empty one where it is not there."""
    return read_json(path, schema, any_size=any_size) if path.exists() else schema()


# ----------------------------------------------------------------------------------- writing


def write_sentence_transformers(folder: str | Path, pooling: Pooling, d_model: int) -> None:
    """Write beside an encoder what sentence-transformers opens as a model of whole texts.

    The names are those that all of its releases read.
    """
    folder = Path(folder)
    flags: dict[str, Any] = {flag: kind in pooling.kinds for kind, flag in FLAGS.items()}
    if tuple(kind for kind in KINDS if kind in pooling.kinds) != pooling.kinds:
        flags = {"pooling_mode": list(pooling.kinds)}  # the flags have one order alone
    _write(folder / POOLING / "config.json", {"word_embedding_dimension": d_model, **flags})
    _write(folder / ABOUT, {"max_seq_length": pooling.max_length, "do_lower_case": False})
    parts = [("", "Transformer"), (POOLING, "Pooling")]
    parts += [(NORMALIZE, "Normalize")] if pooling.normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    _write(folder / MODULES, modules)


def _write(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
