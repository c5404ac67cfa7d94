"""Every file of the package with the first line of its docstring, as a page of the site.

    python tools/tree.py FOLDER    writes FOLDER/tree.md

A folder's line is that of its `__init__.py`; every other file has its own line.
"""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 28  # the column where the descriptions begin
HEAD = """# Files of the package

The first line of each file's docstring. A folder imports only from folders that
`tests/test_tree.py` lists before it.
"""


@functools.cache  # the page and its test ask for that of each file
def first_line(file: Path) -> str:
    """The first line of a module's docstring or of a script's leading comment, else ""."""
    if file.suffix == ".js":
        line = file.read_text(encoding="utf-8").partition("\n")[0]
        return line.removeprefix("//").strip() if line.startswith("//") else ""
    if file.suffix != ".py":
        return ""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].strip()


def lines(folder: Path, depth: int = 0) -> list[str]:
    """The lines of a folder: its files first, then its folders with theirs."""
    entries = [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"]
    tree = []
    for file in (path for path in entries if path.is_file()):
        if file.name != "py.typed" and (depth == 0 or file.name != "__init__.py"):
            tree.append(_line(file.name, depth + 1, first_line(file)))
    for inner in (path for path in entries if path.is_dir()):
        package = inner / "__init__.py"
        about = first_line(package) if package.exists() else ""
        tree += [_line(f"{inner.name}/", depth + 1, about), *lines(inner, depth + 1)]
    return tree


def _line(name: str, depth: int, about: str) -> str:
    return f"{'  ' * depth + name:<{WIDTH - 2}}  {about}".rstrip()


def page(root: Path = ROOT) -> str:
    return "\n".join([HEAD, "```text", "regard/", *lines(root / "regard"), "```", ""])


if __name__ == "__main__":
    (Path(sys.argv[1]) / "tree.md").write_text(page(), encoding="utf-8")
