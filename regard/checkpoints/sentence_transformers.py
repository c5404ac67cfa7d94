"""Folders of sentence-transformers: pooling and normalization, read and written.

pooling = read_pooling(folder)          None where the folder is a plain encoder
write_sentence_transformers(folder, pooling, d_model)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import Field, create_model

from regard.errors import CheckpointError, ConfigError
from regard.file_writing import write_text
from regard.layers.pooling import KINDS, Pooling
from regard.models.config import Size
from regard.schema import Fields, read_json
from regard.text import Tokenizer

CONFIG, MODULES, POOLING, NORMALIZE = "config.json", "modules.json", "1_Pooling", "2_Normalize"
TRANSFORMER, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"
# Names of the first of these files in old releases, in the order in which theirs looks for them.
OLD_TRANSFORMER = tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
PACKAGE = "sentence_transformers"

AnyFields = TypeVar("AnyFields", bound=Fields)
# kind of pooling -> the field that is true where it is used, as all of their releases write it
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


# ----------------------------------------------------------------------------------- reading

# Their fields that can change a vector -> the values that change nothing here. Fields that they do
# not know (release 6.2) are ignored with a warning.
NEUTRAL_TRANSFORMER: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": ({},),
    **dict.fromkeys(("query_length", "document_length", "query_expansion"), ()),
    "tokenizer_name_or_path": ("",),
}
# Arguments of other libraries' constructors, by the names of old releases and of new ones.
ARGUMENTS = (
    *("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"),
    *("config_args", "config_kwargs"),
)
# Where files come from, and in which precision and how fast a model runs.
SILENT_ARGUMENTS = {
    *("trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "subfolder"),
    *("torch_dtype", "dtype", "attn_implementation", "device_map", "low_cpu_mem_usage"),
    *("use_safetensors", "use_fast", "use_cache", "add_pooling_layer", "code_revision"),
}
SILENT_TRANSFORMER = ("unpad_inputs", "backend", "cache_dir", *ARGUMENTS)
NEUTRAL_NORMALIZE: dict[str, tuple[Any, ...]] = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding",),
}


class Module(Fields):
    """One entry of modules.json."""

    type: str
    path: str = ""


class PoolingFields(Fields):
    """config.json of the pooling, the flags of its kinds aside."""

    pooling_mode: str | list[str] | None = None
    # Not read: `include_prompt` matters only with a prompt, and folders with one are not supported.
    word_embedding_dimension: Any = None
    embedding_dimension: Any = None
    include_prompt: Any = None


FLAG_FIELDS: Any = dict.fromkeys(FLAGS.values(), (bool | None, False))
PoolingConfig = create_model("PoolingConfig", __base__=PoolingFields, **FLAG_FIELDS)


class SentenceBertConfig(Fields):
    """sentence_bert_config.json."""

    max_seq_length: Size | None = None
    do_lower_case: bool | None = False


class GeneralConfig(Fields):
    """config_sentence_transformers.json."""

    model_type: str | None = "SentenceTransformer"
    default_prompt_name: str | None = None
    prompts: dict[str, str | None] | None = {}


class TokenizerLimit(Fields):
    """tokenizer_config.json; int(1e30) is their "no limit"."""

    model_max_length: Annotated[int | float, Field(ge=1)] | None = None


def read_pooling(folder: str | Path) -> Pooling | None:
    """What a folder says of pooling; None where it is a plain encoder.

    Raises:
        CheckpointError: a file is malformed, or the folder computes a text's vector in a way that
            is not supported.
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
    for module in modules:
        if module.type.split(".", 1)[0] != PACKAGE:
            raise CheckpointError(
                f"{folder / MODULES}: `type` must be a class of {PACKAGE}, but is "
                f"{module.type!r:.80}: code of the folder's own is not run."
            )
    encoder, *others = (_inside(folder, module.path) / CONFIG for module in modules)
    if encoder != folder / CONFIG:
        raise CheckpointError(
            f"{folder} holds its encoder in a folder of its own: {encoder.parent}."
        )
    _check_prompts(folder / GENERAL)
    for path in others[1:]:
        _check(path, _read(path, Fields), NEUTRAL_NORMALIZE)
    return Pooling(_kinds(others[0]), len(kinds) == 3, _max_length(folder))


def _inside(folder: Path, path: str) -> Path:
    """A folder that modules.json names, which must be inside of this one."""
    parts = PurePosixPath(path).parts
    if "\\" in path or "\0" in path or ".." in parts or PurePosixPath(path).is_absolute():
        raise CheckpointError(
            f"{folder / MODULES}: `path` must be a folder inside of this one, but is {path!r:.80}."
        )
    return folder.joinpath(*parts)


