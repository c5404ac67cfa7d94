"""What trains encoders beside the loss of their head: new heads and tokens, word vectors, teachers.

A second objective predicts the next token; a threshold is fitted on the validation data.

A model learns from the outputs of another one, its teacher (Hinton et al. 2015). What it learns
depends on what the teacher has:

- logits over the vocabulary: those of masked words (DistilBERT: Sanh et al. 2019, section 2);
- the head of a task: the logits of its classes, or its numbers (Hinton et al. 2015, section 2);
- hidden states alone: the vectors of texts (Reimers and Gurevych 2020, equation 1).

The teacher is never trained, and is no part of the model that is saved.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batches import IGNORE, Losses, Sequences
from regard.data.pretraining import MaskedBatch
from regard.data.word_vectors import PretrainedVectors, read_word_vectors
from regard.errors import ConfigError, DataError
from regard.models import as_encoder
from regard.models.conversions import with_vocabulary
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.protocols import Encoder
from regard.recipe import ModelSource, Options
from regard.tasks.batching import device_of
from regard.text import Tokenizer


@dataclass(frozen=True)
class AuxiliaryLM:
    """The auxiliary objective of fine-tuning: lambda L_1 of equation 5 (Radford et al. 2018).

    head: the model's own over the vocabulary.  weight: lambda, included in the reported loss.
    """

    head: Any
    weight: float

    @classmethod
    def of(cls, model: EncoderWithHeads, weight: float) -> AuxiliaryLM | None:
        """The objective of a model; None where the weight is 0.

        Raises:
            ConfigError: the model does not predict the next token.
        """
        if not weight:
            return None
        encoder: Any = model.encoder
        if not encoder.is_causal:
            raise ConfigError(
                "[objective] `aux_lm_weight` needs a model that predicts the next token, such "
                f"as gpt2, but {type(encoder).__name__} does not. Leave it out."
            )
        any_state = next(encoder.parameters()).new_zeros(1, encoder.config.d_model)
        encoder.head.logits(any_state)  # raises an error without a head
        return cls(encoder.head, weight)

    @staticmethod
    def count(texts: Sequences) -> int:
        """The predicted tokens: all but the first of each sequence."""
        return int((texts.lengths - 1).clamp(min=0).sum())

    def loss(
        self, hidden: Tensor, texts: Sequences, count: int | None = None
    ) -> tuple[Tensor, int]:
        """The weighted sum of -log p(next token) in nats, and the number of predicted tokens.

        count: of these tokens, where it is known.
        """
        targets = texts.next_ids().flatten()
        total, counted = self.head.loss(hidden.flatten(0, 1), targets, count=count)
        return self.weight * total, counted


class FittedThreshold:
    """A threshold that is fitted on validation data, by the weights of the head, which identify
    those of the model: the weights that a training saves at its end need not be those that were
    validated last.

    used: whether the threshold is fitted at all.
    """

    def __init__(self) -> None:
        self.used = False
        self._thresholds: dict[bytes, float] = {}

    def keep(self, head: nn.Module, threshold: float) -> float:
        """Keep the threshold for the weights that the head has now, and return it."""
        self._thresholds[_key(head)] = threshold
        return threshold

    def fit(self, head: nn.Module, validate: Callable[[], object]) -> float:
        """The threshold for the weights that the head has now; `validate` fits it where needed.

        It is 0.5 where it cannot be fitted, since scores are not finite.
        """
        if _key(head) not in self._thresholds:
            validate()
        return self._thresholds.get(_key(head), 0.5)


def _key(head: nn.Module) -> bytes:
    return b"".join(w.detach().float().cpu().numpy().tobytes() for w in head.parameters())


def vectors_for(path: Path, encoder: Encoder, tokenizer: Tokenizer) -> PretrainedVectors:
    """The vectors that a file has for the vocabulary, of the width of the encoder's own.

    Raises:
        ConfigError: the tokens are not words, the encoder has no vectors of words, or theirs have
            another width.
        DataError: the file is damaged, or has a vector for no word.
    """
    kind, name = type(encoder).__name__, "[data] `word_vectors`"
    if tokenizer.kind != "words":
        raise ConfigError(
            f'{name} needs words: set kind = "words" in [tokenizer], which is {tokenizer.kind!r}.'
        )
    if not encoder.word_tables:
        raise ConfigError(f"{name}: {kind} has no vectors of words. Leave it out.")
    numbers = [n for n in range(tokenizer.vocab_size) if n not in tokenizer.special_ids]
    vectors = read_word_vectors(path, list(map(tokenizer.token, numbers)))
    for table in encoder.word_tables:
        if table.embedding_dim != vectors.width:
            raise ConfigError(
                f"{name}: the vectors of {path} have width {vectors.width}, but those of {kind} "
                f"{table.embedding_dim}. Set `d_words` (of a model without it `d_model`), or name "
                "another file."
            )
    if not len(vectors.ids):
        problem = f"has none of the {vectors.words:,} words of the vocabulary."
        raise DataError(path, None, problem, "Is it of another language?")
    return replace(vectors, ids=torch.tensor(numbers)[vectors.ids])


@torch.no_grad()
def put(pretrained: PretrainedVectors, table: nn.Embedding) -> None:
    """Write pretrained vectors, (N, D), into a table, (V, D).

    Words that the file lacks keep their random vectors, scaled to the root mean square of those
    that it has (Kim 2014, section 4.3, asks for the same variance).
    """
    weight = table.weight
    others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    others[pretrained.ids.to(weight.device)] = False
    size = weight[others].square().mean().sqrt()
    if size > 0:  # NaN where there are no others
        weight[others] *= pretrained.vectors.square().mean().sqrt().to(weight.device) / size
    weight[~others] = pretrained.vectors.to(weight)


def labelled(
    model: EncoderWithHeads, kind: str, labels: Sequence[str]
) -> tuple[EncoderWithHeads, tuple[str, ...], list[str]]:
    """A model with a head for these labels, the labels in the order of its outputs, and remarks.

    The model's own head is kept, with its order, if it has all of these labels; otherwise the model
    gets a new head, even for the same number of labels.
    """
    own_labels = model.labels if kind in model.heads else ()
    if own_labels and {*labels} <= {*own_labels}:
        unseen = [label for label in own_labels if label not in labels]
        remark = f"The model's own head stays; the training data has no example of {_some(unseen)}."
        return model.with_head(kind, len(own_labels)), own_labels, [remark] if unseen else []
    missing = [label for label in labels if label not in own_labels]
    remark = (
        f"The model's own head answers {_some(own_labels)}, but not {_some(missing)}: a new head "
        f"is begun for {_some(labels)}."
    )
    remarks = [remark] * bool(own_labels) + look_alikes(labels)
    return model.with_new_head(kind, len(labels)), tuple(labels), remarks


def look_alikes(labels: Sequence[str]) -> list[str]:
    """A remark for each group of labels that differ only in white space around them, in characters
    without width, or as composed and decomposed letters.
    """
    groups = defaultdict[str, list[str]](list)
    for label in labels:
        visible = "".join(c for c in label if unicodedata.category(c) not in ("Cf", "Cc"))
        groups[unicodedata.normalize("NFC", visible.strip())].append(label)
    return [
        f"{', '.join(map(ascii, group))} are different labels, but look alike: clean the data."
        for group in groups.values()
        if len(group) > 1
    ]


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """The fields of config.json in which other libraries look for labels."""
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def index_of_label(indices: Mapping[str, int], label: str, file: str, line: int) -> int:
    """The index of a label that stands in this line of a file.

    Raises:
        DataError: it is none of them.
    """
    if label not in indices:
        labels = _some(list(indices))
        raise DataError(file, line, f"has the label {label!r}, which is none of: {labels}.")
    return indices[label]


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(map(repr, labels[:10]))
    return f"{shown} and {len(labels) - 10:,} more" if len(labels) > 10 else shown


def headed(model: nn.Module) -> EncoderWithHeads:
    """A model as an encoder with its heads; of BART and T5 that with their weights.

    Raises:
        ConfigError: the model is not an encoder.
    """
    if isinstance(model, EncoderWithHeads):
        return model
    if not isinstance(model, Encoder) and (encoder := as_encoder(model)) is not None:
        model = encoder
    if not isinstance(model, Encoder):
        raise ConfigError(
            f"{type(model).__name__} is no encoder: this task reads hidden states of a whole text. "
            "Choose a model such as bert, or start from a folder that holds one."
        )
    return EncoderWithHeads(model, {})


# role -> the special token that is added; padding only where the tokenizer has none
SPECIAL_TOKENS = {"bos": "[START]", "sep": "[DELIMITER]", "cls": "[EXTRACT]", "pad": "[PAD]"}


def transformed(
    model: EncoderWithHeads, tokenizer: Tokenizer, source: EncoderWithHeads
) -> tuple[EncoderWithHeads, Tokenizer]:
    """A causal model and its tokenizer with special tokens around texts; others as they are.

    If the tokenizer already defines these special tokens they are reused. A model that keeps the
    head of its `source` keeps its own input format, with which the head was trained.
    """
    kept_heads = set(model.heads.values()) & set(source.heads.values())
    if not model.encoder.adds_special_tokens or kept_heads:
        return model, tokenizer
    template, ids = tokenizer.template, (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id)
    if None in ids or (template is not None and template.special_count(2) <= 2):
        roles = {role: token for role, token in SPECIAL_TOKENS.items() if role != "pad"}
        tokenizer = tokenizer.with_roles(SPECIAL_TOKENS if tokenizer.pad_id is None else roles)
        tokenizer = tokenizer.with_template(model.encoder.template(tokenizer))
    special = {"bos": tokenizer.bos_id, "pad": tokenizer.pad_id}
    return with_vocabulary(model, tokenizer.vocab_size, **special), tokenizer


class TeacherSection(Options):
    """[teacher]"""

    path: ModelSource
    """A model's folder, or its name on the hub."""


