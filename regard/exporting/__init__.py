"""Models for llama.cpp, CTranslate2 and ONNX Runtime, one module for each runtime.

    export("runs/demo", to="ctranslate2")       writes runs/demo-ctranslate2, and opens it

Each runtime opens what was written for it, and its outputs are compared with ours. What it cannot
compute is rejected before anything is written.

Internal: names that `regard` itself does not have may change with every version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.pruning import with_all_heads
from regard.checkpoints.hub import checked_path
from regard.checkpoints.verify import random_batch
from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError, MissingExtra
from regard.file_writing import check_new, creating
from regard.lazy import entry
from regard.models.conversions import merged
from regard.models.encoder_with_heads import EncoderWithHeads, deployed
from regard.models.protocols import EncoderDecoder
from regard.tasks.folders import config_of_task, load_float32
from regard.tasks.model_card import CardForm, CardHistory, write_card
from regard.tasks.task import Task
from regard.text import Tokenizer

WeightsInFile = Literal["int8"]


@dataclass(frozen=True)
class Difference:
    """How far the outputs of a runtime are from ours, for the same ids.

    what: the outputs that are compared.
    largest: the largest absolute difference.
    magnitude: the largest absolute value of ours.
    """

    what: str
    largest: float
    magnitude: float

    @classmethod
    def between(cls, what: str, ours: Tensor, theirs: np.ndarray | Tensor) -> Difference:
        """Of two arrays of one shape."""
        distance = (ours.double() - torch.as_tensor(theirs).double()).abs()
        return cls(what, float(distance.max()), float(ours.abs().max()))

    @property
    def relative(self) -> float:
        """The largest difference, divided by the largest value."""
        return self.largest / max(self.magnitude, 1.0)


Comparison = tuple[tuple[Difference, ...], tuple[str, ...]]  # and notes for the user


@dataclass(frozen=True)
class Exported:
    """A model that was written for another runtime.

    path: the file or folder.
    runtime: which one reads it.
    opened_by: the package that opened it, with its version; None: it is not installed, or `check`
        is off.
    differences: of its outputs from ours; empty: they were not compared.
    notes: what the runtime computes in another way, or leaves to its caller.
    """

    path: Path
    runtime: str
    opened_by: str | None
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        largest = max((d.largest / d.magnitude for d in self.differences), default=None)
        compared = "not compared" if largest is None else f"outputs differ by {largest:.1e} at most"
        return f"Exported({str(self.path)!r} for {self.runtime}: {compared})"


@dataclass(frozen=True)
class ExportSource:
    """A model folder as it is exported: float32, with all heads of attention.

    path: the folder.
    task: what it holds; adapters are merged into the weights of `model`.
    runtime: which one it is for, in errors.
    """

    path: Path
    task: Task
    runtime: str
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", with_all_heads(merged(deployed(self.task.module))))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder."""
        return self.task.tokenizer

    @property
    def body(self) -> Any:
        """The model without task heads."""
        return self.model.encoder if isinstance(self.model, EncoderWithHeads) else self.model

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The task heads by kind."""
        return dict(self.model.heads.items()) if isinstance(self.model, EncoderWithHeads) else {}

    @cached_property
    def batch(self) -> Sequences:
        """The sequences for which outputs are compared: random ids, of several lengths."""
        model: Any = self.model
        batch = random_batch(model)
        if isinstance(model, EncoderDecoder):
            return Sequences(batch.ids % len(self.source_tokens), batch.lengths)
        return batch

    @cached_property
    def targets(self) -> list[list[int]]:
        """Targets of an encoder-decoder for each sequence: ids without special tokens, and with the
        token at the start not more than the model reads.
        """
        config = self.body.config
        count = 6 if config.max_length is None else min(6, config.max_length - 1)
        special = {config.pad, config.bos, config.eos}
        usual = [i for i in range(config.vocab_size) if i not in special]
        drawn = torch.Generator().manual_seed(2)
        drawn_ids = torch.randint(len(usual), (len(self.batch), count), generator=drawn).tolist()
        return [[usual[i] for i in row] for row in drawn_ids]

    @cached_property
    def tokens(self) -> list[str]:
        """The vocabulary of what the model writes: a distinct name for each id."""
        return token_names(self.tokenizer.for_targets, self.body.config.vocab_size)

    @cached_property
    def source_tokens(self) -> list[str]:
        """The vocabulary of what an encoder-decoder reads."""
        return token_names(self.tokenizer, self.body.source_vocab_size)

    def unsupported(self, what: str, hint: str = "") -> ConfigError:
        """The error for something that the runtime does not support."""
        return ConfigError(f"{self.path}: {self.runtime} {what}." + (f" {hint}" if hint else ""))

    def check_architecture(self, known: Iterable[type]) -> None:
        """Check that a runtime computes the model.

        Raises:
            ConfigError: it does not.
        """
        if type(self.body) not in known:
            names = ", ".join(kind.__name__ for kind in known)
            reason = f"cannot run the architecture {type(self.body).__name__} as it is written here"
            raise self.unsupported(reason, f"These can be exported: {names}.")

    def check_heads(self, known: Collection[str]) -> None:
        """Check that a runtime has a form for every head.

        Raises:
            ConfigError: it has none for one.
        """
        for kind in self.heads:
            if kind not in known:
                reason = f"has no form for the head {kind!r}"
                raise self.unsupported(reason, "Save the encoder without the head.")

    def check_field(self, name: str, known: Collection[Any]) -> None:
        """Check that a runtime computes the value of a field of the configuration.

        Raises:
            ConfigError: it does not.
        """
        value = asdict(self.body.config)[name]
        if value not in known:
            listed = ", ".join(map(repr, known))
            raise self.unsupported(f"needs `{name}` to be {listed}, but it is {value!r}")


class Runtime(Protocol):
    """One file of this folder, one line in its table.

    name: of the program that reads what is written.
    ending: of the default path.
    package: that opens what is written, for a comparison; distribution: its name for pip.
    tolerance: the largest relative difference of float32 weights that is no error.
    quantizes: whether its format holds 8-bit weights.
    """

    name: str
    ending: str
    package: str
    distribution: str
    tolerance: float
    quantizes: bool

    def write(
        self, source: ExportSource, out: Path, weights: WeightsInFile | None
    ) -> tuple[str, ...]:
        """Write the model; what a user should know of it comes back.

        Raises:
            ConfigError: the runtime cannot compute the model or its tokenizer.
            MissingExtra: the package that writes the format is not installed.
        """

    def compare(self, source: ExportSource, out: Path) -> Comparison:
        """Open what was written, and compare its outputs with ours."""


def package(name: str, distribution: str | None = None) -> ModuleType:
    """The package of this name, imported.

    distribution: its name for pip if the extra `export` does not install it.

    Raises:
        MissingExtra: it, or a package that it needs, is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing, purpose = error.name or name, "Exporting to this format"
        raise MissingExtra(missing, "export", purpose, distribution) from None


