"""ELMo's published layout: options.json, weights in HDF5 and, for its softmax alone, a vocabulary.

    model = read(folder)                files named *options.json and *weights.hdf5

Their LSTMs hold the matrices of the input and of the hidden state as one, with the gates in the
order i, g, f, o, and add 1 to the bias of the forget gate when they compute. Their character ids
are one less than ours: the vector 0 of padded words is not stored. The softmax is never published.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict, create_model
from tokenizers import models
from torch import Tensor

from regard.checkpoints.filling import SkipInit, assign
from regard.checkpoints.names import Names, Tensors, only_read, transpose
from regard.errors import CheckpointError, ConfigError, MissingExtra
from regard.layers.pooling import ScalarMix
from regard.models.check_config import check_sizes
from regard.models.config import Count, Filters, Limit, Size
from regard.models.elmo import Elmo, ElmoConfig
from regard.schema import Fields, read_json
from regard.text import Tokenizer
from regard.text.bpe import assemble
from regard.text.preprocessing import Preprocessing
from regard.text.vocab_files import read_vocab_txt

OPTIONS, WEIGHTS, VOCABULARY = "*options.json", "*weights.hdf5", "*vocab*.txt"
_NAMES_OF_SIZES = {"layers": "lstm.n_layers", "d_model": "lstm.projection_dim, twice"}
ROLES = {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}
# ----------------------------------------------------------------------------------- options


class ElmoOptions(Fields):
    """A part of options.json: what a field means that is not known here might change a result."""

    model_config = ConfigDict(extra="forbid")


class CharacterVectors(ElmoOptions):
    """`char_cnn.embedding`"""

    dim: Size


class CharacterOptions(ElmoOptions):
    """`char_cnn`"""

    embedding: CharacterVectors
    filters: Filters
    max_characters_per_token: Size
    n_characters: Literal[261, 262]
    activation: Literal["relu", "tanh"]
    n_highway: Count | None = None


class LstmOptions(ElmoOptions):
    """`lstm`"""

    dim: Size
    projection_dim: Size
    n_layers: Size = 1
    cell_clip: Limit | None = None
    proj_clip: Limit | None = None
    use_skip_connections: bool | None = None


# Of their training; they do not change what a published model computes.
TRAINING: Any = dict.fromkeys(
    (
        *("all_clip_norm_val", "batch_size", "dropout", "learning_rate", "n_epochs", "n_gpus"),
        *("n_negative_samples_batch", "n_tokens_vocab", "n_train_tokens", "sample_softmax"),
        *("share_embedding_softmax", "unroll_steps"),
    ),
    (Any, None),
)
PublishedOptions = create_model(
    "PublishedOptions",
    __base__=ElmoOptions,
    lstm=LstmOptions,
    char_cnn=CharacterOptions,
    bidirectional=(Literal[True], True),
    **TRAINING,
)


def read_options(path: Path, vocab_size: int = len(ROLES)) -> ElmoConfig:
    """The configuration that an options.json describes.

    Raises:
        ConfigError: it asks for what our model does not compute; the option is named.
    """
    options = read_json(path, PublishedOptions, error=ConfigError)
    cnn, lstm = options.char_cnn, options.lstm
    try:
        return ElmoConfig(
            vocab_size,
            d_model=2 * lstm.projection_dim,
            d_cell=lstm.dim,
            layers=lstm.n_layers,
            d_character=cnn.embedding.dim,
            filters=cnn.filters,
            word_length=cnn.max_characters_per_token,
            highway_layers=cnn.n_highway or 0,
            activation=cnn.activation,
            cell_clip=lstm.cell_clip,
            projection_clip=lstm.proj_clip,
            residual=bool(lstm.use_skip_connections),
            output="none",
            pad=None,
            **{role: number for number, role in enumerate(ROLES) if role != "unk"},
        )
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


# ----------------------------------------------------------------------------------- weights


def _in_our_order(rows: Tensor) -> Tensor:
    """The rows of gates, which are i, g, f, o there, as i, f, g, o."""
    ingoing, cell, forget, outgoing = rows.chunk(4)
    return torch.cat([ingoing, forget, cell, outgoing])


def _read_gates(tensors: Tensors) -> Tensors:
    (packed,) = tensors  # (in + P, 4D)
    return [part.contiguous() for part in _in_our_order(packed.t()).chunk(2, 1)]  # in = P


def _read_bias(tensors: Tensors) -> Tensors:
    """That of the forget gate, the second quarter, with 1 added."""
    bias = _in_our_order(tensors[0])
    bias[len(bias) // 4 : len(bias) // 2] += 1
    return [bias]


MATRICES, BIAS = only_read(_read_gates), only_read(_read_bias)
# (1, width, D, F) there, (F, D, width) here
FILTERS = only_read(lambda tensors: [tensors[0].squeeze(0).permute(2, 1, 0)])
# without the vector of character 0 there
CHARACTERS = only_read(lambda tensors: [torch.cat([torch.zeros_like(tensors[0][:1]), tensors[0]])])


def names_of(config: ElmoConfig) -> Names:
    """The table of the names of a model's tensors and theirs."""
    cnn, high = "words.characters.convolutions.{n}", "words.highways.{n}"
    rows: list[tuple] = [("words.characters.embedding.weight", "char_embed", CHARACTERS)]
    rows += [(f"{cnn}.weight", "CNN/W_cnn_{n}", FILTERS), (f"{cnn}.bias", "CNN/b_cnn_{n}")]
    for ours, theirs in (("gate", "carry"), ("transform", "transform")):
        rows.append((f"{high}.{ours}.weight", f"CNN_high_{{n}}/W_{theirs}", transpose))
        rows.append((f"{high}.{ours}.bias", f"CNN_high_{{n}}/b_{theirs}"))
    if sum(count for _, count in config.filters) != config.d_model // 2:
        rows.append(("words.projection.weight", "CNN_proj/W_proj", transpose))
        rows.append(("words.projection.bias", "CNN_proj/b_proj"))
    for number, ours in enumerate(("ahead", "back")):
        cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{{n}}/LSTMCell"
        layer = f"{ours}.{{n}}"
        matrices = (f"{layer}.input.weight", f"{layer}.recurrent.weight")
        rows.append((matrices, f"{cell}/W_0", MATRICES))
        rows.append((f"{layer}.input.bias", f"{cell}/B", BIAS))
        rows.append((f"{layer}.projection.weight", f"{cell}/W_P_0", transpose))
    return Names(rows)


