"""How encoders with heads are published: one layout for a family, all its heads in it.

The tensors of a file say which heads it holds; where the same name is used for several heads
("classifier"), the architecture that config.json names decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.checkpoints.filling import assign
from regard.checkpoints.formats.config_table import ConfigTable, label_names, refusal
from regard.checkpoints.names import Names
from regard.checkpoints.transforms import Transform, split
from regard.errors import CheckpointError, ConfigError
from regard.models.check_config import check_consistent, check_sizes
from regard.models.headed import Headed
from regard.suggest import nearest

Rows = Sequence[tuple]
# One tensor of ours that they have twice, where only the first is read.
TWICE = Transform(read=lambda both: both[:1], write=lambda one: [one[0], one[0].clone()])
OLD = ((".gamma", ".weight"), (".beta", ".bias"))  # of norms, in files converted from TensorFlow


@dataclass(frozen=True)
class HeadLayout:
    """The names of one kind of head.

    rows: (ours after `heads.KIND.`, theirs[, transform]), as in `Names`.
    sign: the tensor by which the head is recognized.
    outputs: the tensor whose rows are the answers; None: the head always has the same number.
    architectures: in which the sign means this head; empty: in all of them.
    tied: names of ours that are others of ours, where the configuration ties them.
    duplicates: names of theirs that files may hold then, beside those that they equal.
    twins: names of theirs that are one tensor where it is tied, and of which one may be missing.
    untied: rows that stand for those of the same name of ours where nothing is tied.
    """

    rows: Rows
    sign: str
    outputs: str | None = None
    architectures: Sequence[str] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    duplicates: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    untied: Rows = ()

    def rows_for(self, tied: bool) -> list[tuple]:
        """The rows of a model whose output is the embedding, or is not."""
        if tied:
            return [row for row in self.rows if row[0] not in self.tied]
        instead = {row[0]: row for row in self.untied}
        return [instead.get(row[0], row) for row in self.rows]


@dataclass(frozen=True)
class EncoderLayout:
    """How one family is published.

    prefix: before the names of the encoder where there is a head ("bert.").
    body: rows for the encoder's tensors, ours after `encoder.`, theirs after the prefix.
    heads: kind -> its names.
    architectures: the kinds of a model's heads -> their name for it; a pooler more is no other one.
    ignored: names, after the prefix, that carry nothing.
    refused: architectures that this library does not compute -> why.
    """

    encoder: Any
    model_type: str
    config: ConfigTable
    prefix: str
    body: Rows
    heads: Mapping[str, HeadLayout]
    architectures: Mapping[tuple[str, ...], str]
    ignored: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    # ---- what `published.py` asks of every layout

    def holds(self, model: nn.Module) -> bool:
        """Whether a model of ours is written this way; an encoder alone is one without heads."""
        encoder = model.encoder if isinstance(model, Headed) else model
        heads: Iterable[str] = model.heads if isinstance(model, Headed) else ()
        return type(encoder) is self.encoder and self._architecture(heads) is not None

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of a model."""
        model = model if isinstance(model, Headed) else Headed(model, {})
        kinds = tuple(model.heads)
        architecture = self._architecture(kinds)
        config = {"model_type": self.model_type, "architectures": [architecture]}
        config |= self.config.write(model.config)
        config |= self.labels(model.heads)
        tensors = self.names(kinds, model.config).write(model.state_dict())
        if architecture == self.architectures[()]:
            tensors = {name.removeprefix(self.prefix): t for name, t in tensors.items()}
        return config, tensors

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that a folder holds."""
        ours = self._configuration(config)
        named = self._with_prefix(tensors)
        self._check_sizes(ours, named)
        kinds = self.kinds(config, named)
        for kind in kinds:
            _complete(named, self.heads[kind].twins)
        body = self.encoder(ours)
        model = Headed(body, {kind: self._head(body, kind, config, named) for kind in kinds})
        assign(model, self.names(kinds, ours).read(named, model.state_dict()))
        return model

    # ---- parts

    def labels(self, heads: Any) -> dict[str, Any]:
        """Names for the labels of these heads, where their number is not always the same."""
        counts = [heads[kind].outputs for kind in heads if self.heads[kind].outputs is not None]
        return _labels(counts[0]) if counts else {}

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        """The table of a model with these heads."""
        rows: list[tuple] = [
            (_under("encoder.", ours), _under(self.prefix, theirs), *rest)
            for ours, theirs, *rest in self.body
        ]
        tied: dict[str, str] = {}
        duplicates: dict[str, str] = {}
        for kind in kinds:
            head, ours_prefix = self.heads[kind], f"heads.{kind}."
            found = head.rows_for(config.tied)
            rows += [(_under(ours_prefix, ours), *rest) for ours, *rest in found]
            if config.tied:
                tied |= {ours_prefix + k: f"encoder.{v}" for k, v in head.tied.items()}
                duplicates |= {**head.duplicates, **head.twins}
        ignored = [self.prefix + name for name in self.ignored]
        return Names(rows, tied=tied, duplicates=duplicates, ignored=ignored)

    def kinds(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The heads that the tensors belong to.

        Raises:
            ConfigError: `architectures` names what is not known here, or does not name what the
                tensors leave open.
            CheckpointError: the architecture's own head is not among the tensors.
        """
        architecture = self._named(config)
        present = {kind: head for kind, head in self.heads.items() if head.sign in tensors}
        meant = [k for k, head in present.items() if architecture in head.architectures]
        open_to = [name for head in present.values() for name in head.architectures]
        if open_to and not architecture:
            signs = sorted({head.sign for head in present.values() if head.architectures})
            raise ConfigError(
                f"config.json: `architectures` must name one of {', '.join(open_to)}, for the "
                f"tensors alone do not say whose head {' and '.join(signs)} is. Write, for "
                f'example, "architectures": ["{open_to[0]}"].'
            )
        found = [k for k, head in present.items() if k in meant or not head.architectures]
        # An inner layer that a head carries is not a head of its own beside it.
        if any(kind in self.encoder.pooled for kind in found if kind != "pooler"):
            found = [kind for kind in found if kind != "pooler"]
        for kind in self._wanted(architecture):
            if kind not in found:
                raise CheckpointError(
                    f"published weights do not fit the model:\n  missing: "
                    f"{self.heads[kind].sign} (the head of {architecture})"
                )
        if self._architecture(found) is None:
            signs = sorted(self.heads[kind].sign for kind in found)
            raise CheckpointError(
                f"published weights do not fit the model:\n  extra: no architecture of "
                f"{self.model_type} has all the heads of {', '.join(signs)}"
            )
        return tuple(sorted(found))

    def _named(self, config: Mapping[str, Any]) -> str:
        """The architecture that config.json names, "" where it names none."""
        names = config.get("architectures") or [""]
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise refusal("architectures", "a list of names", names)
        known = [*self.architectures.values()]
        if names[0] in self.refused:
            raise ConfigError(
                f"config.json: `architectures` names {names[0]!r}, which this library does not "
                f"read: {self.refused[names[0]]}."
            )
        if names[0] and names[0] not in known:
            raise ConfigError(
                f"config.json: `architectures` names {names[0]!r}, which this library does not "
                f"read. {nearest(names[0], known)}"
            )
        return names[0]

    def _wanted(self, architecture: str) -> tuple[str, ...]:
        """The heads that an architecture surely has."""
        kinds = [kinds for kinds, name in self.architectures.items() if name == architecture]
        return kinds[0] if kinds else ()

    def _architecture(self, kinds: Iterable[str]) -> str | None:
        """Their name for a model with these heads."""
        wanted = {kind for kind in kinds if kind != "pooler"}
        return next((name for k, name in self.architectures.items() if set(k) == wanted), None)

    def _head(
        self, body: Any, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        counted = self.heads[kind].outputs
        if counted is None:
            return body.new_head(kind)
        outputs = tensors[counted].size(0) if tensors[counted].dim() else 1
        labels = config.get("id2label")
        named = config.get("num_labels", outputs) if labels is None else len(label_names(config))
        if named != outputs:
            where = "num_labels" if labels is None else "id2label"
            raise ConfigError(
                f"config.json: `{where}` tells of {named} labels, but {counted} has {outputs} "
                "rows. Name each of them once."
            )
        return body.new_head(kind, outputs)

    def _configuration(self, config: Mapping[str, Any]) -> Any:
        return self._checked(self.encoder.Config(**self.config.read(config)))

    def _checked(self, ours: Any) -> Any:
        """The same, where its fields go together."""
        check_consistent(ours, "config.json", ConfigError, self.config.theirs)
        return ours

    def _check_sizes(self, ours: Any, tensors: Mapping[str, Tensor]) -> None:
        check_sizes(ours, tensors, "config.json", ConfigError, self.config.theirs)

    def _with_prefix(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All names as a model with a head has them, norms under their present names."""
        renamed = {_renamed(name): tensor for name, tensor in tensors.items()}
        if any(name.startswith(self.prefix) for name in renamed):
            return renamed
        # By their first parts, since a head may stand beside the tensors of a bare encoder.
        inside = {_first_part(row[1]) for row in self.body}
        for head in self.heads.values():
            theirs = [_first_name(row[1]) for row in head.rows]
            inside |= {
                _first_part(name.removeprefix(self.prefix))
                for name in theirs
                if name.startswith(self.prefix)
            }
        return {
            self.prefix + name if _first_part(name) in inside else name: tensor
            for name, tensor in renamed.items()
        }


def joined(ours: str, theirs: Sequence[str]) -> list[tuple]:
    """One packed projection of ours from several of theirs, weight and bias."""
    side_by_side = split(len(theirs)).reversed()
    return [
        (f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs), side_by_side)
        for kind in ("weight", "bias")
    ]


def both(ours: str, theirs: str, *transform: Any) -> list[tuple]:
    """The weight and the bias of a layer or a norm."""
    return [(f"{ours}.{kind}", f"{theirs}.{kind}", *transform) for kind in ("weight", "bias")]


def _labels(count: int) -> dict[str, Any]:
    """Names of labels for the numbers that other libraries make models of; tasks know better."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _complete(tensors: dict[str, Tensor], twins: Mapping[str, str]) -> None:
    for pair in twins.items():
        for name, other in (pair, pair[::-1]):
            if other in tensors:
                tensors.setdefault(name, tensors[other])


def _under(prefix: str, names: Any) -> Any:
    return prefix + names if isinstance(names, str) else tuple(prefix + name for name in names)


def _renamed(name: str) -> str:
    for old, new in OLD:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _first_name(names: Any) -> str:
    return names if isinstance(names, str) else names[0]


def _first_part(names: Any) -> str:
    return _first_name(names).split(".")[0]
