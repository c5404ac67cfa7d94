"""Pages of every picture: names for readers who do not see, links, and no more width than shown."""

from __future__ import annotations

import json

import pytest
import torch
from test_report import EVENTS
from visual_pages import SAVAGE, Tree, addresses, embedded, in_browser

from regard.visual import (
    BeamNode,
    BeamTree,
    Distribution,
    HeadGrid,
    Heatmap,
    Panel,
    PictureColumn,
    PictureRow,
    RunReport,
    Table,
    attention_comparison,
)
from regard.visual.drawing import SCALED
from regard.visual.recorded_attention import words_of
from regard.visual.report import score_table, training_curves

WORDS = [f"word{index}" for index in range(40)]
PIECES = ["[CLS]", "play", "##ing", "the", "gui", "##tar", "##s", "[SEP]"]


def heads(**options) -> HeadGrid:
    torch.manual_seed(0)
    weights = torch.rand(2, 8, 8).softmax(-1)
    return HeadGrid((Panel.of("encoder", 1, weights, PIECES, PIECES),), **options)


def pictures() -> dict[str, PictureColumn | HeadGrid]:
    """One of each kind, some of them much wider than a telephone."""
    wide = Heatmap.of(torch.rand(3, 40), "abc", WORDS, "a wide heatmap")
    nodes = [BeamNode("start", 0.0, None), *(BeamNode(w, -1.0, i) for i, w in enumerate(WORDS))]
    table = Table.of(WORDS, [WORDS], "a wide table")
    return {
        "heads": heads(title="model: “text”"),
        "heatmap": wide,
        "large heatmap": Heatmap.of(torch.rand(60, 60), title="many cells"),
        "tree": BeamTree(tuple(nodes), "a deep tree"),
        "distribution": Distribution.of([0.5, 0.5], ["a", "b" * 40], title="next"),
        "table": table,
        "curves": training_curves(EVENTS),
        "row": PictureRow((wide, table)),
        "models": attention_comparison({"a": heads(), "<b>": heads()}, [1], title="a and b"),
    }


def report() -> RunReport:
    samples = Table.of(("source", "hypothesis", "reference"), [(" ".join(WORDS), "x" * 200, "s")])
    shown = [(name, picture) for name, picture in pictures().items() for _ in range(2)]
    facts = {"signature": "nrefs:1|" * 20}
    scores = score_table({"m": {"BLEU": 1.0}, "<other>": {"loss": 2.0}})
    return RunReport(SAVAGE[0], facts, [("Scores", scores), ("Samples", samples), *shown])


PAGES = {**{name: picture.html for name, picture in pictures().items()}, "report": report().html}


@pytest.mark.parametrize("name", PAGES)
def test_every_svg_is_an_image_with_a_name_and_a_title(name):
    tree = Tree(PAGES[name]())
    for svg in tree.all("svg"):
        assert svg["role"] == "img" and svg["aria-label"]
        titles = [t for t in tree.all("title") if t["above"][-1] is svg]
        assert [title["text"] for title in titles] == [svg["aria-label"]]


@pytest.mark.parametrize("name", PAGES)
def test_ids_are_unique_links_resolve_and_nothing_is_loaded(name):
    page = PAGES[name]()
    tree = Tree(page)
    ids = [element["id"] for element in tree.elements if "id" in element]
    assert len(set(ids)) == len(ids)
    assert {link["href"] for link in tree.all("a")} <= {f"#{one}" for one in ids}
    assert addresses(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_wide_pictures_and_tables_stand_in_a_named_container_that_scrolls(name):
    tree = Tree(PAGES[name]())
    for element in [*tree.all("svg"), *tree.all("table")]:
        around = [one for one in element["above"] if "rg-scroll" in (one.get("class") or "")]
        scaled = element.get("class") == "rg-scaled" and float(element["width"]) <= SCALED
        by_script = element.get("class") == "rg-stage"  # the script adds the container
        assert scaled or by_script or around
        for one in around:
            assert (one["role"], one["tabindex"]) == ("region", "0") and one["aria-label"]


NARROW = """<iframe id="page" style="border:0;width:400px;height:3000px"></iframe>
<pre id="probe"></pre><script>
const frame = document.getElementById("page"), said = [];
frame.onload = () => {
  const inside = frame.contentDocument, root = inside.documentElement, right = root.clientWidth + 1;
  said.push(root.scrollWidth - root.clientWidth);
  for (const one of inside.querySelectorAll("main *"))
    if (!one.closest(".rg-scroll, .rg-overview") && one.getBoundingClientRect().right > right)
      said.push(one.tagName);
  document.getElementById("probe").textContent = JSON.stringify(said);
};
frame.srcdoc = %s;
</script>"""


@pytest.mark.parametrize("name", ["report"])
def test_in_a_browser_400_pixels_wide_only_containers_scroll(name, tmp_path):
    page = json.dumps(PAGES[name]()).replace("</", "<\\/")
    assert json.loads(in_browser(NARROW % page, tmp_path)) == [0]


def test_pages_of_attention_merge_subwords_to_words_and_keep_the_tokens():
    data = embedded(heads().html())[0]
    assert data["unit"] == "words" and embedded(heads().by_tokens().html())[0]["unit"] == "tokens"
    assert data["labels"] == [PIECES]
    words = [["[CLS]", 1], ["playing", 2], ["the", 1], ["guitars", 3], ["[SEP]", 1]]
    assert data["words"] == [words]
    plain = HeadGrid((Panel.of("encoder", 1, [[[1.0]]], ["the"], ["a"]),))
    assert embedded(plain.html())[0]["words"] == [None, None]


def test_drawings_of_attention_are_by_words_unless_tokens_are_asked_for():
    grid, words = heads(), [word for word, _ in words_of(PIECES)]
    for by_words, by_tokens in (
        (grid.mean(1), grid.by_tokens().mean(1)),
        (grid.mean(), grid.by_tokens().mean()),
        (grid.heatmaps()[1], grid.by_tokens().heatmaps()[1]),
        *zip(
            attention_comparison({"a": grid}, [1]).parts[0].parts,
            attention_comparison({"a": grid}, [1], tokens=True).parts[0].parts,
            strict=True,
        ),
    ):
        assert list(by_words.columns) == words and list(by_tokens.columns) == PIECES
        tokens = torch.tensor(by_tokens.weights)
        column = tokens[:, 4:7].sum(1)
        assert by_words.weights[3][3] == pytest.approx(column[4:7].mean().item(), abs=1e-6)
    subword = grid.by_tokens().for_token(4).numbers
    assert subword["token"] == PIECES[4] and list(subword["columns"]) == PIECES


MERGED = """%s<pre id="probe"></pre><script>
const root = document.querySelector(".rg-heads");
document.getElementById("probe").textContent = JSON.stringify([...root.regard.panels[0].weights]);
</script>"""


def test_the_script_merges_weights_as_python_does(tmp_path):
    shown = torch.tensor(json.loads(in_browser(MERGED % heads().body(), tmp_path)))
    expected = torch.tensor([heads().mean(number).weights for number in (1, 2)]).flatten()
    torch.testing.assert_close(shown, expected, atol=5e-5, rtol=0)