class MaskedTeacherSection(TeacherSection):
    """[teacher]: a trained model whose distributions the student learns. The weights are those of
    DistilBERT's program, divided
    by its weight of the masked words' own loss, which is 1 here; the paper states none.
    """

    temperature: float = Field(default=2.0, gt=0)
    """Divides the logits of teacher and student."""
    soft_weight: float = Field(default=2.5, ge=0)
    """The weight of the divergence from the teacher's distributions at the chosen tokens."""
    cosine_weight: float = Field(default=0.5, ge=0)
    """The weight of 1 - the cosine between the hidden states of both last layers, at every
    token."""


class ScoresTeacherSection(TeacherSection):
    """[teacher]: a trained model whose scores the student learns."""

    temperature: float = Field(default=2.0, gt=0)
    """Divides the logits of teacher and student; without effect on numbers."""
    soft_weight: float = Field(default=0.5, ge=0, le=1)
    """The weight of the loss against the teacher's scores; that against the targets has the rest
    of 1."""


def weights_digest(module: nn.Module) -> Any:
    """The SHA-256 of the names and the bytes of weights, which can be updated further."""
    digest = hashlib.sha256()
    for name, weight in module.state_dict().items():
        digest.update(name.encode())
        if isinstance(weight, Tensor):
            # Flat, since a weight without a dimension has no view of its bytes.
            digest.update(weight.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest


@dataclass(frozen=True)
class Teacher:
    """A model that is only read, and its tokenizer."""

    model: EncoderWithHeads
    tokenizer: Tokenizer

    @classmethod
    def read(cls, section: TeacherSection, student: nn.Module) -> Self:
        """The teacher of a recipe, on the device of the student.

        Raises:
            CheckpointError, ConfigError: the folder cannot be read, or holds no encoder.
        """
        from regard.checkpoints.model_folder import open_folder, read_model

        model = headed(read_model(section.path)).to(device_of(student))
        tokenizer = open_folder(section.path).tokenizer()
        return cls(model.eval().requires_grad_(False), tokenizer)

    def identity(self) -> dict[str, str]:
        """The SHA-256 (hex) of its weights: a resumed run must have the same teacher."""
        return {"teacher": weights_digest(self.model).hexdigest()}

    def check_head(self, kind: str, advice: str) -> None:
        """Raise a ConfigError, which ends with what to do, if it has no head of this kind."""
        if kind not in self.model.heads:
            has = ", ".join(self.model.heads) or "none"
            raise ConfigError(f"[teacher] it has no head {kind!r} (its heads: {has}). {advice}")

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Check that teacher and student have the same tokens under the same ids.

        Raises:
            ConfigError: they have not: the teacher would read other texts than the student.
        """
        if self.tokenizer.vocab() == tokenizer.vocab():
            return
        raise ConfigError(
            f"[teacher] its tokenizer has {self.tokenizer.vocab_size:,} tokens and the student's "
            f"{tokenizer.vocab_size:,}, and these are not the same under the same ids. Give "
            'the student the tokenizer of the teacher: [tokenizer] path = "the teacher\'s folder".'
        )

    def check_width(self, student: EncoderWithHeads, option: str) -> None:
        """Check that the hidden states of both have one width.

        Raises:
            ConfigError: they have not.
        """
        widths = student.config.d_model, self.model.config.d_model
        if widths[0] != widths[1]:
            raise ConfigError(
                f"[teacher] {option} compares hidden states {widths[0]} wide with the teacher's, "
                f"which are {widths[1]} wide. Give the student the width of the teacher."
            )

    def check_length(self, longest: int | None) -> None:
        """Check that it reads the student's texts of up to `longest` tokens; None: of any length.

        Raises:
            ConfigError: it reads fewer.
        """
        limit = self.model.config.max_length
        if limit is None or (longest is not None and longest <= limit):
            return
        texts = "of any length" if longest is None else f"of up to {longest:,} tokens"
        raise ConfigError(
            f"[teacher] it reads at most {limit:,} tokens, but the student's texts are {texts}. "
            f"Shorten them: [data] max_length = {limit}."
        )


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 times the sum of KL(teacher || student), both at this temperature, in nats.

    The square keeps the gradient's size independent of T (Hinton et al. 2015, section 2).

    student, teacher: (N, V) logits. Where one has more of them, they are those of rows that fill up
    its embedding and are no token; they are left out.
    """
    size = min(student.size(-1), teacher.size(-1))
    teacher_log_probs = (teacher[..., :size].float() / temperature).log_softmax(-1)
    student_log_probs = (student[..., :size].float() / temperature).log_softmax(-1)
    total = F.kl_div(student_log_probs, teacher_log_probs, reduction="sum", log_target=True)
    return total * temperature**2


def tokens_of(hidden: Tensor, keep: Tensor, count: int) -> Tensor:
    """The rows of (B, T, D) where `keep` (B, T) is true, which are `count`: (N, D).

    The count is known on the CPU, so that no other device is waited for.
    """
    index = torch.nonzero_static(keep.flatten(), size=count)[:, 0]
    return hidden.flatten(0, 1).index_select(0, index)


@dataclass(frozen=True)
class MaskedTeacher:
    """The teacher of a masked language model, and the weights of its losses."""

    teacher: Teacher
    section: MaskedTeacherSection

    @classmethod
    def of(
        cls,
        section: MaskedTeacherSection,
        student: EncoderWithHeads,
        tokenizer: Tokenizer,
        longest: int | None,
    ) -> Self:
        """The teacher of a recipe.

        longest: tokens of the student's texts, at most.

        Raises:
            ConfigError: it has no head for masked words, another tokenizer, or another width, or
                reads shorter texts.
        """
        teacher = Teacher.read(section, student)
        teacher.check_head("masked_lm", 'Without it, it teaches vectors: task = "embedding".')
        teacher.check_vocabulary(tokenizer)
        if section.cosine_weight:
            teacher.check_width(student, "`cosine_weight`")
        teacher.check_length(longest)
        return cls(teacher, section)

    @property
    def encoder(self) -> Encoder:
        """The teacher's."""
        return self.teacher.model.encoder

    def identity(self) -> dict[str, str]:
        return self.teacher.identity()

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """The items of each loss against the teacher: chosen tokens, and all tokens."""
        cosine = {"cosine": int(batch.texts.lengths.sum())} if self.section.cosine_weight else {}
        return {"soft": batch.count, **cosine}

    def losses(
        self,
        student: EncoderWithHeads,
        hidden: Tensor,
        batch: MaskedBatch,
        teacher_texts: Sequences,
        counts: Mapping[str, int],
    ) -> Losses:
        """The loss of the masked words themselves, and both weighted losses against the teacher:
        each as a sum over its items, and their number.

        hidden: the student's states of the last layer, (B, T, D).  batch: padded, as the student
        reads it.  teacher_texts: its texts as the teacher reads them.  counts: of the items of each
        loss.
        """
        model, section = self.teacher.model, self.section
        chosen, keep = batch.labels != IGNORE, batch.texts.keep  # (B, T)
        chosen_of = partial(tokens_of, keep=chosen, count=counts["loss"])
        with torch.no_grad():
            teacher_states = model.encoder.encode(teacher_texts)  # (B, T, D)
            teacher_logits = model.masked_lm.logits(chosen_of(teacher_states))  # (M, V)
        student_logits = student.masked_lm.logits(chosen_of(hidden))
        labels = chosen_of(batch.labels[..., None])[:, 0]  # (M,)
        losses = {
            "loss": F.cross_entropy(student_logits.float(), labels, reduction="sum"),
            "soft": section.soft_weight
            * soft_loss(student_logits, teacher_logits, section.temperature),
        }
        if section.cosine_weight:
            both = hidden, teacher_states
            of_student, of_teacher = (
                tokens_of(states, keep, counts["cosine"]).float() for states in both
            )
            cosines = F.cosine_similarity(of_student, of_teacher, dim=-1)
            losses["cosine"] = section.cosine_weight * (1 - cosines).sum()
        return {name: (total, counts[name]) for name, total in losses.items()}


@dataclass(frozen=True)
class SoftTargets:
    """The scores that a teacher's head gives the training examples, as further targets.

    scores: (N, O), in the order of the student's outputs.
    """

    scores: Tensor
    section: ScoresTeacherSection
    teacher: Teacher

    def identity(self) -> dict[str, str]:
        return self.teacher.identity()

    def mixed(self, hard: Tensor, scores: Tensor, examples: Tensor, *, classes: bool) -> Tensor:
        """The weighted sum of a batch's loss against its targets and that against the teacher.

        hard: the loss against the targets, summed over the batch.  scores: the student's, (B, O).
        examples: their indices in the training data, (B,).  classes: whether scores are logits of
        classes; otherwise they are numbers, whose squared differences are summed.
        """
        teacher_scores = self.scores[examples.cpu()].to(scores.device)
        if classes:
            soft = soft_loss(scores, teacher_scores, self.section.temperature)
        else:
            soft = F.mse_loss(scores.float(), teacher_scores, reduction="sum")
        weight = self.section.soft_weight
        return (1 - weight) * hard + weight * soft
