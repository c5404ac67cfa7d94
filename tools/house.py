"""Counts what the package is made of, and lowers the ceilings in tests/house.toml to it.

    python tools/house.py            prints the counts beside their ceilings
    python tools/house.py --write    lowers the ceilings; none is raised

A line of code has a token that is no comment and no docstring. A ceiling is raised by hand, in the
change that needs it, with the reason in its commit message.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "tests" / "house.toml"
STARTS = ("regard.tasks.classification", "regard.experiments.runs", "regard.models.gpt2")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT.add(tokenize.ENDMARKER)
# Names of variables that do not say what they hold.
PRONOUNS = {
    *("found", "one", "some", "most", "few", "said", "given", "own", "here"),
    *("made", "stated", "there", "known", "kept", "what", "who"),
}
REFERRING = re.compile(r"See `|As of |As `")  # the start of a short docstring that only refers
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Counts = dict[str, dict[str, float]]


def code_size(text: str, tree: ast.Module) -> tuple[int, int]:
    """Lines and tokens of code, without blank lines, comments and docstrings."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            prose.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines, tokens = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in prose:
            lines.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return len(lines - prose), tokens


def counted(node: ast.AST) -> tuple[str, int]:
    """What a node counts as, and how often; "" counts as nothing."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return "imports", (node.end_lineno or 0) - node.lineno + 1
    if isinstance(node, ast.Raise):
        return "raises", (node.end_lineno or 0) - node.lineno + 1
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        text = ast.get_docstring(node) or ""
        return "referring_docstrings", int(len(text) < 60 and bool(REFERRING.match(text)))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return "pronoun_variables", int(node.id in PRONOUNS)
    return "", 0


def imported(node: ast.AST, folder: Sequence[str]) -> Iterator[str]:
    """Dotted names that are imported when a module of this folder is; not those of functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = folder[: len(folder) + 1 - node.level] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    for inner in ast.iter_child_nodes(node):
        yield from imported(inner, folder)


def loaded(start: str, modules: dict[str, tuple[Path, ast.Module]]) -> int:
    """The modules of the package that importing one of them loads, itself included."""
    reached, todo = set[str](), [start]
    while todo:
        name = todo.pop()
        while name not in modules and "." in name:
            name = name.rpartition(".")[0]
        if name not in reached and name in modules:
            reached.add(name)
            path, tree = modules[name]
            folder = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            todo += [*imported(tree, folder), name.rpartition(".")[0]]
    return len(reached)


def counts(root: Path = ROOT) -> Counts:
    """The tables of tests/house.toml, as the package and its tests are now."""
    total, lines, tokens = Counter[str](), Counter[str](), Counter[str]()
    modules: dict[str, tuple[Path, ast.Module]] = {}
    for path in sorted((root / "regard").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        tree = ast.parse(text)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path, tree
        size = code_size(text, tree)
        folder = parts[1] if len(parts) > 2 else "root"
        lines[folder] += size[0]
        tokens[folder] += size[1]
        for node in ast.walk(tree):
            kind, number = counted(node)
            total[kind] += number
    code = sum(lines.values())
    tests = [path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py")]
    return {
        "regard": {
            "files": len(modules),
            "lines": code,
            "tokens": sum(tokens.values()),
            "percent_imports": round(100 * total["imports"] / code, 1),
            "percent_raises": round(100 * total["raises"] / code, 1),
            "referring_docstrings": total["referring_docstrings"],
            "pronoun_variables": total["pronoun_variables"],
        },
        "tests": {"lines": sum(code_size(text, ast.parse(text))[0] for text in tests)},
        "lines": dict(sorted(lines.items())),
        "tokens": dict(sorted(tokens.items())),
        "loaded": {start: loaded(start, modules) for start in STARTS},
    }


def ceilings(path: Path = CEILINGS) -> Counts:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def exceeded(now: Counts, limits: Counts) -> list[str]:
    """A line for each count above its ceiling, and for each folder or file that has none."""
    return [
        f"{table}.{name}: {count}, and the ceiling is {limits[table].get(name, 'missing')}"
        for table, row in now.items()
        for name, count in row.items()
        if count > limits[table].get(name, -1)
    ]


def lowered(now: Counts, limits: Counts) -> str:
    """The text of tests/house.toml with each ceiling at its count where that is lower."""
    text = "# The most that each count may be (tools/house.py): ceilings are only lowered.\n"
    for table, row in limits.items():
        text += f"\n[{table}]\n"
        for name, limit in row.items():
            if name in now[table]:  # else the folder is gone
                key = f'"{name}"' if "." in name else name
                text += f"{key} = {min(limit, now[table][name])}\n"
    return text


if __name__ == "__main__":
    now = counts()
    if "--write" in sys.argv:
        CEILINGS.write_text(lowered(now, ceilings()), encoding="utf-8")
    for table, row in now.items():
        for name, count in row.items():
            print(f"{table}.{name}: {count} of {ceilings()[table].get(name)}")
