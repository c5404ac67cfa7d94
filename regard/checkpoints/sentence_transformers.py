"""Folders of sentence-transformers: pooling and normalization, read and written.

pooling = read_pooling(folder)          None where the folder is a plain encoder
write_sentence_transformers(folder, pooling, d_model)
"""

import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, create_model

from regard.errors import CheckpointError, warn
from regard.file_writing import write_text
from regard.layers.pooling import Pooling
from regard.models.config import Size
from regard.schema import Fields, check_same, read_json
from regard.text import Tokenizer

CONFIG, MODULES, POOLING, NORMALIZE = "config.json", "modules.json", "1_Pooling", "2_Normalize"
TRANSFORMER, GENERAL = "sentence_bert_config.json", "config_sentence_transformers.json"
# Names of the first of these files in old releases, in the order in which theirs looks for them.
OLD_TRANSFORMER = tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
AnyFields = TypeVar("AnyFields", bound=Fields)
Kind = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
# kind of pooling -> the field that is true where it is used, as all of their releases write it
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


# ------------------------------------------------------------------------------------ fields
# Fields that can change a vector have the values that change nothing here. Fields that theirs does
# not know (release 6.2) are ignored with a warning.


def _type(name: str) -> str:
    if not name.startswith("sentence_transformers."):
        raise ValueError("must be a class of sentence_transformers: no other code is run")
    return name.rpartition(".")[2]


def _path(path: str) -> str:
    if "\\" in path or "\0" in path or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a folder inside of this one")
    return path


def _as_text(config: Any) -> Any:
    if config != {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}:
        raise ValueError("must be text that becomes the last hidden state")
    return config


class ModuleEntry(Fields):
    """One entry of modules.json; `type` is the class without its module."""

    name: str
    type: Annotated[str, AfterValidator(_type)]
    path: Annotated[str, AfterValidator(_path)]


class PoolingFields(Fields):
    """config.json of the pooling, the flags of its kinds aside."""

    pooling_mode: Kind | Annotated[list[Kind], Field(min_length=1)] | None = None
    # Not read: `include_prompt` matters only with a prompt, and folders with one are not supported.
    word_embedding_dimension: Any = None
    embedding_dimension: Any = None
    include_prompt: Any = None


FLAG_FIELDS: Any = dict.fromkeys(FLAGS.values(), (bool | None, False))
PoolingConfig = create_model("PoolingConfig", __base__=PoolingFields, **FLAG_FIELDS)


class NormalizeConfig(Fields):
    """config.json of the normalization."""

    module_input_name: Literal["sentence_embedding"] | None = None
    module_output_name: Literal["sentence_embedding"] | None = None


class NoArguments(Fields):
    """Arguments of other libraries' constructors: where files come from, precision and speed. All
    others may change what a model computes.
    """

    model_config = ConfigDict(extra="forbid")


