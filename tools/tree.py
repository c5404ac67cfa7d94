"""The annotated trees: each file in docs/tree.md, each folder of the package in README.md.

    python tools/tree.py            prints where the pages differ from the disk
    python tools/tree.py --write    corrects both pages, with first lines of docstrings as phrases

In the tree a folder's line stands for its `__init__.py`; every other file has its own line. The
README's tree has the lines of the folders, in the order and with the phrases of docs/tree.md.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, README = "docs/tree.md", "README.md"
TREE = re.compile(r"^```text\nregard/.*?^```", re.M | re.S)
WIDTH, README_WIDTH = 28, 16  # the columns where the phrases begin
LINE = re.compile(r"(?P<indent> *)(?P<name>[^\s/]+/?)(?:\s{2,}(?P<phrase>\S.*))?$")


def block_in(text: str, name: str) -> str:
    """The tree on a page, from its ```text to its ```."""
    block = TREE.search(text)
    if block is None:
        raise ValueError(f"{name}: there is no block of text that begins with the line regard/")
    return block.group(0)


def phrases(page: str) -> dict[str, str]:
    """Path -> phrase, as the indented tree of docs/tree.md gives them; "" without a phrase."""
    tree: dict[str, str] = {}
    folders: list[tuple[int, str]] = []
    for line in block_in(page, PAGE).splitlines()[1:-1]:
        entry = LINE.match(line)
        if entry is None:
            raise ValueError(f"{PAGE}: a line of the tree is neither file nor folder: {line!r}")
        indent, name = len(entry["indent"]), entry["name"]
        folders = [folder for folder in folders if folder[0] < indent]
        path = "".join([folder for _, folder in folders] + [name])
        tree[path] = entry["phrase"] or ""
        if name.endswith("/"):
            folders.append((indent, name))
    return tree


def line_of(path: str, phrase: str, width: int = WIDTH) -> str:
    """The line of a path: a name is followed by at least two spaces, then by its phrase."""
    inside = path.rstrip("/")
    name = "  " * inside.count("/") + inside.rpartition("/")[2] + "/" * path.endswith("/")
    return f"{name:<{width - 2}}  {phrase}".rstrip()


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


def folders_of(path: str) -> list[str]:
    """The folders that a path lies in, itself included where it is one, outermost first."""
    return [path[: end + 1] for end in range(len(path)) if path[end] == "/"]


def phrase_of(file: Path | None) -> str:
    """A first proposal for the phrase: the first line of the file's docstring, or of the comment at
    the beginning of a script; "" without one."""
    if file is None or file.suffix not in (".py", ".js"):
        return ""
    code = file.read_text(encoding="utf-8")
    if file.suffix == ".js":
        return code.partition("\n")[0].removeprefix("//").strip().rstrip(".")
    text = ast.get_docstring(ast.parse(code)) or ""
    return text.partition("\n")[0].strip().rstrip(".")


def summary(tree: dict[str, str]) -> str:
    """The README's block: a line for each folder of the package, one for the files beside them."""
    inside = [path for path in tree if path.rstrip("/").count("/") == 1]
    lines = [line_of(path, tree[path], README_WIDTH) for path in inside if path.endswith("/")]
    files = [path.removeprefix("regard/").removesuffix(".py") for path in inside if path[-1] != "/"]
    base = line_of("regard/*.py", ", ".join(files), README_WIDTH)
    return "\n".join(["```text", "regard/", *lines, base, "```"])


def differences(root: Path) -> list[str]:
    """What to change so that the trees on both pages are the tree on disk; empty when they are."""
    tree = phrases((root / PAGE).read_text(encoding="utf-8"))
    files = on_disk(root)
    there = {*files, *(folder for path in files for folder in folders_of(path))}
    changes = []
    for path, file in files.items():
        if path not in tree:
            above = [folder for folder in folders_of(path) if folder != path][-1]
            changes.append(f"add under {above}: `{line_of(path, phrase_of(file))}`")
        elif not tree[path]:
            changes.append(f"write a phrase for {path}, such as: {phrase_of(file) or '...'}")
    changes += [f"remove {path}: it is not on disk" for path in tree if path not in there]
    if block_in((root / README).read_text(encoding="utf-8"), README) != summary(tree):
        changes.append(f"{README} has other folders or phrases: python tools/tree.py --write")
    return changes


def ordered(old: dict[str, str], files: dict[str, Path]) -> dict[str, str]:
    """Path -> phrase of all that is on disk: old phrases and their order stay, new paths follow."""
    paths = {*files, *(folder for path in files for folder in folders_of(path))} - {"regard/"}
    rank = {path: number for number, path in enumerate([*old, *sorted(paths - old.keys())])}

    def order(path: str) -> list[int]:
        return [rank.get(step, -1) for step in dict.fromkeys([*folders_of(path), path])]

    return {path: old.get(path) or phrase_of(files.get(path)) for path in sorted(paths, key=order)}


def write(root: Path) -> None:
    """Correct the tree of docs/tree.md from the disk, and the README's from docs/tree.md."""
    tree = ordered(phrases((root / PAGE).read_text(encoding="utf-8")), on_disk(root))
    lines = [line_of(path, phrase) for path, phrase in tree.items()]
    full = "\n".join(["```text", "regard/", *lines, "```"])
    for name, block in ((PAGE, full), (README, summary(tree))):
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(text.replace(block_in(text, name), block), encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write(ROOT)
    wanted = differences(ROOT)
    print("\n".join(wanted) or f"the trees in {PAGE} and {README} are the tree on disk")
    sys.exit(bool(wanted))
