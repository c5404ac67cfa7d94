"""The verbs, as a shell calls them: what they print and where, exit codes, and the help."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from regard.cli import COMMANDS, app
from regard.cli.console import show
from regard.cli.options import AsJson
from regard.executors import ExecutorOptions
from regard.experiments.study import RunOptions
from regard.models.gpt2 import GPT2, GPT2Config
from regard.tasks import folders
from regard.tasks.language_modeling import TextGenerator
from regard.text import train
from regard.training.loop import Loop

WORDS = "zero one two three four five six seven".split()
SIZES = {
    "transformer": "name = 'transformer'\nd_model = 16\nd_ff = 32\nheads = 2\n"
    "encoder_layers = 2\ndecoder_layers = 2\nmax_length = 16\ndropout = 0.0",
    "seq2seq": "name = 'lstm-seq2seq'\nsize = 'tiny'\nd_model = 16\ndropout = 0.0",
}


def regard(*words: object, stdin: str | bytes | None = None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def done(*words: object, stdin: str | bytes | None = None) -> str:
    """The standard output of a call that must succeed."""
    run = regard(*words, stdin=stdin)
    assert run.exit_code == 0, run.stderr
    return run.stdout


def refused(*words: object, stdin: str | bytes | None = None, code: int = 2) -> str:
    """The message of a call that must fail: one, without a traceback, and nothing on stdout."""
    run = regard(*words, stdin=stdin)
    assert run.exit_code == code, run.output
    assert "Traceback" not in run.output
    return run.stderr


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> Path:
    """A folder with toy data (a line of words, the same words upper-cased) and recipes."""
    folder = tmp_path_factory.mktemp("toy")
    draw = random.Random(1)
    for name, count in (("train", 200), ("test", 12)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count)]
        (folder / f"{name}.a").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.b").write_text("\n".join(lines).upper() + "\n")
        rows = "".join(f"{line}\t{line.upper()}\n" for line in lines)
        (folder / f"{name}.tsv").write_text(rows)
    for model, section in SIZES.items():
        (folder / f"{model}.toml").write_text(f"""
task = "translation"
[data]
train = ["train.a", "train.b"]
valid = ["test.a", "test.b"]
test = ["test.a", "test.b"]
max_tokens_per_batch = 256
[tokenizer]
kind = "words"
vocab_size = 50
[model]
{section}
[training]
max_steps = 8
schedule = {{name = "constant"}}
optimizer = {{learning_rate = 1e-2}}
""")
    (folder / "language.toml").write_text("""
