"""Texts that end before a stop sequence; judged by `transformers` and by the text without one."""

from __future__ import annotations

import random
import warnings
from itertools import cycle

import pytest
import tokenizers
import torch

from regard.checkpoints.formats import to_published
from regard.models.gpt2 import GPT2
from regard.tasks.language_modeling import TextGenerator
from regard.text import Tokenizer, train

TEXT = "the cat sat on the mat. and the dog ran to the old house, by the sea!\n" * 6
PROMPTS = ["the cat", "by the sea", "a", "the old house is on"]
METHODS = [
    {},
    {"temperature": 1.0, "samples": 3},
    {"beams": 3, "n_best": 2},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("byte-bpe", [TEXT], 300)


@pytest.fixture(scope="module")
def task(tokenizer) -> TextGenerator:
    """Random weights, large enough that the texts differ."""
    torch.manual_seed(1)
    shape = {"d_model": 16, "heads": 2, "layers": 2, "max_length": 80}
    config = GPT2.Config(tokenizer.vocab_size, bos=1, eos=2, init_range=0.3, **shape)
    return TextGenerator(GPT2(config).eval(), tokenizer)


def stops_in(texts: list[str]) -> list[list[str]]:
    """Sequences of one to four characters that are in texts, and others."""
    draw, found = random.Random(5), []
    for text in texts * 2:
        size = draw.randint(1, 3)
        parts = [text[at : at + size] for at in range(len(text) - size)]
        # Bytes that are no character have no text that a stop could be.
        found += [[part, "not in it"] for part in draw.sample(parts, 3) if "\ufffd" not in part]
    assert len(found) > 4
    return [*found, [found[0][0], found[1][0]], ["not in it"]]


def cut(text: str, stops: list[str]) -> str:
    """A text up to the first stop sequence that is complete."""
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(one) for one in stops)]
    if not ends:
        return text
    return text[: min(ends[0] - len(one) for one in stops if text[: ends[0]].endswith(one))]


def continuations(task: TextGenerator, options: dict) -> list[list[str]]:
    found = task.spelled(PROMPTS, task.hypotheses(PROMPTS, max_tokens=30, **options))
    return [
        [text[len(prompt) :] for text in texts]
        for prompt, texts in zip(PROMPTS, found, strict=True)
    ]


@pytest.mark.parametrize("options", METHODS)
def test_a_text_is_the_one_without_a_stop_cut_before_it(task, options):
    whole = continuations(task, options)
    for stops in stops_in([texts[0] for texts in whole]):
        # Of several stops that one token completes the first counts; here a token completes one.
        found = continuations(task, {**options, "stop": stops})
        assert found == [[cut(text, stops) for text in texts] for texts in whole]


def test_texts_and_tokens_are_those_of_transformers(task, tokenizer):
    transformers = pytest.importorskip("transformers")
    config, weights = to_published(task.module)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config)).eval()
    theirs.load_state_dict(weights, strict=False)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.to_str())
    )
    whole = [texts[0] for texts in continuations(task, {})]
    stopped = 0
    for stops, prompt in zip(stops_in(whole), cycle(PROMPTS), strict=False):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.no_grad():
            (expected,) = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=30,
                do_sample=False,
                pad_token_id=0,
                stop_strings=stops,
                tokenizer=fast,
            )
        tokens = [one for one in expected[ids.size(1) :].tolist() if one != 2]
        (found,) = task.hypotheses([prompt], max_tokens=30, stop=stops)[0]
        assert found.tokens == tokens
        stopped += len(tokens) < 30
        text = task.generate(prompt, max_tokens=30, stop=stops)
        assert text == prompt + cut(tokenizer.decode([*ids[0], *tokens])[len(prompt) :], stops)
    assert stopped >= 5


@pytest.mark.parametrize("options", METHODS[:2] + METHODS[3:])
def test_streamed_parts_never_show_a_stop(task, options):
    options = {name: value for name, value in options.items() if name != "samples"}
    whole = [texts[0] for texts in continuations(task, options)]
    stopped = 0
    for stops, number in zip(stops_in(whole), cycle(range(len(PROMPTS))), strict=False):
        parts = list(task.stream(PROMPTS[number], max_tokens=30, stop=stops, **options))
        assert "".join(parts) == cut(whole[number], stops)
        stopped += "".join(parts) != whole[number]
    assert stopped >= 5


def test_nothing_is_generated_after_a_stop(task, monkeypatch):
    steps, step = [], task.module.step
    monkeypatch.setattr(task.module, "step", lambda *args: steps.append(1) or step(*args))
    first = task.hypotheses(PROMPTS[:1], max_tokens=30, stop=" ")[0][0]
    assert first.finished and len(first.tokens) < 20
    assert len(steps) <= len(first.tokens) + 1  # and one that reads the prompt


@pytest.mark.parametrize("options", METHODS)
def test_a_stopped_text_is_finished_and_does_not_warn(task, options):
    """As if its end were the model's own, whatever decodes it and however long the whole is."""
    (whole,) = task.hypotheses(PROMPTS[:1], max_tokens=9, **options)
    stops = [task.spelled(PROMPTS[:1], [[one]])[0][0][len(PROMPTS[0]) :][0] for one in whole]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of the end of the context
        (found,) = task.hypotheses(PROMPTS[:1], stop=stops, **options)
    assert all(one.finished for one in found)
    assert task.spelled(PROMPTS[:1], [found]) == [[PROMPTS[0]] * len(found)]
