"""A model folder as configuration, model and tokenizer, read and written.

    folder = open_folder("runs/demo")       a folder, a run, or a name on the hub
    folder.config                           the contents of config.json
    folder.model()                          with its weights
    folder.tokenizer()

`regard.tasks.folders` makes a task of them.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import create_model
from torch import nn

from regard.checkpoints import adapters, filling, formats
from regard.checkpoints.formats import config_table
from regard.checkpoints.formats.encoder_layout import EncoderLayout
from regard.checkpoints.hub import CONFIG, folder_of
from regard.checkpoints.sentence_transformers import MODULES
from regard.checkpoints.store import holds_weights, read_weights, write_tensors
from regard.errors import CheckpointError, ConfigError, RegardError, warn
from regard.file_pages import releasing
from regard.file_writing import write_text
from regard.layers.quantized import WeightType
from regard.models import NAMED, is_encoder, model_class, name_of
from regard.models.check_config import check_sizes, config_of
from regard.models.config import Size
from regard.models.conversions import merged
from regard.models.encoder_with_heads import EncoderWithHeads, assembled, deployed, with_options
from regard.models.protocols import EncoderDecoder
from regard.schema import Fields, checked, read_json
from regard.suggest import nearest
from regard.text import Tokenizer
from regard.text.closed_vocabulary import closed_vocabulary
from regard.text.preprocessing import ROLES
from regard.text.published import holds_tokenizer

JsonObject = dict[str, Any]  # of config.json
WEIGHTS, GENERATION = "model.safetensors", "generation_config.json"
ADAPTED = "regard.json"  # beside an adapter of ours: config.json of the adapted model
OURS = "regard"  # the model_type of models that no other library has
# Fields of the base's config.json that an adapted model has, too: how it generates, and what stands
# before its sources.
FROM_BASE = (
    *(name for name in config_table.GENERATION if name != "decoder_start_token_id"),
    *("eos_token_id", "max_length", "prefix", "task_specific_params"),
)
NOT_OPTIONS = (
    *("model_type", "architectures", "regard", "id2label", "label2id", "problem_type", "auto_map"),
)


class RegardSection(Fields):
    """The field `regard` of config.json; its further fields are the settings of the task.

    weights: the type that the weights are quantized to.
    """

    task: str = "translation"
    version: str = ""
    model: str = ""
    heads: dict[str, Size] | None = None
    weights: WeightType | None = None
    labels: list[str] | None = None


class Prefixed(Fields):
    """The text that stands before each source, of all tasks or of one."""

    prefix: str | None = None


class CommonFields(Prefixed):
    """The fields that every config.json may have, ids of special tokens aside."""

    model_type: str | None = None
    regard: RegardSection = RegardSection()
    architectures: list[str] | None = None
    id2label: JsonObject | None = None
    label2id: JsonObject | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    task_specific_params: dict[str, Prefixed] | None = None


TOKEN_IDS: Any = {
    f"{role}_token_id": (int | list[int] | None, None) for role in (*ROLES, "decoder_start")
}
# Further fields of a config.json depend on the model.
ModelConfig = create_model("ModelConfig", __base__=CommonFields, **TOKEN_IDS)


class GenerationConfig(Fields):
    """The field of generation_config.json that belongs to the model."""

    decoder_start_token_id: int | None = None


# ----------------------------------------------------------------------------------- reading

# Many configurations have these ids from another vocabulary; no text is encoded with them.
LOOSE = ("bos", "eos")


def check_tokenizer(tokenizer: Tokenizer, config: JsonObject) -> None:
    """Raise an error if an id means one token to the model and another to the tokenizer.

    If config.json gives a role an id that is a special token of another role, that is a warning:
    no text is ever encoded to it.

    config: as in config.json: `vocab_size` and `pad_token_id`, `mask_token_id` and the like. More
        embeddings than tokens are allowed: many models round their vocabulary up.

    Raises:
        CheckpointError: the tokenizer has an id beyond the model's vocabulary, or config.json gives
            a role the id of an ordinary token.
    """
    for problem in _misfits(tokenizer, config):
        raise CheckpointError(
            f"The tokenizer does not fit the model: {problem}. Use the tokenizer that was saved "
            "with these weights."
        )


def _misfits(tokenizer: Tokenizer, config: JsonObject) -> Iterator[str]:
    """Why the tokenizer is not the model's; a warning where that is not certain."""
    vocab_size = config.get("vocab_size")
    sizes = {  # published files and ours name the vocabulary that is not `vocab_size` differently
        "sources": config.get("source_vocab_size") or vocab_size,
        "targets": config.get("decoder_vocab_size") or vocab_size,
    }
    if len({*sizes.values()}) > 1 and tokenizer.targets is None:
        yield "the model has a vocabulary of its own for sources, but the folder has one tokenizer"
    for side, reader in (("sources", tokenizer), ("targets", tokenizer.for_targets)):
        if (size := sizes[side]) is not None and reader.vocab_size > size:
            largest = reader.vocab_size - 1
            token, of_side = repr(reader.token(largest)), f"`vocab_size` {size:,} for {side}"
            yield f"its ids go up to {largest:,} ({token}), but config.json has {of_side}"
    for role in ROLES:
        config_id, actual = config.get(f"{role}_token_id"), getattr(tokenizer, f"{role}_id")
        if type(config_id) is not int or actual is None or config_id == actual:
            continue
        if role == "bos" and config_id == config.get("decoder_start_token_id"):
            continue  # earlier releases wrote the start of a decoder there
        problem = (
            f"config.json has `{role}_token_id` {config_id}, but the tokenizer's {role} token "
            f"{tokenizer.token(actual)!r} has the id {actual}"
        )
        is_token = config_id in tokenizer.vocab().values()
        if role not in LOOSE and is_token and config_id not in tokenizer.special_ids:
            token = tokenizer.token(config_id)
            yield f"{problem}, and {config_id} is the ordinary token {token!r} there"
        warn(f"{problem}. Do they belong together?")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model.

    config: the contents of config.json.
    dtype: the type that its weights are quantized to, "int8" or "bfloat16"; None: they are not.
    head: the kind of the head to read, whatever `architectures` says; "" for none, None: as the
        files say.
    """

    path: Path
    config: JsonObject
    dtype: WeightType | None
    head: str | None = field(default=None, kw_only=True)

    stored_exactly: ClassVar[bool] = True  # whether the files have the weights of `model`

    def model(self) -> nn.Module:
        """The model with its weights, which are mapped from the file where their layout allows it.

        Raises:
            CheckpointError, ConfigError: the weights and config.json are damaged, do not fit
                together, or are of a model that is not known here.
        """
        with self.located():
            weights = read_weights(self.path)
            if self.config.get("model_type") != OURS:
                config = self.config | self._decoder_start() | self._architecture(weights)
                return self._labelled(formats.from_published(config, weights))
            model = self.build(weights)
            filling.load_strict(model, weights)
            return self._labelled(model)

    def quantized_model(self, *, float32: bool = False) -> nn.Module:
        """The model of a folder with quantized weights, prepared for decoding on the CPU, or with
        these as float32.
        """
        assert self.dtype is not None
        with self.located(), releasing():
            tensors = read_weights(self.path)
            build = partial(self.build, tensors)
            if float32:
                return self._labelled(filling.read_dequantized(build, tensors))
            return self._labelled(filling.read_quantized(build, tensors, self.dtype))

    @property
    def tokenizer_path(self) -> Path:
        """The folder with the tokenizer."""
        return self.path

    @property
    def generation_path(self) -> Path:
        """The folder in which generation_config.json is, if there is one."""
        return self.path

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the model.

        Raises:
            CheckpointError: it has more tokens than the model, or other special tokens.
        """
        with self.located():
            tokenizer = Tokenizer.load(self.tokenizer_path)
            check_tokenizer(tokenizer, self.config)
            return tokenizer

    def half_precision(self) -> torch.dtype | None:
        """The type of its weights if all have one type of half precision, else None."""
        if not self.stored_exactly:
            return None
        with self.located():
            weights = read_weights(self.path).values()
        types = {tensor.dtype for tensor in weights if tensor.is_floating_point()}
        return types.pop() if types in ({torch.float16}, {torch.bfloat16}) else None

    @contextmanager
    def located(self) -> Iterator[None]:
        """Errors inside name the folder, and its config.json with the whole path."""
        try:
            yield
        except (CheckpointError, ConfigError) as error:
            message = str(error)
            if str(self.path) in message:
                raise
            separator = "/" if message.startswith(CONFIG) else ": "
            raise type(error)(f"{self.path}{separator}{message}") from error

    def _labelled(self, model: nn.Module) -> nn.Module:
        """The same model; under heads it knows the names of its labels."""
        if isinstance(model, EncoderWithHeads):
            model.labels = tuple(config_table.label_names(self.config).values())
        return model

    def _decoder_start(self) -> dict[str, int]:
        """The token that generation_config.json starts a decoder with, as a field of config.json.

        Other libraries generate from it, whatever config.json says. Marian's decoders start with
        the padding: their tokenizers have no bos token. Empty where the file names no token, and
        for models without an encoder: they start with the prompt.
        """
        path, model = self.path / GENERATION, formats.layout_of(self.config.get("model_type")).model
        if not issubclass(model, EncoderDecoder) or not path.is_file():
            return {}
        start = read_json(path, GenerationConfig).decoder_start_token_id
        return {} if start is None else {"decoder_start_token_id": start}

    def _architecture(self, weights: filling.Weights) -> JsonObject:
        """`architectures` where it is not that of config.json: the one with the head that the user
        asks for; none, so that the tensors decide, for a folder of sentence-transformers that names
        a class whose head it does not hold.
        """
        layout = formats.layout_of(self.config.get("model_type"))
        if self.head is not None:
            ending = EncoderLayout.ENDINGS.get((self.head,) if self.head else (), "")
            if (name := layout.family + ending) in layout.known_architectures:
                return {"architectures": [name]}
        if not (self.path / MODULES).exists() or layout.has_heads_of(self.config, weights):
            return {}
        return {"architectures": None}

    def build(self, weights: filling.Weights) -> nn.Module:
        """The model of a configuration of ours, its parameters not yet initialized.

        weights: the tensors that it is for, against which its sizes are checked.

        Raises:
            CheckpointError: a field is unknown or has a wrong value, or does not fit the weights.
        """
        about, where = self.config.get("regard", {}), self.path / CONFIG
        name, heads = about.get("model", ""), about.get("heads")
        if name not in NAMED:
            raise CheckpointError(f"{where}: `regard.model` is {name!r}. {nearest(name, NAMED)}")
        kind = model_class(name)
        options = {k: v for k, v in self.config.items() if k not in NOT_OPTIONS}
        model_config = config_of(kind.Config, options, where)
        check_sizes(model_config, weights, where)
        try:
            with filling.SkipInit(weights):
                model = kind(model_config)
                if heads is not None and is_encoder(kind):
                    model = assembled(model, heads)
        except ValueError as error:  # of layers that cannot have such a value
            if isinstance(error, RegardError) and CONFIG in str(error):
                raise
            raise CheckpointError(f"{where} is no configuration of {name}: {error}") from None
        outputs = model.outputs() if isinstance(model, EncoderWithHeads) else None
        if outputs != heads:
            must = json.dumps(outputs)
            raise CheckpointError(f"{where}: `regard.heads` must be {must}, but is {heads}.")
        return model