ARGUMENTS: Any = dict.fromkeys(
    (
        *("trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "subfolder"),
        *("torch_dtype", "dtype", "attn_implementation", "device_map", "low_cpu_mem_usage"),
        *("use_safetensors", "use_fast", "use_cache", "add_pooling_layer", "code_revision"),
    ),
    (Any, None),
)
Arguments = create_model("Arguments", __base__=NoArguments, **ARGUMENTS)
Empty = Annotated[dict[str, Any], Field(max_length=0)]


class TransformerFields(Fields):
    """sentence_bert_config.json, the arguments of constructors aside."""

    max_seq_length: Size | None = None
    do_lower_case: bool | None = False
    transformer_task: Literal["feature-extraction"] | None = None
    modality_config: Annotated[Any, AfterValidator(_as_text)] = None
    module_output_name: Literal["token_embeddings"] | None = None
    processing_kwargs: Empty | None = None
    query_length: None = None
    document_length: None = None
    query_expansion: None = None
    tokenizer_name_or_path: Literal[""] | None = None
    unpad_inputs: Any = None
    backend: Any = None
    cache_dir: Any = None


# By the names of old releases and of new ones.
ARGUMENT_FIELDS: Any = dict.fromkeys(
    (
        *("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"),
        *("config_args", "config_kwargs"),
    ),
    (Arguments | None, None),
)
TransformerConfig = create_model("TransformerConfig", __base__=TransformerFields, **ARGUMENT_FIELDS)


class GeneralConfig(Fields):
    """config_sentence_transformers.json"""

    model_type: Literal["SentenceTransformer"] | None = None
    default_prompt_name: str | None = None
    prompts: dict[str, str | None] | None = None
    truncate_dim: None = None


class TokenizerLimit(Fields):
    """tokenizer_config.json; int(1e30) is their "no limit"."""

    model_max_length: Annotated[int | float, Field(ge=1)] | None = None


# ----------------------------------------------------------------------------------- reading


def read_pooling(folder: str | Path) -> Pooling | None:
    """What a folder says of pooling; None where it is a plain encoder.

    Raises:
        CheckpointError: a file is malformed, or the folder computes a text's vector in a way that
            is not supported.
    """
    folder = Path(folder)
    if not (folder / MODULES).exists():
        return None
    modules = read_json(folder / MODULES, list[ModuleEntry])
    kinds = [module.type for module in modules]
    parts = ["Transformer", "Pooling", "Normalize"]
    if kinds not in (parts[:2], parts) or len({module.name for module in modules}) < len(modules):
        must = "must be Transformer, Pooling and perhaps Normalize, each with its own `name`"
        listed = ", ".join(kinds) or "nothing"
        raise CheckpointError(f"{folder / MODULES}: {must}, but here are {listed}.")
    encoder, pooling, *others = (folder / module.path / CONFIG for module in modules)
    if encoder != folder / CONFIG:
        must = f"must be empty, but is {modules[0].path!r}"
        raise CheckpointError(f"{folder / MODULES}: the `path` of the Transformer {must}.")
    general = _read(folder / GENERAL, GeneralConfig, warns=False)
    name = general.default_prompt_name
    if name is not None and (general.prompts or {}).get(name, name):
        must = f"must be null: a prompt, here {name!r}, is put before texts by their caller"
        raise CheckpointError(f"{folder / GENERAL}: `default_prompt_name` {must}.")
    for path in others:
        _read(path, NormalizeConfig)
    if not pooling.exists():
        raise CheckpointError(f"{pooling} is missing, which says how texts are pooled.")
    config = _read(pooling, PoolingConfig)
    flagged = tuple(kind for kind, flag in FLAGS.items() if getattr(config, flag))
    mode = config.pooling_mode or flagged or ("mean",)
    modes = (mode,) if isinstance(mode, str) else tuple(mode)
    named = " and ".join(f"`{FLAGS[kind]}`" for kind in flagged)
    check_same(pooling, "pooling_mode", sorted(modes), named, sorted(flagged) or None)
    return Pooling(modes, bool(others), _max_length(folder))


def _max_length(folder: Path) -> int | None:
    names = (TRANSFORMER, *OLD_TRANSFORMER)
    path = next((folder / name for name in names if (folder / name).exists()), folder / TRANSFORMER)
    config = _read(path, TransformerConfig)
    if config.do_lower_case and Tokenizer.load(folder).words("A") != ["a"]:
        hint = "Let the normalizer of tokenizer.json lowercase"
        raise CheckpointError(f"{path}: `do_lower_case`: the tokenizer keeps capitals. {hint}.")
    if config.max_seq_length is not None:
        return config.max_seq_length
    limit = _read(folder / "tokenizer_config.json", TokenizerLimit, warns=False).model_max_length
    return int(limit) if limit is not None and limit < 1e9 else None


def _read(path: Path, schema: type[AnyFields], *, warns: bool = True) -> AnyFields:
    """The contents of a file; those of an empty one where it is not there.

    warns: of fields that the schema does not have.
    """
    config = read_json(path, schema) if path.exists() else schema()
    unread = [name for name, value in (config.model_extra or {}).items() if value]
    if unread and warns:
        warn(
            f"{path}: these fields are ignored, because sentence-transformers does not know them: "
            f"{', '.join(unread)}.",
        )
    return config


# ----------------------------------------------------------------------------------- writing


def write_sentence_transformers(folder: str | Path, pooling: Pooling, d_model: int) -> None:
    """Write the files by which sentence-transformers opens an encoder as a model of whole texts.

    The names are those that all of its releases read.

    d_model: the width of the encoder's hidden states.
    """
    folder = Path(folder)
    flags: dict[str, Any] = {flag: kind in pooling.kinds for kind, flag in FLAGS.items()}
    if tuple(kind for kind in FLAGS if kind in pooling.kinds) != pooling.kinds:
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
