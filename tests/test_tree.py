"""The shape of the project: imports run one way, the pages' trees are true, nothing sprawls."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import tree  # noqa: E402

# The way of the data: each may import those before it. `kernels` comes after all that it may
# import, and nothing imports it: its setup is called by name.
STATIONS = (
    *(
        "errors",
        "habit_names",
        "suggest",
        "lazy",
        "schema",
        "file_pages",
        "malloc",
        "file_writing",
        "registry",
    ),
    *("progress", "recipe", "ops", "state"),
    *(
        "text",
        "data",
        "layers",
        "attention",
        "models",
        "checkpoints",
        "decoding",
        "call_options",
        "kernels",
    ),
    *("metrics", "tasks", "training", "executors", "visual", "experiments", "exporting"),
    *("sharded", "serving", "cli"),
    "__main__",
)
CALLED_BY_NAME = {("regard.registry", "regard.kernels")}
SOURCES = sorted((ROOT / "regard").rglob("*.py"))
PROGRAMS = [
    *SOURCES,
    *(f for folder in ("tools", "benchmarks", "examples") for f in (ROOT / folder).rglob("*.py")),
]


def name_of(file: Path) -> str:
    """The name of a module: `regard.text` for regard/text/__init__.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def station_of(module: str) -> str:
    """The part of the library that a module belongs to; "" for the library's own `__init__`."""
    return module.partition(".")[2].partition(".")[0]


@functools.cache
def module_in(name: str) -> str:
    """The longest beginning of a dotted name that is a module of the library; "" if none is."""
    while name:
        path = ROOT.joinpath(*name.split("."))
        if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
            return name if name.split(".")[0] == "regard" else ""
        name = name.rpartition(".")[0]
    return ""


@functools.cache
def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file; several tests walk those of all files."""
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a file, inner ones too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(parsed(file)) if isinstance(node, kinds)]


@pytest.fixture(scope="module", autouse=True)
def syntax_trees_are_let_go():
    """They take 180 MB."""
    yield
    parsed.cache_clear()
    functions.cache_clear()


ENTRY = re.compile(r"(regard(?:\.\w+)+)(?::\w+)?")  # in a table of what is imported on demand


@functools.cache
def imported(file: Path) -> list[tuple[int, str, bool]]:
    """(line, module, whether a string names it) for each import of the library in a file.

    Relative imports, those inside functions and strings that name a module count, too.
    """
    found = []
    folder = ["regard", *file.parent.relative_to(ROOT / "regard").parts]
    for node in ast.walk(parsed(file)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = folder[: len(folder) + 1 - node.level] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            entry = ENTRY.fullmatch(node.value)
            if entry and module_in(entry[1]) == entry[1]:
                found.append((node.lineno, entry[1], True))
        for module in filter(None, map(module_in, names)):
            if module != name_of(file):
                found.append((node.lineno, module, False))
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or through others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for module in graph.get(todo.pop(), set()) - seen:
                seen.add(module)
                todo.append(module)
        return seen

    behind = {module: reached(module) for module in graph}
    found = {
        tuple(sorted(other for other in behind[module] if module in behind.get(other, ())))
        for module in graph
        if module in behind[module]
    }
    return sorted(map(list, found))


def test_every_part_has_one_station_and_every_station_is_there():
    there = {station_of(name_of(file)) for file in SOURCES} - {""}
    assert there == {*STATIONS}, f"give each part its station in {Path(__file__).name}"


def test_imports_run_from_later_stations_to_earlier_ones():
    rank = {station: number for number, station in enumerate(STATIONS)}
    wrong = []
    for file in SOURCES:
        name = name_of(file)
        for line, module, _ in imported(file):
            here, there = station_of(name), station_of(module)
            if not here or not there or (name, module) in CALLED_BY_NAME:
                continue
            if there == "kernels" != here:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: the kernels are optional: {here}")
            elif rank[there] > rank[here]:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {here} imports {there}, after it")
    assert not wrong, "\n".join(wrong)


def test_no_files_import_each_other():
    """Imports inside functions count; tables of names, from which a package is filled, do not, nor
    do the public names as type checkers read them."""
    graph = {
        name_of(file): {module for _, module, named in imported(file) if not named}
        for file in SOURCES
        if name_of(file) != "regard"
    }
    assert not cycles(graph)


def test_the_page_of_files_has_a_line_for_each_module():
    page = tree.page()
    for file in SOURCES:
        parts = file.relative_to(ROOT / "regard").parts
        name = f"{parts[-2]}/" if parts[-1] == "__init__.py" and len(parts) > 1 else parts[-1]
        assert tree.first_line(file), f"{file} has no docstring"
        assert f"  {name} " in page and tree.first_line(file) in page, file


def test_no_function_is_longer_than_70_lines_and_no_file_than_700():
    long = []
    for file in PROGRAMS:
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(ROOT)
        if text.count("\n") > 700:
            long.append(f"{name}: {text.count(chr(10))} lines")
        for node in functions(file):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > 70:
                long.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    assert not long, "\n".join(long)


def test_no_two_public_classes_have_one_name():
    names: dict[str, list[str]] = {}
    for file in SOURCES:
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in names.items() if len(files) > 1}


def test_no_constructor_takes_more_than_12_parameters():
    wide = []
    for file in PROGRAMS:
        for node in functions(file):
            if node.name == "__init__":
                count = len(node.args.args) + len(node.args.kwonlyargs) - 1
                if count > 12:
                    wide.append(f"{file.relative_to(ROOT)}:{node.lineno}: {count} parameters")
    assert not wide, "\n".join(wide)


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        try:
            yield Path(name), (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):  # a link to a folder
            continue


# Written as patterns so that they do not match themselves.
PRIVATE = re.compile(r"(?<![\w.}$])/(?:work|root|home|opt|tmp)/\w|\bpypi[.]org|python[h]osted")


def test_the_text_names_no_folder_of_one_machine_and_no_host_of_packages():
    found = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path, text in texts()
        if path != Path("LICENSE") and PRIVATE.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_two_test_modules_have_the_same_name():
    """pytest imports them by their file's name alone, and collects none where two are alike."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
