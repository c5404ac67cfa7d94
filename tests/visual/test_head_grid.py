"""The page of heads: its numbers, no external files, and its script."""

from __future__ import annotations

import pytest
import torch
from visual_pages import SAVAGE, addresses, embedded, in_browser, scripts, weights, widest

import regard
from regard.attention.capture import label
from regard.data import Sequences
from regard.errors import ConfigError
from regard.models.transformer import Transformer, TransformerConfig
from regard.visual import HeadGrid, Panel

SOURCE, TARGET = ["das", "Tier", "</s>"], ["<s>", "the", "animal", "</s>"]


def random_heads(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (4 * torch.randn(*shape, generator=generator)).softmax(-1)


def some(heads: int = 2, layers: int = 2, example: int = 0) -> list[Panel]:
    kinds = (("encoder", SOURCE, SOURCE), ("cross", TARGET[1:], SOURCE))
    return [
        Panel.of(kind, layer, random_heads(heads, 3, 3) * 0 + layer / 10, asking, keys, example)
        for layer in range(1, layers + 1)
        for kind, asking, keys in kinds
    ]


def test_the_page_has_the_weights_to_a_hundred_thousandth():
    given = random_heads(3, 5, 7)
    (data,) = embedded(HeadGrid((Panel.of("cross", 1, given),)).html())
    shown = torch.tensor(weights(data["panels"][0])).view(3, 5, 7)
    assert (shown - given).abs().max() <= 0.5 / 65535 + 1e-7


def test_tokens_are_escaped_and_complete():
    given = random_heads(1, len(SAVAGE), len(SAVAGE))
    page = HeadGrid((Panel.of("encoder", 1, given, SAVAGE, SAVAGE),), "</title><script>").html()
    page.encode()
    assert scripts(page) == 2  # the data and the program
    assert addresses(page) == []
    (data,) = embedded(page)
    shown = data["labels"][data["panels"][0]["queries"]]
    assert shown[:6] == SAVAGE[:6] and shown[6] == "tab␉here"


def test_select_raises_an_error_that_names_what_there_is():
    heads = HeadGrid(tuple(some()))
    assert {panel.layer for panel in heads.select(layer=2).panels} == {2}
    with pytest.raises(ConfigError, match=r"`layer` must be one of 1, 2, but is 3"):
        heads.select(layer=3)
    with pytest.raises(ConfigError, match="`head` must be from 1 to 2, but is 0"):
        heads.select("cross", 1).mean(0)
    with pytest.raises(ConfigError, match="Nothing is recorded"):
        HeadGrid(())


def test_all_heads_are_saved_in_every_format(tmp_path):
    heads = HeadGrid(tuple(some()))
    for suffix in ("png", "svg", "txt", "html"):
        assert heads.save(tmp_path / f"a.{suffix}").stat().st_size > 500
    assert heads.svg().count("head 2</text>") == 4
    assert widest(heads.text(80)) <= 80


def model() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=20, d_model=16, d_ff=32, heads=2, encoder_layers=2, decoder_layers=3
    )
    return Transformer(config).eval()


def test_recorded_heads_have_the_tokens_as_labels():
    transformer = model()
    source = Sequences.of([[5, 6, 2], [7, 2]], 0)
    target = torch.tensor([[1, 8, 9], [1, 10, 0]])
    words = [["das", "Tier", "</s>"], ["ja", "</s>"]]
    said = [["<s>", "the", "animal", "</s>"], ["<s>", "yes", "</s>"]]
    with regard.look(transformer) as attention, torch.no_grad():
        label(words, said)
        transformer(source, Sequences.full(target))
    heads = attention.plot()
    assert attention._repr_html_() == heads._repr_html_()
    assert len(heads.panels) == 2 * (2 + 3 + 3)
    by = {(panel.kind, panel.layer, panel.example): panel for panel in heads.panels}
    short = by["cross", 3, 1]
    assert (short.queries, short.keys) == (("yes", "</s>"), ("ja", "</s>"))
    assert by["decoder", 1, 1].queries == by["decoder", 1, 1].keys == ("<s>", "yes")
    assert by["encoder", 2, 0].queries == ("das", "Tier", "</s>")
    site = [s for s in attention.passes[0].attentions.values() if s.kind == "cross"][2]
    torch.testing.assert_close(torch.tensor(short.heads), site.weights[1, :, :2, :2])
    for panel in heads.panels:  # padding cut off, every row is a distribution
        assert torch.tensor(panel.heads).sum(-1).allclose(torch.ones(()), atol=1e-5)
    assert [p.layer for p in attention.plot(kind="cross", layer=2).panels] == [2, 2]


PROBE = """<pre id="probe"></pre><script>
const said = [], root = (n) => document.querySelectorAll("[data-rg]")[n];
const point = (n, x, y) => {
  const box = root(n).querySelector("svg image").getBoundingClientRect();
  root(n).querySelector("svg").dispatchEvent(new PointerEvent("pointermove",
    { clientX: box.x + x * box.width, clientY: box.y + y * box.height }));
  said.push(root(n).querySelector(".rg-said").textContent);
};
const press = (n, query) => root(n).querySelector(query).click();
const where = (n) => said.push(root(n).querySelector(".rg-where").textContent);
point(0, .5, .17);
press(0, '[data-value="encoder"]'); press(0, '[data-layer="2"][data-head="1"]');
where(0); where(1);
point(0, .17, .5);
point(1, .9, .9);
press(1, '[data-value="arcs"]');
said.push(root(1).querySelectorAll("svg path").length);
document.getElementById("probe").textContent = said.join("\\n");
</script>"""


def test_two_pages_work_in_one_document(tmp_path):
    first = HeadGrid(tuple(some(layers=3)))
    second = HeadGrid((Panel.of("cross", 1, [[[0.125, 0.875]]], ["a</script>b"], ["x", "<i>y"]),))
    shown = in_browser(first._repr_html_() + second._repr_html_() + PROBE, tmp_path).splitlines()
    assert shown == [
        "the → Tier  0.1000",
        "encoder self-attention · layer 2 · head 2",
        "cross-attention · layer 1",
        "Tier → das  0.2000",
        "a</script>b → <i>y  0.8750",
        "2",
    ]
