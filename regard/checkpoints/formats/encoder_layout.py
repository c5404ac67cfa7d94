"""The layout of an encoder family with all its heads.

The tensors of a file say which heads it holds; where several heads share a tensor's name
("classifier"), the architecture that config.json names decides.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.checkpoints.filling import Problems, Weights, assign
from regard.checkpoints.formats.config_table import (
    ConfigJson,
    ConfigTable,
    Values,
    label_names,
    unsupported,
)
from regard.checkpoints.names import Column, Names, Transform, split
from regard.errors import CheckpointError, ConfigError, warn
from regard.models.check_config import check_consistent, check_sizes
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.suggest import nearest

Rows = Sequence[tuple]
# One tensor of ours that they have twice, where only the first is read.
TWICE = Transform(read=lambda both: both[:1], write=lambda one: [one[0], one[0].clone()])
MISFIT = "published weights do not fit the model that config.json describes"
# of a block, beside the projections of queries, keys and values
PARTS = ("attention.output", "attention_norm", "feed.inner", "feed.outer", "feed_norm")
LABELLED = ("classes", "tags")  # kinds of heads with one output for each label
TENSORFLOW = ((".gamma", ".weight"), (".beta", ".bias"))  # names of norms in converted files


@dataclass(frozen=True)
class HeadLayout:
    """The names of one kind of head.

    rows: (ours after `heads.KIND.`, theirs[, transform]), as in `Names`.
    tied: names of ours that are others of ours, where the configuration ties them.
    duplicates: names of theirs that files may hold then, beside those that they equal.
    twins: names of theirs that are one tensor where it is tied, and of which one may be missing.
    untied: rows that replace those of the same name of ours where nothing is tied.
    """

    rows: Rows
    tied: Mapping[str, str] = field(default_factory=dict)
    duplicates: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    untied: Rows = ()

    @property
    def sign(self) -> str:
        """Their tensor by which the head is recognized: the output's, else the first."""
        theirs = {row[0]: row[1] for row in self.rows}
        return theirs.get("output.weight", self.rows[0][1])

    def is_whole(self, tensors: Collection[str]) -> bool:
        """Whether all tensors are there that a file has in any case."""
        return all(_their_name(row) in tensors for row in self.rows if row[0] not in self.tied)

    def rows_for(self, tied: bool) -> list[tuple]:
        """The rows of a model whose output is tied to the embedding, or is not."""
        if tied:
            return [row for row in self.rows if row[0] not in self.tied]
        instead = {row[0]: row for row in self.untied}
        return [instead.get(row[0], row) for row in self.rows]


def architecture_in(
    config: ConfigJson, readable: Collection[str], refused: Collection[str], why: str
) -> str:
    """The architecture that config.json names; "", for which the tensors decide, where it names
    none or a class of somebody's own.

    Raises:
        ConfigError: it is one of `refused`.
    """
    names = config.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise unsupported("architectures", "a list of names", names)
    if names[0] in ("", *readable):
        return names[0]
    if names[0] in refused:
        raise unsupported("architectures", " or ".join(readable), names[0], why)
    warn(
        f"config.json: `architectures` names {names[0]!r}, which is not known here, so the tensors "
        f"decide which heads the model has. {nearest(names[0], readable)}"
    )
    return ""


