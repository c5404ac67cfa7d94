"""Vectors of texts against hidden states of transformers and vectors of sentence-transformers.

Tests of `regard.tasks.inputs`, too.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from tiny_folders import ENCODERS, FAMILIES, folder, transformers

from regard.data.encoder_inputs import InputFormat
from regard.errors import ConfigError
from regard.experiments import runs
from regard.layers.pooling import ScalarMix
from regard.models import model_class
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.tasks.language_modeling import TextGenerator

TEXTS = ["a dog runs", "who sleeps in the very old park ?", "", "ball", "the cat sleeps on a mat"]
WORDS = [["the", "dog"], [], ["goodness", "cheaply", "park"]]
# of embeddings and two layers; the tiny models have no last four
FORMULAS = {
    (0, None): lambda states: states[0],
    (-1, None): lambda states: states[2],
    (-2, None): lambda states: states[1],
    ((1, 2), "sum"): lambda states: states[1] + states[2],
    ((2, 0), "concat"): lambda states: torch.cat([states[2], states[0]], -1),
    ((0, 1, 2), (1.0, 0.5, -1.0)): lambda states: states[0] + 0.5 * states[1] - states[2],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A tiny folder of each family, as transformers writes models without a head."""
    top = tmp_path_factory.mktemp("encoders")
    ending = {**dict.fromkeys(ENCODERS, "Model"), "gpt": "LMHeadModel", "gpt2": "LMHeadModel"}
    return {family: folder(top / family, family, ending[family]) for family in FAMILIES}


@pytest.fixture(scope="module")
def tasks(folders):
    return {family: runs.load(path) for family, path in folders.items()}


def their_states(path: Path, text: str) -> tuple[torch.Tensor, ...]:
    model = transformers.AutoModel.from_pretrained(path).eval()
    given = transformers.AutoTokenizer.from_pretrained(path)(text, return_tensors="pt")
    with torch.no_grad():
        return model(**given, output_hidden_states=True).hidden_states


# ---- layers


