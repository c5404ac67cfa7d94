"""Several end-of-sequence tokens, and constraints: compiled or step by step, by every method."""

import random
from dataclasses import replace

import pytest
import torch
from decoding_mocks import MarkovLM, Recurrent, batch, sources

from regard import ops
from regard.decoding import (
    BadWords,
    Beam,
    ForcedEnd,
    Greedy,
    Power,
    RelativeLimit,
    Renormalize,
    Sampling,
    Streaming,
    Suppress,
    TopK,
    TotalLimit,
    generate,
)
from regard.decoding import ranking as compiled
from regard.models import model_class
from regard.models.conversions import prepare
from regard.models.wrappers import generator
from regard.tasks.folders import load, quantize, save
from regard.tasks.language_modeling import TextGenerator
from regard.text import train

NONE = ()


def cut(tokens, ends):
    """The tokens before the first end, and whether there is one."""
    at = next((i for i, token in enumerate(tokens) if token in ends), None)
    return tokens[:at], at is not None


def pairs(found):
    return [[(one.tokens, one.finished) for one in several] for several in found]


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(2)
    kind = model_class("gpt2")
    config = kind.Config(
        vocab_size=24, d_model=16, heads=2, layers=2, max_length=48, eos=2, init_range=0.5
    )
    return kind(config).eval()


# ------------------------------------------------------------------------- all methods


@pytest.mark.parametrize("seed", range(4))
def test_greedy_and_sampling_stop_at_any_of_the_ends(gpt2, seed):
    draw = random.Random(seed)
    prompts = batch(sources(5, 24, seed=seed))
    for model in (gpt2, Recurrent(24, seed=seed)):
        for plain in (Greedy(max_tokens=12), Sampling((TopK(6),), 2, seed, max_tokens=12)):
            free = generate(model, prompts, replace(plain, eos=NONE))
            assert not any(one.finished for several in free for one in several)
            seen = sorted({t for several in free for one in several for t in one.tokens})
            ends = tuple(draw.sample(seen, 3))
            found = generate(model, prompts, replace(plain, eos=ends))
            wanted = [[cut(one.tokens, ends) for one in several] for several in free]
            assert pairs(found) == wanted and any(end for several in wanted for _, end in several)
            streaming = Streaming(model, prompts, replace(plain, eos=ends))
            written = {}
            for row, token in streaming:
                written.setdefault(row, []).append(token)
            flat = [tokens for several in wanted for tokens, _ in several]
            assert [written.get(row, []) for row in range(len(flat))] == flat
            assert streaming.results == found


def test_a_beam_of_all_ends_is_exact_on_a_chain():
    """Every sequence up to the first of two ends, or to the limit, by enumeration."""
    torch.manual_seed(0)
    tables = torch.rand(1, 5, 5).softmax(-1)
    model, ends = MarkovLM(tables, eos=None), (2, 4)
    found = []

    def walk(tokens, last, total):
        for token in range(5):
            log_prob = total + float(tables[0, last, token].double().log())
            if token in ends:
                found.append((log_prob, tokens, True))
            elif len(tokens) == 3:
                found.append((log_prob, [*tokens, token], False))
            else:
                walk([*tokens, token], token, log_prob)

    walk([], 1, 0.0)
    wanted = sorted(found, key=lambda one: -one[0])[:6]
    beam = Beam(100, 6, Power(0.0), "never", max_tokens=4, eos=ends)
    (best,) = beam.run(model, None)
    assert [(one.tokens, one.finished) for one in best] == [one[1:] for one in wanted]
    assert [one.log_prob for one in best] == pytest.approx([one[0] for one in wanted])


# --------------------------------------------------------------------- compiled searches


class SilentListener:
    """A listener, for which a search runs step by step."""

    def __call__(self, sentences, step, done):
        pass