@dataclass(frozen=True)
class AdapterFolder(ModelFolder):
    """A folder that holds a low-rank adapter of another folder's model.

    base: the other folder.  merged: its model with the adapter.
    """

    base: ModelFolder
    merged: nn.Module

    stored_exactly = False  # sums of weights and updates are not rounded to half precision

    def model(self) -> nn.Module:
        """The base model with the adapter, which is merged into its weights."""
        return self._labelled(self.merged)

    @property
    def tokenizer_path(self) -> Path:
        """This folder where it has a tokenizer, else that of the base."""
        return self.path if holds_tokenizer(self.path) else self.base.tokenizer_path

    @property
    def generation_path(self) -> Path:
        """This folder where it has the file, else that of the base, as `peft` has it."""
        own = (self.path / GENERATION).exists()
        return self.path if own else self.base.generation_path


@dataclass(frozen=True)
class LoadedFolder(ModelFolder):
    """A folder in a layout without config.json, already read.

    words: its tokenizer.
    """

    loaded: nn.Module
    words: Tokenizer

    stored_exactly = False

    def model(self) -> nn.Module:
        """The model."""
        return self.loaded

    def tokenizer(self) -> Tokenizer:
        """Words between white space; those that are not among the model's are unknown."""
        return self.words


def open_folder(
    path: str | PathLike[str], model_type: str | None = None, head: str | None = None
) -> ModelFolder:
    """The model's folder of a run, the folder itself, or what the hub has under a name.

    model_type: used in place of that of config.json.  head: see `ModelFolder`.

    Raises:
        CheckpointError: it holds no model, or config.json is malformed; of an adapter, its base
            model cannot be opened, or is another one.
        ConfigError: config.json has no known `model_type`; adapter_config.json describes another
            kind of adapter.
    """
    folder = folder_of(path)
    if adapters.holds_adapter(folder):
        if not holds_weights(folder):
            return _open_adapter(folder)
        hint = "Remove the adapter if it is merged into the weights, and else the weights."
        raise CheckpointError(f"{folder} holds a whole model and an adapter. {hint}")
    if not (folder / CONFIG).exists() and (loaded := _without_config(folder)) is not None:
        return loaded
    config = _read_config(folder) | ({} if model_type is None else {"model_type": model_type})
    return ModelFolder(folder, config, config.get("regard", {}).get("weights"), head=head)


