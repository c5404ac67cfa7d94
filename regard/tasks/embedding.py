"""Vectors of texts from an encoder without a head, compared by their cosine.

Texts are pooled as sentence-transformers does. Vectors are scored by the correlation of their
cosines with human judgements of pairs of sentences, or by searches whose answers are known. An
encoder is trained by pairs, triplets and scored pairs (`regard.tasks.embedding_losses`), or by the
vectors of a teacher; one that is trained in another task (classification, regression) gives vectors
too.

Texts of a batch pass through the encoder together, without padding on a CPU. A batch of more than
`max_tokens_per_batch` tokens passes in parts, of which the vectors alone are kept: the backward
pass computes each part again, so that the gradient is that of the whole batch (GradCache: Gao et
al. 2021, section 3.2).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.checkpoints.model_folder import open_folder
from regard.checkpoints.sentence_transformers import read_pooling
from regard.data import RowReader, Sequences
from regard.data.batches import Losses, moved
from regard.data.encoder_inputs import EncodedInputs, GroupedInputs
from regard.data.in_memory import columns_of_part, is_path, plain_names
from regard.data.readers import ReadReport
from regard.data.sampler import cut
from regard.decoding.steps import evaluating
from regard.errors import ConfigError, DataError
from regard.habit_names import TARGETS
from regard.layers.pooling import Pooling
from regard.metrics import Pearson, Scores, Spearman
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.recipe import Recipe
from regard.tasks import sections
from regard.tasks.batching import TooLong, device_of, watched
from regard.tasks.embedder import TextEncoder, VectorBatches, as_text
from regard.tasks.embedding_losses import SCORED, EmbeddingObjective, ExampleVectors
from regard.tasks.encoder_training import Teacher, TeacherSection, headed, tokens_of
from regard.tasks.encoding import EncoderTask, Part, Parts, input_format_of, kept_examples
from regard.tasks.inputs import as_list
from regard.tasks.retrieval import Pair, SearchData, is_scored, pair_rows, pairs_in, texts_in
from regard.tasks.task import EmbedOptions, Prediction, PredictsAs, Task
from regard.text import Tokenizer

CORRELATIONS = ("pearson", "spearman")
SEARCH_SCORES = ("ndcg@10", "mrr@10")


class VectorsData(sections.TableOptions, sections.EncoderData):
    """[data]: pairs of texts with negatives or with a number; of a [teacher] any texts.

    A batch has `batch_size` examples, however long; `max_tokens_per_batch` limits the tokens that
    pass through the encoder together.
    """

    columns: tuple[int | str, ...] = ()
    """The anchor, the positive and any negatives, of which one column may hold a list; or two texts
    and a number. Without it, those with usual names in the header. With a [teacher] each column
    holds texts of its own."""

    def read(self, source: Any, part: str) -> RowReader:
        """The texts of each row of a file; of validation and test data without negatives."""
        return self.table(source, columns_of_part(self.columns, part))

    def with_named_columns(self) -> Self:
        with suppress(ConfigError):  # is raised again where the rows are read
            return sections.with_columns_of_header(self)
        return self

    def texts(self) -> Any:
        """The training texts, from which a tokenizer learns."""
        rows = self.records("train")
        numbered = rows.numbered()
        return chain.from_iterable(texts_in(rows, row, line, row) for line, row in numbered)


class VectorsRecipe(sections.EncoderRecipe):
    """A recipe's sections besides [model] and [training]."""

    data: VectorsData
    objective: EmbeddingObjective = EmbeddingObjective()
    teacher: TeacherSection | None = None


@dataclass(frozen=True)
class ExamplesPart(Part):
    """Examples of pairs. targets: (N,), their numbers."""

    pairs: Sequence[Pair]


@dataclass(frozen=True)
class VectorPrediction(Prediction):
    """The vector of a text."""

    vector: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join(f"{number:.7g}" for number in self.vector)


