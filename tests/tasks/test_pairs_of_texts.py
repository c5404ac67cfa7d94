"""Training on pairs, triplets and scored pairs, and searches, against sentence-transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from recipe_files import written
from sklearn.metrics import ndcg_score
from tiny_folders import TEXT, folder

import regard
from regard.checkpoints import model_folder
from regard.errors import ConfigError, DataError
from regard.experiments import runs
from regard.metrics.retrieval import Retrieval
from regard.tasks.embedding import Embedder
from regard.tasks.embedding_losses import LOSSES, SCORED, ExampleVectors

theirs = pytest.importorskip("sentence_transformers", reason="its losses are compared with")
from sentence_transformers.sentence_transformer import evaluation, losses  # noqa: E402

WORDS = " ".join(TEXT).replace(" .", "").split()
THEIRS = {
    "multiple-negatives-ranking": losses.MultipleNegativesRankingLoss,
    "triplet": losses.TripletLoss,
    "cosine-similarity": losses.CosineSimilarityLoss,
    "cosent": losses.CoSENTLoss,
    "angle": losses.AnglELoss,
}
DISTANCES = losses.TripletDistanceMetric
# loss, our options, theirs
CASES = [(name, {}, {}) for name in LOSSES] + [
    ("multiple-negatives-ranking", {"scale": 50.0}, {"scale": 50.0}),
    ("multiple-negatives-ranking", {"matryoshka": [16, 6]}, {}),
    ("cosent", {"matryoshka": [6, 16], "scale": 5.0}, {"scale": 5.0}),
    ("triplet", {"margin": 0.4, "distance": "cosine"}, {"triplet_margin": 0.4}),
]


def text(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))


def rows(loss: str, count: int = 12, seed: int = 1) -> list[tuple[object, ...]]:
    """Examples of a loss: a pair with a number, a triplet, or a pair with two negatives."""
    draw = random.Random(seed)
    ends = {name: lambda: (round(draw.random(), 1),) for name in SCORED}
    ends["triplet"] = lambda: (text(draw),)
    end = ends.get(loss, lambda: (text(draw), text(draw)))
    return [(text(draw), text(draw), *end()) for _ in range(count)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A tiny BERT without dropout, as sentence-transformers saves it."""
    path = folder(tmp_path_factory.mktemp("bert") / "plain", "bert", "Model")
    config = json.loads((path / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (path / "config.json").write_text(json.dumps(config))
    return path


def planned(path: Path, bert: Path, data: list[tuple[object, ...]], **objective):
    """The task of a recipe on rows, whose only batch has all of them."""
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(dict(enumerate(row))) + "\n" for row in data))
    columns = [str(number) for number in range(len(data[0]))]
    tables = {
        "model": {"path": str(bert)},
        "data": {"train": str(file), "columns": columns, "batch_size": len(data)},
        "objective": objective,
    }
    recipe = written(path / "recipe.toml", {"task": "embedding"}, tables)
    return runs.plan(runs.read_recipe(recipe)).task


def gradients(module) -> dict[str, torch.Tensor]:
    """By the names of the published weights."""
    for weight in module.parameters():
        weight.data = torch.zeros_like(weight) if weight.grad is None else weight.grad
    return model_folder.exported(module)[1]


@pytest.mark.parametrize("loss, ours, of_theirs", CASES, ids=str)
def test_losses_and_gradients_equal_those_of_sentence_transformers(
    bert, tmp_path, loss, ours, of_theirs
):
    data = rows(loss)
    task = planned(tmp_path, bert, data, loss=loss, **ours)
    runs.save(task, tmp_path / "saved")
    model = theirs.SentenceTransformer(str(tmp_path / "saved"), device="cpu").double()
    distance = {"distance_metric": DISTANCES.COSINE} if "distance" in ours else {}
    objective = THEIRS[loss](model, **of_theirs, **distance)
    if "matryoshka" in ours:
        objective = losses.MatryoshkaLoss(model, objective, ours["matryoshka"])
    batch = next(task.train_batches())
    ordered = [data[number] for number in batch.numbers.tolist()]
    columns = list(zip(*ordered, strict=True))
    labels = torch.tensor(columns.pop() if loss in SCORED else [0] * len(data)).double()
    features = [model.preprocess(list(column)) for column in columns]
    expected = objective(features, labels)
    expected.backward()

    task.module.double().train()
    total, count = task.losses(batch)[0]["loss"]
    assert count == len(data) == task.counts(batch)["loss"]
    torch.testing.assert_close(total / count, expected, atol=1e-5, rtol=1e-5)
    (total / count).backward()
    of_ours = gradients(task.module)
    assert of_ours["embeddings.word_embeddings.weight"].abs().max() > 1e-3
    for name, weight in model[0].model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(of_ours[name], weight.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("budget", [40, 64])
def test_a_batch_in_parts_has_the_loss_and_the_gradient_of_the_whole(
    bert, tmp_path, monkeypatch, budget
):
    values, sizes, vectors_of = [], [], Embedder._vectors
    monkeypatch.setattr(
        Embedder, "_vectors", lambda *args: sizes.append(args[1].ids.numel()) or vectors_of(*args)
    )
    for most in (0, budget):
        task = planned(tmp_path, bert, rows("multiple-negatives-ranking"), matryoshka=[16, 4])
        task.module.double().train()
        task.budget = most
        total, _ = task.losses(next(task.train_batches()))[0]["loss"]
        total.backward()
        assert total.dtype == torch.float64
        values.append({"loss": total.detach(), **gradients(task.module)})
    whole, parts = values
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=1e-12, rtol=1e-12)
    once, *several = sizes  # each part is computed forward and backward
    assert once > budget and max(several) <= budget and len(several) % 2 == 0


