"""Every task by every verb, on texts of every kind: a sound answer or an error with a hint.

Cases are drawn; the seed is the test's parameter.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import deque
from pathlib import Path
from typing import Any

import every_task
import numpy as np
import pytest
import torch
from every_task import ENCODER_DECODERS
from pandas import DataFrame
from typer.main import get_command
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import RegardError, TextError, TextTooLong
from regard.tasks import TASKS, task_class
from regard.tasks.inputs import read_whole

QUESTION = json.dumps({"question": "who sat", "choices": ["the cat", "a mat"]})
NAMES = sorted(every_task.MAKERS)
# what a model of each task is asked
GOOD: dict[str, Any] = {
    "fill-mask": "the cat [MASK] on a mat",
    "masked-language-modeling": "the cat [MASK] on a mat",
    "next-sentence": ("the cat sat", "on a mat"),
    "question-answering": ("who sat", "the old cat sat on a mat"),
    "multiple-choice": QUESTION,
    "captioning": str(Path(__file__).parents[1] / "stripes.png"),
}
ODD = [
    "the cat", "the cat\ton a mat", "a\tb\tc", "\t", "\t\t", "the cat\t", "", " ", " \u00a0 ",
    "the [MASK]", "[MASK]\tcat", "cat " * 90, "who\t" + "cat " * 90, "a\x00b", "caf\u00e9 \u6771",
    "a\u2028b\x85c\x0bd", "[CLS] [PAD] </s>", QUESTION, '{"question": 3}', "[1]", "{" * 2000,
    '{"question": "a", "choices": ["a"]}', '{"a": 1, "a": 2}', '{"question": "\\ud800"}', "NaN",
]  # fmt: skip
FLAGS = {
    "predict": [[], ["--too-long", "truncate"], ["--scores"], ["--beams", "2", "--n-best", "2"]],
    "embed": [[], ["--too-long", "truncate"], ["--granularity", "word"], ["--pooling", "max"]],
    "generate": [["--max-tokens", "3"], ["--max-tokens", "3", "--too-long", "truncate"]],
    "look": [[], ["--inputs"], ["--token", "cat"], ["--head", "2"], ["--mask-heads", "1:1"]],
}


@pytest.fixture(scope="module")
def loaded(folders) -> dict[str, Any]:
    return {name: regard.load(folder) for name, folder in folders.items()}


@pytest.fixture
def quick(monkeypatch, loaded, folders):
    """The command line finds the models loaded."""
    tasks = {str(folders[name]): task for name, task in loaded.items()}
    monkeypatch.setattr("regard.tasks.folders.load", lambda path, **_: tasks[str(path)])


def run(*words: Any, stdin: bytes | None = None) -> Any:
    """A call that must end with an answer, or with a message and code 2."""
    found = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert found.exit_code in (0, 2), (words, stdin, found.output)
    assert "unexpected" not in found.stderr and "Traceback" not in found.output
    assert found.exit_code == 0 or re.search("^error: .{15}", found.stderr, re.M), found.stderr
    return found


def parsed(output: str) -> list[dict[str, Any]]:
    """JSON lines, strictly."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in output.split("\n") if line]


def line_of(text: Any) -> str:
    return text if isinstance(text, str) else "\t".join(text)


def good(name: str) -> Any:
    task = every_task.task_of(name)
    return GOOD.get(task) or task_class(task).example_input or "the cat sat on a mat"


def test_every_task_is_tested(loaded):
    assert {task.name for task in loaded.values()} == set(TASKS)
    assert all(task.name == every_task.task_of(name) for name, task in loaded.items())


@pytest.mark.parametrize("name", NAMES)
def test_predict_writes_one_line_for_each_line_of_input(quick, folders, name):
    lines = [line_of(good(name)), "", " \t ", line_of(good(name))]
    stdin = ("\n".join(lines) + "\n").encode()
    texts = run("predict", folders[name], stdin=stdin).stdout.split("\n")
    assert len(texts) == 5 and texts[1:3] == ["", ""] and texts[0] == texts[3] != ""
    found = parsed(run("predict", folders[name], "--json", stdin=stdin).stdout)
    assert [one["number"] for one in found] == [0, 1, 2, 3]
    assert [one["source"] for one in found] == lines
    assert [" ".join(one["text"].splitlines()) for one in found] == texts[:4]
    assert all(one.keys() == found[0].keys() for one in found)
    assert parsed(run("predict", folders[name], "--json", "").stdout)[0]["text"] == ""


