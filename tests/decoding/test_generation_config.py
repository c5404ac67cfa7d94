"""generation_config.json of other libraries: the same tokens, or an error or a warning by name."""

import json
import random
import warnings

import pytest
import torch

from regard.checkpoints.model_folder import read_model
from regard.data.batches import Sequences
from regard.decoding import (
    Beam,
    Greedy,
    Sampling,
    TotalLimit,
    generate,
    load,
    load_from_model_config,
    save,
    with_options,
)
from regard.decoding.generation_config import (
    IGNORED,
    IGNORED_PREFIXES,
    MODEL_FIELDS,
    WITHOUT_EFFECT,
)
from regard.decoding.option_types import OPTION_TYPES
from regard.errors import ConfigError, RegardError

transformers = pytest.importorskip("transformers")
FILE, VOCABULARY = "generation_config.json", 24


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=48,
        initializer_range=0.5, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def marian():
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=48, init_std=0.7, scale_embedding=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=0,
        forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.MarianMTModel(config)


@pytest.fixture(scope="module", params=[gpt2, marian], ids=["gpt2", "marian"])
def pair(request, tmp_path_factory):
    """The model of `transformers`, ours, and the folder of both."""
    torch.manual_seed(3)
    theirs, folder = request.param().eval(), tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, read_model(folder).eval(), folder


@pytest.fixture(scope="module")
def our_gpt2(tmp_path_factory):
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("gpt2")
    gpt2().save_pretrained(folder)
    return read_model(folder).eval()


def written(folder, values):
    (folder / FILE).write_text(json.dumps(values))
    return folder / FILE


# ------------------------------------------------------------------------ the same tokens


def config(draw, answers):
    """A file that transformers accepts; `answers`: for an encoder-decoder."""
    some = lambda least, most: [  # noqa: E731
        draw.randrange(VOCABULARY) for _ in range(draw.randint(least, most))
    ]
    maybe = lambda chance, name, make: (  # noqa: E731
        values.update({name: make()}) if draw.random() < chance else None
    )
    values = {"pad_token_id": 0}
    often = [23, 7, 8, 6] if answers else [0, 22, 17, 14, 7, 9]
    values["eos_token_id"] = draw.choice([2, draw.choice(often), draw.sample(often, 3), some(1, 5)])
    if answers:
        values["decoder_start_token_id"] = 0
        maybe(0.5, "bad_words_ids", lambda: [[0]])
    if draw.random() < 0.6:
        values["num_beams"] = draw.randint(2, 5)
        maybe(0.5, "num_return_sequences", lambda: draw.randint(1, values["num_beams"]))
        maybe(0.5, "early_stopping", lambda: draw.choice([True, False, "never"]))
        maybe(0.5, "length_penalty", lambda: draw.choice([0.0, 0.6, 2.0, -1.0]))
    elif draw.random() < 0.3:
        values |= {"do_sample": True, "top_k": 1}  # nothing is left to chance
    if draw.random() < 0.5:
        values["max_length"] = draw.randint(7, 18)
    else:
        values["max_new_tokens"] = draw.randint(1, 12)
    maybe(0.3, "min_length", lambda: draw.randint(0, 12))
    maybe(0.1, "min_new_tokens", lambda: draw.randint(0, 8))
    maybe(0.2, "no_repeat_ngram_size", lambda: draw.randint(0, 3))
    maybe(0.2, "bad_words_ids", lambda: [some(1, 3) for _ in range(draw.randint(1, 3))])
    maybe(0.3, "repetition_penalty", lambda: draw.choice([1.3, 0.7, 5.0, 1.0]))
    maybe(0.2, "suppress_tokens", lambda: some(1, 4))
    maybe(0.15, "forced_bos_token_id", lambda: draw.randrange(VOCABULARY))
    maybe(0.25, "forced_eos_token_id", lambda: draw.choice([2, *some(1, 1)]))
    maybe(0.4, "renormalize_logits", lambda: True)
    maybe(0.1, "prompt_lookup_num_tokens", lambda: draw.randint(1, 5))
    return values


def their_tokens(model, file, prompt):
    """The tokens of each sequence without the prompt and what follows an end; or the error."""
    ends = json.loads(file.read_text())["eos_token_id"]
    ends = [ends] if isinstance(ends, int) else ends
    ids = torch.tensor([prompt])
    try:
        model.generation_config = transformers.GenerationConfig.from_pretrained(file.parent)
        rows = model.generate(ids, attention_mask=torch.ones_like(ids)).tolist()
    except Exception as error:  # of any kind, where a field has a wrong type
        return f"{type(error).__name__}: {error}"
    begun = 1 if model.config.is_encoder_decoder else len(prompt)
    found = [row[begun:] for row in rows]
    return [row[: next((i for i, t in enumerate(row) if t in ends), len(row))] for row in found]