def test_equal_texts_of_a_batch_are_no_negatives():
    vectors = torch.nn.functional.normalize(torch.randn(9, 5, dtype=torch.float64), dim=1)
    texts = torch.tensor([0, 1, 2, 0, 3, 4, 1, 5, 0])  # (0: 1, 2), (0: 3), (4: 1, 5, 0)
    vectors = vectors[texts]
    examples = ExampleVectors.of(vectors, torch.tensor([3, 2, 4]), texts, torch.zeros(3))
    a, p, n, q, b, m = vectors[0], vectors[1], vectors[2], vectors[4], vectors[5], vectors[7]
    expected = 0.0
    for anchor, positive, negatives in (
        *((a, p, [n, m]), (a, q, [n, m])),  # 1 and 3 are both positives of 0, and 0 is itself
        (b, p, [q, n, m, a]),
    ):
        logits = 20 * torch.stack([positive, *negatives]) @ anchor
        expected -= logits.log_softmax(0)[0] / 3
    found = LOSSES["multiple-negatives-ranking"](examples)
    torch.testing.assert_close(found, expected)


# ---- data

PAIRS = [(f"{a} {b}", f"{b} {a} {a}") for a in dict.fromkeys(WORDS[:12]) for b in WORDS[12:24:3]]
CSV = "positive,anchor\n" + "".join(f"{b},{a}\n" for a, b in PAIRS)
JSONL = [{"query": a, "answer": b} for a, b in PAIRS]
TRIPLETS = [{"anchor": a, "positive": b, "negatives": [a[::-1], "dog"]} for a, b in PAIRS]
SCORES = [{"sentence1": a, "sentence2": b, "score": i % 5} for i, (a, b) in enumerate(PAIRS)]