task = "language-modeling"
[data]
train = "train.a"
valid = "test.a"
test = "test.a"
batch_size = 4
sequence_length = 8
[model]
name = "lstm-lm"
d_model = 16
[training]
max_steps = 20
schedule = {name = "constant"}
optimizer = {learning_rate = 1e-2}
[evaluation]
unit = "word"
""")
    return folder


@pytest.fixture(scope="module")
def runs(workdir) -> dict[str, Path]:
    """A trained run of each recipe."""
    made = {}
    for name in (*SIZES, "language"):
        out = workdir / "runs" / name
        said = json.loads(done("train", workdir / f"{name}.toml", "--out", out, "-q", "--json"))
        assert said["run"] == str(out) and said["step"] > 0
        made[name] = out
    return made


# ----------------------------------------------------------------------- train and resume


def test_train_prints_the_run_and_its_scores(workdir, tmp_path):
    said = done(
        "train", workdir / "transformer.toml", "training.max_steps=2", "--out", tmp_path / "r"
    )
    assert said.startswith(f"{tmp_path / 'r'}  valid bleu ") and said.count("\n") == 1
    recipe = (tmp_path / "r" / "recipe.toml").read_text()
    assert "max_steps = 2" in recipe


def test_a_run_is_not_overwritten(workdir, runs):
    said = refused("train", workdir / "seq2seq.toml", "--out", runs["seq2seq"])
    assert f"regard resume {runs['seq2seq']}" in said


def test_ctrl_c_saves_and_ends_with_130(workdir, tmp_path, monkeypatch):
    out, step = tmp_path / "long", Loop.step

    def interrupted(loop: Loop) -> None:
        step(loop)
        if loop.counters.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Loop, "step", interrupted)
    words = ["train", workdir / "transformer.toml", "training.max_steps=1000000", "--out", out]
    said = refused(*words, code=130)
    assert f"Go on with: regard resume {out}" in said
    assert list(out.glob("checkpoints/step-*")) and not (out / "result.json").exists()


# --------------------------------------------------------------------------------- predict


def test_scores_and_n_best_are_lines_with_tabs(runs):
    out = done("predict", runs["transformer"], "-", "--beams", 3, "--n-best", 2, stdin="one\ntwo\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1"]
    assert float(rows[0][1]) >= float(rows[1][1])
    facts = [
        json.loads(line)
        for line in done(
            "predict", runs["transformer"], "one", "two", "--beams", 3, "--n-best", 2, "--json"
        ).splitlines()
    ]
    assert [f["number"] for f in facts] == [0, 1]
    for fact, pair in zip(facts, (rows[:2], rows[2:]), strict=True):
        assert [f"{h['score']:.4f}" for h in fact["hypotheses"]] == [row[1] for row in pair]
        assert fact["text"] == pair[0][2]


def test_a_text_that_is_the_name_of_a_file_is_an_error(workdir, runs, monkeypatch):
    monkeypatch.chdir(workdir)
    for name, form in (("test.a", "Give < test.a"), ("test.tsv", "Give --file test.tsv.")):
        assert f"is a file. {form}" in refused("predict", runs["transformer"], name)


def test_bytes_that_are_not_utf8_are_named_by_line(runs):
    run = regard("predict", runs["seq2seq"], stdin=b"one\ntwo\nthr\xe9e\nfour\n")
    assert run.exit_code == 2
    assert "standard input:3: byte 0xE9 at position 4 of the line" in run.stderr
    assert run.stdout.count("\n") == 2  # the lines before are answered


@pytest.mark.slow("regard/cli")
def test_a_closed_output_pipe_ends_without_a_message(runs):
    words = [sys.executable, "-m", "regard", "predict", str(runs["seq2seq"]), "-"]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin and child.stdout and child.stderr
    child.stdin.write(b"one\n")
    child.stdin.flush()
    assert child.stdout.readline().endswith(b"\n")  # answered while the input is still open
    child.stdout.close()
    try:
        child.stdin.write(b"two\n")
        child.stdin.close()
    except BrokenPipeError:
        pass
    assert child.wait(100) == 141
    assert child.stderr.read() == b""


def closed(words: list[object], streams: str) -> tuple[int, bytes, bytes]:
    """Exit code, output and messages of a command; streams: what a shell does with its own."""
    command = f'exec "$@" {streams}'
    called = ["sh", "-c", command, "sh", sys.executable, "-m", "regard", *map(str, words)]
    run = subprocess.run(called, capture_output=True)
    return run.returncode, run.stdout, run.stderr


def test_a_result_that_cannot_be_written_is_an_error():
    code, _, err = closed(["list", "models"], ">/dev/full")
    assert code == 2 and err.startswith(b"error: ") and err.count(b"\n") == 1, err


# -------------------------------------------------------------------------------- evaluate


def test_evaluate_prints_scores_with_signatures_of_the_test_data(workdir, runs):
    facts = json.loads(done("evaluate", runs["transformer"], "--json"))
    assert [score["name"] for score in facts["scores"]] == ["BLEU", "chrF2"]
    assert facts["scores"][0]["signature"].startswith("nrefs:1|case:mixed|")
    assert facts["texts"] == 12 and facts["truncated"] == 0
    files = [workdir / "test.a", workdir / "test.b"]
    assert json.loads(done("evaluate", runs["transformer"], "--data", *files, "--json")) == facts
    table = json.loads(
        done("evaluate", runs["transformer"], "--data", workdir / "test.tsv", "--json")
    )
    assert table["scores"] == facts["scores"]
    said = done("evaluate", runs["transformer"], "--valid")
    assert said.startswith("BLEU = ") and "chrF2 = " in said


def test_the_signature_of_a_perplexity_has_its_protocol(runs):
    said = done("evaluate", runs["language"])
    assert said.startswith("perplexity = ") and "|tok:byte-bpe-" in said
    said = refused("evaluate", runs["language"], "--beams", 2)
    assert "--beams has no effect on a perplexity" in said


# --------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epohcs=3", "[training] has no `epohcs`. Did you mean 'epochs'?"),
        ('data.train=["nowhere.a", "nowhere.b"]', "nowhere.a: does not exist"),
    ],
)
def test_a_wrong_recipe_is_an_error_before_anything_is_written(workdir, tmp_path, change, message):
    out = tmp_path / "never"
    said = refused("train", workdir / "transformer.toml", change, "--out", out)
    assert message in said
    assert not (out / "model").exists() and not (out / "checkpoints").exists()


def test_a_sentence_longer_than_the_limit_is_an_error_where_the_recipe_says_so(workdir, tmp_path):
    limits = ["data.max_length=3", "data.too_long=error"]
    said = refused("train", workdir / "transformer.toml", *limits, "--out", tmp_path / "never")
    assert "train.a:" in said and "more than 3" in said


def test_an_unexpected_error_is_one_message_and_exit_code_1(runs, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the sky fell")

    monkeypatch.setattr("regard.tasks.folders.load", fail)
    said = refused("predict", runs["seq2seq"], "one", code=1)
    assert said.startswith("unexpected error: RuntimeError: the sky fell")


# -------------------------------------------------------------------- generate and look


def test_generate_continues_the_prompt(runs):
    out = done("generate", runs["language"], "one two", "--max-tokens", 5)
    assert out.startswith("one two") and out.endswith("\n")
    whole = json.loads(done("generate", runs["language"], "one two", "--max-tokens", 5, "--json"))
    assert whole["hypotheses"][0]["text"] == out.rstrip("\n")
    assert done("generate", runs["language"], "-", "--max-tokens", 5, stdin="one two\n") == out
    searched = done("generate", runs["language"], "one", "--beams", 2, "--max-tokens", 3)
    assert searched.startswith("one")
    assert "regard predict" in refused("generate", runs["seq2seq"], "one")


@pytest.mark.parametrize(("name", "kinds"), [("seq2seq", 1), ("transformer", 3)])
def test_look_shows_draws_and_writes_a_page(runs, tmp_path, name, kinds):
    page, image = tmp_path / "heads.html", tmp_path / "it.png"
    run = regard("look", runs[name], "one two three", "--html", page, "--png", image)
    assert run.exit_code == 0, run.stderr
    written = done("predict", runs[name], "one two three").rstrip("\n")
    # After so few steps the text may be empty; then the pictures stand alone.
    assert run.stdout.splitlines()[0] == (written or "cross-attention, layer 1")
    assert "cross-attention" in run.stdout and "three" in run.stdout
    html = page.read_text()
    assert "http://" not in html.replace("http://www.w3.org/", "") and "https://" not in html
    assert html.count('"kind"') >= kinds
    assert image.read_bytes().startswith(b"\x89PNG")


def test_look_draws_gradients_of_models_side_by_side(runs, tmp_path):
    words = ["look", runs["language"], "one two three", "--gradients"]
    (found,) = json.loads(done(*words, "--json"))["norms"].values()
    assert len(found[0]) == 2 and min(map(min, found)) > 0
    both = json.loads(done(*words, "--compare-with", runs["language"], "--json"))["norms"]
    assert len(both) == 2 and list(both.values()) == [found, found]
    image = tmp_path / "g.png"
    assert "layer 1" in done(*words, "--png", image) and image.exists()
    assert "--compare-with has no effect" in refused(
        *words[:3], "--cell", "1:1", "--compare-with", runs["language"]
    )
    assert "must be from 1 to 0" in refused("look", runs["language"], "one", "--gradients")


# ------------------------------------------------------------------- tokenizers and lists


def test_a_tokenizer_is_trained_used_and_explained(workdir, runs, tmp_path):
    out = tmp_path / "tokenizer"
    facts = json.loads(
        done("tokenizer", "train", workdir / "train.a", "--out", out, "--vocab-size", 40, "--json")
    )
    assert facts["vocab_size"] <= 40 and (out / "tokenizer.json").exists()
    pieces = done("tokenizer", "encode", out, "-", stdin="one two\nseven\n").splitlines()
    assert [line.replace(" ", "").replace("</w>", " ").rstrip() for line in pieces] == [
        "one two",
        "seven",
    ]
    told = json.loads(done("tokenizer", "encode", out, "seven", "--json"))
    assert done("tokenizer", "encode", out, "seven", "--ids").split() == list(map(str, told["ids"]))
    assert told["offsets"][0][0] == 0 and told["offsets"][-1][1] == 5
    assert "seven -> " in done("tokenizer", "explain", out, "seven")
    assert "'one' -> one" in done("tokenizer", "explain", runs["seq2seq"], "one")


def test_a_corpus_is_built_and_opened(workdir, runs, tmp_path):
    done("tokenizer", "train", workdir / "train.a", "--out", tmp_path / "t", "--vocab-size", 40)
    called = ("corpus", workdir / "train.a", "--tokenizer", tmp_path / "t", "--out", tmp_path / "c")
    facts = json.loads(done(*called, "--end", "</s>", "--structure", "--json"))
    lines = sum(bool(line.strip()) for line in (workdir / "train.a").read_text().splitlines())
    assert facts["documents"] == 1 and facts["paragraphs"] == lines
    assert "1 documents" in done(*called, "--end", "</s>", "--structure", "--quiet")
    assert "end changed" in refused(*called, "--structure")
    assert "'</x>' is not in the vocabulary" in refused(*called, "--end", "</x>")


def test_the_list_commands_print_names_with_a_description():
    for what, wanted in {
        "models": "transformer",
        "tasks": "translation",
        "tokenizers": "byte-bpe",
        "decoding": "beam",
    }.items():
        rows = json.loads(done("list", what, "--json"))
        assert wanted in [row["name"] for row in rows] and all(row["about"] for row in rows)
        assert wanted in done("list", what)
    names = [row["name"] for row in json.loads(done("list", "recipes", "--json"))]
    assert {"demo-lstm", "wmt14-transformer-base"} < {*names}
    models = {row["name"]: row["about"] for row in json.loads(done("list", "models", "--json"))}
    assert models["compressive-transformer"].endswith("(Rae et al. 2019).")
    assert max(map(len, done("list", "models").splitlines())) <= 100


def test_with_json_nothing_but_the_result_is_on_stdout_whatever_libraries_print():
    """A thread prints in the middle of a command."""

    def noisy(as_json: AsJson = False) -> None:
        thread = threading.Thread(target=print, args=["(raylet) a thread"])
        thread.start(), thread.join()
        show({"n": "é"}, "one", as_json)

    noisy_app = typer.Typer()
    noisy_app.command()(noisy)
    for flags, on_stdout in ([], "(raylet) a thread\none\n"), (["--json"], '{"n": "é"}\n'):
        assert CliRunner().invoke(noisy_app, flags).stdout == on_stdout


def test_compare_passes_recipes_overrides_and_seeds(workdir, tmp_path, monkeypatch):
    module = pytest.importorskip("regard.experiments.compare")
    facts = {"best": "seq2seq"}
    asked, results = [], SimpleNamespace(facts=lambda: facts, picture=None)  # nothing is drawn
    monkeypatch.setattr(module, "compare_files", lambda *given: asked.append(given) or results)
    recipes = [workdir / "seq2seq.toml", workdir / "transformer.toml"]
    flags = ["--seeds", "1,2", "--out", tmp_path, "--workers", "2", "-q", "--json"]
    words = [*recipes, "training.max_steps=3", *flags]
    assert json.loads(done("compare", *words)) == facts
    options = RunOptions((1, 2), ExecutorOptions(), 2, 0, False, None), tmp_path, "", None
    assert asked == [(list(map(str, recipes)), ["training.max_steps=3"], *options)]
    assert "`--seeds` must be of the form 1,2,3" in refused("compare", *recipes, "--seeds", "one")


def commands(group, name=""):
    """Every command, and every command of a command, by what a user types."""
    for word in group.list_commands(None):
        command = group.get_command(None, word)
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{name}{word} ")
        yield f"{name}{word}", command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ALL)
def test_every_argument_and_option_has_a_sentence(name):
    for param in ALL[name].params:
        if param.name not in ("help", "install_completion", "show_completion"):
            said = (name, param.name, param.help)
            assert re.fullmatch(r"[A-Z0-9].*\.", param.help, re.S), said
            assert len(param.help.split()) >= 4, said


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_every_command_is_printed_whole(name, monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)  # values are written in one line
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0
    text = "".join(shown.output.replace("│", "").split())  # lines also end after hyphens
    for param in ALL[name].params:
        assert "".join(param.help.split()) in text
    about = (ALL[name].help or "").split()
    assert "".join(about) in text


def test_the_overview_has_every_command_under_a_title_with_a_whole_sentence():
    shown = CliRunner().invoke(app, ["--help"]).output
    names = [name for group in COMMANDS.values() for name in group]
    assert sorted(names) == sorted(typer.main.get_command(app).list_commands(None))
    assert max(map(len, shown.splitlines())) <= 80
    for title, group in COMMANDS.items():
        section = shown.split(f"─ {title} ─")[1].split("╰")[0]
        lines = [line.strip("│ ") for line in section.splitlines()[1:]]
        assert sorted(line.split()[0] for line in lines) == sorted(group)  # each in one line
        assert all(line.endswith(".") for line in lines)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "wide"
    words = train("characters", ["a dog runs"], 30)
    torch.manual_seed(1)
    config = GPT2Config(words.vocab_size, layers=1, d_model=64, heads=2, max_length=32)
    folders.save(TextGenerator(GPT2(config), words), path)
    return path


def test_a_model_that_is_saved_over_another_leaves_none_of_its_files(model, tmp_path):
    task = folders.load(model)
    folders.save(task, tmp_path / "new")
    (tmp_path / "old").mkdir()
    stale = "model-00001-of-00002.safetensors model.safetensors.index.json modules.json vocab.txt"
    for name in (*stale.split(), "adapter_config.json", "generation_config.json", "notes.txt"):
        (tmp_path / "old" / name).write_text("{}")
    folders.save(task, tmp_path / "old")
    new = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    old = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    assert old == {**new, "notes.txt": b"{}"}


def test_wrong_uses_are_one_line_errors(model, tmp_path):
    small, new = tmp_path / "small", tmp_path / "new"
    done("quantize", model, "--out", small)
    for words in (
        ("quantize", small, "--out", new),
        ("predict", small, "a", "--quantize=bfloat16"),
    ):
        said = refused(*words)
        assert "holds int8 weights" in said and said.count("\n") == 1
    assert not new.exists()


def test_commands_without_a_model_do_not_import_torch():
    calls = [["list", "models"], ["predict", "--nope"], ["predict", "no/such/folder", "x"]]
    code = f"""
import sys
from regard.cli import app
for words in {calls}:
    try:
        app(words)
    except SystemExit as ended:
        print("ended", ended.code)
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert re.findall("ended (.*)", run.stdout) == ["0", "2", "2"]


def test_generate_imports_nothing_that_it_does_not_need(model):
    code = (
        "import sys, torch\nbefore = set(sys.modules)\nfrom regard.cli import app\n"
        "try:\n    app(sys.argv[1:])\nfinally:\n    print(*(set(sys.modules) - before))"
    )
    words = ["generate", str(model), "a", "--max-tokens", "2"]
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    heavy = {"torch._dynamo", "sympy", "onnx", "transformers", "sacrebleu", "resvg_py", "scipy"}
    needless = {"regard.training", "regard.visual", "regard.experiments.runs", "rich"}
    assert run.returncode == 0, run.stderr
    assert not set(run.stdout.split()) & (heavy | needless)


def test_torchrun_starts_no_command_that_writes_one_folder(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    called = regard("compare", "a.toml", "b.toml")
    assert called.exit_code == 2 and "`regard compare` needs one process" in called.output
    assert "needs one process" not in regard("train", "a.toml").output