class Embedder(EncoderTask):
    """A vector for a text.

    module: an encoder, with heads or without.
    """

    name = "embedding"
    prediction_type = VectorPrediction
    predict: PredictsAs[str, np.ndarray, np.ndarray, VectorPrediction]
    commands = ("embed", "predict", "evaluate", "look")
    library = "sentence-transformers"
    pipeline = "feature-extraction"
    file_ending = "csv"
    Recipe: ClassVar[type[Recipe] | None] = VectorsRecipe
    goal = ("loss", "min")
    score_options = ("teacher.path",)
    metric_names = ("loss", "cosine")
    # in training alone
    teacher: Teacher | None = None
    teacher_limit: int | None = None
    objective = EmbeddingObjective()
    budget = 0  # the most tokens that pass through the encoder together

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Tokenizer,
        *,
        kinds: Sequence[str] = ("mean",),
        normalize: bool = False,
        max_length: int | None = None,
    ):
        super().__init__(headed(module), tokenizer, max_length=max_length)
        self.kinds, self.normalize = tuple(kinds), normalize
        self.pooling = Pooling(self.kinds, normalize, self.max_length)

    def text_encoder(self) -> TextEncoder:
        """The encoder, and how it pools a text."""
        return TextEncoder(self.encoder, self.input_format, self.pooling)

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether the model is an encoder, with heads or without."""
        return isinstance(model, EncoderWithHeads) or cls.trains(type(model))

    @classmethod
    def is_for(cls, model: nn.Module, config: Mapping[str, Any]) -> bool:
        """Whether the model is an encoder without the head of a task."""
        return isinstance(model, EncoderWithHeads) and {*model.heads} <= {"pooler"}

    # ---- training

    @classmethod
    def from_recipe(cls, recipe: Any, model: nn.Module, tokenizer: Tokenizer) -> Self:
        """The task with its texts, and their numbers or the vectors that a teacher gives them.

        Raises:
            ConfigError: the model is not an encoder, or has another width than the teacher or fewer
                dimensions than `matryoshka` asks for.
            DataError: a file cannot be read, has no text, or is not what the loss learns from.
        """
        student = EncoderWithHeads(headed(model).encoder, {})
        pooling = _pooling_of(recipe)
        task = cls(
            student,
            tokenizer,
            kinds=pooling.kinds,
            normalize=pooling.normalize,
            max_length=recipe.data.max_length,
        )
        if recipe.teacher is None:
            task._learn_from_examples(recipe)
        else:
            task._learn_from_teacher(recipe, pooling.max_length)
        return task

    def _learn_from_teacher(self, recipe: Any, max_length: int | None) -> None:
        """Read texts, and have the teacher embed them. max_length: of its folder."""
        data = recipe.data
        self.teacher, self.teacher_limit = Teacher.read(recipe.teacher, self.module), max_length
        self.teacher.check_width(self.module, "the loss")
        valid = None if data.valid is None else self._part(data.records("valid"), data)
        self.parts = Parts(self._part(data.records("train"), data), valid, data, recipe.seed)

    def _learn_from_examples(self, recipe: Any) -> None:
        """Read pairs; what they are decides the loss where the recipe does not name it."""
        data, objective = recipe.data, recipe.objective
        largest, width = max(objective.matryoshka, default=0), self.module.config.d_model
        if largest > width:
            raise ConfigError(f"[objective] `matryoshka` must be at most {width}, not {largest}.")
        first = next(iter(data.records("train")))
        scored = is_scored(first)
        loss = objective.loss or ("cosent" if scored else "multiple-negatives-ranking")
        if scored and loss not in SCORED:
            problem = f"has a number in the third field, which would be a text for {loss}."
            hint = 'Take loss = "cosent", or name the columns of texts alone.'
            raise DataError(data.train, None, problem, hint)
        if loss == "triplet" and len(first) < 3:
            problem = "has no triplets of an anchor, a positive and a negative."
            raise DataError(data.train, None, problem, "Name three columns, or take another loss.")
        self.objective = objective.model_copy(update={"loss": loss})
        self.budget = data.max_tokens_per_batch
        self.metric_names = CORRELATIONS if loss in SCORED else SEARCH_SCORES
        self.goal = self.metric_names[-1] if loss in SCORED else "ndcg@10", "max"
        valid = None if data.valid is None else self._examples(data, "valid")
        whole = data.model_copy(update={"max_tokens_per_batch": sys.maxsize})
        self.parts = Parts(self._examples(data, "train"), valid, whole, recipe.seed)

    def _examples(self, data: VectorsData, part: str) -> ExamplesPart:
        """The examples of a part with the numbers of scored pairs, (N,), otherwise zeros.

        Raises:
            DataError: a row is not what the loss learns from, or none is left.
        """
        rows, limits = data.records(part), SCORED.get(str(self.objective.loss))
        of_triplets = part == "train" and self.objective.loss == "triplet"
        report, pairs, texts = ReadReport((rows.name,)), list[Pair](), list[list[str]]()
        for pair in pairs_in(rows, scored=limits is not None):
            report.read += 1
            if limits is not None and not limits[0] <= pair.score <= limits[1]:
                problem = f"has the number {pair.score:g}, but this loss takes {limits[0]:g} to "
                hint = 'Divide the numbers, or take loss = "cosent", which reads their order alone.'
                raise DataError(rows.name, pair.line, f"{problem}{limits[1]:g}.", hint)
            negatives = [text for text in pair.negatives if text.strip()]
            if not (pair.anchor.strip() and pair.positive.strip()) or of_triplets and not negatives:
                report.note("text missing, example left out", pair.line)
                continue
            pairs.append(pair)
            texts.append([pair.anchor, pair.positive, *negatives])
        flat = iter(self.input_format.encode([(text,) for text in chain.from_iterable(texts)]))
        encoded = [list(islice(flat, len(of_pair))) for of_pair in texts]
        counts, lines = [max(map(len, inputs)) for inputs in encoded], [pair.line for pair in pairs]
        indices = kept_examples(counts, self.input_format.max_length, lines, data, report)
        inputs = GroupedInputs.of(
            [[self.input_format.truncate(item) for item in encoded[i]] for i in indices]
        )
        pairs = [pairs[i] for i in indices]
        return ExamplesPart(inputs, torch.tensor([pair.score for pair in pairs]), report, pairs)

    def _part(self, rows: RowReader, data: VectorsData) -> Part:
        """The texts of rows, and the teacher's vectors of them, (N, D).

        Raises:
            DataError: no text is left.
        """
        report, texts, lines = ReadReport((rows.name,)), [], []
        for line, row in rows.numbered():
            report.read += 1
            in_row = texts_in(rows, row, line, row)
            if not (row_texts := [text for text in in_row if text.strip()]):
                report.note("empty, example left out", line)
            texts += row_texts
            lines += [line] * len(row_texts)
        encoded = self.input_format.encode([(text,) for text in texts])
        limit = self.input_format.max_length
        indices = kept_examples(list(map(len, encoded)), limit, lines, data, report)
        vectors = self._teacher_vectors([texts[i] for i in indices], limit)
        inputs = [self.input_format.truncate(encoded[i]) for i in indices]
        return Part(EncodedInputs.of(inputs), vectors, report)

    def _teacher_vectors(self, texts: Sequence[str], max_length: int | None) -> Tensor:
        """The teacher's vectors of texts, (N, D) float32; of longer ones the first `max_length`
        tokens. On the meta device, where nothing is computed, zeros.
        """
        assert self.teacher is not None
        limits = [limit for limit in (max_length, self.teacher_limit) if limit is not None]
        model, tokenizer = self.teacher.model, self.teacher.tokenizer
        format = input_format_of(model, tokenizer, min(limits, default=None))
        embedder = VectorBatches.of(TextEncoder(model.encoder, format, self.pooling))
        if device_of(model).type == "meta":
            return torch.zeros(len(texts), embedder.width)
        return torch.cat([torch.as_tensor(x) for x in embedder.chunks(texts, "truncate")])

    @classmethod
    def problems(cls, recipe: Any) -> sections.Problems:
        """Options without effect, or without what they need."""
        yield from super().problems(recipe)
        objective, columns = recipe.objective, recipe.data.columns
        if recipe.teacher is None:
            loss = objective.loss or "cosent"
            for name in objective.unused(loss):
                yield f"objective.{name}", f"is no option of the loss {loss}. Leave it out."
            return
        names = tuple(EmbeddingObjective.model_fields)
        yield from sections.differing(
            objective, "objective", names, "is of examples without a [teacher]"
        )
        if plain_names(map(str, columns[-1:])) in [[name] for name in TARGETS]:
            yield (
                "data.columns",
                "names a target, but with a [teacher] all are texts. Leave it out.",
            )
        if recipe.data.test is not None:
            yield "data.test", "has no target here. Use: regard evaluate FOLDER FILE"

    def losses(self, batch: Any, carry: None = None) -> tuple[Losses, None]:
        """The objective times the number of examples; of a teacher the sum of the squared distances
        from its vectors. And the number of examples.
        """
        vectors, targets = self._vectors_in_parts(batch.texts), self._parts().train.targets
        of_batch = moved(targets[batch.numbers.cpu()], vectors.device)
        if self.teacher is not None:
            return {"loss": (F.mse_loss(vectors, of_batch, reduction="sum"), len(batch))}, None
        examples = ExampleVectors.of(vectors, batch.sizes, _numbered(batch.texts), of_batch)
        return {"loss": (len(batch) * self.objective.value(examples), len(batch))}, None

    def _vectors_in_parts(self, texts: Sequences) -> Tensor:
        """The vectors of padded texts on the CPU, (N, D) float32, in parts of similar lengths."""
        lengths = texts.lengths.numpy()
        if not self.budget or len(lengths) * texts.width <= self.budget:
            return self._vectors(texts)
        order = np.argsort(-lengths, kind="stable")
        parts = [
            checkpoint(self._vectors, shortened(texts, torch.from_numpy(rows)), use_reentrant=False)
            for rows in cut(order, lengths[None, order], self.budget)
        ]
        return torch.cat(parts)[torch.from_numpy(np.argsort(order)).to(parts[0].device)]

    def _vectors(self, texts: Sequences) -> Tensor:
        """The vectors of padded texts on the CPU, (B, D) float32."""
        count = int(texts.lengths.sum())
        texts = self.module.encoder.complete(texts, self.tokenizer).to(device_of(self.module))
        inputs = self.as_read(texts)
        hidden = self.module.encoder.encode(inputs)  # (B, T, D), or (1, N, D) without padding
        states = (
            tokens_of(hidden, texts.keep, count) if inputs.layout is None else hidden[0, :count]
        )
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        return self.pooling.unpadded(states, texts.lengths)

    def measured(self, valid: Part) -> dict[str, float]:
        """The scores of searches, or of scored pairs the correlations; with a teacher the mean
        squared distance from its vectors, and the mean cosine with them.
        """
        if isinstance(valid, ExamplesPart):
            scores = (
                self._correlations(valid.pairs)
                if self.objective.loss in SCORED
                else SearchData.of_pairs(valid.pairs).scores(self)
            )
            values = [score.value for score in scores.named]
            return dict(zip(self.metric_names, values, strict=False))
        inputs, targets, predicted = valid.inputs, valid.targets, torch.zeros_like(valid.targets)
        with torch.no_grad(), evaluating(self.module):
            for batch in watched(inputs.longest_first(self.input_format.pad, max_tokens=8192)):
                predicted[batch.numbers] = self._vectors(batch.texts).cpu()
        return {
            "loss": float((predicted - targets).square().sum(-1).mean()),
            "cosine": float(torch.cosine_similarity(predicted, targets, dim=-1).mean()),
        }

    samples = Task.samples  # a vector says nothing in a report

    def attention_inputs(self, recipe: Any) -> list[str]:
        return [str(next(iter(row.values()))) for row in recipe.data.samples()]

    # ---- predictions

    def predict(  # type: ignore[no-redef]
        self, texts: Any, *, return_proba: bool = False, **options: Any
    ) -> Any:
        """The vectors of texts, (N, D), or of one text, (D,)."""
        if return_proba:
            return Task.predict(self, texts, return_proba=True, **options)
        return self.embed(texts, **options)

    def checked(self, texts: Any) -> list[Any]:
        """Texts, each as a tuple."""
        return [(as_text(text, index),) for index, text in enumerate(as_list(texts))]

    def _predictions(
        self, texts: Sequence[str], *, too_long: TooLong = "error"
    ) -> list[VectorPrediction]:
        """The vector of each text."""
        vectors = self.embed(texts, too_long=too_long)
        return [VectorPrediction(tuple(row)) for row in vectors.tolist()]

    def rows_to_evaluate(
        self, files: Sequence[Any], columns: Sequence[int | str] = (), delimiter: str | None = None
    ) -> Any:
        """The pairs of a file, or the searches of a folder."""
        if is_path(files[0]) and Path(files[0]).is_dir():
            return SearchData.read(Path(files[0]))
        return pair_rows(files[0], columns, delimiter)

    def evaluate(
        self,
        rows: RowReader | SearchData | Iterable[Sequence[Any]],
        *,
        columns: Sequence[int | str] = (),
        **options: Unpack[EmbedOptions],
    ) -> Scores:
        """Pearson's and Spearman's correlation of cosines with judgements; or nDCG@10, MRR@10 and
        recall of searches.

        rows: (text, text, number); pairs (anchor, positive), of which each anchor searches its
            positives among all; or the searches of a folder of BEIR, by its path.  columns: of a
            table.  options: as of `embed`, such as `truncate_dim`; long texts are truncated.

        Raises:
            DataError: a row has no number in its third field, as the first row has, or is no pair.
        """
        data = rows if isinstance(rows, SearchData) else self.opened(rows, columns)
        if isinstance(data, SearchData):
            return data.scores(self, **options)
        scored = is_scored(next(iter(data)))
        pairs = list(pairs_in(data, scored=scored))
        if scored:
            return self._correlations(pairs, **options)
        return SearchData.of_pairs(pairs).scores(self, **options)

    def _correlations(self, pairs: Sequence[Pair], **options: Unpack[EmbedOptions]) -> Scores:
        """Pearson's and Spearman's correlation of cosines with the numbers of scored pairs."""
        texts = [pair.anchor for pair in pairs], [pair.positive for pair in pairs]
        options = {"too_long": "truncate", **options, "normalize": True}
        cosines = np.einsum("nd,nd->n", *(self.embed(side, **options) for side in texts))
        metrics = Pearson(), Spearman()
        for metric in metrics:
            metric.add(cosines, [pair.score for pair in pairs])
        return Scores(metric.result() for metric in metrics)


def _pooling_of(recipe: Any) -> Pooling:
    """How the vectors of texts are pooled: as the teacher pools its own, by the mean where its
    folder does not say it; otherwise by the options, and as the folder that training starts from.
    """
    if recipe.teacher is not None:
        return read_pooling(recipe.teacher.path) or Pooling()
    pooling, objective = Pooling(normalize=True), recipe.objective
    if sections.starts_from_folder(recipe):
        pooling = read_pooling(open_folder(recipe.model.path).path) or pooling
    kinds = pooling.kinds if objective.pooling is None else (objective.pooling,)
    normalize = pooling.normalize if objective.normalize is None else objective.normalize
    return Pooling(kinds, normalize)


def shortened(texts: Sequences, rows: Tensor) -> Sequences:
    """The padded texts of these indices, as wide as the longest of them."""
    chosen = texts.select(rows)
    width = int(chosen.lengths.max())
    segments = None if chosen.segments is None else chosen.segments[:, :width]
    return replace(chosen, ids=chosen.ids[:, :width], segments=segments)


def _numbered(texts: Sequences) -> Tensor:
    """A number for each padded text, (N,), the same for texts of the same tokens."""
    rows = torch.cat([texts.lengths[:, None], texts.ids.masked_fill(~texts.keep, 0)], 1)
    return rows.unique(dim=0, return_inverse=True)[1]