def of_words(name: str, count: int) -> str:
    """What a model of a task is asked, with so many words in what has a limit."""
    words, task = " ".join(["cat"] * count), every_task.task_of(name)
    return {
        "fill-mask": f"[MASK] {words}",
        "masked-language-modeling": f"[MASK] {words}",
        "next-sentence": f"the cat\t{words}",
        "question-answering": f"{words}\tthe old cat sat",
        "multiple-choice": json.dumps({"question": words, "choices": ["a", "b"]}),
        "captioning": GOOD["captioning"],
    }.get(task, f"{task_class(task).example_input} {words}".lstrip())


@pytest.mark.parametrize("name", NAMES)
def test_the_limit_that_an_error_names_is_the_one_that_applies(quick, folders, loaded, name):
    limit = ["--max-tokens", 3] if loaded[name].decodes else []
    texts = [of_words(name, count) for count in range(1, 2 * every_task.LIMIT)]
    found = run("predict", folders[name], "--json", *limit, stdin="\n".join(texts).encode())
    count = len(parsed(found.stdout)) + 1  # all shorter texts have a prediction
    if count > len(texts):
        return  # texts of any length
    line, tokens, most = re.search(
        r"^error: standard input:(\d+): .*?has .*?(\d+) tokens, but this model reads at most (\d+)",
        found.stderr,
        re.M,
    ).groups()
    assert int(line) == count and int(tokens) == int(most) + 1
    flags = [*limit, "--too-long", "truncate"]
    said = run("predict", folders[name], of_words(name, count), *flags).stderr
    what = "questions" if name.startswith("question-answering") else "texts"
    assert f"1 of 1 {what} were cut to {most} tokens" in said


@pytest.mark.parametrize("seed", range(2))
def test_odd_texts_give_a_result_or_an_error_with_their_line(quick, folders, seed):
    draw = random.Random(seed)
    for _ in range(40):
        name, verb = draw.choice(NAMES), draw.choice(["predict", "predict", "embed"])
        lines = [draw.choice(ODD) for _ in range(draw.choice([1, 1, 2, 4]))]
        if draw.random() < 0.5:
            lines[0] = line_of(good(name))
        flags, as_json = draw.choice(FLAGS[verb]), draw.random() < 0.5
        flags = flags + ["--json"] * as_json
        if draw.random() < 0.5:
            tail = draw.choice([b"", b"\n", b"\n\n", b"\nx\xff\n"])
            found = run(verb, folders[name], *flags, stdin="\n".join(lines).encode() + tail)
        else:
            lines = [line.replace("\x00", "") for line in lines]
            lines[-1] = draw.choice([lines[-1], "bytes \udcff"])
            found = run(verb, folders[name], *flags, "--", *lines)
        written = parsed(found.stdout) if as_json else []
        assert [one["number"] for one in written] == list(range(len(written)))
        location = re.search(r"^error: (text|standard input):(\d+): ", found.stderr, re.M)
        if location and as_json:
            assert len(written) == int(location[2]) - 1
        if not location and found.exit_code:
            said = "has no effect|gives no vectors|beams|nothing that `pooling`|text: has bytes"
            assert re.search(said, found.stderr), (name, verb, lines, found.stderr)


@pytest.mark.parametrize("seed", range(2))
def test_generate_and_look_of_odd_texts_give_a_result_or_an_error(quick, folders, seed):
    draw = random.Random(seed)
    for _ in range(40):
        name, verb = draw.choice(NAMES), draw.choice(["generate", "look", "look"])
        text = draw.choice([line_of(good(name)), draw.choice(ODD).replace("\x00", ""), "\udcff"])
        as_json = ["--json"] * (draw.random() < 0.5)
        found = run(verb, folders[name], *draw.choice(FLAGS[verb]), *as_json, "--", text)
        facts = parsed(found.stdout) if as_json else []
        if as_json:  # an object, or an error and nothing
            assert len(facts) == (found.exit_code == 0)
        else:
            assert found.stdout.strip() or found.exit_code == 2


def test_a_verb_that_a_task_lacks_raises_an_error_with_the_right_one(quick, folders, loaded):
    for name, folder in folders.items():
        task = loaded[name]
        for verb in ("generate", "embed", "evaluate"):
            words = (verb, folder, *(["the cat"] if verb != "evaluate" else []))
            if verb not in task.commands:
                said = run(*words).stderr
                assert "Use: regard" in said, (name, verb, said)


