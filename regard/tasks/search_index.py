"""Texts with their vectors in a folder, which is searched without embedding the texts again.

index = SearchIndex.build("path/to/model", texts)
index.search("a query", top_k=5)                # [TextMatch(index, score, text), ...]
index.save("index")
SearchIndex.load("index").search("a query")     # opens the model as well

    index.json      the model, the SHA-256 of its weights, the options of its vectors
    vectors.npy     (N, D) float32, of length 1
    texts.jsonl     a text in each line
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from regard.errors import CheckpointError, ConfigError, check_at_least
from regard.file_writing import creating, write_json
from regard.layers.quantized import WeightType
from regard.schema import read_json, read_text, to_json
from regard.tasks import inputs
from regard.tasks.batching import TooLong
from regard.tasks.embedder import EmbedsTexts, TextMatch, best_matches, products
from regard.tasks.encoder_training import weights_digest
from regard.tasks.folders import Model, as_task, load
from regard.tasks.retrieval import SearchData, pair_rows, pairs_in
from regard.tasks.task import Task

FACTS, VECTORS, TEXTS = "index.json", "vectors.npy", "texts.jsonl"
LARGEST_TEXTS = 2**34  # bytes of the file of texts


@dataclass(frozen=True)
class IndexFacts:
    """The content of index.json.

    model: the folder or the name of the model; "" where it was only in memory.
    quantize: as of `regard.load`, for the model that made the vectors.
    sha256: of the weights and the tokenizer of that model.
    options: of its `embed`.
    """

    model: str
    quantize: WeightType | None
    sha256: str
    options: dict[str, Any]


@dataclass(frozen=True)
class SearchIndex:
    """Texts with their vectors, and the model that embeds queries.

    vectors: (N, D) float32, of length 1.
    """

    model: EmbedsTexts
    texts: Sequence[str]
    vectors: np.ndarray
    facts: IndexFacts

    def __repr__(self) -> str:
        return f"SearchIndex({len(self.texts):,} texts, model={self.facts.model!r})"

    @classmethod
    def build(
        cls,
        model: str | Path | Task,
        texts: Any,
        *,
        source: str | Path = "",
        quantize: WeightType | None = None,
        device: str | None = None,
        too_long: TooLong = "error",
        **options: Any,
    ) -> Self:
        """Embed texts.

        Args:
            model: a folder or a name, or what `regard.load` gave.
            texts: a list of texts; no search returns blank ones.
            source: the folder or the name that a loaded model came from, and will be opened again
                from; "": whoever opens the index has to name the model.
            quantize, device: as of `regard.load`; a loaded model has them already.
            too_long, options: as of `embed`; vectors have length 1.

        Raises:
            ConfigError: the model gives no vectors of texts, or as of `embed`.
            RegardError: a text is longer than the model reads and `too_long` is "error".
        """
        if not isinstance(model, Task):
            source, model = model, load(model, quantize=quantize, device=device)
        embeds, listed = _embedding(model), inputs.as_list(texts)
        inputs.warn_of_blank_texts(listed, "a search leaves them out")
        vectors = embeds.embed(listed, too_long=too_long, **{**options, "normalize": True})
        if source and Path(source).exists():
            source = Path(source).absolute()
        facts = IndexFacts(str(source), quantize, checksum(model), options)
        return cls(embeds, listed, vectors, facts)

    def search(self, query: Any, top_k: int = 10, *, too_long: TooLong = "error") -> Any:
        """The `top_k` texts with the largest cosines, best first; of a list of queries a list.

        Raises:
            ConfigError: `top_k` is below 1.
            RegardError: a query is not a text, or is longer than the model reads.
        """
        check_at_least(1, top_k=top_k)
        queries = [query] if isinstance(query, str) else inputs.as_list(query)
        options = {**self.facts.options, "normalize": True}
        cosines = products(self.model.embed(queries, too_long=too_long, **options), self.vectors)
        matches = [best_matches(row, self.texts, top_k) for row in cosines]
        return matches[0] if isinstance(query, str) else matches

    def save(self, folder: str | Path) -> None:
        """Write the index into a new folder.

        Raises:
            CheckpointError: there is such a folder already, or it cannot be written.
        """
        with creating(Path(folder)) as temporary:
            temporary.mkdir()
            np.save(temporary / VECTORS, self.vectors)
            with (temporary / TEXTS).open("w", encoding="utf-8") as file:
                file.writelines(to_json(text) + "\n" for text in self.texts)
            write_json(temporary / FACTS, asdict(self.facts))

    @classmethod
    def load(
        cls, folder: str | Path, model: str | Path | Task | None = None, device: str | None = None
    ) -> Self:
        """Open an index and its model.

        Args:
            model: the model, if it is no longer where it was when the index was made.
            device: of the model.

        Raises:
            CheckpointError: the folder holds no index, or the model has changed since then.
            ConfigError: the index does not know where its model is.
        """
        folder = Path(folder)
        if not (folder / FACTS).is_file():
            raise CheckpointError(
                f"{folder} holds no index: there is no {FACTS}. Make one with regard embed MODEL "
                f"FILE --out {folder}"
            )
        facts = read_json(folder / FACTS, IndexFacts)
        source = model if model is not None else facts.model
        if not source:
            raise ConfigError(
                f"{folder} was made by a model that was only in memory. Name it: --model MODEL, "
                "or `model` in Python."
            )
        task: Any = source
        if not isinstance(source, Task):
            task = load(source, quantize=facts.quantize, device=device)
        if checksum(task) != facts.sha256:
            raise CheckpointError(
                f"{folder} was made by another model, or the weights have changed since then. Make "
                f"the index again: regard embed MODEL FILE --out {folder} --force"
            )
        vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
        lines = read_text(folder / TEXTS, max_bytes=LARGEST_TEXTS, error=CheckpointError)
        texts = [json.loads(line) for line in lines.split("\n")[:-1]]
        return cls(_embedding(task), texts, vectors, facts)


def checksum(task: Task) -> str:
    """SHA-256 of the weights and of the tokenizer."""
    digest = weights_digest(task.module)
    digest.update(task.tokenizer.fingerprint().encode())
    return digest.hexdigest()


def _embedding(task: Task) -> EmbedsTexts:
    task.require("embed", "this model", f"A model of {task.name} gives no vectors of texts.")
    return cast(EmbedsTexts, task)


def search(
    model: Model | SearchIndex,
    query: str,
    texts: Sequence[str] | None = None,
    top_k: int = 5,
    **options: Any,
) -> list[TextMatch]:
    """The texts most similar to a query by the cosine of their vectors, the best first.

        regard.search("path/to/model", "a query", texts)
        regard.search("index", "a query")       # the folder of a `SearchIndex`

    Args:
        model: a model, or an index; either may be a folder.
        texts: what is searched; an index has its own.
        options: further arguments of the method `search`.

    Raises:
        ConfigError: texts are missing, or are given beside those of an index.
    """
    if isinstance(model, str | PathLike) and (Path(model) / FACTS).exists():
        model = SearchIndex.load(Path(model))
    if isinstance(model, SearchIndex) != (texts is None):
        raise ConfigError("Give the texts to search, or an index, which has its own texts.")
    own_texts = () if texts is None else (texts,)
    searched: Any = model if isinstance(model, SearchIndex) else as_task(model)
    matches: list[TextMatch] = searched.search(query, *own_texts, top_k=top_k, **options)
    return matches


def mine_negatives(
    model: Model,
    pairs: Any,
    *,
    corpus: Sequence[str] = (),
    num_negatives: int = 3,
    range_min: int = 0,
    range_max: int = 100,
    relative_margin: float | None = None,
    columns: Sequence[int | str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Hard negatives for pairs: texts that a model finds similar to an anchor, but that are none of
    its positives (Karpukhin et al. 2020, section 3.2).

        regard.train(task="embedding", train=regard.mine_negatives(model, "pairs.csv"), ...)

    Args:
        pairs: a file, or rows in memory, of anchors and positives.
        corpus: texts that are searched beside all positives.
        num_negatives: the most of an anchor; with fewer or none the pair stays.
        range_min, range_max: which ranks of its search, without its positives, are negatives: from
            `range_min`, from 0, to before `range_max`. The first ones may be true positives.
        relative_margin: the cosine of a negative is at most 1 - `relative_margin` times that of the
            positive.
        columns: of the anchors and the positives in a table; (): chosen by their names.
        options: of `embed`.

    Returns:
        Rows with "anchor", "positive" and "negatives", a list.

    Raises:
        ConfigError: an option is out of its range; the model gives no vectors.
        DataError: the pairs cannot be read.
    """
    check_at_least(1, num_negatives=num_negatives, range_max=range_max - range_min)
    rows = pair_rows(pairs, columns)
    distinct = {(pair.anchor, pair.positive): pair for pair in pairs_in(rows, scored=False)}
    relevant = SearchData.of_pairs(distinct.values()).relevant
    texts = list(dict.fromkeys([positive for _, positive in distinct] + list(corpus)))
    index = SearchIndex.build(as_task(model), texts, **options)
    most = range_max + 1 + max(map(len, relevant.values()))  # its positives and itself are left out
    cosines = {
        anchor: {match.text: match.score for match in matches}
        for anchor, matches in zip(relevant, index.search(list(relevant), most), strict=True)
    }
    mined = []
    for anchor, positive in distinct:
        ranked, most_alike = cosines[anchor], np.inf
        if relative_margin is not None:  # a positive below all that was found leaves none
            most_alike = (1 - relative_margin) * ranked.get(positive, -np.inf)
        others = [text for text in ranked if text not in relevant[anchor] and text != anchor]
        chosen = [text for text in others[range_min:range_max] if ranked[text] <= most_alike]
        negatives = chosen[:num_negatives]
        mined.append({"anchor": anchor, "positive": positive, "negatives": negatives})
    return mined