@pytest.fixture(scope="module")
def quantized():
    if not ops.load_kernels():
        pytest.skip("there is no compiler")
    made = []
    for seed, (vocabulary, weights) in enumerate([(30, "int8"), (1100, "bfloat16")]):
        torch.manual_seed(seed)
        kind = model_class("transformer")
        sizes = dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1)
        model = kind(kind.Config(vocab_size=vocabulary, max_length=40, **sizes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)  # far from equally probable
        made.append(generator(prepare(model, weights)))
    return made


def constrained(draw, liked, vocabulary):
    """A beam with ends and constraints that the compiled search knows."""
    token = lambda: draw.choice(liked) if draw.random() < 0.6 else draw.randrange(vocabulary)  # noqa: E731
    ends = draw.choice([None, (), (token(),), tuple({token() for _ in range(4)})])
    filters = []
    if draw.random() < 0.4:
        filters.append(BadWords(tuple((token(),) for _ in range(3))))
    if draw.random() < 0.4 and ends != ():
        filters.append(ForcedEnd(((ends or (2,))[0],)))
    if draw.random() < 0.3:
        filters.append(Suppress((token(), token())))
    if draw.random() < 0.5:
        filters.append(Renormalize())
    size = draw.randint(1, 5)
    rule = draw.choice([True, False, "never"])
    limit = draw.choice([1, 2, 7, 15, TotalLimit(9), RelativeLimit(1.0, 3)])
    penalty = Power(draw.choice([0.0, 0.6, 1.0, -1.0]))
    return Beam(size, draw.randint(1, size), penalty, rule, tuple(filters), limit, ends)


def test_the_compiled_search_equals_the_search_step_by_step(quantized, monkeypatch):
    draw, done = random.Random(4), []
    search = compiled.run_compiled_search

    def watched(*given, **named):
        done.append(search(*given, **named))
        return done[-1]

    monkeypatch.setattr("regard.decoding.beam.run_compiled_search", watched)
    monkeypatch.setattr("regard.decoding.loop.run_compiled_search", watched)
    for at in range(60):
        model = quantized[at % 2]
        vocabulary = model.config.vocab_size
        source = batch(sources(3, vocabulary, seed=at))
        liked = [t for h in Greedy(max_tokens=6, eos=()).run(model, source) for t in h[0].tokens]
        beam = constrained(draw, liked, vocabulary)
        found, wanted = beam.run(model, source), beam.run(model, source, SilentListener())
        assert pairs(found) == pairs(wanted), beam
        for one, two in zip(sum(found, []), sum(wanted, []), strict=True):
            assert one.score == pytest.approx(two.score, rel=1e-3, abs=1e-3)
            assert one == two or beam.filters  # to the last bit where nothing is constrained
        if beam.size == 1:
            greedy = Greedy(beam.length_penalty, beam.filters, beam.max_tokens, beam.eos)
            assert pairs(greedy.run(model, source)) == pairs(wanted)
    assert sum(one is not None for one in done) > 100


# ------------------------------------------------------------------------------ options


# ---------------------------------------------------------------------- the command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    kind, tokenizer = model_class("gpt2"), train("bpe", ["a dog and a cat"], 300)
    sizes = dict(d_model=16, heads=2, layers=1, max_length=32, eos=tokenizer.eos_id)
    model = kind(kind.Config(vocab_size=tokenizer.vocab_size, **sizes))
    save(TextGenerator(model, tokenizer, method=Greedy(max_tokens=4, eos=(3, 5))), path)
    return path


def test_ends_survive_saving_loading_and_quantizing(folder, tmp_path):
    task = load(folder)
    assert task.method == Greedy(max_tokens=4, eos=(3, 5))
    task.method = Beam(3, max_tokens=4, eos=(7, 8, 9))
    save(task, tmp_path / "again")
    assert load(tmp_path / "again").method == task.method
    quantize(tmp_path / "again", tmp_path / "quantized", "bfloat16")
    assert load(tmp_path / "quantized").method == task.method