@dataclass(frozen=True)
class EncoderLayout:
    """How one family of encoders is published.

    model: the class of the encoder.
    family: how the names of their architectures begin ("Bert").
    prefix: before the names of the encoder where there is a head ("bert.").
    body: rows for the encoder's tensors, ours after `encoder.`, theirs after the prefix.
    heads: kind -> its names.
    adapted: their names of the projections that low-rank adapters change by default.
    ignored: names, after the prefix, that carry nothing.
    projection: of the embeddings to `d_model`: rows beside the body where the widths differ.
    """

    model: Any
    family: str
    model_type: str
    config: ConfigTable
    prefix: str
    body: Rows
    heads: Mapping[str, HeadLayout]
    adapted: tuple[str, ...] = ("query", "value")
    ignored: Sequence[str] = ()
    projection: Rows = ()

    # how names end of decoders that have the same body, which no encoder here computes
    CAUSAL: ClassVar[tuple[str, ...]] = ("LMHeadModel", "ForCausalLM")
    # the kinds of a model's heads, poolers left out -> how their name for it ends
    ENDINGS: ClassVar[Mapping[tuple[str, ...], str]] = {
        (): "Model",
        ("masked_lm",): "ForMaskedLM",
        ("next_sentence",): "ForNextSentencePrediction",
        ("masked_lm", "next_sentence"): "ForPreTraining",
        ("masked_lm", "sentence_order"): "ForPreTraining",
        ("replaced",): "ForPreTraining",
        ("classes",): "ForSequenceClassification",
        ("tags",): "ForTokenClassification",
        ("span",): "ForQuestionAnswering",
        ("multiple_choice",): "ForMultipleChoice",
    }

    @property
    def architectures(self) -> dict[tuple[str, ...], str]:
        """The kinds of a model's heads -> their name for it."""
        return {
            kinds: self.family + ending
            for kinds, ending in self.ENDINGS.items()
            if self.heads.keys() >= {*kinds}
        }

    # ------------------------------------------------------------------------- for other modules

    @property
    def known_architectures(self) -> Collection[str]:
        """The names in `architectures` of config.json that this layout reads."""
        return self.architectures.values()

    def has_heads_of(self, config: ConfigJson, tensors: Weights) -> bool:
        """Whether the tensors have the heads of the architecture that config.json names; one that
        is not known has none.
        """
        name = (config.get("architectures") or [""])[0]
        required = self._required_heads(name)
        named = self._with_prefix(tensors)
        is_readable = name in self.known_architectures
        return is_readable and all(self.heads[kind].sign in named for kind in required)

    def holds(self, model: Any) -> bool:
        """Whether a model is published this way; an encoder alone is one without heads."""
        encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
        return (
            type(encoder) is self.model
            and self.config.can_write(encoder.config)
            and self._name_of(model) is not None
        )

    def write(self, model: Any) -> tuple[Values, dict[str, Tensor]]:
        """The contents of config.json and of model.safetensors."""
        config = {"model_type": self.model_type, "architectures": [self.architecture_of(model)]}
        config |= self.config.write(model.config)
        outputs = model.outputs() if isinstance(model, EncoderWithHeads) else {}
        counts = [count for kind, count in outputs.items() if kind in LABELLED]
        config |= _labels(counts[0]) if counts else {}
        return config, self.names_of(model).write(model.state_dict())

    def read(self, config: ConfigJson, tensors: Weights) -> nn.Module:
        """The model that they hold.

        Raises:
            ConfigError: the configuration asks for what our model does not compute.
            CheckpointError: tensors are missing, left over or of another shape.
        """
        named = self._with_prefix(tensors)
        ours = self._configuration(config, named)
        kinds = self.kinds(config, named)
        for kind in kinds:
            _complete(named, self.heads[kind].twins)
        encoder = self.model(ours)
        heads = {kind: self._head(encoder, kind, config, named) for kind in kinds}
        model = EncoderWithHeads(encoder, heads)
        model.architecture = self._named_architecture(config)
        assign(model, self.names(kinds, ours).read(named, model.state_dict()))
        return model

    def names_of(self, model: Any) -> Names:
        """The table between the names of a model's tensors and theirs."""
        kinds = {*model.heads} if isinstance(model, EncoderWithHeads) else set()
        bare = kinds <= {"pooler"} and self.architecture_of(model) == self.architectures[()]
        theirs = self.prefix if bare else ""
        if isinstance(model, EncoderWithHeads):
            return self.names(tuple(model.heads), model.config).without_prefixes(theirs=theirs)
        return self.names((), model.config).without_prefixes("encoder.", theirs)

    def architecture_of(self, model: object) -> str:
        """Their name for a model that this layout holds."""
        name = self._name_of(model)
        assert name is not None
        return name

    def with_architecture(self, model: Any, name: str, tensors: Weights) -> Any:
        """The same model under the heads of one of their architectures.

        A head that the model does not have is new, and not initialized.

        tensors: published ones, which say how many outputs a new head has.

        Raises:
            ConfigError: there is no such architecture.
            CheckpointError: neither the model nor the tensors have its head.
        """
        kinds = self._required_heads(self._named_architecture({"architectures": [name]}))
        whole = model if isinstance(model, EncoderWithHeads) else EncoderWithHeads(model, {})
        if not kinds:
            kinds = tuple(kind for kind in whole.heads if kind == "pooler")
        heads = {}
        for kind in kinds:
            sign, outputs = self.heads[kind].sign, whole.outputs().get(kind)
            if outputs is None and sign not in tensors:
                raise CheckpointError(f"there is no tensor {sign}, the head of {name}.")
            labelled = kind in LABELLED and sign in tensors
            heads[kind] = whole.with_head(kind, tensors[sign].size(0) if labelled else outputs or 1)
        return EncoderWithHeads(whole.encoder, {k: one.heads[k] for k, one in heads.items()})

    def in_their_order(self, hidden: Tensor) -> Tensor:
        """Our hidden states (..., D), their dimensions in the order of the published model."""
        return hidden

    # ------------------------------------------------------------------------- parts

    def body_of(self, config: Any) -> Rows:
        """The rows of the encoder's tensors in a model of this configuration."""
        projected = self.projection and config.d_embedding != config.d_model
        return [*self.body, *self.projection] if projected else self.body

    def names(self, kinds: Sequence[str], config: Any) -> Names:
        """The table of a model with these heads.

        config: the encoder's, with `tied`.
        """
        rows: list[tuple] = [
            (prefixed("encoder.", ours), prefixed(self.prefix, theirs), *rest)
            for ours, theirs, *rest in self.body_of(config)
        ]
        tied: dict[str, str] = {}
        duplicates: dict[str, str] = {}
        for kind in kinds:
            head, ours_prefix = self.heads[kind], f"heads.{kind}."
            head_rows = head.rows_for(config.tied)
            rows += [(prefixed(ours_prefix, ours), *rest) for ours, *rest in head_rows]
            if config.tied:
                tied |= {ours_prefix + k: f"encoder.{v}" for k, v in head.tied.items()}
                duplicates |= {**head.duplicates, **head.twins}
        ignored = [self.prefix + name for name in self.ignored]
        return Names(rows, tied=tied, duplicates=duplicates, ignored=ignored)

    def kinds(self, config: ConfigJson, tensors: Weights) -> tuple[str, ...]:
        """The heads that the tensors belong to.

        Raises:
            ConfigError: `architectures` names an unknown one.
            CheckpointError: the architecture's own head is not among the tensors, or there are
                several heads and no architecture is named.
        """
        architecture = self._named_architecture(config)
        signs = {kind: head.sign for kind, head in self.heads.items() if head.sign in tensors}
        if architecture:
            heads = self._heads_of_architecture(architecture, signs, tensors)
        else:
            heads = self._heads_of_tensors(signs, config, tensors)
        # A pooler that is the inner layer of another head is not a head of its own.
        if any(kind in self.model.pooled for kind in heads if kind != "pooler"):
            heads = [kind for kind in heads if kind != "pooler"]
        return tuple(sorted(heads))

    def _heads_of_architecture(
        self, architecture: str, signs: Mapping[str, str], tensors: Collection[str]
    ) -> list[str]:
        """Its own heads, and further whole ones if an architecture has them all."""
        required, problems = self._required_heads(architecture), Problems(MISFIT)
        for kind in required:
            if kind not in signs:
                problems.add("missing", f"{self.heads[kind].sign} (the head of {architecture})")
        problems.raise_any()
        taken = {signs[kind] for kind in required}
        shared = [sign for sign in signs.values() if [*signs.values()].count(sign) > 1]
        others = [
            kind
            for kind, sign in signs.items()
            if sign not in taken and sign not in shared and self.heads[kind].is_whole(tensors)
        ]
        heads = [*required, *others]
        if self._architecture(heads) is None:  # leftovers of another head
            heads = [*required, *(kind for kind in others if kind == "pooler")]
        return heads

    def _heads_of_tensors(
        self, signs: Mapping[str, str], config: ConfigJson, tensors: Weights
    ) -> list[str]:
        """The heads of a file that names no known architecture."""
        shared = [kind for kind, sign in signs.items() if [*signs.values()].count(sign) > 1]
        heads = [kind for kind in signs if kind not in shared]
        if shared:
            heads.append(self._shared_head(shared, config, tensors))
        name = self._architecture(heads)
        if name is None:
            listed = f"one of {', '.join(self.architectures.values())}"
            several = ", ".join(sorted(signs[kind] for kind in heads))
            raise unsupported("architectures", listed, None, f"there are heads of {several}")
        if shared:
            warn(
                "config.json: `architectures` names no known class. By the tensors and labels this "
                f"is a {name}; name the task where it is another one: "
                'regard.load(folder, task="multiple-choice").',
            )
        return heads

    def _shared_head(self, kinds: Sequence[str], config: ConfigJson, tensors: Weights) -> str:
        """Which of several heads with tensors of one name a file holds: that whose inner layer is
        there; of taggers and classifiers the one that the labels are of.
        """
        whole = [kind for kind in kinds if self.heads[kind].is_whole(tensors)]
        labels = label_names(config)
        one_output = tensors[self.heads[kinds[0]].sign].shape[:1] == (1,)
        if one_output and "multiple_choice" in whole and len(labels) != 1:
            return "multiple_choice"
        tags = all(re.fullmatch("O|[BIESLU]-.+", str(name)) for name in labels.values())
        wanted = ("tags", "classes") if labels and tags else ("classes", "tags")
        return next((kind for kind in (*wanted, *whole) if kind in whole), kinds[0])

    def _named_architecture(self, config: ConfigJson) -> str:
        """The architecture that config.json names; "" for none that is known here."""
        why = "it predicts the next word from those before it, which no encoder here does"
        refused = [self.family + ending for ending in self.CAUSAL]
        return architecture_in(config, [*self.architectures.values()], refused, why)

    def _required_heads(self, architecture: str) -> tuple[str, ...]:
        """The heads that an architecture always has."""
        kinds = [kinds for kinds, name in self.architectures.items() if name == architecture]
        return kinds[0] if kinds else ()

    def _architecture(self, kinds: Iterable[str]) -> str | None:
        """Their name for an encoder under these heads."""
        heads = {kind for kind in kinds if kind != "pooler"}
        return next((name for k, name in self.architectures.items() if set(k) == heads), None)

    def _name_of(self, model: object) -> str | None:
        """Their name for a model of ours, if they have it."""
        if not isinstance(model, EncoderWithHeads):
            return self._architecture(())
        computed, stated = self._architecture(model.heads), model.architecture
        is_named = stated in self.architectures.values()
        has_heads = {*self._required_heads(stated)} <= {*model.heads}
        return stated if computed is not None and is_named and has_heads else computed

    def _head(self, encoder: Encoder, kind: str, config: ConfigJson, tensors: Weights) -> nn.Module:
        if kind not in LABELLED:
            return encoder.new_head(kind)
        sign = self.heads[kind].sign
        outputs = tensors[sign].size(0) if tensors[sign].dim() else 1
        label_names(config, outputs)
        return encoder.new_head(kind, outputs)

    def _configuration(self, config: ConfigJson, tensors: Weights) -> Any:
        """Our configuration of the encoder, checked against the weights."""
        ours = self._adjusted(self.model.Config(**self.config.read(config)), config, tensors)
        check_consistent(ours, "config.json", ConfigError, self.config.theirs)
        check_sizes(ours, tensors, "config.json", ConfigError, self.config.theirs)
        return ours

    def _adjusted(self, ours: Any, config: ConfigJson, tensors: Weights) -> Any:
        """Our configuration with what more than one field of theirs decides."""
        return ours

    def _with_prefix(self, tensors: Weights) -> dict[str, Tensor]:
        """All names as a model with a head has them, norms under their present names."""
        renamed = dict(tensors)
        for old, new in TENSORFLOW:
            renamed = {
                name.removesuffix(old) + new if name.endswith(old) else name: tensor
                for name, tensor in renamed.items()
            }
        if any(name.startswith(self.prefix) for name in renamed):
            return renamed
        # By their first parts, since a head may come with the tensors of a bare encoder.
        of_heads = [_their_name(row) for head in self.heads.values() for row in head.rows]
        inside = {_their_name(row).split(".")[0] for row in (*self.body, *self.projection)} | {
            name.removeprefix(self.prefix).split(".")[0]
            for name in of_heads
            if name.startswith(self.prefix)
        }
        return {
            self.prefix + name if name.split(".")[0] in inside else name: tensor
            for name, tensor in renamed.items()
        }