def _kinds(path: Path) -> tuple[str, ...]:
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing, which says how the states of a text become one vector. Copy it "
            "from where the folder comes from."
        )
    config = _read(path, PoolingConfig)
    for name, value in (config.model_extra or {}).items():
        if name.startswith("pooling_mode") and value:
            raise CheckpointError(f"{path}: `{name}` is a kind of pooling that is not known here.")
    _check(path, config, {})
    flagged = tuple(kind for kind, flag in FLAGS.items() if getattr(config, flag))
    named = config.pooling_mode
    if named is None:
        named = list(flagged) or "mean"
    try:
        return Pooling((named,) if isinstance(named, str) else tuple(named)).kinds
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _max_length(folder: Path) -> int | None:
    names = (TRANSFORMER, *OLD_TRANSFORMER)
    path = next((folder / name for name in names if (folder / name).exists()), folder / TRANSFORMER)
    config = _read(path, SentenceBertConfig)
    if config.do_lower_case and Tokenizer.load(folder).words("A") != ["a"]:
        raise CheckpointError(
            f"{path}: `do_lower_case` is true, but the tokenizer keeps capitals. "
            'Let the normalizer of its tokenizer.json do it: {"type": "Lowercase"}.'
        )
    _check_arguments(path, config)
    _check(path, config, NEUTRAL_TRANSFORMER, SILENT_TRANSFORMER)
    if config.max_seq_length is not None:
        return config.max_seq_length
    limit = _read(folder / "tokenizer_config.json", TokenizerLimit, any_size=True).model_max_length
    return int(limit) if limit is not None and limit < 1e9 else None


def _check_prompts(path: Path) -> None:
    """Raise an error for a prompt that is put before every text by default."""
    config = _read(path, GeneralConfig)
    kind, name = config.model_type, config.default_prompt_name
    if kind not in ("SentenceTransformer", None):
        raise CheckpointError(f"{path}: `model_type` must be SentenceTransformer, but is {kind!r}.")
    prompts = config.prompts or {}
    if name is not None and prompts.get(name):
        raise CheckpointError(
            f"{path}: `default_prompt_name` {name!r} puts {prompts[name]!r} before every "
            "text, which is not done here. Put it there yourself and make the field null."
        )


def _check_arguments(path: Path, config: Fields) -> None:
    """Raise an error for an argument of a model, a tokenizer or a configuration that may change a
    result."""
    extra = config.model_extra or {}
    for field in ARGUMENTS:
        given = extra.get(field) or {}
        for name, value in given.items() if isinstance(given, Mapping) else [("", given)]:
            if name not in SILENT_ARGUMENTS and value is not None:
                whole = f"{field}.{name}".rstrip(".")
                raise CheckpointError(
                    f"{path}: `{whole}` (here {value!r:.60}) may change what the model computes, "
                    "and is not read here. Write it into config.json or tokenizer_config.json, "
                    "or remove it."
                )


def _check(
    path: Path, config: Fields, known: Mapping[str, tuple[Any, ...]], silent: Sequence[str] = ()
) -> None:
    """Check the further fields of a file: a warning names those that nothing reads.

    known: fields that can change a result, with the values that do not.

    Raises:
        CheckpointError: one of these has another value.
    """
    extra = {name: value for name, value in (config.model_extra or {}).items() if value is not None}
    for name in extra.keys() & known.keys():
        if extra[name] not in known[name]:
            must = " or ".join(repr(one) for one in known[name] if one) or "absent"
            raise CheckpointError(f"{path}: `{name}` must be {must}, but is {extra[name]!r:.80}.")
    ignored = [name for name, value in extra.items() if value and name not in (*known, *silent)]
    if ignored:
        warnings.warn(
            f"{path}: these fields are ignored, because sentence-transformers does not know them: "
            f"{', '.join(ignored)}.",
            stacklevel=2,
        )


def _read(path: Path, schema: type[AnyFields], *, any_size: bool = False) -> AnyFields:
    """The contents of a file; those of an empty one where it is not there."""
    return read_json(path, schema, any_size=any_size) if path.exists() else schema()


# ----------------------------------------------------------------------------------- writing


def write_sentence_transformers(folder: str | Path, pooling: Pooling, d_model: int) -> None:
    """Write the files by which sentence-transformers opens an encoder as a model of whole texts.

    The names are those that all of its releases read.

    d_model: the width of the encoder's hidden states.
    """
    folder = Path(folder)
    flags: dict[str, Any] = {flag: kind in pooling.kinds for kind, flag in FLAGS.items()}
    if tuple(kind for kind in KINDS if kind in pooling.kinds) != pooling.kinds:
        flags = {"pooling_mode": list(pooling.kinds)}  # the flags imply one order
    _write(folder / POOLING / CONFIG, {"word_embedding_dimension": d_model, **flags})
    _write(folder / TRANSFORMER, {"max_seq_length": pooling.max_length, "do_lower_case": False})
    parts = [("", "Transformer"), (POOLING, "Pooling")]
    parts += [(NORMALIZE, "Normalize")] if pooling.normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    _write(folder / MODULES, modules)


def _write(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