def _published_tensors(model: Elmo) -> dict[str, Tensor]:
    """Those of our state that have a published form: not the softmax and the mix of a task."""
    unpublished = ("head.", "mix.")
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(unpublished)
    }


def read_hdf5(path: Path) -> dict[str, Tensor]:
    """The arrays of an HDF5 file by their paths in it, numbers of any floating type as float32.

    Raises:
        MissingExtra: h5py is not installed.
        CheckpointError: it is no such file.
    """
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py", "elmo", "Reading ELMo's published weights") from None
    arrays: dict[str, Tensor] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item[()])
            kind = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                arrays[name] = torch.from_numpy(array.astype(kind, copy=False))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    except (OSError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a whole HDF5 file of weights: {error}.") from None
    return arrays


# ----------------------------------------------------------------------------------- folders


def holds_elmo(folder: Path) -> bool:
    """Whether a folder holds a published ELMo."""
    return all(any(folder.glob(pattern)) for pattern in (OPTIONS, WEIGHTS))


def read(folder: str | Path) -> Elmo:
    """The model of a folder with one file of options and one of weights, in float32.

    Raises:
        MissingExtra: h5py is not installed.
        ConfigError: the options ask for what our model does not compute.
        CheckpointError: a file is missing or damaged, or options and weights do not fit together.
    """
    folder = Path(folder)
    vocabulary = read_tokenizer(folder)
    options = _only(folder, OPTIONS)
    config = read_options(options, vocabulary.vocab_size)
    ids = {role: getattr(vocabulary, f"{role}_id") for role in ("bos", "eos")}
    config = ElmoConfig(**{**vars(config), **ids})
    tensors = read_hdf5(_only(folder, WEIGHTS))
    check_sizes(config, tensors, options, names=_NAMES_OF_SIZES)
    with SkipInit(tensors, str(options)):
        model = Elmo(config)
    model.mix = ScalarMix(config.layers)
    tensors = names_of(config).read(tensors, _published_tensors(model), str(options))
    assign(model, tensors)
    return model


def read_tokenizer(folder: Path) -> Tokenizer:
    """Words between white space; the vocabulary is that of the folder, if it has one.

    Special tokens that it lacks come behind its words: without a softmax, ids mean nothing.

    Raises:
        CheckpointError: there are several vocabularies.
    """
    has_words = any(folder.glob(VOCABULARY))
    vocab = read_vocab_txt(_only(folder, VOCABULARY)) if has_words else {}
    for token in ROLES.values():
        vocab.setdefault(token, len(vocab))
    fast = assemble(models.WordLevel(vocab, ROLES["unk"]), Preprocessing())
    return Tokenizer(fast, "words", ROLES, reads_special_tokens=False)


def _only(folder: Path, pattern: str) -> Path:
    """The only file with such a name.

    Raises:
        CheckpointError: there is none, or several.
    """
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise CheckpointError(f"{folder} must hold one file {pattern}, but holds {names}.")
    return paths[0]