def packed(ours: str, theirs: Sequence[str]) -> list[tuple]:
    """One packed projection of ours from several of theirs, weight and bias."""
    pack = split(len(theirs)).reversed()
    return [
        (f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs), pack)
        for kind in ("weight", "bias")
    ]


def affine(ours: str, theirs: str, *transform: Transform) -> list[tuple]:
    """The weight and the bias of a layer or a norm."""
    return [(f"{ours}.{kind}", f"{theirs}.{kind}", *transform) for kind in ("weight", "bias")]


def block_rows(layer: str, *theirs: str) -> list[tuple]:
    """A block without its projections: their names, after those of the layer, of `PARTS`."""
    return [
        row
        for part, name in zip(PARTS, theirs, strict=True)
        for row in affine(f"blocks.{{layer}}.{part}", f"{layer}.{name}")
    ]


def masked_lm(
    prefix: str, dense: str, norm: str, decoder: str, bias: str, *, has_twin: bool = True
) -> HeadLayout:
    """The head for masked words, whose output is tied to the embedding.

    prefix: before the names of the encoder.
    has_twin: whether the bias also stands beside the matrix of the output, where files may have it
        in place of the other; it is the one that counts where nothing is tied.
    """
    twin = f"{decoder}.bias"
    return HeadLayout(
        [
            *affine("inner.dense", dense),
            *affine("norm", norm),
            ("softmax.weight", f"{decoder}.weight"),
            ("softmax.bias", bias),
        ],
        tied={"softmax.weight": "embedding.weight"},
        duplicates={f"{decoder}.weight": f"{prefix}embeddings.word_embeddings.weight"},
        twins={twin: bias} if has_twin else {},
        untied=[("softmax.bias", (twin, bias), TWICE)] if has_twin else (),
    )


