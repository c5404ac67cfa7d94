"""Language models with a context: training, perplexity, prompts, last words; judged by loops over
models of `transformers` and by the model itself.

Tests of `regard.tasks.running_text` and `regard.tasks.batching`, too.
"""

from __future__ import annotations

import copy
import json
import math
import random
import warnings
from pathlib import Path

import every_task
import pytest
import tokenizers
import torch
from recipe_files import written
from torch.nn import functional as F

from regard import recipe as recipes
from regard.checkpoints.formats import to_published
from regard.data.batches import Sequences
from regard.data.corpus import build_corpus, read_documents
from regard.data.readers import open_table
from regard.decoding import generate
from regard.errors import ConfigError, RegardError
from regard.experiments import runs
from regard.models.gpt2 import GPT2
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.tasks.language_modeling import TextGenerator
from regard.text import Tokenizer, train
from regard.text.templates import Template

TEXT = "the cat sat on the mat and the dog ran to the old house by the sea\n" * 6
CONTEXT = 12
TINY = dict(d_model=16, heads=2, layers=2, max_length=CONTEXT)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("byte-bpe", [TEXT], 290)


def made(tokenizer, **options) -> TextGenerator:
    """Random weights, large enough that greedy answers differ."""
    torch.manual_seed(1)
    options = TINY | options
    options = {"init_range": 0.3, "bos": 1, "eos": 2} | options
    config = GPT2.Config(vocab_size=tokenizer.vocab_size, **options)
    return TextGenerator(GPT2(config).eval(), tokenizer)


@pytest.fixture(scope="module")
def task(tokenizer) -> TextGenerator:
    return made(tokenizer)


@pytest.fixture(scope="module")
def theirs(task):
    transformers = pytest.importorskip("transformers")
    config, weights = to_published(task.module)
    found = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))
    found.load_state_dict(weights, strict=False)
    return found.eval()


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    draw = random.Random(3)
    path.write_text(" ".join(draw.choices(TEXT.split(), k=60)) + "\n")
    return path


# ---- perplexity ---------------------------------------------------------------------------------


def their_loss(theirs, ids: list[int], window: int, stride: int) -> tuple[float, int]:
    """A plain loop over windows from left to right, each of which predicts its new tokens."""
    nats, count, before = 0.0, 0, 0
    for begin in range(0, len(ids) - 1, stride):
        end = min(begin + window, len(ids) - 1)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[begin:end]])).logits[0]
        targets = torch.tensor(ids[begin + 1 : end + 1])
        losses = F.cross_entropy(logits, targets, reduction="none")[before - begin :]
        nats, count, before = nats + float(losses.double().sum()), count + len(losses), end
        if end == len(ids) - 1:
            break
    return nats, count


@pytest.mark.parametrize("window, stride", [(None, None), (8, None), (8, 3), (12, 1), (12, 12)])
def test_perplexity_equals_that_of_a_plain_loop_with_transformers(
    task, theirs, tokenizer, text, window, stride
):
    found = task.evaluate(open_table(text, format="text"), window=window, stride=stride).named[0]
    ids = [tokenizer.bos_id, *tokenizer.encode(text.read_text()).ids]
    nats, count = their_loss(theirs, ids, window or CONTEXT, stride or window or CONTEXT)
    assert found.count == count == len(ids) - 1
    assert found.nats == pytest.approx(nats, rel=1e-5)
    assert f"window:{window or CONTEXT}|stride:{stride or window or CONTEXT}" in found.signature


# ---- prompts ------------------------------------------------------------------------------------

LONG = "the cat sat on the mat and the dog ran to the old house by the sea"


def test_a_prompt_that_is_too_long_raises_an_error_or_is_truncated_on_the_left(task, tokenizer):
    ids = tokenizer.encode(LONG).ids
    assert len(ids) > CONTEXT
    message = (
        f"Prompt 2 has {len(ids)} tokens, but this model's context is 12.*`too_long` .* truncate"
    )
    with pytest.raises(RegardError, match=message):
        task.generate(["the", LONG])
    assert task.over_limit(["the", LONG]) == {1: len(ids)}
    with pytest.warns(UserWarning, match="1 of 2 prompts were cut to their last 8 tokens"):
        found = task.generate(["the", LONG], too_long="truncate", max_tokens=5)
    kept = tokenizer.decode(ids[-8:])
    assert tokenizer.encode(kept).ids == ids[-8:]
    assert found[1] == LONG + task.generate(kept, max_tokens=5)[len(kept) :]
    assert found[0] == task.generate("the", max_tokens=5)


