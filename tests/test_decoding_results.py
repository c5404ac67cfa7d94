"""What `regard.decoding` gives is what it gave before: tests/results/decoding.json."""

from __future__ import annotations

import json
import warnings
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from decoding import decoding_mocks, recording, test_streaming
from shared_fixtures import compiled
from stored_results import check, each_section, waves

from regard import ops
from regard.attention.masks import Padding
from regard.data.batches import Sequences
from regard.decoding import cuda_graphs, generate
from regard.decoding.continuous import ContinuousBatch
from regard.decoding.filters import TreeVocabulary
from regard.decoding.generation_config import FILE, load, save
from regard.decoding.prefix_cache import PrefixCache
from regard.decoding.streaming import GeneratedText, Streaming
from regard.models import model_class
from regard.ops import KeyMask

PROMPTS = [[3, 4, 5, 6, 3, 4], [7], [], [8, 9, 3, 8, 9]]
SHARED = [*range(3, 9), *range(3, 9), *range(3, 9)]


def model_of(name: str, seed: int, **config):
    kind = model_class(name)
    model = kind(kind.Config(vocab_size=11, d_model=8, **config)).double().eval()
    with torch.no_grad():
        for n, weight in enumerate(model.parameters()):
            weight.copy_(0.3 * waves(*weight.shape, seed=seed + n))
            if len(weight) == 11:  # so that texts end
                weight[[2, 6]] = weight[[6, 2]]
    return model


def recurrent():
    model = decoding_mocks.Recurrent(eos_bias=1.0)
    for n, name in enumerate(("inputs", "outputs", "again")):
        setattr(model, name, waves(*getattr(model, name).shape, seed=n) / 2)
    return model


def decode(model, rows, method=None, **named):
    """(tokens, score, log-probability, whether it ended) of each hypothesis of each source."""
    results = generate(model, rows and Sequences.of(rows, 0), method, **named)
    return [[(h.tokens, h.score, h.log_prob, h.finished) for h in row] for row in results]


def together(model, *prompts):
    """Prompts with options; each joins after so many steps, and leaves after so many."""
    batch, seen, joined, step = ContinuousBatch(model), [], {}, 0
    while batch or len(joined) < len(prompts):
        for n, (ids, method, begin, end) in enumerate(prompts):
            if step == begin:
                joined[n] = batch.join(ids, method)
            if step == end:
                batch.leave(joined[n])
        outcomes = batch.advance()
        seen.append([len(batch), batch.rows, [[r.token for r in rs] for _, rs in outcomes]])
        step += 1
    kept = [joined[n].hypotheses if prompts[n][3] is None else None for n in joined]
    return seen, kept


def cached(budget, *batches, **named):
    """What a prefix cache of so many tokens holds after each batch, and the tokens of the last."""
    cache, seen = PrefixCache(LM, budget * 128), []
    for rows in batches:
        tokens = decode(cache, rows, max_tokens=2, **named)
        nodes = sorted((node.tokens, node.used) for node in cache._tree.nodes())
        seen.append([str(cache), cache.bytes // 128, cache.evicted, nodes])
    return seen, tokens


def stored(method, *more):
    """The file of a method, and the method of that file."""
    with TemporaryDirectory() as folder, chdir(folder):
        save(method, ".", *more)
        return json.loads(Path(FILE).read_text()), load(".")


def loaded(model=None, **fields):
    """The method of a file with these fields, and the warnings."""
    with TemporaryDirectory() as folder, chdir(folder):
        Path(FILE).write_text(json.dumps(fields))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            return load(FILE, model), [str(warning.message) for warning in said]


def searched(model, rows, beam):
    """What the listener of a beam search is told, and the hypotheses."""
    told = []
    found = beam.run(model, Sequences.of(rows, 0), lambda *step: told.append(step))
    return told, found


def streamed(model, method):
    stream = Streaming(model, Sequences.of(PROMPTS, 0), method)
    return list(stream), stream.results


def replayed(model, rows, method):
    """Hypotheses by steps that are recorded and replayed, and their numbers."""
    counts = []

    def recorded(run, device):
        start, scores, left = recording.recorded(run)
        return lambda: (counts.append(list(scores.shape[:2])), start()), scores, left

    with pytest.MonkeyPatch.context() as patch, ops.without(*compiled()):
        patch.setattr(cuda_graphs, "DEVICES", ("cpu",))
        patch.setattr(cuda_graphs, "OWN", 1)
        patch.setattr(cuda_graphs, "_replays", {})
        patch.setattr(cuda_graphs, "recorded", recorded)
        patch.setattr(Padding, "trivial", lambda mask, keys: False)
        patch.setattr(KeyMask, "padding", padding)
        patch.setattr(KeyMask, "idle", property(lambda mask: None))
        found = [decode(model, rows, method) for _ in range(2)]
    return found, counts


def padding(lengths, width):
    return KeyMask((torch.arange(width) < lengths[:, None])[:, None, None, :])


def text(words, before, stops=(), kind="bytes"):
    """What is shown of a text token by token, and how it ends."""
    tokenizer = test_streaming.tokenizer_of(kind)
    shown, seen = GeneratedText(tokenizer, before, stops), []
    for token in tokenizer.encode(words).ids if isinstance(words, str) else words:
        shown.add(token)
        seen.append(shown.ready())
    shown.end(2)
    return seen, shown.ready(), shown.parts, shown.text, shown.reason, shown.scored_tokens


def t(values):
    return torch.tensor(values, dtype=torch.float64)


LM = model_of("gpt2", 16, heads=2, layers=1, max_length=24, bos=1, eos=2)
MT = model_of("transformer", 9, heads=2, d_ff=12, encoder_layers=1, decoder_layers=1, max_length=24)
LONG = model_of("gpt2", 16, heads=2, layers=1, max_length=600, bos=1, eos=2)
TREES = TreeVocabulary({"S": 3, "N": 5}, {"S": 4, "N": 6}, 7)
CELLS = model_of("lstm-lm", 3, tied=False)
RNN = recurrent()
BYTES = test_streaming.in_bytes()


@pytest.mark.filterwarnings("ignore:Decoding will not do")
@each_section("decoding")
def test_statements_give_what_they_gave_before(section):
    check("decoding", section)
