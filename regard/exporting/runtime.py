"""The input and the result of an export, the protocol of runtimes, and the errors for models that a
runtime cannot compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.pruning import with_all_heads
from regard.checkpoints.verify import random_batch
from regard.data.batches import Sequences
from regard.errors import ConfigError, MissingExtra
from regard.models.conversions import merged
from regard.models.encoder_with_heads import EncoderWithHeads, deployed
from regard.models.protocols import EncoderDecoder
from regard.tasks.task import Task
from regard.tasks.text_to_text import TextToText
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
    """

    path: Path
    task: Task
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

    @property
    def left_to_the_caller(self) -> tuple[str, ...]:
        """What the task does with a text before the model reads it, which no runtime does."""
        prefix = self.task.source_prefix if isinstance(self.task, TextToText) else ""
        return (f"before each source its caller puts {prefix!r}",) if prefix else ()

    def unsupported(self, runtime: str, what: str, hint: str = "") -> ConfigError:
        """The error for something that a runtime does not support."""
        return ConfigError(f"{self.path}: {runtime} {what}." + (f" {hint}" if hint else ""))

    def check_architecture(self, runtime: str, known: Iterable[type]) -> None:
        """Check that a runtime computes the model.

        Raises:
            ConfigError: it does not.
        """
        if type(self.body) not in known:
            names = ", ".join(kind.__name__ for kind in known)
            reason = f"cannot run the architecture {type(self.body).__name__} as it is written here"
            raise self.unsupported(runtime, reason, f"These can be exported: {names}.")

    def check_heads(
        self, runtime: str, known: Collection[str], hint: str = "Export it to onnx, or save"
    ) -> None:
        """Check that a runtime has a form for every head.

        Raises:
            ConfigError: it has none for one.
        """
        for kind in self.heads:
            if kind not in known:
                reason = f"has no form for the head {kind!r}"
                raise self.unsupported(runtime, reason, f"{hint} the encoder without the head.")

    def check_field(self, runtime: str, name: str, known: Collection[Any]) -> None:
        """Check that a runtime computes the value of a field of the configuration.

        Raises:
            ConfigError: it does not.
        """
        value = asdict(self.body.config)[name]
        if value not in known:
            listed = ", ".join(map(repr, known))
            raise self.unsupported(runtime, f"needs `{name}` to be {listed}, but it is {value!r}")


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
        purpose = "Exporting to this format" if error.name == name else f"The package `{name}`"
        raise MissingExtra(error.name or name, "export", purpose, distribution) from None


def array(tensor: Tensor) -> np.ndarray:
    """A tensor as float32, copied: formats quantize their arrays in place."""
    return np.array(tensor.detach().float().numpy(), order="C")


def token_names(tokenizer: Tokenizer, size: int) -> list[str]:
    """A name for each of `size` ids; those that the tokenizer does not have are "<unused 7>"."""
    names = {i: token for token, i in tokenizer.vocab().items()}
    return [names.get(i, f"<unused {i}>") for i in range(size)]
