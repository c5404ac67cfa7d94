"""The documentation site: the pages beside this file, and a reference made from the docstrings.

    make docs

The pages are plain Markdown, which code hosts show as well. So the order of the site is read from
the lists of index.md, and its source folder is that of the repository, where `../README.md` is a
link in both. Nothing is fetched, neither when the site is built nor when it is read.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.nodes import make_refnode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import reference  # noqa: E402
import reference_tables  # noqa: E402
import tree  # noqa: E402

import regard  # noqa: E402

GENERATED = [*reference_tables.PAGES, *reference.MODULES, "tree"]  # pages in docs/api

project = "Regard"
author = "The Regard authors"
version = release = regard.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "myst_nb",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/**.md"]
exclude_patterns = ["build", "runs", ".*"]

html_theme = "furo"
html_title = f"Regard {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

default_role = "py:obj"  # `Name` in a docstring is a link where there is such a name
autosummary_generate = False
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True


def setup(app: Sphinx) -> None:
    reference.write(ROOT / "docs/api")
    reference_tables.write(ROOT / "docs/api")
    (ROOT / "docs/api/tree.md").write_text(tree.page(), encoding="utf-8")
    app.connect("source-read", add_toctrees)
    app.connect("autodoc-process-signature", simplify_signature)
    app.connect("autodoc-process-docstring", restructure)
    app.connect("missing-reference", link_class)
    app.connect("doctree-resolved", link_names)
    app.connect("build-finished", write_start)


def add_toctrees(app: Sphinx, name: str, source: list[str]) -> None:
    """Two blocks of the README in index.md, and a table of contents after each of its lists."""
    if name == root_doc:
        text = source[0]
        for part, begin in (
            ("installation", r"console[^`]*?\$ pip install"),
            ("example", "python"),
        ):
            text = text.replace(f"<!-- the {part} of README.md -->", readme_block(begin))
        source[0] = re.sub(r"(?m)^## .*\n(?:(?!## ).*\n)*", with_toctree, text)
    elif name == "docs/reference/index":
        source[0] += toctree("", [f"../api/{page}" for page in GENERATED])


# Blocks of the README that index.md shows, and how they begin.
README_BLOCKS = {"installation": r"console[^`]*?\$ pip install", "example": "python"}


def readme_block(begin: str) -> str:
    """The first block of the README that begins so, and its output where that follows."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"(?ms)^```{begin}.*?^```\n(?:\n```text.*?^```\n)?", text)
    if block is None:
        raise ValueError(f"README.md has no block of {begin!r}, which docs/index.md shows.")
    return block[0]


def with_toctree(section: re.Match[str]) -> str:
    pages = re.findall(r"^- \[[^]]*\]\(([^)]*)\.md\)", section[0], re.M)
    title = section[0].partition("\n")[0].removeprefix("## ")
    return section[0] + toctree(title, pages)


def toctree(title: str, pages: list[str]) -> str:
    caption = [f":caption: {title}"] if title else []
    return "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *pages, "```", ""])


def restructure(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """A docstring of this package as reStructuredText."""
    if isinstance(value, type):
        reference.simplify_types(value)  # before its attributes are described
    if what in ("attribute", "data", "property"):
        what = "method"  # otherwise "0: none" would be a type and a text
    text = reference.restructured(lines)
    lines[:] = GoogleDocstring(text, Config(), app, what, name, value, options).lines()


def simplify_signature(
    app: Sphinx, what: str, name: str, value: object, options: object, said: str | None, result: str
) -> tuple[str | None, str | None]:
    """See `reference.plain_signature`."""
    return said and reference.plain_signature(said), result and reference.plain_signature(result)


def link_class(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    """A class that is named without its module is a link where no other has the name."""
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not re.fullmatch(r"[A-Z]\w+", name):
        return None
    objects = env.get_domain("py").objects
    found = [one for path, one in objects.items() if path.endswith(f".{name}") and not one.aliased]
    if len(found) != 1 or found[0].objtype != "class":
        return None
    return make_refnode(app.builder, node["refdoc"], found[0].docname, found[0].node_id, [shown])


def link_names(app: Sphinx, page: nodes.document, name: str) -> None:
    """In the Markdown pages `regard.load(...)` is a link to the reference."""
    objects = app.env.get_domain("py").objects
    for code in [] if name.startswith("docs/api/") else list(page.findall(nodes.literal)):
        path = re.match(r"(regard(?:\.\w+)+)(?:\(.*\))?$", code.astext())
        if path and path[1] in objects and not isinstance(code.parent, nodes.reference):
            there = objects[path[1]]
            link = make_refnode(app.builder, name, there.docname, there.node_id, [code.deepcopy()])
            code.replace_self(link)


def write_start(app: Sphinx, error: Exception | None) -> None:
    """index.html at the top, which leads to that of the pages."""
    there = '<!doctype html><title>Regard</title><meta http-equiv="refresh" content="0; url={}">'
    (app.outdir / "index.html").write_text(there.format(f"{root_doc}.html"), encoding="utf-8")
