"""How encoders with heads are published: one layout for a family, all its heads in it.

The tensors of a file say which heads it holds; where the same name is used for several heads
("classifier"), the architecture that config.json names decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from regard.checkpoints import Names, split
from regard.errors import CheckpointError, ConfigError
from regard.models.headed import Headed
from regard.models.published_config import ConfigTable
from regard.suggest import nearest

Rows = Sequence[tuple]
OLD = ((".gamma", ".weight"), (".beta", ".bias"))  # of norms, in files converted from TensorFlow


@dataclass(frozen=True)
class HeadLayout:
    """The names of one kind of head.

    rows: (ours after `heads.KIND.`, theirs[, transform]), as in `Names`.
    sign: the tensor by which the head is recognized.
    outputs: the tensor whose rows are the answers; None: the head always has the same number.
    architectures: in which the sign means this head; empty: in all of them.
    duplicates, tied: as in `Names`, ours after `heads.KIND.`.
    """

    rows: Rows
    sign: str
    outputs: str | None = None
    architectures: Sequence[str] = ()
    duplicates: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderLayout:
    """How one family is published.

    prefix: before the names of the encoder where there is a head ("bert.").
    body: rows for the encoder's tensors, ours after `encoder.`, theirs after the prefix.
    heads: kind -> its names.
    architectures: the kinds of a model's heads -> their name for it.
    ignored: names, after the prefix, that carry nothing.
    """

    encoder: Any
    model_type: str
    config: ConfigTable
    prefix: str
    body: Rows
    heads: Mapping[str, HeadLayout]
    architectures: Mapping[tuple[str, ...], str]
    ignored: Sequence[str] = ()

    # ---- what `published.py` asks of every layout

    def holds(self, model: nn.Module) -> bool:
        """Whether a model of ours is written this way."""
        return (
            isinstance(model, Headed)
            and type(model.encoder) is self.encoder
            and tuple(sorted(model.heads)) in self._architectures()
        )

    def write(self, model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of a model."""
        kinds = tuple(sorted(model.heads))
        architecture = self._architectures()[kinds]
        config = {"model_type": self.model_type, "architectures": [architecture]}
        config |= self.config.write(model.config)
        tensors = self.names(kinds, model.config).write(model.state_dict())
        if self._is_bare(architecture):
            tensors = {name.removeprefix(self.prefix): t for name, t in tensors.items()}
        return config, tensors

    def read(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model that a folder holds."""
        ours = self._configuration(config)
        named = self._with_prefix(tensors)
        kinds = self.kinds(config, named)
        body = self.encoder(ours)
        model = Headed(body, {kind: self._head(body, kind, config, named) for kind in kinds})
        model.load_state_dict(self.names(kinds, ours).read(named, model.state_dict()))
        return model

    # ---- parts

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
            ties = head.tied if getattr(config, "tied", True) else {}
            rows += [
                (_under(ours_prefix, ours), *rest) for ours, *rest in head.rows if ours not in ties
            ]
            tied |= {ours_prefix + ours: f"encoder.{other}" for ours, other in ties.items()}
            untied = [row[1] for row in head.rows if row[0] not in ties]
            duplicates |= {k: v for k, v in head.duplicates.items() if k not in untied}
        ignored = [self.prefix + name for name in self.ignored]
        return Names(rows, tied=tied, duplicates=duplicates, ignored=ignored)

    def kinds(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The heads that the tensors belong to.

        Raises:
            ConfigError: `architectures` names what is not known here.
            CheckpointError: the architecture's own head is not among the tensors.
        """
        known: dict[str, tuple[str, ...]] = {}
        for kinds, name in self.architectures.items():
            known.setdefault(name, kinds)  # the first of a name is what its own library writes
        architecture = (config.get("architectures") or [""])[0]
        if architecture and architecture not in known:
            raise ConfigError(
                f"config.json: `architectures` names {architecture!r}, which this library does not "
                f"read. {nearest(architecture, known)}"
            )
        wanted = known.get(architecture, ())
        found = [
            kind
            for kind, head in self.heads.items()
            if head.sign in tensors
            and (not head.architectures or architecture in head.architectures)
        ]
        # An inner layer that a head carries is not a head of its own beside it.
        if "pooler" in found and any(kind in self.encoder.pooled for kind in found[1:]):
            found.remove("pooler")
        for kind in wanted:
            if kind not in found and kind != "pooler":
                raise CheckpointError(
                    f"published weights do not fit the model:\n  missing: "
                    f"{self.heads[kind].sign} (the head of {architecture})"
                )
        return tuple(sorted(found))

    def _head(
        self, body: Any, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> nn.Module:
        counted = self.heads[kind].outputs
        if counted is None:
            return body.head(kind)
        outputs = tensors[counted].size(0)
        labels = config.get("id2label")
        if kind != "choice" and labels is not None and len(labels) != outputs:
            raise ConfigError(
                f"config.json: `id2label` names {len(labels)} labels, but {counted} has "
                f"{outputs} rows. Name each of them once."
            )
        return body.head(kind, outputs)

    def _configuration(self, config: Mapping[str, Any]) -> Any:
        return self.encoder.Config(**self.config.read(config))

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

    def _architectures(self) -> dict[tuple[str, ...], str]:
        return {tuple(sorted(kinds)): name for kinds, name in self.architectures.items()}

    def _is_bare(self, architecture: str) -> bool:
        return architecture.endswith("Model") and "Heads" not in architecture


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