@pytest.mark.filterwarnings("ignore")
def test_random_files_give_the_tokens_of_transformers(pair):
    theirs, ours, folder = pair
    draw = random.Random(5)
    compared = 0
    for _ in range(20):
        values = config(draw, theirs.config.is_encoder_decoder)
        file = written(folder, values)
        prompts = [[draw.randrange(3, VOCABULARY) for _ in range(draw.randint(1, 6))] for _ in "ab"]
        wanted = [their_tokens(theirs, file, prompt) for prompt in prompts]
        if any(isinstance(one, str) for one in wanted):
            with pytest.raises(ConfigError, match=FILE):
                load(folder, ours)
            continue
        found = generate(ours, Sequences.of(prompts, 0), load(folder, ours))
        for hypotheses, rows in zip(found, wanted, strict=True):
            # Their rows have padding where no hypothesis is left, and behind a forced end.
            assert len(hypotheses) <= len(rows), values
            for one, row in zip(hypotheses, rows, strict=False):
                tail = row[len(one.tokens) :]
                assert row[: len(one.tokens)] == one.tokens and not any(tail), values
        compared += 1
    assert compared > 10


def test_max_length_counts_the_prompt(pair, tmp_path):
    """`max_length` counts the prompt of a decoder, and only the first token of an answer."""
    theirs, ours, _ = pair
    answers = theirs.config.is_encoder_decoder
    source = Sequences.of([[5, 6, 7, 8]], 0)
    method = load(written(tmp_path, {"max_length": 6, "eos_token_id": []}), ours)
    assert method == Greedy(max_tokens=TotalLimit(6), eos=())
    assert len(generate(ours, source, method)[0][0].tokens) == (5 if answers else 2)
    assert len(generate(ours, source, with_options(method, max_tokens=4))[0][0].tokens) == 4
    with pytest.warns(UserWarning, match="max_length.*`max_new_tokens` is there too, and wins"):
        method = load(written(tmp_path, {"max_length": 6, "max_new_tokens": 3}), ours)
    assert method.max_tokens == 3
    short = load(written(tmp_path, {"max_length": 4}), ours)
    if answers:
        generate(ours, source, short)
    else:
        with pytest.raises(ConfigError, match=r"has 4 tokens, which `max_length` 4 counts"):
            generate(ours, source, short)


# ------------------------------------------------------------------------------ all fields