def array(tensor: Tensor) -> np.ndarray:
    """A tensor as float32, copied: formats quantize their arrays in place."""
    return np.array(tensor.detach().float().numpy(), order="C")


def token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """A name for each of `size` ids; those that the tokenizer does not have are "<unused 7>"."""
    names = {i: token for token, i in tokenizer.vocab().items()}
    return [names.get(i, f"<unused {i}>") for i in range(size)]


# what `to` names -> module:Class
RUNTIMES: dict[str, Any] = {
    "gguf": "regard.exporting.gguf:GGUF",
    "ctranslate2": "regard.exporting.ctranslate2:CTranslate2",
    "onnx": "regard.exporting.onnx:ONNX",
}


def export(
    folder: str | PathLike[str],
    to: str,
    out: str | PathLike[str] | None = None,
    *,
    quantize: WeightsInFile | None = None,
    check: bool = True,
) -> Exported:
    """Write what a run or a folder holds for another runtime, in float32.

    The tokenizer is written, too, and into a folder a model card. With `check`, and if the runtime
    is installed, it opens the file that was written, and its outputs for random ids are compared
    with ours.

    Args:
        to: one of `RUNTIMES`.
        out: the new file or folder; None: beside the folder, with the runtime's ending.
        quantize: "int8": 8-bit weights, where the format has them.

    Raises:
        ConfigError: there is no such runtime, or it cannot compute this model or its tokenizer.
        CheckpointError: `out` exists already, the folder cannot be read, or the runtime computes
            other outputs than ours; then nothing is kept.
        MissingExtra: the package that writes the format is not installed.
    """
    runtime = _runtime(to, quantize)
    path = checked_path(folder)
    target = target_of(path, to) if out is None else Path(out)
    check_new(target)
    source = ExportSource(path, load_float32(folder), runtime.name)
    with creating(target) as temporary:
        notes = runtime.write(source, temporary, quantize)
        if prefix := source.task.settings().get("source_prefix"):
            notes = (*notes, f"before each source its caller puts {prefix!r}")
        _write_card(source, runtime, temporary)
        if not check or find_spec(runtime.package) is None:
            return Exported(target, runtime.name, None, (), notes)
        differences, remarks = runtime.compare(source, temporary)
        for difference in differences:
            if quantize is None and not difference.relative <= runtime.tolerance:
                raise CheckpointError(
                    f"{path}: {runtime.name} opens what was written, but its {difference.what} "
                    f"differ by {difference.largest:.1e} from ours, whose largest is "
                    f"{difference.magnitude:.1e}. Nothing was kept: please report this model."
                )
    # The version of the module: another distribution, such as onnxruntime-gpu, may contain it.
    opened_by = f"{runtime.distribution} {package(runtime.package).__version__}"
    return Exported(target, runtime.name, opened_by, differences, (*notes, *remarks))


def _runtime(to: str, quantize: str | None) -> Runtime:
    """The runtime of a name.

    Raises:
        ConfigError: there is none, or its format has no such weights.
    """
    chosen: Runtime = entry(RUNTIMES, to, "runtime")()
    if quantize is not None and not chosen.quantizes:
        raise ConfigError(f"{chosen.name} is given float32 weights: leave `quantize` out.")
    return chosen


def target_of(folder: Path, to: str) -> Path:
    """Where a folder is exported to by default: next to it, with the ending of the runtime."""
    ending = _runtime(to, None).ending
    if folder.name in ("", ".."):  # such as "."
        folder = folder.resolve()
    of_run = folder.name == "model" and (folder.parent / "recipe.toml").exists()
    whole = folder.parent if of_run else folder
    return whole.with_name(whole.name + ending)


def _write_card(source: ExportSource, runtime: Runtime, out: Path) -> None:
    """Write the card of a folder, with the licence that the card of the model's folder names."""
    if out.is_dir():
        about = (
            f"This folder is for {runtime.name}: the package `{runtime.package}` opens its files, "
            "and `tokenizers` its tokenizer.json."
        )
        history = CardHistory.of_folder(source.path)
        form = CardForm(runtime.package, about)
        write_card(source.task, out, config_of_task(source.task), history, form)
