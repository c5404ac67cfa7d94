"""Options by name: the methods and errors that they give, and generation_config.json both ways."""

import json
import random
import warnings
from dataclasses import replace

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
    generate,
    load,
    options,
    save,
    with_options,
)
from regard.decoding.option_types import NAMES
from regard.decoding.settings import OWNERS
from regard.errors import ConfigError


def test_option_names_decide_the_method():
    assert options() == Greedy()
    assert options(max_tokens=40) == Greedy(max_tokens=40)
    assert options(beams=5, n_best=2, length_penalty=0.6, early_stopping="never") == Beam(
        5, 2, Power(0.6), "never"
    )
    assert options(beams=4, length_penalty="gnmt:0.6", max_length_a=1.5, max_length_b=10) == Beam(
        4, length_penalty=GNMT(0.6), max_tokens=RelativeLimit(1.5, 10)
    )
    assert options(max_tokens=40, top_k=40) == Sampling((TopK(40),), max_tokens=40)
    assert options(
        top_p=0.9, temperature=0.7, no_repeat_ngram=3, min_tokens=2, samples=3, seed=5
    ) == Sampling((MinTokens(2), NoRepeatNGram(3), Temperature(0.7), TopP(0.9)), 3, 5)
    assert options("beam") == Beam()
    assert options(beams=None, top_k=None) == Greedy()


@pytest.mark.parametrize(
    "named, message",
    [
        (dict(temperature=0.7, beams=4), "`beams` belongs to beam, but `temperature` to sampling"),
        (dict(method="beam", top_k=4), "`top_k` must|top_k.*sampling|TopK.*only for sampling"),
        (dict(method="sampling", beams=4), "`beams` belongs to beam, but the method is sampling"),
        (dict(top_k=0), "`top_k` must be at least 1"),
        (dict(top_p=1.2), "`top_p` must be at most 1"),
        (dict(temperature=0), "`temperature` must be at least 1e-30"),
        (dict(beams=2, n_best=3), "`n_best` must be from 1 to `beams`, 2: 3"),
        (dict(beams="four"), "`beams` must be a whole number, but is 'four'"),
        (dict(beams=True), "`beams` must be a whole number, but is True"),
        (dict(top_k=2.5), "`top_k` must be a whole number, but is 2.5"),
        (dict(top_p="x"), "`top_p` must be a number, but is 'x'"),
        (dict(beam=4), "no option `beam` for greedy. Did you mean 'beams'"),
        (dict(method="beem"), "no decoding method 'beem'. Did you mean 'beam'"),
        (dict(length_penalty="gnmd:1"), "no length penalty 'gnmd'. Did you mean 'gnmt'"),
        (dict(length_penalty="gnmt:x"), "`length_penalty` must be a number, but is 'x'"),
        (dict(length_penalty="long"), "`length_penalty` must be a number, but is 'long'"),
        (dict(beams=2, early_stopping="soon"), "`early_stopping` must be true or false or 'never'"),
        (dict(max_tokens="many"), "`max_tokens` must be a whole number, but is 'many'"),
        (dict(max_tokens=0), "`max_tokens` must be at least 1"),
        (dict(max_length_a=1.0, max_length_b=0), "`max_length_b` must be at least 1"),
    ],
)
def test_wrong_options_raise_an_error_that_names_them(named, message):
    with pytest.raises(ConfigError, match=message):
        options(**named)
    with pytest.raises(ConfigError, match="`method` or options by name"):
        generate(None, None, Greedy(), top_k=4)


METHODS = [
    Greedy(),
    Greedy(GNMT(0.8), (MinTokens(3), NoRepeatNGram(2)), RelativeLimit(1.5, 7)),
    Beam(5, 3, Power(0.6), True, (NoRepeatNGram(3),), 77),
    Beam(4, 1, GNMT(1.0), False, (), RelativeLimit()),
    Beam(4, 1, Power(0.0), "never"),
    Sampling(),
    Sampling((Temperature(0.8), TopK(50), TopP(0.95)), 4, 11, max_tokens=20),
]


VALUES = {  # of each option that we name, a value that it may have
    **dict.fromkeys(("beams", "n_best", "samples", "seed", "top_k", "prompt_lookup_num_tokens"), 1),
    **dict.fromkeys(("min_tokens", "no_repeat_ngram", "max_tokens", "eos"), 1),
    **dict.fromkeys(("temperature", "top_p", "length_penalty"), 1.0),
    **dict(early_stopping=True),
}
FOREIGN = [  # methods, and options of others
    (method, name)
    for method in ("greedy", "beam", "sampling", "speculative")
    for name, owner in OWNERS.items()
    if owner != method and (method, owner) != ("speculative", "sampling")
]


@pytest.mark.parametrize(("method", "name"), FOREIGN)
def test_a_method_refuses_the_options_of_other_methods(method, name):
    with pytest.raises(ConfigError, match=f"`{name}` belongs to"):
        options(method, **{name: VALUES[name]})


@pytest.mark.parametrize("name", [name for name, theirs in NAMES.items() if name != theirs])
def test_two_names_of_one_option_are_an_error(name):
    twice = {name: VALUES[name], NAMES[name]: VALUES[name]}
    for named in (twice, dict(reversed(twice.items()))):
        with pytest.raises(ConfigError, match="mean the same"):
            options(OWNERS.get(name), **named)


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


@pytest.mark.parametrize("method", [Beam(4, 2), Sampling(samples=2), Beam(3, 3)], ids=str)
def test_one_beam_cannot_give_several_hypotheses(method):
    with pytest.raises(ConfigError, match="`num_return_sequences` .* must be 1 for greedy search"):
        with_options(method, beams=1)


@pytest.mark.parametrize(
    "named",
    [
        dict(max_length=9, max_tokens=5),
        dict(max_length=9, max_length_a=1.5),
        dict(max_length=9, max_length_b=5),
        dict(max_length_b=5),
        dict(length_penalty="gnmt:0.6", length_penalty_formula="power"),
    ],
    ids=str,
)
def test_no_option_is_ignored_beside_another_one(named):
    with pytest.raises(ConfigError, match="|".join(f"`{name}`" for name in named)):
        options(**named)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_saved_methods_are_loaded_unchanged(method, tmp_path):
    save(method, tmp_path, ids={"eos_token_id": 2, "pad_token_id": 0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path) == replace(method, eos=(2,))
        assert load(tmp_path / "generation_config.json") == replace(method, eos=(2,))


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


@pytest.mark.parametrize("more", [{}, {"beams": 2}, {"top_k": 5}, {"prompt_lookup_num_tokens": 3}])
def test_the_least_tokens_are_at_most_the_most(more):
    message = r"`min_tokens` exceeds `max_tokens`: {}, {}\."
    with pytest.raises(ConfigError, match=message.format(5, 3)):
        options(min_tokens=5, max_tokens=3, **more)
    with pytest.raises(ConfigError, match=message.format(5, 3)):
        with_options(Greedy(), min_tokens=5, max_tokens=3, **more)
    with pytest.raises(ConfigError, match=message.format(300, 256)):
        options(min_tokens=300, **more)
    with pytest.raises(ConfigError, match=message.format(5, 3)):
        with_options(Greedy(max_tokens=3), min_tokens=5, **more)
    with_options(Greedy(max_tokens=400), min_tokens=300, **more)
    options(min_tokens=5, max_tokens=5, **more)
    shorter = with_options(Greedy(filters=(MinTokens(5),)), max_tokens=3)
    assert shorter == Greedy(filters=(MinTokens(5),), max_tokens=3)