def train(bert: Path, out: Path, **options):
    usual = {"task": "embedding", "model": str(bert), "valid": 0.25, "epochs": 1, "seed": 1}
    return regard.train(**usual | options, out=out, progress=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "data, columns, goal",
    [
        (CSV, ["anchor", "positive"], "ndcg@10"),
        (JSONL, ["query", "answer"], "ndcg@10"),
        (pandas.DataFrame(SCORES), ["sentence1", "sentence2", "score"], "spearman"),
        (TRIPLETS, ["anchor", "positive", "negatives"], "ndcg@10"),
        ("\n".join(map(json.dumps, TRIPLETS)), ["anchor", "positive", "negatives"], "ndcg@10"),
        ([(a, b) for a, b in PAIRS], ["0", "1"], "ndcg@10"),
        ([(a, b, 0.5 + i % 2) for i, (a, b) in enumerate(PAIRS)], ["0", "1", "2"], "spearman"),
    ],
    ids=["csv", "jsonl", "dataframe", "triplets", "file of triplets", "tuples", "scored tuples"],
)
def test_pairs_are_read_by_the_usual_names(bert, tmp_path, data, columns, goal):
    valid = {"valid": JSONL} if "query" in columns else {"valid": 0.25}
    if isinstance(data, str):
        file = tmp_path / ("pairs.csv" if data is CSV else "pairs.jsonl")
        file.write_text(data)
        data = file
    if "negatives" in columns:  # which validation does without
        valid = {"valid": [dict(zip(columns, pair, strict=False)) for pair in PAIRS]}
    run = train(bert, tmp_path / "run", train=data, **valid)
    assert run.model.module.training is False and goal in run.scores
    assert runs.read_recipe(run.folder / "recipe.toml").data.columns == tuple(columns)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"train": JSONL, "columns": ["query"]}, DataError, "has 1 fields, .* two texts"),
        ({"train": SCORES, "loss": "multiple-negatives-ranking"}, DataError, "would be a text"),
        ({"train": JSONL, "loss": "cosent"}, DataError, "has 2 fields, .* how alike"),
        ({"train": SCORES, "loss": "cosine-similarity"}, DataError, "the number 2, .* -1 to 1"),
        (
            {"train": [{**row, "score": "neutral"} for row in SCORES]},
            *(DataError, "has 'neutral' where a number should be"),
        ),
        ({"train": JSONL, "loss": "triplet"}, DataError, "has no triplets"),
        ({"train": JSONL, "margin": 2.0}, ConfigError, "`objective.margin` is no option of"),
        ({"train": JSONL, "matryoshka": [16, 17]}, ConfigError, "must be at most 16, not 17"),
        ({"train": JSONL, "teacher": {"path": "BERT"}, "scale": 3.0}, ConfigError, "teacher"),
        ({"train": [{"a": "x", "b": "y"}] * 9}, ConfigError, "names do not say"),
    ],
)
def test_other_kinds_of_data_raise_errors(bert, tmp_path, options, error, message):
    if "teacher" in options:
        options = options | {"teacher": {"path": str(bert)}}
    with pytest.raises(error, match=message):
        train(bert, tmp_path / "run", **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pooling, normalize", [("cls", True), ("mean", False), (None, None)])
def test_sentence_transformers_opens_the_folder(bert, tmp_path, pooling, normalize):
    chosen = {"pooling": pooling, "normalize": normalize} if pooling else {}
    run = train(bert, tmp_path / "run", train=JSONL, matryoshka=[16, 4], **chosen)
    model, texts = theirs.SentenceTransformer(str(run.folder / "model"), device="cpu"), TEXT[:4]
    assert len(model) == (2 if normalize is False else 3)
    expected = model.encode(texts)
    np.testing.assert_allclose(run.model.embed(texts), expected, atol=1e-5)
    short = model.encode(texts, truncate_dim=4, normalize_embeddings=True)
    found = run.model.embed(texts, truncate_dim=4, normalize=True)
    np.testing.assert_allclose(found, short, atol=1e-5)
    cosines = run.model.similarity(texts, texts, truncate_dim=4)
    np.testing.assert_allclose(cosines, short @ short.T, atol=1e-5)
    scores = run.model.evaluate([(texts[0], t, n) for n, t in enumerate(texts)], truncate_dim=4)
    assert scores.named[0].value == pytest.approx(np.corrcoef(cosines[0], range(4))[0, 1], abs=1e-4)
    again = train(run.folder, tmp_path / "again", train=JSONL)  # pooled as before
    assert again.model.pooling == run.model.pooling


# ---- searches


def test_scores_equal_the_definitions_of_others():
    draw, ours, expected = np.random.default_rng(1), Retrieval(), []
    for _ in range(20):
        gains = draw.integers(0, 3, 30) * (draw.random(30) < 0.3)
        gains[draw.integers(30)] = 2
        scores = draw.permutation(30)
        names = [str(index) for index in np.argsort(-scores)]
        ours.add(names, {str(i): float(gain) for i, gain in enumerate(gains) if gain})
        expected.append(ndcg_score([gains], [scores], k=10))
    assert ours.results()[0].value == pytest.approx(np.mean(expected))


@pytest.mark.filterwarnings("ignore")
def test_searches_equal_those_of_sentence_transformers(bert, tmp_path):
    draw = random.Random(3)
    corpus = {f"d{i}": f"{text(draw)} {i}" for i in range(150)}
    queries = {f"q{i}": text(draw) for i in range(20)}
    relevant = {q: draw.sample(list(corpus), draw.randint(1, 5)) for q in list(queries)[1:]}
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": value}) for key, value in texts.items()]
        (beir / f"{name}.jsonl").write_text("\n".join(lines))
    lines = [f"{q}\t{d}\t1" for q, documents in relevant.items() for d in documents]
    lines = ["query-id\tcorpus-id\tscore", *lines, "q0\td0\t0"]
    (beir / "qrels" / "test.tsv").write_text("\n".join(lines))
    runs.save(regard.load(bert, task="embedding"), tmp_path / "saved")
    model = theirs.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    judged = {q: set(documents) for q, documents in relevant.items()}
    expected = evaluation.InformationRetrievalEvaluator(
        *(queries, corpus, judged), precision_recall_at_k=[1, 10, 100], name="x"
    )(model)
    scores = regard.evaluate(tmp_path / "saved", beir)
    for name, value in scores.items():
        assert value == pytest.approx(expected[f"x_cosine_{name.lower()}"], abs=1e-9), name
    pairs = regard.evaluate(tmp_path / "saved", PAIRS)
    assert pairs.named[0].signature == f"queries:{len(PAIRS)}|corpus:{len(PAIRS)}"


def test_negatives_are_the_most_similar_texts_that_are_no_positives(bert):
    model = regard.load(bert, task="embedding")
    pairs = [("a dog runs", "the dog runs fast"), ("a dog runs", "dog in the park"), *PAIRS]
    options = {"num_negatives": 4, "range_min": 2, "range_max": 9, "relative_margin": 0.02}
    found = regard.mine_negatives(model, pairs, corpus=TEXT, **options)
    texts = list(dict.fromkeys([b for _, b in pairs] + TEXT))
    names = [*texts, *(anchor for anchor, _ in pairs)]
    vectors = dict(zip(names, model.embed(names, normalize=True).astype(float), strict=True))
    for row, (anchor, positive) in zip(found, pairs, strict=True):
        cosine = {t: vectors[anchor] @ vectors[t] for t in texts}
        positives = {b for a, b in pairs if a == anchor} | {anchor}
        ranked = sorted((t for t in texts if t not in positives), key=lambda t: -cosine[t])[2:9]
        wanted = [t for t in ranked if cosine[t] <= 0.98 * cosine[positive]][:4]
        assert row == {"anchor": anchor, "positive": positive, "negatives": wanted}
    assert any(row["negatives"] for row in found)