def _without_config(folder: Path) -> ModelFolder | None:
    """A folder in a layout that has no config.json; None: it has none of these."""
    from regard.checkpoints.formats import elmo, fastai

    if elmo.holds_elmo(folder):
        model: nn.Module = EncoderWithHeads(elmo.read(folder), {})
        config = {"model_type": "elmo"}
        return LoadedFolder(folder, config, None, model, elmo.read_tokenizer(folder))
    if (files := fastai.find(folder)) is None:
        return None
    words = fastai.read_words(files[1])
    model = fastai.read_model(files, words)
    about = {"task": "language-modeling", **model_section(model)}
    tokenizer = closed_vocabulary(words, fastai.roles(words))
    return LoadedFolder(folder, own_config(model) | {"regard": about}, None, model, tokenizer)


def _open_adapter(folder: Path) -> AdapterFolder:
    """The folder of an adapter, with its base model."""
    about, where = adapters.read_adapter_config(folder), folder / "adapter_config.json"
    try:
        whole = folder_of(about.base)
        if adapters.holds_adapter(whole) and not holds_weights(whole):
            raise CheckpointError(f"{whole} holds an adapter itself, and no whole model.")
        base = open_folder(whole)
        model = read_model(whole)
    except (CheckpointError, ConfigError) as error:
        field = "`base_model_name_or_path`"
        raise CheckpointError(f"{where}: {field}: the base cannot be opened: {error}") from error
    own = read_json(folder / ADAPTED) if (folder / ADAPTED).exists() else None
    try:
        adapted = adapters.read_adapter(about, adapters.read_adapter_tensors(folder), model, own)
    except (CheckpointError, ConfigError) as error:
        raise type(error)(f"{folder}: {error}") from error
    names = FROM_BASE
    if isinstance(model, EncoderWithHeads) and isinstance(adapted, EncoderWithHeads):
        if model.outputs() == adapted.outputs():  # the labels, too
            names = (*names, "id2label", "label2id", "problem_type")
    of_base = {name: base.config[name] for name in names if name in base.config}
    config = own or exported(adapted)[0] | of_base
    checked(config, ModelConfig, folder / ADAPTED)
    return AdapterFolder(folder, config, None, base, adapted)


