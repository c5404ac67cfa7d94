"""The methods of every task: a text gives one result, a list a list, a missing one an error.

Tests of `regard.tasks.inputs`, too.
"""

from __future__ import annotations

from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import every_task
import numpy as np
import pytest
import torch

import regard
from regard import habit_names
from regard.call_options import DecodingOptions
from regard.decoding.option_types import NAMES, OPTION_TYPES
from regard.errors import ConfigError, NotSupportedError, RegardError, TextError
from regard.tasks import TASKS, task_class
from regard.tasks.task import METHODS, EmbedOptions, Methods

TEXT, IMAGE = "the cat sat", str(Path(__file__).parents[1] / "stripes.png")
PAIR, QUESTION = ("who sat", "the old cat sat"), {"question": "who", "choices": ["a cat", "a mat"]}
# What `predict` of a task reads, where it is no text.
READ: dict[str, Any] = {
    "fill-mask": "the [MASK] sat",
    "masked-language-modeling": "the [MASK] sat",
    "next-sentence": PAIR,
    "question-answering": PAIR,
    "multiple-choice": QUESTION,
    "captioning": IMAGE,
}
# Of the methods for which one item is none of these.
ONE: dict[str, tuple[Any, ...]] = {
    "answer": PAIR,
    "follows": PAIR,
    "fill": ("the [MASK] sat",),
    "search": (TEXT, [TEXT, "a mat"]),
    "reply": (["the cat", "sat"],),
    "similarity": (TEXT, "a mat"),
    **dict.fromkeys(("embed", "encode", "log_likelihoods"), (TEXT,)),
}
NOT_OF_TEXTS = {
    *("evaluate", "save", "to", "classification_report", "stream", "hypotheses", "embed_stream"),
    *("lambada", "cache_prefixes"),
}
DECODING = {"generate", "translate", "summarize", "caption", "reply"}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    torch.manual_seed(0)
    return {name: every_task.MAKERS[name]() for name in TASKS}


