"""ELMo's published layout: options.json, weights in HDF5 and, for its softmax alone, a vocabulary.

    model = read(folder)                files named *options.json and *weights.hdf5
    write(folder, model)                the same, which AllenNLP's and the authors' programs open

Their LSTMs hold the matrices of the input and of the hidden state as one, with the gates in the
order i, g, f, o, and add 1 to the bias of the forget gate when they compute. Their character ids
are one less than ours: the vector 0 of padded words is not stored. The softmax is never published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from tokenizers import models
from torch import Tensor

from regard.checkpoints.filling import SkipInit, assign
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import Tensors, Transform, reorder, transpose
from regard.errors import CheckpointError, ConfigError, MissingExtra
from regard.file_writing import replacing, write_text
from regard.layers.scalar_mix import ScalarMix
from regard.models.check_config import check_sizes
from regard.models.config import Count, Filters, Limit, Size
from regard.models.elmo import Elmo, ElmoConfig
from regard.schema import Fields, read_json
from regard.text import Tokenizer
from regard.text.bpe_fast import assemble
from regard.text.characters import ELMO_CHARACTERS
from regard.text.normalize import Preprocessing
from regard.text.vocab_files import read_vocab_txt

OPTIONS, WEIGHTS, VOCABULARY = "*options.json", "*weights.hdf5", "*vocab*.txt"
_NAMES_OF_SIZES = {"layers": "lstm.n_layers", "d_model": "lstm.projection_dim, twice"}
ROLES = {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}
# Of their training; they do not change what a published model computes.
SILENT = {
    *("all_clip_norm_val", "batch_size", "bidirectional", "dropout", "learning_rate", "n_epochs"),
    *("n_gpus", "n_negative_samples_batch", "n_tokens_vocab", "n_train_tokens", "sample_softmax"),
    *("share_embedding_softmax", "unroll_steps"),
}


# ----------------------------------------------------------------------------------- options


class CharacterVectors(Fields):
    """`char_cnn.embedding`"""

    dim: Size


class CharacterOptions(Fields):
    """`char_cnn`"""

    embedding: CharacterVectors
    filters: Filters
    max_characters_per_token: Size
    n_characters: int
    activation: str
    n_highway: Count | None = None


class LstmOptions(Fields):
    """`lstm`"""

    dim: Size
    projection_dim: Size
    n_layers: Size = 1
    cell_clip: Limit | None = None
    proj_clip: Limit | None = None
    use_skip_connections: bool | None = None


class PublishedOptions(Fields):
    """options.json"""

    lstm: LstmOptions
    char_cnn: CharacterOptions | None = Field(default=None)
    bidirectional: bool = True


def read_options(path: Path, vocab_size: int = len(ROLES)) -> ElmoConfig:
    """The configuration that an options.json describes.

    Raises:
        ConfigError: it asks for what our model does not compute; the option is named.
    """
    options: PublishedOptions = read_json(path, PublishedOptions, error=ConfigError)
    cnn, lstm = options.char_cnn, options.lstm
    if cnn is None:
        raise _unsupported(path, "char_cnn", "there: models of word vectors are not read", None)
    if not options.bidirectional:
        raise _unsupported(path, "bidirectional", "true", False)
    if cnn.n_characters not in (ELMO_CHARACTERS, ELMO_CHARACTERS - 1):
        raise _unsupported(path, "char_cnn.n_characters", "262 (or 261)", cnn.n_characters)
    if cnn.activation not in ("relu", "tanh"):
        raise _unsupported(path, "char_cnn.activation", "relu or tanh", cnn.activation)
    _check_known(path, options, cnn, lstm)
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
            activation=cnn.activation,  # type: ignore[arg-type]
            cell_clip=lstm.cell_clip,
            projection_clip=lstm.proj_clip,
            residual=bool(lstm.use_skip_connections),
            output="none",
            pad=None,
            **{role: number for number, role in enumerate(ROLES) if role != "unk"},
        )
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def options_of(config: ElmoConfig) -> dict[str, Any]:
    """The contents of options.json."""
    return {
        "lstm": {
            "dim": config.d_cell,
            "projection_dim": config.d_model // 2,
            "n_layers": config.layers,
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
            "use_skip_connections": config.residual,
        },
        "char_cnn": {
            "embedding": {"dim": config.d_character},
            "filters": [list(one) for one in config.filters],
            "max_characters_per_token": config.word_length,
            "n_characters": ELMO_CHARACTERS,
            "activation": config.activation,
            "n_highway": config.highway_layers,
        },
    }


def _check_known(
    path: Path, options: PublishedOptions, cnn: CharacterOptions, lstm: LstmOptions
) -> None:
    parts = {"": options, "char_cnn.": cnn, "char_cnn.embedding.": cnn.embedding, "lstm.": lstm}
    unknown = [
        prefix + name
        for prefix, part in parts.items()
        for name in part.model_extra or {}
        if prefix or name not in SILENT
    ]
    if unknown:
        raise ConfigError(
            f"{path}: there is no option `{'`, `'.join(unknown)}`, and what it means for the model "
            "is not known. Remove it if it changes nothing."
        )


def _unsupported(path: Path, name: str, must: str, value: object) -> ConfigError:
    return ConfigError(f"{path}: `{name}` must be {must}, but is {json.dumps(value)}.")


# ----------------------------------------------------------------------------------- weights


def _read_gates(tensors: Tensors) -> Tensors:
    (packed,) = tensors  # (in + P, 4D)
    (rows,) = GATES.read([packed.t()])
    return [part.contiguous() for part in rows.chunk(2, 1)]  # in = P


def _write_gates(tensors: Tensors) -> Tensors:
    return [GATES.write([torch.cat(tensors, 1)])[0].t()]


def _forget_bias(tensors: Tensors, added: float) -> Tensors:
    """The bias of the forget gate, the second quarter, with a number added."""
    (bias,) = tensors
    change = torch.zeros_like(bias)
    change[len(bias) // 4 : len(bias) // 2] = added
    return [bias + change]


GATES = reorder((0, 2, 1, 3))  # i, g, f, o there, i, f, g, o here
MATRICES = Transform(_read_gates, _write_gates)
BIAS = GATES.then(Transform(lambda t: _forget_bias(t, 1.0), lambda t: _forget_bias(t, -1.0)))
FILTERS = Transform(  # (1, width, D, F) there, (F, D, width) here
    read=lambda tensors: [one.squeeze(0).permute(2, 1, 0) for one in tensors],
    write=lambda tensors: [one.permute(2, 1, 0)[None] for one in tensors],
)
CHARACTERS = Transform(  # without the vector of character 0 there
    read=lambda tensors: [torch.cat([torch.zeros_like(one[:1]), one]) for one in tensors],
    write=lambda tensors: [one[1:] for one in tensors],
)


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
    own = ("head.", "mix.")
    return {name: one for name, one in model.state_dict().items() if not name.startswith(own)}


def read_hdf5(path: Path) -> dict[str, Tensor]:
    """The arrays of an HDF5 file by their paths in it, numbers of any floating type as float32.

    Raises:
        MissingExtra: h5py is not installed.
        CheckpointError: it is no such file.
    """
    found: dict[str, Tensor] = {}
    h5py = _h5py()

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item[()])
            kind = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
            with np.errstate(over="ignore"):  # beyond float32 is infinite
                found[name] = torch.from_numpy(array.astype(kind, copy=False))

    try:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    except (OSError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a whole HDF5 file of weights: {error}.") from None
    return found


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtra("h5py", "elmo", "Reading and writing ELMo's published weights") from None
    return h5py


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
    found = names_of(config).read(tensors, _published_tensors(model), str(options))
    assign(model, found)
    return model


def read_tokenizer(folder: Path) -> Tokenizer:
    """Words between white space; the vocabulary is that of the folder, if it has one.

    Special tokens that it lacks come behind its words: without a softmax, ids mean nothing.

    Raises:
        CheckpointError: there are several vocabularies.
    """
    found = any(folder.glob(VOCABULARY))
    vocab = read_vocab_txt(_only(folder, VOCABULARY)) if found else {}
    for token in ROLES.values():
        vocab.setdefault(token, len(vocab))
    fast = assemble(models.WordLevel(vocab, ROLES["unk"]), Preprocessing())
    return Tokenizer(fast, "words", ROLES, reads_special_tokens=False)


def write(folder: str | Path, model: Elmo, vocabulary: Iterable[str] = ()) -> None:
    """Write options.json, weights.hdf5 and, where it is given, vocab.txt.

    The softmax and the mix, for which the layout has no name, are not written.

    Raises:
        MissingExtra: h5py is not installed.
    """
    folder, h5py = Path(folder), _h5py()
    folder.mkdir(parents=True, exist_ok=True)
    tensors: Mapping[str, Tensor] = names_of(model.config).write(_published_tensors(model))
    with replacing(folder / "weights.hdf5") as temporary:
        with h5py.File(temporary, "w") as file:
            for name, tensor in tensors.items():
                file[name] = tensor.detach().float().cpu().numpy()
    write_text(folder / "options.json", json.dumps(options_of(model.config), indent=2) + "\n")
    if words := list(vocabulary):
        write_text(folder / "vocab.txt", "\n".join(words) + "\n")


def _only(folder: Path, pattern: str) -> Path:
    """The only file with such a name.

    Raises:
        CheckpointError: there is none, or several.
    """
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CheckpointError(f"{folder} must hold one file {pattern}, but holds {names}.")
    return found[0]