def test_options_without_effect_in_evaluate_raise_an_error(quick, folders, tmp_path):
    table = tmp_path / "table.tsv"
    table.write_text("the cat\tyes\nthe mat\tno\n")
    model = folders["classification"]
    for words, message in (
        (("--columns", "0,1"), "--columns has no effect"),
        (("--data", table, table), "is scored on one file"),
        (("--data", table, "--valid"), "--valid has no effect with --data"),
        (("--data", table, "--columns", "0,\u00b2"), "has no field"),
    ):
        assert message in run("evaluate", model, *words).stderr
    said = run("evaluate", folders["question-answering"], "--data", table, "--columns", "0").stderr
    assert "`columns` would be without effect" in said
    said = run("evaluate", folders["language-modeling"], "--data", table, "--window", "0").stderr
    assert "`window` must be at least 1" in said


# ------------------------------------------------------------------------------- in Python


def test_where_too_long_cannot_be_set_no_error_for_a_long_text_advises_it(loaded):
    """Pictures show whole texts: they turn the error of every task into one without the option."""
    found = {}
    for name in NAMES:
        parts = tuple(of_words(name, 90).split("\t"))
        parts = (parts[0].split(),) if "tagging" in name else parts
        options = {"max_tokens": 3} if loaded[name].decodes else {}
        try:
            loaded[name].predict([parts[0] if len(parts) == 1 else parts], **options)
        except TextTooLong as error:
            found[name] = error
    assert {"language-modeling-gpt2", "translation", "classification"} < found.keys()
    for name, error in found.items():
        assert "`too_long` (--too-long) truncate" in str(error)
        with pytest.raises(TextError) as shown, read_whole():
            raise error.moved(2)
        assert re.fullmatch(
            r"(Text|Prompt|Question) 3 has .*\. Shorten [^.=]*\.", str(shown.value)
        ), name


@pytest.mark.parametrize("name", NAMES)
def test_lists_arrays_and_generators_of_texts_give_the_same_results(loaded, name):
    task, text = loaded[name], good(name)
    text = text.split() if "tagging" in name else text
    options = {"max_tokens": 3} if task.decodes else {}
    wanted = task.predict([text, text], **options)
    given: list[Any] = [(one for one in [text, text]), deque([text, text])]
    given += [np.array([text, text])] if isinstance(text, str) else []
    if isinstance(text, str) and "captioning" not in name and text != QUESTION:
        given.append(DataFrame({"text": [text, text]}))
        long = f"{text} {'cat ' * 40}"
        assert task.over_limit(iter([text, long])) == task.over_limit([text, long])
    for texts in given:
        np.testing.assert_array_equal(task.predict(texts, **options), wanted)
    assert len(task.predict([], **options)) == 0
    if not task.decodes:
        assert list(task.predict([], return_proba=True)) == []
        names = set(task.predict([text], return_proba=True)[0].values())
        assert names == set(task.prediction_type.empty_values())
        assert not names & {"number", "source", "truncated"}


# ------------------------------------------------------------------------------ not finite

