"""ULMFiT's published layout: a language model and its words as fastai writes them (wt103).

    lstm_wt103.pth, fwd_wt103.h5      the weights, both of `torch.save`
    itos_wt103.pkl, itos.json         the words by their ids

The weights are of one LSTM a layer, whose recurrent matrix is beside it (`weight_hh_l0_raw`). The
embedding is there up to three times: for its dropout, and where the output is tied to it.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checkpoints.filling import SkipInit, Weights, load_strict
from regard.checkpoints.names import Names
from regard.checkpoints.store import read_pickled, read_pickled_strings
from regard.errors import CheckpointError
from regard.models.recurrent import AwdLstm, AwdLstmConfig
from regard.schema import parse_json, read_text

WEIGHTS, WORDS = (".pth", ".h5"), ("itos*.pkl", "itos*.json", "*.pkl")
EMBEDDING, COPY, OUTPUT = "0.encoder.weight", "0.encoder_dp.emb.weight", "1.decoder.weight"
RECURRENT = "0.rnns.{layer}.weight_hh_l0_raw"
# Of fastai before 1.0 -> today's.
OLD = {
    "0.encoder_with_dropout.embed.weight": COPY,
    r"0.rnns.(\d+).module.weight_hh_l0_raw": r"0.rnns.\1.weight_hh_l0_raw",
}
# role -> its word, in the versions of fastai
ROLES = {"unk": ("xxunk", "_unk_"), "pad": ("xxpad", "_pad_"), "bos": ("xxbos", "_bos_")}


def find(folder: Path) -> tuple[Path, Path] | None:
    """The files of weights and of words of a folder; None where it has none.

    Raises:
        CheckpointError: there are several models in it.
    """
    weights = [path for path in sorted(folder.iterdir()) if path.suffix in WEIGHTS]
    words = next((paths for name in WORDS if (paths := sorted(folder.glob(name)))), [])
    if not weights or not words:
        return None
    if len(weights) > 1 or len(words) > 1:
        names = ", ".join(path.name for path in (*weights, *words))
        raise CheckpointError(f"{folder} must hold one model, but holds {names}.")
    return weights[0], words[0]


def read_words(path: Path) -> list[str]:
    """The words by their ids, of a JSON or a pickle; no program in it is executed.

    Raises:
        CheckpointError: it is no list of different words.
    """
    if path.suffix == ".json":
        text = read_text(path, error=CheckpointError)
        words = parse_json(text, str(path), CheckpointError)
    else:
        words = read_pickled_strings(path)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{path} must hold a list of words.")
    twice = len(words) - len({*words})
    if twice:
        raise CheckpointError(f"{path}: {twice} words occur twice; each must have one id.")
    return words


def read_model(files: tuple[Path, Path], words: list[str]) -> AwdLstm:
    """The language model; its dropouts are those with which wt103 was trained.

    Raises:
        CheckpointError: tensors are missing, left over or of another shape; or there is no unknown
            word.
    """
    tensors = _current(read_pickled(files[0], inside="model"))
    config = _config(tensors, words, files)
    with SkipInit(tensors):
        model = AwdLstm(config)
    try:
        weights = names(config).read(tensors, model.state_dict())
    except CheckpointError as error:
        raise CheckpointError(f"{files[0]}: {error}") from None
    load_strict(model, weights)
    return model


def roles(words: list[str]) -> dict[str, str]:
    """The special tokens that there are, by their roles."""
    vocabulary = set(words)
    present = {
        role: [word for word in names if word in vocabulary] for role, names in ROLES.items()
    }
    return {role: known_words[0] for role, known_words in present.items() if known_words}


_INSIDE = [f"0.rnns.{{layer}}.module.{name}_l0" for name in ("weight_ih", "bias_ih", "bias_hh")]


def names(config: AwdLstmConfig) -> Names:
    """The table of a model with so many layers."""
    rows: list[tuple] = [("embedding.weight", EMBEDDING), ("head.bias", "1.decoder.bias")]
    for layer in range(config.layers):
        ours = "last" if layer == config.layers - 1 else f"layers.{layer}"
        parameters = ("recurrent.weight", "input.weight", "input.bias", "recurrent.bias")
        published = [name.format(layer=layer) for name in (RECURRENT, *_INSIDE)]
        rows += [
            (f"{ours}.{name}", other) for name, other in zip(parameters, published, strict=True)
        ]
    duplicates = {COPY: EMBEDDING}
    if config.tied:
        return Names(
            rows,
            tied={"head.weight": "embedding.weight"},
            duplicates=duplicates | {OUTPUT: EMBEDDING},
            ignored=_DROPPED,
        )
    rows.append(("head.weight", OUTPUT))
    return Names(rows, duplicates=duplicates, ignored=_DROPPED)


# What the last pass of a training has left: the recurrent matrix with some weights dropped.
_DROPPED = ["0.rnns.{layer}.module.weight_hh_l0"]


def _current(tensors: Weights) -> dict[str, Tensor]:
    """Tensors under today's names."""
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in OLD.items():
            name = re.sub(f"^{old}$", new, name)
        renamed[name] = tensor
    return renamed


def _config(tensors: Weights, words: list[str], files: tuple[Path, Path]) -> AwdLstmConfig:
    """The sizes, from the shapes of the tensors."""
    layers = sum(bool(re.fullmatch(r"0\.rnns\.\d+\.weight_hh_l0_raw", name)) for name in tensors)
    first, embedding = tensors.get(RECURRENT.format(layer=0)), tensors.get(EMBEDDING)
    if first is None or embedding is None or layers < 2:
        raise CheckpointError(f"{files[0]} must hold an AWD-LSTM of at least two layers.")
    if len(words) != embedding.size(0):
        must = f"{embedding.size(0):,} words, as many as the embedding has rows"
        raise CheckpointError(f"{files[1]} must have {must}, but has {len(words):,}.")
    special_words = roles(words)
    if "unk" not in special_words:
        must = f"a word for unknown ones, {' or '.join(ROLES['unk'])}"
        raise CheckpointError(f"{files[1]} must have {must}.")
    special: dict[str, Any] = {
        role: words.index(special_words[role]) if role in special_words else None
        for role in ("pad", "bos")
    }
    output = tensors.get(OUTPUT)
    tied = output is None or torch.equal(output, embedding)
    sizes = {"d_model": embedding.size(1), "d_hidden": first.size(1), "layers": layers}
    whole: dict[str, Any] = AwdLstm.SIZES["ulmfit"] | sizes | special | {"tied": tied, "eos": None}
    return AwdLstmConfig(vocab_size=len(words), **whole)