def several(method: str, one: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two items in place of one."""
    return tuple(item if method == "search" and n else [item] * 2 for n, item in enumerate(one))


@pytest.mark.parametrize("name", TASKS)
def test_one_text_gives_one_result_and_a_list_a_list_in_every_method(tasks, name):
    model = tasks[name]
    model.module.eval()
    for method in set(model.methods()) - NOT_OF_TEXTS:
        if method == "follows" and "next_sentence" not in model.module.heads:
            continue  # fills masks alone
        options = (
            {"max_tokens": 8}
            if method in DECODING or (method in ("predict", "parse") and model.decodes)
            else {}
        )
        text = READ.get(name) or task_class(name).example_input or TEXT
        one = ONE.get(method, (text,))
        call = getattr(model, method)
        alone, together = call(*one, **options), call(*several(method, one), **options)
        assert len(together) == 2, method
        for other in together:
            if method == "predict_proba" and isinstance(alone, dict):
                other = dict(zip(model.labels, other.tolist(), strict=True))
            if method == "similarity":
                other = other[0]
            if isinstance(other, float | np.floating | np.ndarray):
                np.testing.assert_allclose(other, alone, atol=1e-5, err_msg=method)
            elif isinstance(alone, str):
                assert other == alone, method
            else:
                assert type(other) is type(alone), method


@pytest.mark.parametrize("name", ["classification", "question-answering", "tagging", "fill-mask"])
def test_a_row_by_name_is_its_texts(tasks, name):
    model, text = tasks[name], READ.get(name, TEXT)
    row = dict(zip(model.input_columns, [text] if isinstance(text, str) else text, strict=False))
    assert model.predict([row | {"label": 1}, text]) == [model.predict(row)] * 2
    with pytest.raises(TextError, match="Text 2 must have text.* but has review"):
        model.predict([row, {"review": "a"}])


@pytest.mark.parametrize("name", TASKS)
def test_the_methods_of_a_task_have_the_defaults_that_all_tasks_have(name):
    for method in filter(task_class(name).has, METHODS):
        common, own = (signature(getattr(kind, method)) for kind in (Methods, task_class(name)))
        for option in common.parameters.keys() & own.parameters:
            default = own.parameters[option].default
            assert default in (common.parameters[option].default, Parameter.empty), (method, option)


@pytest.mark.parametrize(
    "name, result",
    [
        ("multi-label-classification", ["old", "sunny", "warm"]),
        ("next-sentence", True),
        ("replaced-tokens", ["the", "cat", "sat"]),
    ],
)
def test_a_probability_of_one_half_is_enough(name, result):
    model = every_task.MAKERS[name]()
    for parameter in model.module.heads.parameters():
        parameter.data.zero_()
    (prediction,) = model.predict([READ.get(name, TEXT)], return_proba=True)
    assert prediction.result == result


@pytest.mark.parametrize("name", TASKS)
def test_a_method_that_a_task_lacks_raises_an_error_that_names_those_it_has(tasks, name):
    model = tasks[name]
    lacking = set(METHODS) - set(model.methods())
    assert lacking and set(METHODS) - lacking >= {"predict", "save", "to"}
    for method in lacking:
        pair = method in ("answer", "follows", "search", "similarity")
        arguments = ("a", "b") if pair else ("a",)
        with pytest.raises(NotSupportedError, match=f"does not support `{method}`") as raised:
            getattr(model, method)(*arguments)
        assert all(f"`{own}`" in str(raised.value) for own in model.methods())


def test_models_in_place_of_folders_are_named(tasks, tmp_path):
    for call in (regard.quantize, lambda task, out: regard.export(task, "onnx", out)):
        with pytest.raises(TypeError, match=r"not a TextClassifier.*model\.save"):
            call(tasks["classification"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_hypotheses_of_a_text_are_a_list_and_limits_take_effect(tasks):
    for name, method in (
        ("translation", "translate"),
        ("summarization", "summarize"),
        ("dialogue", "reply"),
        ("language-modeling", "generate"),
        ("captioning", "caption"),
    ):
        model, text = tasks[name], IMAGE if name == "captioning" else TEXT
        call, expected = getattr(model, method), model.hypotheses([text], beams=3, n_best=2)
        two = call(text, beams=3, n_best=2)
        assert two == model.spelled([text], expected)[0] and len(two) == 2
        items = [[text], [text]] if name == "dialogue" else [text, text]
        assert call(items, beams=3, n_best=2) == [two, two]
        assert len(call(text, samples=3, seed=1)) == 3
        for limit in ("max_tokens", "max_new_tokens"):
            (ranked,) = model.hypotheses([text], **{limit: 2}, suppress_tokens=[0])
            assert len(ranked[0].tokens) <= 2
        with pytest.raises(ConfigError, match="no option"):
            call(text, max_tokenz=3)
        with pytest.raises(NotSupportedError, match="return_proba"):
            model.predict(text, return_proba=True)


def test_an_object_is_moved(tasks):
    model = tasks["embedding"]
    assert model.to("cpu") is model and model.device.type == "cpu"
    with pytest.raises(ConfigError, match="There is no device"):
        model.to("nowhere")


HOT, BEAMS = {"temperature": 20.0, "seed": 1}, {"beams": 4, "n_best": 4}
# (options, a further one): together they give something else than the first alone, or an error.
# `T` is the first token that the model generates by itself.
DRAWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"beams": 4, "n_best": 2}),
    ({}, {"num_beams": 4, "num_return_sequences": 2}),
    ({}, {"n_best": 2}),
    ({}, {"num_return_sequences": 2}),
    ({}, {"samples": 2}),
    (BEAMS, {"length_penalty": -5.0}),
    (BEAMS, {"early_stopping": "never sooner"}),
    ({"eos": "T"}, {"min_tokens": 3}),
    ({"eos": "T"}, {"min_new_tokens": 3}),
    ({"max_tokens": 5, "min_tokens": 5}, {"no_repeat_ngram": 1}),
    ({"max_tokens": 5, "min_tokens": 5}, {"no_repeat_ngram_size": 1}),
    ({}, HOT),
    ({}, {"do_sample": True, "temperature": 20.0}),
    ({}, {"seed": 2}),
    (HOT, {"seed": 2}),
    (HOT, {"top_k": 1}),
    (HOT, {"top_p": 0.01}),
    (HOT, {"beams": 2}),
    (BEAMS, {"temperature": 2.0}),
    ({}, {"max_tokens": 1}),
    ({}, {"max_new_tokens": 1}),
    ({"min_tokens": 12}, {"max_length_a": 0.01}),
    ({"max_length_a": 0.01}, {"max_length_b": 1}),
    ({}, {"eos": "T"}),
    ({}, {"repetition_penalty": 50.0}),
    ({}, {"bad_words_ids": [["T"]]}),
    ({}, {"suppress_tokens": ["T"]}),
    ({}, {"forced_bos_token_id": 9}),
    ({"max_tokens": 3, "min_tokens": 3}, {"forced_eos_token_id": 9}),
    ({"beams": 2, "suppress_tokens": ["T"]}, {"renormalize_logits": True}),
    ({}, {"too_long": "skip"}),
    ({}, {"stop": ""}),
    ({}, {"window": True}),
    ({}, {"source_language": "xx"}),
    ({}, {"target_language": "xx"}),
]
DRAWN_OF_VECTORS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"layers": 0}),
    ({}, {"combine": "sum"}),
    ({"layers": -2}, {"combine": "sum"}),
    ({"layers": [-1, -2]}, {"combine": "sum"}),
    ({}, {"pooling": "max"}),
    ({"granularity": "token"}, {"pooling": "max"}),
    ({}, {"granularity": "word"}),
    ({}, {"output_value": "token_embeddings"}),
    ({"granularity": "word"}, {"output_value": "token_embeddings"}),
    ({}, {"normalize": True}),
    ({}, {"normalize_embeddings": True}),
    ({"granularity": "token"}, {"normalize": True}),
    ({}, {"truncate_dim": 2}),
    ({"granularity": "token"}, {"truncate_dim": 2}),
    ({}, {"precision": "bfloat16"}),
    ({}, {"max_tokens_per_batch": 0}),
    ({}, {"convert_to_numpy": False}),
]
WITHOUT_EFFECT = {"batch_size", "show_progress_bar"}  # as their description says


def with_token(options: Any, token: int) -> Any:
    if isinstance(options, dict):
        return {name: with_token(value, token) for name, value in options.items()}
    if isinstance(options, list):
        return [with_token(value, token) for value in options]
    return token if options == "T" else options


def outcome(call: Any, options: dict[str, Any]) -> Any:
    """What a call gives, or that it is an error of ours."""
    try:
        return repr(call(**options))
    except RegardError as error:
        return f"error: {error}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["translation", "language-modeling", "dialogue", "captioning", "embedding", "tagging"]
)
def test_no_option_is_ignored(tasks, name):
    model = tasks[name]
    if model.decodes:
        texts = [IMAGE if name == "captioning" else TEXT]
        (first,) = model.hypotheses(texts)
        token = first[0].tokens[0] if first[0].tokens else 0
        call, pairs = partial(model.hypotheses, texts), with_token(DRAWN, token)
    else:
        call, pairs = partial(model.embed, [TEXT, "a mat"]), DRAWN_OF_VECTORS
    without: dict[str, Any] = {}  # what a call gives without the further option
    for options, further in pairs:
        if repr(options) not in without:
            without[repr(options)] = outcome(call, options)
        before, after = without[repr(options)], outcome(call, options | further)
        assert before != after or after.startswith("error"), (options, further, before)
    assert outcome(call, {"no_such_option": 1}).startswith("error")


def test_the_typed_options_are_those_that_there_are_and_are_drawn():
    typed = {*DecodingOptions.__annotations__}
    of_tasks = {"too_long", "stop", "window", "source_language", "target_language"}
    assert {*NAMES} <= typed
    assert typed - of_tasks <= {*NAMES, *OPTION_TYPES, *habit_names.DECODING}
    assert typed <= {option for _, further in DRAWN for option in further}
    drawn = {option for _, further in DRAWN_OF_VECTORS for option in further}
    assert {*EmbedOptions.__annotations__} - WITHOUT_EFFECT - {"too_long"} == drawn
