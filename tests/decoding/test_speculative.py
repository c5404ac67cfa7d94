"""Speculative decoding generates the same texts as decoding without a draft."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from decoding_mocks import EOS, Recurrent, batch, sources
from scipy.stats import chisquare

from regard.data.batches import Sequences
from regard.decoding import (
    Beam,
    Greedy,
    MinTokens,
    NGrams,
    NoRepeatNGram,
    Sampling,
    SmallModel,
    Speculative,
    Streaming,
    Temperature,
    TopK,
    TopP,
    count_acceptance,
    generate,
    load,
    options,
    save,
    with_options,
)
from regard.errors import ConfigError
from regard.models import model_class
from regard.models.protocols import Generator
from regard.state import State

VOCABULARY = 24
SMALL = {
    "gpt": dict(d_model=16, heads=2, layers=2, max_length=48, eos=EOS),
    "gpt2": dict(d_model=16, heads=2, layers=2, max_length=48, eos=EOS),
    "transformer": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2),
    "transformer-prenorm": dict(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1),
    "lstm-lm": dict(d_model=16, layers=2),
}
STEPPING = [name for name in SMALL if name != "lstm-lm"]  # those whose states can forget


def build(name, seed=0, **changed):
    """A float64 model whose texts repeat, vary and end, so that no rounding decides."""
    torch.manual_seed(seed)
    kind = model_class(name)
    model = kind(kind.Config(vocab_size=VOCABULARY, **SMALL[name] | changed)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.train()  # decoding must switch dropout off by itself


def near(model, seed=0, noise=0.03):
    """A draft that is often right."""
    torch.manual_seed(seed)
    small = type(model)(model.config).double()
    small.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return small


def assert_same(results, expected):
    assert len(results) == len(expected)
    for several, wanted in zip(results, expected, strict=True):
        for one, two in zip(several, wanted, strict=True):
            assert (one.tokens, one.finished) == (two.tokens, two.finished)
            assert one.log_prob == pytest.approx(two.log_prob, abs=1e-9)
            assert one.score == pytest.approx(two.score, abs=1e-9)


@pytest.mark.parametrize("name", STEPPING)
def test_greedy_search_gives_the_same_tokens_with_a_draft(name):
    steps = tokens = 0
    for seed in range(3):
        model, filters = build(name, seed), (MinTokens(7), NoRepeatNGram(3)) if seed % 2 else ()
        rows = batch(sources(1 + 2 * seed, VOCABULARY, seed, longest=9))
        method = Greedy(filters=filters, max_tokens=16)
        expected = method.run(model, rows)
        drafts = [(NGrams(2), 5), (SmallModel(near(model)), 4), (SmallModel(build(name, 99)), 1)]
        for draft, ahead in drafts:
            with count_acceptance() as stats:
                assert_same(Speculative(method, draft, ahead).run(model, rows), expected)
            assert stats.tokens == sum(len(h.tokens) + h.finished for (h,) in expected)
            assert 1 <= stats.tokens_per_step <= 1 + ahead
            assert 0 <= stats.accepted <= stats.drafted
            steps, tokens = steps + stats.steps, tokens + stats.tokens
        assert model.training
    assert tokens > 1.1 * steps


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_samples_with_ngrams_equal_those_without_a_draft(name):
    model, rows = build(name, 3), batch(sources(5, VOCABULARY, 3))
    filters = (NoRepeatNGram(4), Temperature(0.7), TopK(6), TopP(0.9))
    method = Sampling(filters, samples=3, seed=5, max_tokens=20)
    expected = method.run(model, rows)
    with count_acceptance() as stats:
        assert_same(Speculative(method, NGrams(2), 4).run(model, rows), expected)
    assert stats.accepted > 0


@pytest.mark.parametrize("limit", [256, 9])
def test_a_sample_with_a_small_model_does_not_depend_on_the_batch(limit):
    # Prompts of up to 40 tokens in a context of 48: some rows have room for fewer guesses.
    model = build("gpt2", 1)
    rows = sources(7, VOCABULARY, 1, longest=40)
    plan = Speculative(
        Sampling((Temperature(0.8),), 2, 1, max_tokens=limit), SmallModel(near(model)), 5
    )
    together = plan.run(model, batch(rows))
    for at, row in enumerate(rows):
        assert_same(plan.run(model, batch([row])), [together[at]])
    assert_same(plan.run(model, batch(rows[::-1], extra=3))[::-1], together)


def test_a_recurrent_draft_may_overwrite_states_that_it_has_read():
    model, small = build("gpt2", 1), build("lstm-lm", 1)
    rows = batch(sources(4, VOCABULARY, 1))
    plan = Speculative(Sampling(seed=1, max_tokens=12), SmallModel(small), 3)
    expected, step = plan.run(model, rows), small.step

    def overwriting(tokens, state):
        found = step(tokens, state)
        for tensor in state.tensors().values():
            tensor.fill_(torch.nan)
        return found

    small.step = overwriting
    assert_same(plan.run(model, rows), expected)


# ------------------------------------------------------------------------ distributions


@dataclass
class Read(State):
    """A state that counts its tokens, so that a wrong rewind shows."""

    tokens: torch.Tensor  # (B, T)
    lengths: torch.Tensor

    def rewind(self, count):
        return Read(self.tokens, self.lengths - count)


class Table(Generator):
    """P(next | last two tokens) is a table, on a tiny vocabulary."""

    continues = True

    def __init__(self, seed, vocabulary=4, sharpness=1.0):
        random = torch.Generator().manual_seed(seed)
        shape = (vocabulary,) * 3
        self.scores = sharpness * torch.randn(shape, generator=random, dtype=torch.float64)
        self.config = SimpleNamespace(
            vocab_size=vocabulary, pad=0, bos=0, eos=None, max_length=None
        )

    def empty(self, sequences, dtype=None):
        return Read(torch.zeros(sequences, 64, dtype=torch.long), torch.zeros(sequences).long())

    def prefill(self, tokens, state, lengths):
        state.tokens[:, : tokens.size(1)] = tokens
        return Read(state.tokens, lengths)

    def step(self, tokens, state):
        room, lengths, found = state.tokens.clone(), state.lengths, []
        row = torch.arange(len(room))
        for column in tokens.T:
            room[row, lengths] = column
            before = torch.where(lengths > 0, room[row, (lengths - 1).clamp(min=0)], 0)
            found.append(self.scores[before, column])
            lengths = lengths + 1
        return torch.stack(found, 1), Read(room, lengths)

    def probability(self, prompt, tokens, filters):
        total, text = 1.0, [0, *prompt]
        for token in tokens:
            scores = self.scores[text[-2], text[-1]][None].log_softmax(-1)
            for change in filters:
                scores = change(scores, None)
            total *= float(scores.softmax(-1)[0, token])
            text.append(token)
        return total


@pytest.mark.parametrize("filters", [(), (Temperature(0.6), TopK(3)), (TopP(0.8),)], ids=str)
@pytest.mark.parametrize("tokens", [1, 3])
def test_samples_have_the_distribution_of_the_model(filters, tokens):
    # All 4^4 texts behind a prompt against their products of conditional probabilities.
    model, small, count = Table(1), Table(2), 4000
    plan = Speculative(Sampling(filters, count, 3, max_tokens=4), SmallModel(small), tokens)
    with count_acceptance() as stats:
        (found,) = plan.run(model, Sequences.of([[1, 3]], 0))
    assert 0.1 < stats.accepted / stats.drafted < 0.95
    powers = 4 ** torch.arange(4)
    drawn = torch.tensor([one.tokens for one in found]) @ powers
    seen = torch.bincount(drawn, minlength=256).double()
    texts = (torch.arange(256)[:, None] // powers) % 4
    expected = torch.tensor(
        [model.probability([1, 3], text, filters) for text in texts.tolist()], dtype=torch.float64
    )
    assert float(expected.sum()) == pytest.approx(1)
    assert seen[expected == 0].sum() == 0
    rare = count * expected < 5  # one class, as the test asks for
    counts = [*seen[~rare].tolist(), float(seen[rare].sum())]
    wanted = [*(count * expected[~rare]).tolist(), float(count * expected[rare].sum())]
    if wanted[-1] == 0:
        counts, wanted = counts[:-1], wanted[:-1]
    assert chisquare(counts, wanted).pvalue > 0.01
    # The test can fail: the draft's own distribution is another.
    other = torch.tensor([small.probability([1, 3], t, filters) for t in texts.tolist()])
    assert float((expected - other).abs().sum()) > 0.5


# ------------------------------------------------------------------------ small models


# ----------------------------------------------------------------------------- n-grams


def test_ngrams_find_the_tokens_after_the_latest_occurrence():
    def guess(tokens, count, size=3):
        rows = sources(1)  # any
        drafting = NGrams(size).start_drafting(
            SimpleNamespace(continues=True), batch(rows), _rows(tokens), None
        )
        found = drafting.propose(_rows(tokens), torch.tensor([count]))
        return found.tokens[0, : int(found.counts[0])].tolist()

    assert guess([5, 6, 7, 8, 9, 5, 6, 7], 2) == [8, 9]
    assert guess([1, 6, 7, 3, 2, 6, 7, 4, 9, 6, 7], 1) == [4]  # the latest occurrence
    assert guess([5, 6, 7, 1, 2, 6, 7, 3, 5, 6, 7], 1) == [1]  # the longest n-gram
    assert guess([5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]  # a loop goes on
    assert guess([5, 6, 7, 8], 4) == guess([5], 4) == []
    assert guess([5, 6, 9, 9, 5, 6], 0) == []


def _rows(tokens):
    from regard.decoding.speculative.drafts import ActiveSequences

    one, none = torch.tensor([len(tokens)]), torch.tensor([0])
    return ActiveSequences(none, one, none, one, none.double(), torch.tensor([tokens]))


def test_ngrams_of_the_source_draft_its_copy():
    class Copies(Generator):
        """A model that copies its source."""

        config = SimpleNamespace(vocab_size=30, pad=0, bos=1, eos=EOS, max_length=None)

        def read(self, source):
            return Read(source.ids, torch.zeros_like(source.lengths))

        def step(self, tokens, state):
            at = state.lengths[:, None] + torch.arange(tokens.size(1))
            following = state.tokens.gather(1, at.clamp(max=state.tokens.size(1) - 1))
            scores = 20.0 * torch.nn.functional.one_hot(following, 30)
            return scores, Read(state.tokens, state.lengths + tokens.size(1))

    random = torch.Generator().manual_seed(0)
    rows = [[*torch.randperm(26, generator=random)[:n].add(3).tolist(), EOS] for n in (20, 12, 4)]
    with count_acceptance() as stats:
        found = generate(Copies(), batch(rows), assistant_model="ngram", num_assistant_tokens=6)
    assert [h.tokens for (h,) in found] == [row[:-1] for row in rows]
    assert stats.tokens_per_step > 2.5


# ------------------------------------------------------------------- stats, streams, names


def test_all_tokens_of_a_perfect_draft_are_accepted():
    model = build("gpt2", 4, eos=None)
    with count_acceptance() as outer, count_acceptance() as stats:
        generate(model, batch([[5, 6], [7]]), assistant_model=near(model, noise=0.0), max_tokens=20)
    assert (stats.steps, stats.tokens, stats.drafted, stats.accepted) == (8, 40, 32, 32)
    assert (
        str(stats)
        == "5.00 tokens per step of the model; 32 of 32 drafted tokens were accepted (100%)"
    )
    assert outer.tokens == 40 and count_acceptance().__enter__().tokens_per_step == 1.0


def test_streaming_with_a_draft_gives_the_tokens_of_generate():
    model, rows = build("gpt2", 5), batch(sources(4, VOCABULARY))
    for named in (
        dict(assistant_model="ngram:2"),
        dict(assistant_model=near(model), top_k=9, samples=2),
    ):
        plan = options(**named, max_tokens=15)
        stream, tokens = Streaming(model, rows, plan), {}
        for row, token in stream:
            tokens.setdefault(row, []).append(token)
        expected = [h for several in plan.run(model, rows) for h in several]
        assert [tokens.get(row, []) for row in range(len(expected))] == [h.tokens for h in expected]
        assert stream.results == plan.run(model, rows)


def test_options_by_name_give_the_method_and_its_draft():
    model = build("gpt2")
    assert options(assistant_model="ngram") == options(num_assistant_tokens=4) == Speculative()
    assert options(assistant_model="ngram:4", num_assistant_tokens=7, max_tokens=9) == Speculative(
        Greedy(max_tokens=9), NGrams(4), 7
    )
    assert options(assistant_model="a/folder", top_k=5, seed=3) == Speculative(
        Sampling((TopK(5),), seed=3), SmallModel("a/folder")
    )
    assert options(assistant_model=model).draft == SmallModel(model)


def test_prompt_lookup_of_transformers_is_loaded_as_ngrams(tmp_path):
    file = tmp_path / "generation_config.json"
    file.write_text('{"prompt_lookup_num_tokens": 10, "max_new_tokens": 5}')
    assert load(file) == Speculative(Greedy(max_tokens=5), tokens=10)
    file.write_text('{"num_assistant_tokens": 20}')
    with pytest.warns(UserWarning, match="num_assistant_tokens"):
        assert load(file) == Greedy()
    file.write_text('{"draft": "ngram", "num_beams": 4}')
    with pytest.raises(
        ConfigError, match="`assistant_model` belongs to speculative, but the method is beam"
    ):
        load(file)


def test_with_options_changes_the_draft_or_the_method():
    plan = Speculative(Greedy(max_tokens=9), NGrams(2), 3)
    assert (
        with_options(Greedy(max_tokens=9), assistant_model="ngram:2", num_assistant_tokens=3)
        == plan
    )
    assert (
        with_options(Beam(4, 2, max_tokens=9), assistant_model="ngram:2", num_assistant_tokens=3)
        == plan
    )
    assert with_options(plan, num_assistant_tokens=8) == Speculative(plan.method, plan.draft, 8)
    assert with_options(plan, top_k=3).method == Sampling((TopK(3),), max_tokens=9)
    assert with_options(plan, beams=2) == Beam(2, max_tokens=9)
    sampling = Sampling((TopP(0.8),), 2, 7)
    assert with_options(sampling, assistant_model="small") == Speculative(
        sampling, SmallModel("small")
    )
    held = Speculative(draft=SmallModel(build("gpt2")))
    assert with_options(held, max_tokens=5).draft == held.draft


def test_drafts_that_do_not_fit_raise_an_error(tmp_path):
    for named, message in [
        (
            dict(assistant_model="ngram", beams=4),
            "`assistant_model` belongs to speculative decoding and `beams` to",
        ),
        (
            dict(method="greedy", assistant_model="ngram"),
            "`assistant_model` belongs to speculative, but the method",
        ),
        (dict(assistant_model="ngram:1"), "at least 2 tokens, but for 1"),
        (dict(assistant_model="ngram:x"), "must be like \"ngram:3\", but is 'ngram:x'"),
        (
            dict(assistant_model="ngram", num_assistant_tokens=0),
            "`num_assistant_tokens` must be at least 1, but is 0",
        ),
        (
            dict(assistant_model="ngram", num_assistant_tokens="4"),
            "`num_assistant_tokens` must be a whole number",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            options(**named)
    with pytest.raises(ConfigError, match="the method is Beam"):
        Speculative(Beam())
    with pytest.raises(ConfigError, match="lies in no folder"):
        save(Speculative(draft=SmallModel(build("gpt2"))), tmp_path)
    rows = batch([[5, 6]])
    for model, draft, message in [
        (Recurrent(), "ngram", r"the state of Recurrent \(Hidden\) cannot forget tokens"),
        (build("gpt2"), build("gpt2", max_length=20), "at most 20 tokens and the model 48"),
        (build("gpt2"), build("transformer"), "Transformer is no draft for GPT2"),
        (build("gpt2"), Table(0), "draft's has 4 tokens and the model's 24"),
    ]:
        with pytest.raises(ConfigError, match=message):
            generate(model, rows, assistant_model=draft)


# ------------------------------------------------------------------- recipes and commands


def test_a_recipe_and_the_command_line_name_a_draft(tmp_path):
    from typer.testing import CliRunner

    from regard import cli
    from regard.experiments import runs

    (tmp_path / "text").write_text("the cat sat on the mat and the cat sat on the hat\n" * 40)

    def trained(name, d_model, decoding=""):
        (tmp_path / f"{name}.toml").write_text(f"""
task = "language-modeling"
[data]
train = "{tmp_path}/text"
valid = "{tmp_path}/text"
sequence_length = 32
[tokenizer]
kind = "characters"
[model]
name = "gpt2"
d_model = {d_model}
heads = 2
layers = 1
max_length = 32
[decoding]
max_tokens = 20
{decoding}
[training]
max_steps = 2
""")
        out = tmp_path / name
        runs.train(tmp_path / f"{name}.toml", out=out, progress=False)
        return out

    small = trained("small", 4)
    large = trained("large", 8, f'assistant_model = "{small}"\nnum_assistant_tokens = 3')
    task = runs.load(large)
    assert task.method == Speculative(Greedy(max_tokens=20), SmallModel(str(small)), 3)
    wanted = type(task)(task.module, task.tokenizer, method=Greedy(max_tokens=20)).predict(
        "the cat"
    )
    assert task.predict("the cat") == "".join(["the cat", *task.stream("the cat")]) == wanted
    for flags in ([], ["--assistant-model", "ngram", "--num-assistant-tokens", "5"]):
        run = CliRunner().invoke(cli.app, ["generate", str(large), "the cat", *flags])
        assert run.stdout == wanted + "\n", run.output
        assert "tokens per step of the model" in run.stderr