def test_every_field_of_transformers_is_supported_or_warned_about_or_ignored():
    fields = set(transformers.GenerationConfig().to_dict())
    known = {*OPTION_TYPES, *WITHOUT_EFFECT, *IGNORED, *MODEL_FIELDS}
    assert {name for name in fields - known if not name.startswith(IGNORED_PREFIXES)} == set()
    assert not {*OPTION_TYPES} & {*WITHOUT_EFFECT} and not {*OPTION_TYPES} & IGNORED


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_an_unsupported_field_is_an_error_unless_it_has_no_effect(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"{FILE}: `{name}` is 0.37: there is no such option"):
        load(written(tmp_path, {name: 0.37, "do_sample": True}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (None, *WITHOUT_EFFECT[name]):
            assert load(written(tmp_path, {name: value})) == Greedy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 3, "length_penalty": 0.7, "bad_words_ids": [[0]], "max_length": 12},
        {"repetition_penalty": 1.5, "max_length": 9, "no_repeat_ngram_size": 2},
        {"do_sample": False, "temperature": 0.4, "top_k": 7, "max_length": 11},
    ],
)
def test_without_the_file_the_fields_of_config_json_are_read(pair, fields, tmp_path):
    """As folders had them before there was generation_config.json."""
    theirs, ours, folder = pair
    theirs.save_pretrained(tmp_path)
    (tmp_path / FILE).unlink()
    config = json.loads((tmp_path / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    old = type(theirs).from_pretrained(tmp_path).eval()
    ids = torch.tensor([[5, 6, 7]])
    row = old.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()
    wanted = row[1:] if theirs.config.is_encoder_decoder else row[3:]
    wanted = wanted[: wanted.index(2)] if 2 in wanted else wanted
    method = load_from_model_config(config, tmp_path / "config.json", ours)
    found = generate(ours, Sequences.of([[5, 6, 7]], 0), method)
    assert found[0][0].tokens == wanted


# ---------------------------------------------------------------------------- drawn fields

RIGHT = {
    "num_beams": [2, 4], "num_return_sequences": [2], "early_stopping": [True, "never"],
    "length_penalty": [-1.0, 2.0], "max_length": [8, 12], "min_length": [4, 9],
    "min_new_tokens": [2, 5], "no_repeat_ngram_size": [2], "repetition_penalty": [1.4, 0.5],
    "bad_words_ids": [[[7], [9, 3]]], "suppress_tokens": [[7, 9, 14]], "max_new_tokens": [2, 9],
    "forced_bos_token_id": [5], "forced_eos_token_id": [2, 5], "do_sample": [True],
    "top_k": [1], "cache_implementation": ["dynamic", "static"], "decoder_start_token_id": [0, 3],
}  # fmt: skip
ODD = [
    *(None, True, False, 0, -1, 3, 5.5, 1e308, 1e-320, 10**9, 2**63, 10**30, "", "3", "false"),
    *("nan", "\x00", ".", [], [[]], [1], [-1]),
    *([[1, 2], [3]], [99], ["a"], {}, {"begin": 1}, [None], float("nan"), float("inf")),
]


def drawn_files(draw, count):
    """Names of fields, alone and in pairs, and files that have odd or right values there."""
    known = {*transformers.GenerationConfig().to_dict(), *OPTION_TYPES, "a_field_of_tomorrow"}
    # With an odd `use_cache` theirs computes neither with a cache nor without one.
    fields = sorted(known - {"transformers_version", "use_cache"})
    defaults = ("eos_token_id", "max_new_tokens", "max_length")  # which differ, as documented
    for names in [*([name] for name in fields), *(draw.sample(fields, 2) for _ in range(count))]:
        values = {name: draw.choice([*RIGHT.get(name, ()) * 6, *ODD]) for name in names}
        beams = {"num_beams": 3} if draw.random() < 0.5 else {}
        limit = {} if "max_length" in names else {"max_new_tokens": 6}
        if not any(values.get(name, 0) is None for name in defaults):
            yield names, {"eos_token_id": 2, "pad_token_id": 0} | beams | limit | values


@pytest.mark.filterwarnings("ignore")
def test_drawn_fields_give_the_tokens_of_transformers_or_an_error_that_names_them(pair):
    theirs, _, folder = pair
    prompt, draw, outcomes = [5, 6, 7, 5, 6], random.Random(8), {"error": 0, "equal": 0}
    start = {"decoder_start_token_id": 0} if theirs.config.is_encoder_decoder else {}
    for names, values in drawn_files(draw, 60):
        file = written(folder, start | values)
        try:
            ours = read_model(folder).eval()
            found = generate(ours, Sequences.of([prompt], 0), load(folder, ours))[0]
        except RegardError as error:
            outcomes["error"] += 1
            assert any(name in str(error) for name in names), (values, error)
            continue
        if values.get("do_sample") and values.get("top_k") != 1:
            continue  # other random numbers
        wanted = their_tokens(theirs, file, prompt)
        if isinstance(wanted, str):  # a field that theirs alone reads, or a limit beyond the model
            alone = IGNORED | {*MODEL_FIELDS, "max_length", "max_new_tokens"}
            assert any(name in alone or name.startswith(IGNORED_PREFIXES) for name in names), values
            continue
        outcomes["equal"] += 1
        for one, row in zip(found, wanted, strict=False):
            assert [*row[: len(one.tokens)]] == one.tokens, values
            assert not any(row[len(one.tokens) :]), values
    assert min(outcomes.values()) > 20


# ------------------------------------------------------------------------------------ ends


def test_eos_of_a_file_overrides_that_of_the_model(our_gpt2, tmp_path):
    source = Sequences.of([[5, 6, 7], [9]], 0)
    free = generate(our_gpt2, source, max_tokens=8, eos=[])
    ends = [free[0][0].tokens[3], free[1][0].tokens[2]]
    method = load(written(tmp_path, {"eos_token_id": ends, "max_new_tokens": 8}), our_gpt2)
    for one, all_of_it in zip(generate(our_gpt2, source, method), free, strict=True):
        tokens = all_of_it[0].tokens
        assert one[0].tokens == tokens[: min(tokens.index(e) for e in ends if e in tokens)]
        assert one[0].finished
    save(method, tmp_path, ids={"eos_token_id": 2, "pad_token_id": 0})
    assert json.loads((tmp_path / FILE).read_text())["eos_token_id"] == ends
    assert load(tmp_path, our_gpt2) == method
    assert load(written(tmp_path, {"eos_token_id": 2}), our_gpt2) == Greedy()  # its own
    assert load(written(tmp_path, {"eos_token_id": 2})) == Greedy(eos=(2,))
    for other in (Beam(3, eos=(5, 6)), Sampling(eos=())):
        save(other, tmp_path)
        assert load(tmp_path, our_gpt2) == other
    assert with_options(Beam(3, eos=(5, 6)), max_tokens=3) == Beam(3, eos=(5, 6), max_tokens=3)
    assert with_options(Greedy(eos=(5, 6)), beams=3) == Beam(3, eos=(5, 6))