@pytest.mark.parametrize(("layers", "combine"), FORMULAS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_tokens_equal_those_of_transformers(folders, tasks, family, layers, combine):
    texts = [text for text in TEXTS if text]
    how = {} if combine is None else {"combine": combine}
    found = tasks[family].embed(texts, layers=layers, granularity="token", **how)
    for text, vectors in zip(texts[:2], found, strict=False):
        wanted = FORMULAS[layers, combine](their_states(folders[family], text))[0].numpy()
        np.testing.assert_allclose(vectors, wanted, atol=1e-5, rtol=1e-4)
    assert all(vectors.dtype == np.float32 for vectors in found)


def test_embed_takes_a_trained_scalar_mix(tasks):
    mix = ScalarMix.of([1.0, 0.0, -1.0], gamma=3.0)
    weights = torch.tensor([1.0, 0.0, -1.0]).softmax(0).tolist()
    known = tasks["bert"].embed(TEXTS, layers=[0, 1, 2], combine=weights)
    np.testing.assert_allclose(tasks["bert"].embed(TEXTS, layers=mix), 3 * known, atol=1e-5)


# ---- texts


def test_without_a_pooling_file_vectors_are_means_over_all_tokens(folders, tasks):
    found = tasks["bert"].embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        wanted = their_states(folders["bert"], text)[-1][0].mean(0)
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


@pytest.mark.parametrize("per", ["sentence", "word", "token"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_batch_does_not_change_vectors(tasks, family, per):
    task = tasks[family]
    together = task.embed(TEXTS, granularity=per)
    for budget in (1, 7):
        for one, other in zip(
            together, task.embed(TEXTS, granularity=per, max_tokens_per_batch=budget), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)
    for text, vectors, streamed in zip(
        TEXTS, together, task.embed_stream(TEXTS, granularity=per), strict=True
    ):
        np.testing.assert_allclose(task.embed(text, granularity=per), vectors, atol=1e-5)
        np.testing.assert_array_equal(streamed, vectors)


def test_a_stream_reads_at_most_a_chunk_ahead(tasks):
    read = iter(range(10**9))
    texts = ("ball" for _ in read)
    stream = tasks["bert"].embed_stream(texts)
    assert next(stream).shape == (16,)
    assert next(read) <= 4096
    words = tasks["bert"].embed_stream(zip(*[texts] * 2, strict=True), granularity="word")
    before = next(read)
    assert next(words).labels == ("ball", "ball") and next(read) - before <= 600


def test_a_stream_tokenizes_the_next_texts_in_another_thread(tasks, monkeypatch):
    threads, rows = [], InputFormat.encode

    def noted(pieces, texts):
        threads.append(threading.current_thread())
        return rows(pieces, texts)

    monkeypatch.setattr(InputFormat, "encode", noted)
    texts = [f"{'the ' * (i % 9)} dog" for i in range(2500)]
    stream = tasks["bert"].embed_stream(texts)
    found = np.stack(list(stream))
    assert threads[0] == threading.main_thread()  # which would wait for the first chunk
    assert threads[1:] and threading.main_thread() not in threads[1:]
    for i in (0, 700, 1499, 2499):
        np.testing.assert_allclose(found[i], tasks["bert"].embed(texts[i]), atol=1e-5)


def test_vectors_computed_in_bfloat16_are_close_and_of_type_float32(tasks):
    full, half = (tasks["bert"].embed(TEXTS, precision=p) for p in ("float32", "bfloat16"))
    assert half.dtype == np.float32 and not np.array_equal(full, half)
    cosines = (full * half).sum(1) / np.linalg.norm(full, axis=1) / np.linalg.norm(half, axis=1)
    assert cosines.min() > 0.999


def test_similarity_equals_the_cosine(tasks):
    a, b = tasks["bert"].embed(TEXTS[:2]), tasks["bert"].embed(TEXTS)
    wanted = 1 - scipy.spatial.distance.cdist(a, b, "cosine")
    found = tasks["bert"].similarity(TEXTS[:2], TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert tasks["bert"].similarity(*TEXTS[:2]) == pytest.approx(wanted[0, 1], abs=1e-5)


# ---- words


POOLED = {
    "mean": lambda states: states.mean(0), "first": lambda states: states[0],
    "last": lambda states: states[-1], "max": lambda states: states.amax(0),
}  # fmt: skip


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_vectors_of_words_are_pooled_over_their_subwords(folders, tasks, family, pooling):
    found = tasks[family].embed(WORDS, granularity="word", pooling=pooling)
    assert [vectors.labels for vectors in found] == [tuple(words) for words in WORDS]
    assert found[1].shape == (0, 16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[family])
    for words, vectors in zip(WORDS, found, strict=True):
        numbers = tokenizer(words, is_split_into_words=True).word_ids() if words else []
        assert not words or max(map(numbers.count, range(len(words)))) > (words == WORDS[2])
        for word, vector in enumerate(vectors):
            states = their_states(folders[family], " ".join(words))[-1][0]
            positions = [i for i, number in enumerate(numbers) if number == word]
            np.testing.assert_allclose(vector, POOLED[pooling](states[positions]), atol=1e-5)


# ---- limits


# ---- the task


def test_evaluation_scores_are_correlations_of_cosines(tasks):
    pairs = list(zip(TEXTS, TEXTS[::-1], (5, 1.5, 4, 0, 2.5), strict=True))
    cosines = [tasks["bert"].similarity(a, b) for a, b, _ in pairs]
    pearson, spearman = tasks["bert"].evaluate([(a, b, str(gold)) for a, b, gold in pairs]).named
    gold = [row[2] for row in pairs]
    assert pearson.value == pytest.approx(scipy.stats.pearsonr(cosines, gold)[0], abs=1e-5)
    assert spearman.value == pytest.approx(scipy.stats.spearmanr(cosines, gold)[0], abs=1e-6)


# ---- other tasks


def test_vectors_of_a_recurrent_model_are_the_mean_of_its_hidden_states_and_n_grams_have_none(
    tasks,
):
    tokenizer, recurrent = tasks["gpt2"].tokenizer, model_class("lstm-lm")
    model = recurrent(recurrent.Config(tokenizer.vocab_size, d_model=8, eos=tokenizer.eos_id))
    vectors = TextGenerator(model.eval(), tokenizer).embed(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = [tokenizer.eos_id, *tokenizer.encode(text).ids, tokenizer.eos_id]
        hidden = model(torch.tensor([ids])).hidden[0].detach()
        np.testing.assert_allclose(vector, hidden.mean(0), atol=1e-6)
    counts = KneserNeyConfig(tokenizer.vocab_size, 2)
    with pytest.warns(UserWarning, match="The n-grams of 2 tokens are too few"):
        counted = KneserNey.fit(np.array([3, 4, 5] * 9), counts)
    with pytest.raises(ConfigError, match="KneserNey has no hidden states, so it gives no vectors"):
        TextGenerator(counted, tokenizer).embed(TEXTS)
