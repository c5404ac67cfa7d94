"""The search finds the cells that follow a property, with the correlations that numpy computes."""

from __future__ import annotations

import re

import numpy
import pytest
import torch

from regard.errors import ConfigError
from regard.models.recurrent import RecurrentConfig, RecurrentLanguageModel
from regard.text import train
from regard.visual import find_cells, python_properties, text_properties
from regard.visual.recurrent_cells import STREAMS, reader_of

LINES = ['"Yes" (he said)', "no", '"a (b (c))"', "and nothing more than this", '(1) "x y z"']
TEXT = "\n".join(LINES * 40) + "\n"
TOKENIZER = train("characters", [TEXT, "if else:#'[]{}"], 60)


def model_of(cell="lstm", **options):
    torch.manual_seed(3)
    sizes = dict(vocab_size=TOKENIZER.vocab_size, d_model=12, layers=2, init_range=0.6)
    return RecurrentLanguageModel(RecurrentConfig(cell=cell, **sizes | options))


def hand_set():
    """An LSTM whose cell 5 of layer 1 is on after `(` until `)`: i and f by the embedding."""
    model = model_of(layers=1)
    layer, d = model.stack.layers[0], 12
    with torch.no_grad():
        model.embedding.weight[:, :2] = 0
        model.embedding.weight[TOKENIZER.id("("), 0] = 1
        model.embedding.weight[TOKENIZER.id(")"), 1] = 1
        for gate, weights, bias in (
            (0, (20.0, 20.0), -10.0),  # i: open at either parenthesis
            (1, (0.0, -20.0), 10.0),  # f: keep all, except at the closing one
            (2, (20.0, 0.0), 0.0),  # g: 1 at the opening one
        ):
            row = gate * d + 4
            layer.input.weight[row] = 0
            layer.input.weight[row, :2] = torch.tensor(weights)
            layer.recurrent.weight[row] = 0
            layer.input.bias[row] = bias
    return model


def test_a_cell_that_was_set_by_hand_is_found():
    text = ("one (two) three " * 3 + "\n") * 20
    found = find_cells(hand_set(), TOKENIZER, [text]).numbers["depth of parentheses"]
    assert (found[0].layer, found[0].number) == (1, 5)
    assert found[0].correlation > 0.97 and found[0].held_out > 0.97
    assert abs(found[1].correlation) < found[0].correlation


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_correlations_equal_those_of_numpy(cell):
    model = model_of(cell).double()
    table = find_cells(model, TOKENIZER, [TEXT], best=24)
    ids = TOKENIZER.encode(TEXT).ids
    properties = text_properties(TEXT)
    length = len(ids) // (2 * STREAMS)
    for half, field in ((0, "correlation"), (1, "held_out")):
        start = half * len(ids) // 2
        rows = torch.tensor(ids[start : start + STREAMS * length]).view(STREAMS, length)
        parts = list(reader_of(model).activations(rows, TOKENIZER))
        for name, found in table.numbers.items():
            target = properties[name][start : start + STREAMS * length].numpy()
            assert len(found) == 24 and len(set(found)) == 24
            for one in found:
                layer = torch.cat([part[one.layer - 1] for part in parts], 1)
                expected = numpy.corrcoef(layer[..., one.number - 1].reshape(-1), target)[0, 1]
                assert getattr(one, field) == pytest.approx(expected, abs=1e-9)
    sizes = [abs(one.correlation) for one in table.numbers["quotes"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_held_out_half_has_no_part_in_the_choice():
    model = model_of()
    middle = len(TEXT) // 2
    other = TEXT[:middle] + TEXT[middle:].replace('"', "'").swapcase()
    one, two = (find_cells(model, TOKENIZER, [text]).numbers for text in (TEXT, other))
    for name, cells in one.items():
        assert [cell[:3] for cell in cells] == [cell[:3] for cell in two[name]]
    assert all(numpy.isnan(cell.held_out) for cell in two["quotes"])  # none are left there
    assert "nan" in find_cells(model, TOKENIZER, [other]).text()


def test_cells_are_searched_in_several_texts_for_a_property_of_the_caller():
    def vowels(text):
        return {"vowels": torch.tensor([float(c in "aeiou") for c in text])}

    found = find_cells(model_of(), TOKENIZER, [TEXT, TEXT[:100], "", "a"], vowels, best=1)
    assert list(found.numbers) == ["vowels"] and len(found.numbers["vowels"]) == 1


# --------------------------------------------------------------------------------- properties


def shown(values):
    return "".join(str(int(value)) for value in values.tolist())


def test_text_properties_find_quotes_parentheses_and_line_positions():
    found = text_properties('a "b" (c)\n("d\n\ne)“f”')
    assert shown(found["quotes"]) == "00110" + "00000" + "01110" + "00" + "110"
    assert shown(found["depth of parentheses"]) == "000000110" + "0" + "1111" + "0" * 6
    assert shown(found["position in the line"]) == "1234567890" + "1230" + "0" + "12345"
    assert [len(values) for values in text_properties("").values()] == [0, 0, 0]


SOURCE = '''\
x = [1, f("é)")]  # no (
if "é" in x:
    y = 'a' """b
c"""
elif (x
      and y): z = 1
else:
    pass
'''


def lines_of(name):
    values, found = shown(python_properties(SOURCE)[name]), []
    for line in SOURCE.splitlines(keepends=True):
        found.append(values[: len(line)])
        values = values[len(line) :]
    assert not values
    return found


def test_python_properties_find_comments_strings_depths_and_conditions():
    zeros = [re.sub(".", "0", line, flags=re.S) for line in SOURCE.splitlines(keepends=True)]
    assert lines_of("comments") == ["0" * 18 + "1" * 6 + "0", *zeros[1:]]
    strings = lines_of("strings")
    assert strings[0] == "0" * 10 + "111" + "0" * 12
    assert strings[1] == "000110" + "0" * 7
    assert strings[2:4] == ["00000000" + "110" + "0" + "11111", "1110" + "0"]
    depth = lines_of("depth of parentheses")
    assert depth[0] == "0000" + "11111" + "22222" + "1" + "0" * 10
    assert depth[4:6] == ["00000" + "111", "1" * 11 + "0" * 9]
    assert lines_of("depth of indentation") == [
        "0" * 25, "0" * 13, "1" * 17, "11111", "0" * 8, "0" * 20, "0" * 6, "1" * 9
    ]  # fmt: skip
    conditions, bodies = lines_of("if conditions"), lines_of("if bodies")
    assert conditions[1] == "000" + "1" * 8 + "00"
    assert conditions[4:6] == ["00000" + "011", "1" * 11 + "0" * 9]
    assert bodies[2:4] == ["0000" + "1" * 13, "11110"]
    assert bodies[5] == "0" * 14 + "1" * 5 + "0" and bodies[7] == "0" * 9


def test_invalid_python_raises_an_error():
    for source in ("if x\n", "x = (", "\x00", "  x\n y\n", "a = 1\rif x:\n y"):
        with pytest.raises(ConfigError, match="not valid Python"):
            python_properties(source)