def _read_config(folder: Path) -> JsonObject:
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError:
        hint = "Give a run folder or its model/."
        if (folder / "recipe.toml").exists():
            hint = (
                "This run has published no weights yet: they come with its first validation. "
                f"Go on with it: regard resume {folder}"
            )
        raise CheckpointError(f"{folder} holds no model: there is no {CONFIG}. {hint}") from None
    checked(config, ModelConfig, folder / CONFIG)
    return config


def read_model(path: str | PathLike[str], changes: Mapping[str, Any] | None = None) -> nn.Module:
    """The model of a folder or of a name on the hub, to be trained: without tokenizer and task.

    changes: options of its configuration that are to differ, such as `dropout`.

    Raises:
        CheckpointError, ConfigError: see `ModelFolder.model`; or the model has no such option, or
            its weights are quantized, and those cannot be trained.
    """
    folder = open_folder(path)
    if folder.dtype is not None:
        hint = "which can be used but not changed. Begin with the folder that they come from."
        raise ConfigError(f"{folder.path} holds {folder.dtype} weights, {hint}")
    model = folder.model()
    return folder._labelled(with_options(model, changes)) if changes else model


# ----------------------------------------------------------------------------------- writing


def exported(model: nn.Module) -> tuple[JsonObject, filling.Weights]:
    """The contents of config.json and the tensors, as other libraries publish the architecture;
    as only this one reads them where none has it. Adapters are merged, and what is for training
    alone is left out.
    """
    model = merged(deployed(model))
    return formats.to_published(model) or (own_config(model), model.state_dict())