DATA: dict[str, Any] = {
    "classification": [("the cat", "yes"), ("a mat", "no")],
    "multi-label-classification": [("the cat", ["old", "warm"]), ("a mat", [])],
    "regression": [("the cat", "1"), ("a mat", "2"), ("sat", "3")],
    **dict.fromkeys(every_task.TAGGING, [(["the", "cat"], ["O", "B-X"])]),
    "embedding": [("the", "cat", "1"), ("a", "mat", "3"), ("sun", "on", "2")],
    "question-answering": [
        {"id": "1", "context": "the cat sat", "question": "who",
         "answers": {"text": ["the cat"], "answer_start": [0]}},
    ],
    "multiple-choice": [{"question": "who", "choices": ["a", "b"], "answer": 1}],
    **dict.fromkeys(
        ("language-modeling", "hybrid-language-modeling", "permutation-language-modeling"),
        ["the cat sat", "on a mat"],
    ),
    **dict.fromkeys(
        ("masked-language-modeling", "bidirectional-language-modeling"), ["the cat sat", "on a mat"]
    ),
    **dict.fromkeys((*ENCODER_DECODERS, "dialogue"), [("the cat", "a mat")]),
    **dict.fromkeys(("parsing", "sequence-parsing"), ["(S (X the) (NP (X cat)))"]),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_outputs_that_are_not_finite_raise_an_error(folders, name):
    for how in ("nan", "steep", "large-int8"):
        quantized = "int8" if how.endswith("int8") else None
        task = regard.load(folders[name], quantize=quantized)
        parts = [*task.module.parameters(), *task.module.buffers()]
        with torch.no_grad():
            for x in parts:
                if x.is_floating_point():
                    x.fill_(math.nan) if how == "nan" else x.mul_(300 if how == "steep" else 1e38)
        text = good(name).split() if "tagging" in name else good(name)
        calls = [lambda task=task, text=text: task.predict([text])]
        if name in DATA:
            calls.append(lambda task=task: task.evaluate(DATA[name]))
        if not task.decodes:
            calls.append(lambda task=task, text=text: task.predict([text], return_proba=True))
            calls.append(lambda task=task: task.embed(["the cat"], granularity="word"))
        for call in calls:
            try:
                found = repr(call())
            except RegardError as error:
                assert re.search("NaN|too large for a float", str(error))
            else:  # an LSTM's states stay within 1, whatever its weights
                assert how != "nan" and not re.search(r"\b(nan|inf)\b", found)


def test_the_error_of_nan_scores_has_the_number_of_the_text(folders, monkeypatch):
    for name in ("classification", *every_task.TAGGING, "embedding", "language-modeling"):
        task = regard.load(folders[name])
        body = task.module if task.decodes else task.module.encoder
        number = task.tokenizer.encode("sun").ids[0]
        weight = body.embedding.weight
        with torch.no_grad():
            weight[number] = math.nan
        texts = ["the cat [MASK]", "the mat [MASK]", "the sun [MASK]", "a cat [MASK]"]
        with pytest.raises(RegardError, match="Text 3 has"):
            given = [text.split() for text in texts] if "tagging" in name else texts
            task.predict(given, **({"max_tokens": 1} if task.decodes else {}))
        with monkeypatch.context() as patched:
            opened = lambda path, loaded=task, **_: loaded  # noqa: E731
            patched.setattr("regard.tasks.folders.load", opened)
            limit = ["--max-tokens", 1] if task.decodes else []
            found = run("predict", folders[name], *texts, *limit)
        assert found.exit_code == 2 and found.stdout.count("\n") == 2
        assert "text:3: has" in found.stderr


@pytest.mark.parametrize("verb", ["predict", "embed", "generate", "look", "evaluate"])
def test_a_device_is_chosen_and_one_that_is_not_here_is_an_error(folders, tmp_path, verb):
    name = "language-modeling-gpt2"
    (tmp_path / "text.txt").write_text("the cat\n")
    words = ["--data", tmp_path / "text.txt"] if verb == "evaluate" else ["the cat"]
    assert run(verb, folders[name], *words, "--device", "cpu").exit_code == 0
    for device in ("cuda:7", "gpu", "meta", "cpu:x", ""):
        found = run(verb, folders[name], *words, "--device", device)
        assert f"There is no device {device!r} here" in found.stderr and "cpu" in found.stderr


WITH_TEXT = ("predict", "translate", "tag", "generate", "embed", "look", "evaluate")


@pytest.mark.parametrize("verb", WITH_TEXT)
def test_an_error_for_a_long_text_names_options_of_its_command(quick, folders, verb, tmp_path):
    """Options are written as the command has them; Python's names are not known there."""
    text = " ".join(["cat"] * 90)
    (tmp_path / "rows.tsv").write_text(f"{text}\t{text}\n")
    words = ["--data", tmp_path / "rows.tsv"] if verb == "evaluate" else [text]
    flags = {flag for one in get_command(app).commands[verb].params for flag in one.opts}
    long = 0
    for name in NAMES:
        found = run(verb, folders[name], *words)
        if f"does not have `regard {verb}`" not in found.stderr:
            long += "tokens" in found.stderr
            assert not re.search(r"\b[a-z_]+=\S", found.stderr), (name, found.stderr)
            assert {*re.findall(r"--[a-z-]+", found.stderr)} <= flags, (name, found.stderr)
    assert long or verb == "evaluate"


@pytest.mark.parametrize("verb", ["generate", "look", "predict"])
def test_an_output_cannot_be_both_longer_and_shorter(quick, folders, verb):
    options = ["--min-tokens", "5", "--max-tokens", "3"]
    error = "error: `min_tokens` exceeds `max_tokens`: 5, 3.\n"
    assert run(verb, folders["language-modeling-gpt2"], "the cat", *options).stderr == error