CLASSIFIER = affine("output", "classifier")
# The heads of most families for each token.
TOKEN_HEADS = {"tags": HeadLayout(CLASSIFIER), "span": HeadLayout(affine("output", "qa_outputs"))}
# of RoBERTa and its followers
TWO_LAYERS = HeadLayout(
    [*affine("inner.dense", "classifier.dense"), *affine("output", "classifier.out_proj")]
)


def pooled(pooler: str) -> dict[str, HeadLayout]:
    """A pooler of this name as a head, and as the inner layer of the head for multiple choice."""
    rows = affine("inner.dense", pooler)
    return {
        "pooler": HeadLayout(rows),
        "multiple_choice": HeadLayout([*rows, *CLASSIFIER]),
    }


def _labels(count: int) -> Values:
    """Placeholder names of labels, from which other libraries read their number."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _complete(tensors: dict[str, Tensor], twins: Mapping[str, str]) -> None:
    """Add the one of two names of a tensor that is missing."""
    for pair in twins.items():
        for name, other in (pair, pair[::-1]):
            if other in tensors:
                tensors.setdefault(name, tensors[other])


def prefixed(prefix: str, names: Column) -> Column:
    """A name, or each of several, behind a prefix."""
    return prefix + names if isinstance(names, str) else tuple(prefix + name for name in names)


def _their_name(row: tuple) -> str:
    """Their name in a row, the first of several."""
    return row[1] if isinstance(row[1], str) else row[1][0]
