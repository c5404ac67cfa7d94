"""Options by name: the methods and errors that they give, and generation_config.json both ways."""

import json
import random

import pytest

from regard.decoding import (
    GNMT,
    BadWords,
    Beam,
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Power,
    RelativeLimit,
    Sampling,
    Speculative,
    Temperature,
    TopK,
    TopP,
    TotalLimit,
    load,
    save,
    with_options,
)
from regard.errors import ConfigError

METHODS = [
    Greedy(),
    Greedy(GNMT(0.8), (MinTokens(3), NoRepeatNGram(2)), RelativeLimit(1.5, 7)),
    Beam(5, 3, Power(0.6), True, (NoRepeatNGram(3),), 77),
    Beam(4, 1, GNMT(1.0), False, (), RelativeLimit()),
    Beam(4, 1, Power(0.0), "never"),
    Sampling(),
    Sampling((Temperature(0.8), TopK(50), TopP(0.95)), 4, 11, max_tokens=20),
]


DRAWN = {  # values of our options, and the stored ones that they must become
    "beams": {2: {"num_beams": 2}, 5: {"num_beams": 5}},
    "n_best": {2: {"num_return_sequences": 2}},
    "samples": {3: {"num_return_sequences": 3, "do_sample": True}},
    "length_penalty": {
        0.5: {"length_penalty": 0.5},
        "gnmt:0.7": {"length_penalty": 0.7, "length_penalty_formula": "gnmt"},
    },
    "early_stopping": {"never": {"early_stopping": "never"}, True: {"early_stopping": True}},
    "min_tokens": {3: {"min_new_tokens": 3}},
    "no_repeat_ngram": {2: {"no_repeat_ngram_size": 2}},
    "temperature": {1.0: {"temperature": 1.0}, 0.5: {"temperature": 0.5}},
    "top_k": {50: {"top_k": 50}, 7: {"top_k": 7}},
    "top_p": {1.0: {"top_p": 1.0}, 0.6: {"top_p": 0.6}},
    "max_tokens": {9: {"max_new_tokens": 9}},
    "max_length_a": {1.5: {"max_length_a": 1.5}},
    "seed": {0: {"seed": 0}, 50: {"seed": 50}},
    "prompt_lookup_num_tokens": {3: {"prompt_lookup_num_tokens": 3}},
    "eos": {4: {"eos_token_id": 4}, (4, 5): {"eos_token_id": [4, 5]}},
}
CHANGED = [
    Greedy(),
    Greedy(filters=(BadWords(((3,),)),), max_tokens=TotalLimit(8)),
    Beam(2),
    Beam(4, 2, GNMT(0.6), "never", (MinTokens(2),), TotalLimit(30)),
    Sampling((Temperature(0.5), TopK(50)), 2, 7, max_tokens=RelativeLimit(2.0, 5)),
    Speculative(),
    Speculative(Sampling((TopK(3),)), 2),
]


def test_each_changed_option_is_in_the_new_method_or_an_error():
    draw, changed = random.Random(0), 0
    for _ in range(3000):
        method = draw.choice(CHANGED)
        names = draw.sample(list(DRAWN), draw.randint(1, 3))
        named = {name: draw.choice(list(DRAWN[name])) for name in names}
        try:
            stored = with_options(method, **named).settings()
        except ConfigError as error:
            assert any(f"`{name}`" in str(error) for name in named), error
            continue
        changed += 1
        expected = {k: v for name, value in named.items() for k, v in DRAWN[name][value].items()}
        assert {name: stored.get(name) for name in expected} == expected, (method, named)
    assert changed > 1000


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_transformers_loads_saved_methods(method, tmp_path):
    transformers = pytest.importorskip("transformers")
    save(method, tmp_path, ids={"eos_token_id": 2})
    read = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert read.eos_token_id == 2
    assert read.do_sample == isinstance(method, Sampling)
    assert (read.num_beams or 1) == (method.size if isinstance(method, Beam) else 1)
    if isinstance(method, Sampling):
        parts = {type(part): part for part in method.filters}
        assert read.temperature == (parts[Temperature].value if Temperature in parts else 1.0)
        assert read.top_k == (parts[TopK].count if TopK in parts else 0)
        assert read.top_p == (parts[TopP].mass if TopP in parts else 1.0)
    if isinstance(method, Beam):
        assert read.num_return_sequences == method.n_best
        assert read.length_penalty == method.length_penalty.alpha
        assert read.early_stopping == method.early_stopping


def write(folder, values=None, text=None):
    (folder / "generation_config.json").write_text(text or json.dumps(values))
    return load(folder)
