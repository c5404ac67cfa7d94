"""The annotated tree of README.md: what it says, what is on disk, and what differs.

    python tools/tree.py            prints the lines that README.md lacks or has too many
    python tools/tree.py --write    mends README.md, with first sentences of docstrings as phrases

In the tree a folder's line stands for its `__init__.py`; every other file has its own line.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = re.compile(r"^```text\nregard/.*?^```", re.M | re.S)
WIDTH = 28  # where the phrases begin
LINE = re.compile(r"(?P<indent> *)(?P<name>[\w.\-]+/?)(?:\s{2,}(?P<phrase>\S.*))?$")


def told(readme: str) -> dict[str, str]:
    """Path -> phrase, as the indented tree under `regard/` in a README tells it."""
    block = TREE.search(readme)
    tree: dict[str, str] = {}
    folders: list[tuple[int, str]] = []
    for line in block.group(0).splitlines()[1:-1] if block else []:
        entry = LINE.match(line)
        if entry is None:
            raise ValueError(f"README.md: a line of the tree is neither file nor folder: {line!r}")
        indent, name = len(entry["indent"]), entry["name"]
        folders = [folder for folder in folders if folder[0] < indent]
        path = "".join([folder for _, folder in folders] + [name])
        tree[path] = entry["phrase"] or ""
        if name.endswith("/"):
            folders.append((indent, name))
    return tree


def on_disk(root: Path) -> dict[str, Path]:
    """Path -> file, of all that belongs to the package; a folder stands for its `__init__.py`."""
    found = {}
    for file in sorted((root / "regard").rglob("*")):
        path = file.relative_to(root)
        if not file.is_file() or "__pycache__" in path.parts or file.name == "py.typed":
            continue
        if file.name == "__init__.py" and path.parent != Path("regard"):
            found[f"{path.parent.as_posix()}/"] = file
        else:
            found[path.as_posix()] = file
    return found


def phrase_of(file: Path | None) -> str:
    """A first proposal for the phrase: the first sentence of the file's docstring."""
    if file is None or file.suffix != ".py":
        return "..."
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "..."
    return text.splitlines()[0].rstrip(".")


def differences(root: Path) -> list[str]:
    """What to change in README.md so that its tree is the tree on disk; empty when it is."""
    tree = told((root / "README.md").read_text(encoding="utf-8"))
    files = on_disk(root)
    folders = {path[: end + 1] for path in files for end in range(len(path)) if path[end] == "/"}
    changes = []
    for path, file in files.items():
        depth = "  " * path.rstrip("/").count("/")
        name = path.rstrip("/").rpartition("/")[2] + ("/" if path.endswith("/") else "")
        if path not in tree:
            changes.append(f"add under {path[: -len(name)]}: `{depth}{name:<20}{phrase_of(file)}`")
        elif not tree[path]:
            changes.append(f"say in a phrase what {path} is, such as: {phrase_of(file)}")
    changes += [
        f"remove {path}: it is not on disk" for path in tree if path not in {*files, *folders}
    ]
    return changes


def write(root: Path) -> None:
    """Mend the tree of README.md: phrases and their order stay, what is new comes last."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    old, files = told(readme), on_disk(root)
    folders = {path[: end + 1] for path in files for end in range(len(path)) if path[end] == "/"}
    paths = {*files, *folders} - {"regard/"}
    new = {path: old.get(path) or phrase_of(files.get(path)) for path in paths}
    rank = {path: place for place, path in enumerate([*old, *sorted(paths - old.keys())])}

    def order(path: str) -> list[int]:
        steps = [path[: end + 1] for end in range(len(path)) if path[end] == "/"]
        return [rank.get(step, -1) for step in dict.fromkeys([*steps, path])]

    lines = ["```text", "regard/"]
    for path in sorted(new, key=order):
        depth = path.rstrip("/").count("/")
        name = path.rstrip("/").rpartition("/")[2] + "/" * path.endswith("/")
        lines.append(f"{'  ' * depth}{name}".ljust(WIDTH - 2) + f"  {new[path]}")
    block = "\n".join([*lines, "```"])
    mended = TREE.sub(lambda _: block, readme, count=1)
    (root / "README.md").write_text(mended, encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write(ROOT)
    wanted = differences(ROOT)
    print("\n".join(wanted) or "README.md's tree is the tree on disk")
    sys.exit(bool(wanted))