def endless(task) -> TextGenerator:
    """The same without an end token, so that only the length of the context ends a text."""
    config = type(task.module.config)(**{**vars(task.module.config), "eos": None})
    model = GPT2(config).eval()
    model.load_state_dict(task.module.state_dict())
    return TextGenerator(model, task.tokenizer)


def test_a_text_that_reaches_the_context_stops_with_a_warning(task):
    one = endless(task)
    with pytest.warns(UserWarning, match="2 of 2 texts stop at this model's limit of 12 tokens"):
        found = one.hypotheses(["the cat", LONG[:20]])
    for prompt, best in zip(["the cat", LONG[:20]], found, strict=True):
        assert len(task.tokenizer.encode(prompt)) + len(best[0].tokens) == CONTEXT + 1
    with pytest.warns(UserWarning, match="1 of 1 texts stop at"):
        "".join(one.stream("the cat"))
    with pytest.warns(UserWarning, match="1 of 1 texts stop at"):
        one.generate("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.generate("the cat", max_tokens=3)


def test_a_window_goes_on_beyond_the_context_as_a_loop_over_its_last_tokens(task, theirs):
    prompts = ["the cat", "the dog ran to the old house by the sea and the mat"]
    ranked = task.hypotheses(prompts, window=True, max_tokens=30, eos=())
    for ids, (best,) in zip(task.prompt_ids(prompts), ranked, strict=True):
        ids = list(ids)
        for _ in range(30):
            with torch.no_grad():
                scores = theirs(torch.tensor([ids[-CONTEXT:]])).logits[0, -1]
            ids.append(int(scores.argmax()))
        assert best.tokens == ids[-30:]
    texts = task.generate(prompts, window=True, max_tokens=30)
    assert texts[0] == prompts[0] + "".join(task.stream(prompts[0], window=True, max_tokens=30))
    with pytest.raises(ConfigError, match="or go on beyond the context: `window=True`"):
        task.generate(prompts, max_tokens=30)
    recurrent = every_task.language()
    with pytest.raises(ConfigError, match="without effect: this model has no limit"):
        recurrent.generate("the cat", window=True)


def test_an_empty_prompt_starts_as_texts_of_the_format_do(task, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begins = {None: [tokenizer.bos_id], "lines": [tokenizer.eos_id]}
        begins["text"] = tokenizer.encode("\n").ids
        for format, ids in begins.items():
            one = TextGenerator(task.module, tokenizer, format=format)
            found = generate(task.module, Sequences.of([ids], None), max_tokens=9)
            assert one.hypotheses([""], max_tokens=9)[0][0].tokens == found[0][0].tokens


def test_a_prompt_starts_with_the_special_token_of_the_template(task, tokenizer):
    begun = tokenizer.with_template(Template.around((1,), (1,), ()))
    other = TextGenerator(task.module, begun)
    assert other.generate("the", max_tokens=3).startswith("the")
    fast = tokenizers.Tokenizer.from_str(begun.to_str())
    assert other.prompt_ids(["the"]) == [fast.encode("the").ids]


def test_prompts_with_a_common_beginning_compute_it_once(tokenizer):
    task = made(tokenizer, max_length=100)
    prompts = [TEXT[:60] + end for end in ("", "e house", "he dog by")]
    found, streamed = task.generate(prompts, max_tokens=4), [*task.stream(prompts[1], max_tokens=4)]
    cache = task.cache_prefixes(2**20)
    assert task.generate(prompts, max_tokens=4) == found
    assert task.generator is cache and not cache.reused
    assert [*task.stream(prompts[1], max_tokens=4)] == streamed
    assert cache.reused > 0 and cache.prompts == 4
    other = copy.copy(task)
    other.module = GPT2(task.module.config).eval()  # the cache is of another model
    assert other.generator is other.module
    task.prefix_cache = None
    assert task.generator is task.module
    model = RecurrentLanguageModel(RecurrentConfig(tokenizer.vocab_size, d_model=8)).eval()
    with pytest.raises(ConfigError, match="unlike RecurrentLanguageModel"):
        TextGenerator(model, tokenizer).cache_prefixes()


# ---- last words ---------------------------------------------------------------------------------

PASSAGES = [
    "the cat sat on the mat",
    "a dog ran to the sea\n",
    LONG,
    "old seahouse",
    "to the thecat",
]


def test_lambada_scores_equal_those_of_a_plain_loop_with_transformers(task, theirs, tokenizer):
    nats, right = [], []
    for passage in PASSAGES:
        context, word = passage.strip().rsplit(" ", 1)
        context, word = tokenizer.encode(context).ids, tokenizer.encode(f" {word}").ids
        ids = (context + word)[-CONTEXT - 1 :]
        with torch.no_grad():
            log_probs = theirs(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
        asked = log_probs[-len(word) :]
        nats.append(-sum(float(row[token]) for row, token in zip(asked, word, strict=True)))
        right.append(asked.argmax(-1).tolist() == word)
    accuracy, perplexity = task.lambada(PASSAGES)
    assert accuracy.value == pytest.approx(sum(right) / len(right))
    assert perplexity.value == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-4)
    assert accuracy.signature == (
        f"word:after-last-space|match:greedy|tok:byte-bpe-{tokenizer.vocab_size}|count:5|cut:1"
    )


def test_lambada_scores_of_characters_and_words_equal_a_plain_loop():
    for kind in ("characters", "words"):
        tokenizer = train(kind, [TEXT], 40)
        torch.manual_seed(0)
        model = RecurrentLanguageModel(RecurrentConfig(tokenizer.vocab_size, d_model=8)).eval()
        accuracy, perplexity = TextGenerator(model, tokenizer).lambada(["the cat sat"])
        ids = tokenizer.encode("the cat sat").ids
        last = 3 if kind == "characters" else 1
        log_probs = model.head.logits(model(torch.tensor([ids])).hidden)[0].log_softmax(-1)
        wanted = [log_probs[at - 1, ids[at]].item() for at in range(len(ids) - last, len(ids))]
        assert perplexity.value == pytest.approx(math.exp(-sum(wanted)), rel=1e-4)


# ---- training -----------------------------------------------------------------------------------

RECIPE = dict(
    task="language-modeling",
    data=dict(train="train.txt", valid="valid.txt", format="text", batch_size=4, sequence_length=8),
    tokenizer=dict(kind="characters", vocab_size=60),
    model=dict(name="gpt2", d_model=16, heads=2, layers=1, max_length=8, dropout=0.1),
    training=dict(max_steps=20, checkpoints=dict(save_steps=5), validation=dict(eval_steps=10)),
)


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "valid.txt").write_text(TEXT[:150])
    written(tmp_path / "small.toml", RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(out: str, *overrides: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runs.train_recipe(recipes.read("small.toml", overrides), out=out, progress=False)


def test_a_trained_run_evaluates_with_the_window_of_its_training(workdir):
    trained = run("run", "data.sequence_length=6")
    task = trained.model
    assert task.settings() == {"format": "text", "unit": "token", "window": 6, "stride": None}
    found = task.evaluate(open_table("valid.txt", format="text")).named[0]
    assert "window:6|stride:6" in found.signature
    # validation begins without the line break that stands before a text
    assert found.nats / found.count == pytest.approx(trained.scores["loss"], rel=0.05)
    config = json.loads((trained.folder / "model" / "config.json").read_text())
    assert config["model_type"] == "gpt2" and config["n_positions"] == 8


# ---- text larger than memory --------------------------------------------------------------------


def trained(recipe, out):
    """The weights, the scores and the position in the data at the end of a training."""
    run = runs.train(out=out, progress=False, **recipe)
    (facts,) = (json.loads(f.read_text()) for f in out.glob("checkpoints/step-000020*/facts.json"))
    return (out / "model/model.safetensors").read_bytes(), run.result.scores, facts["position"]


def test_training_from_a_corpus_is_the_same_in_every_bit(workdir):
    tokenizer, folder = train("byte-bpe", [TEXT], 290), workdir / "corpus"
    tokenizer.save(workdir / "tokenizer")
    recipe = RECIPE | dict(tokenizer=dict(path="tokenizer"), data={**RECIPE["data"]})
    del recipe["data"]["format"]
    wanted = trained(recipe, workdir / "memory")
    documents, end = read_documents(workdir / "train.txt", "rows"), (tokenizer.eos_id,)
    build_corpus(documents, tokenizer, folder, end=end, progress=False)
    recipe["data"]["train"] = recipe["tokenizer"]["path"] = str(folder)
    assert trained(recipe, workdir / "mapped") == wanted
    assert runs.resume(workdir / "mapped", progress=False).result.scores == wanted[1]

    train("byte-bpe", [TEXT.upper()], 290).save(workdir / "tokenizer")
    recipe["tokenizer"]["path"] = "tokenizer"
    with pytest.raises(ConfigError, match="was built with another tokenizer"):
        trained(recipe, workdir / "other")
    del recipe["tokenizer"]
    with pytest.raises(ConfigError, match=r"is a corpus.*\[tokenizer\] path ="):
        trained(recipe, workdir / "other")
