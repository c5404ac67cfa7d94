"""Constituency trees drawn: what each form of the picture shows, and where."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from regard.text.trees import read_trees
from regard.visual import TreePicture, n_best_picture

IN_PAJAMAS = (
    "(S (NP (PRP I)) (VP (VBD shot) (NP (NP (DT an) (NN elephant)) "
    "(PP (IN in) (NP (PRP$ my) (NNS pajamas))))) (. .))"
)
SHOT_IN = (
    "(S (NP (PRP I)) (VP (VBD shot) (NP (DT an) (NN elephant)) "
    "(PP (IN in) (NP (PRP$ my) (NNS pajamas)))) (. .))"
)


def labels(picture) -> list[tuple[str, float, float]]:
    """Text and position of each label of an SVG file."""
    root = ElementTree.fromstring(picture.svg())
    found = [one for one in root.iter() if one.tag.endswith("text")]
    return [("".join(one.itertext()), float(one.get("x")), float(one.get("y"))) for one in found]


def test_words_are_in_order_on_one_line_under_their_tags_and_parents_between_children():
    found = labels(TreePicture.of(IN_PAJAMAS))
    lowest = max(y for _, _, y in found)
    words = [(x, text) for text, x, y in found if y == lowest]
    assert [text for _, text in words] == "I shot an elephant in my pajamas .".split()
    assert words == sorted(words)
    at = {text: (x, y) for text, x, y in found}
    assert at["VBD"][0] == at["shot"][0] and at["PRP$"][0] == at["my"][0]
    assert at["DT"][0] < at["NN"][0] < at["PP"][0] and at["IN"][0] < at["PP"][0]
    assert at["S"][1] < at["VP"][1] < at["VBD"][1] < lowest


def test_labels_of_one_level_do_not_overlap_and_are_inside_the_picture():
    tree = "(S (ABCDEFGHIJKLMN (VERYLONGLABELINDEED (N a))) (WIDEWIDEWIDE (N b) (N c)) (X (N d)))"
    picture = TreePicture.of(tree)
    drawing, by_level = picture.drawing(), {}
    for text, x, y in labels(picture):
        by_level.setdefault(y, []).append((x - 4 * len(text), x + 4 * len(text)))
    for spans in by_level.values():
        spans.sort()
        assert spans[0][0] >= 0 and spans[-1][1] <= drawing.width
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))


def test_the_terminal_shows_every_node_on_a_line_within_the_width():
    text = TreePicture.of(SHOT_IN, title="shot").text(40)
    assert text.splitlines()[0] == "shot"
    assert re.findall(r"^ +(\S+)$", text, re.M) == ["NP", "VP", "NP", "PP", "NP"]
    assert "\n  VP\n    VBD shot\n    NP\n      DT an\n" in text
    deep = TreePicture.of("(A " * 60 + "(B word)" + ")" * 60).text(40)
    assert max(map(len, deep.splitlines())) <= 40 and "word" in deep


def test_the_best_trees_are_beside_each_other_and_differences_are_marked():
    best, other = read_trees(SHOT_IN)[0], read_trees(IN_PAJAMAS)[0]
    picture = n_best_picture([(best, 12.25), (other, 11.5)], "pajamas")
    first, second = picture.parts
    assert not first.marked and second.marked == {(2, 7, "NP")}
    assert "1. score 12.25" in picture.html() and "2. score 11.50" in picture.html()
    assert first.svg().count("#d4611f") == 0 and second.svg().count("#d4611f") == 1