def in_half_precision(tensors: filling.Weights, dtype: torch.dtype) -> filling.Weights | None:
    """Tensors in a type of half precision, each once; None where that would change a number."""
    result = {}
    for name, tensor in filling.unique_tensors(tensors).items():
        result[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        if not torch.equal(result[name].to(tensor.dtype), tensor):
            return None
    return result


def own_config(model: nn.Module) -> JsonObject:
    """config.json of a model that only this library reads."""
    config: Any = model.config
    return {**asdict(config), "model_type": OURS, "architectures": [type(model).__name__]}


def model_section(model: nn.Module) -> JsonObject:
    """The fields of `regard` in config.json by which `ModelFolder` builds a model of ours."""
    heads = {"heads": model.outputs()} if isinstance(model, EncoderWithHeads) else {}
    return {"model": name_of(model), **heads}


OF_MODELS = (  # files that the model of a folder may have
    *("*.safetensors", "*.index.json", "pytorch_model*.bin", "generation_config.json"),
    *("modules.json", "sentence_bert_config.json", "adapter_config.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.spm", "spiece.model", "spm.model", "sentencepiece*.model"),
)


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    tensors: filling.Weights,
    tokenizer: Tokenizer,
    options: Any,
) -> None:
    """Write config.json, model.safetensors and the tokenizer.

    Where the folder has another model, its weights, tokenizer and settings are removed; other files
    stay.

    options: those of the model, its own configuration.

    Raises:
        CheckpointError: it cannot be written, or `open_folder` would not read it.
    """
    if config.get("regard", {}).get("weights") is None:
        _check_readable(folder, config, tensors, options)
    former = {path: path.stat().st_mtime_ns for name in OF_MODELS for path in folder.glob(name)}
    write_tensors(folder / WEIGHTS, tensors)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    tokenizer.save(folder, options.max_length)
    for path, written in former.items():
        if path.stat().st_mtime_ns == written:  # it belongs to the former model
            path.unlink()


def _check_readable(
    folder: Path, config: Mapping[str, Any], tensors: filling.Weights, options: Any
) -> None:
    """Build the model of a folder that is to be written, without memory for its numbers.

    Raises:
        CheckpointError: the folder would be no model, or one with another of its `options`.
    """
    empty = {name: tensor.to("meta") for name, tensor in tensors.items()}
    whole = {name: value for name, value in config.items() if name != formats.PRUNED}
    try:
        filling.check_finite(tensors)
        with filling.on_meta(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if config["model_type"] == OURS:
                model = ModelFolder(folder, whole, None).build(empty)
                filling.check_fit(model, filling.unique_tensors(empty))
            else:
                model = formats.from_published(whole, empty)
        read: Any = vars(model.config)
        for name, value in vars(options).items():
            if name != "pruned" and value is not None and read.get(name) != value:
                raise CheckpointError(f"config.json has no field for {name} {value!r}.")
    except (CheckpointError, ConfigError) as error:
        why = f"for it could not be opened again: {error}"
        raise CheckpointError(f"{folder} was not written, {why}") from error
