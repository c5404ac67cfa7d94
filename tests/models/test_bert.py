"""BERT: its sizes, where it drops, its heads; that it computes what `transformers` does is tested
with its published layout."""

from __future__ import annotations

import json

import pytest
import torch
from their_encoders import (
    BODY,
    CASES,
    FAMILIES,
    SAME,
    T,
    V,
    answers,
    ask,
    assert_same_outputs,
    batch,
    heads_of,
    ours_of,
    randomized,
    transformers,
)

import regard
import regard.attention.attend
import regard.layers.dropout
import regard.ops
from regard.checkpoints.formats import from_published, to_published
from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.bert import Bert, BertConfig, DistilBert, DistilBertConfig
from regard.models.encoder_with_heads import HEADS
from regard.models.roberta import Roberta
from regard.tasks.replaced_tokens import ReplacedTokens
from regard.text.training import train

TINY = dict(d_model=8, d_ff=12, heads=2, layers=1, max_length=16)


@pytest.mark.parametrize(("family", "ending"), CASES)
def test_dropout_is_at_the_same_positions_as_in_transformers(family, ending, monkeypatch):
    """Instead of dropping, both multiply by a number that tells the probability."""

    def theirs(x, p=0.5, training=True, inplace=False):
        return x * (1 + p) if training else x

    def ours(x, drop):
        return x * (1 + round(drop.probability, 3))

    monkeypatch.setattr(torch.nn.functional, "dropout", theirs)
    monkeypatch.setattr(regard.ops.dropout, "definition", ours)
    names = {
        "distilbert": ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    }.get(family, ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"))
    rates = {name: 0.1 * (n + 1) for n, name in enumerate(names)}
    with regard.ops.reference():
        for options in (rates, {k: v for k, v in rates.items() if k != "classifier_dropout"}):
            model = FAMILIES[family].model(ending, **options).train()
            ours, texts = ours_of(model).train(), batch(FAMILIES[family].segments)
            output = ask(model, texts, pad=ours.config.pad)
            keep = texts.keep
            found, expected = ours.encoder.encode(texts), output.hidden_states[-1]
            torch.testing.assert_close(found[keep], expected[keep], **SAME)
            for kind in heads_of(family, ending):
                if kind == "pooler" and "pooler_output" not in output:
                    continue  # they have one that nothing reads
                found, expected = ours.scores(kind, texts), answers(output, kind)
                if found.dim() == 3:
                    found, expected = found[keep], expected[keep]
                torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_have_the_initial_range_of_the_config(tied):
    torch.manual_seed(0)
    config = BertConfig(500, d_model=64, d_ff=128, heads=2, layers=2, tied=tied, init_range=0.05)
    encoder = Bert(config)
    head = encoder.new_head("masked_lm")
    assert (head.softmax.weight is encoder.embedding.weight) == tied
    for name, parameter in [*encoder.named_parameters(), *head.named_parameters()]:
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
        else:
            assert bool((parameter == ("norm" in name and "weight" in name)).all()), name


# ---- roberta


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_positions_start_after_the_padding_id(pad):
    rows = T + pad + 1
    model = FAMILIES["roberta"].model("Model", pad_token_id=pad, max_position_embeddings=rows)
    ours = ours_of(model)
    assert ours.config.max_length == T and ours.config.pad == pad
    assert to_published(ours)[0]["max_position_embeddings"] == rows
    rows = [[9] * T, [5, pad, 6, pad, pad, 7], [pad, 8], [pad]]  # padding stands inside too
    assert_same_outputs(model, ours, wide(Sequences.of(rows, pad)))
    # Whatever stands behind a row's end, and wherever padding is, a row is read the same.
    texts = Sequences.of([[5, 6, 7], [8] * T], pad)
    other = Sequences(torch.where(texts.keep, texts.ids, 11), texts.lengths)
    found, expected = ours.encoder.encode(other), ours.encoder.encode(texts)
    torch.testing.assert_close(found[texts.keep], expected[texts.keep], **SAME)


def wide(texts: Sequences) -> Sequences:
    assert texts.ids.size(1) == T and int(texts.ids.max()) < V
    return texts


def tokenizer(*special_tokens: str):
    return train("words", ["a b"], 9, special_tokens=special_tokens)


def test_the_template_of_roberta_has_two_separators_between_texts():
    template = Roberta.template(tokenizer("[CLS]", "[UNK]", "[SEP]"))
    assert template.apply([[5, 6]]).ids == [0, 5, 6, 2]
    row = template.apply([[5, 6], [7]])
    assert row.ids == [0, 5, 6, 2, 2, 7, 2] and row.segments == [0] * 7 and row.starts == (1, 5)
    with pytest.raises(ConfigError, match="puts cls and sep tokens around texts, .* no cls t"):
        Roberta.template(tokenizer("[PAD]", "[UNK]", "[SEP]"))


# ---- distilbert


def test_sinusoidal_positions_start_as_in_transformers_and_are_read_from_files():
    options = dict(sinusoidal_pos_embds=True, max_position_embeddings=T)
    config = FAMILIES["distilbert"].config(**options)
    theirs = transformers.DistilBertModel(config).embeddings.position_embeddings.weight
    ours = DistilBert(
        DistilBertConfig(31, **TINY | dict(d_model=12, max_length=T, sinusoidal=True))
    )
    table = ours.positions.vectors.weight
    torch.testing.assert_close(table, theirs)
    assert table.requires_grad == theirs.requires_grad
    trained = FAMILIES["distilbert"].model("ForMaskedLM", **options)
    read = ours_of(trained)
    assert read.config.sinusoidal
    assert not torch.allclose(read.encoder.positions.vectors.weight, theirs)
    assert_same_outputs(trained, read, batch(0))


def test_distilbert_has_only_heads_without_pooler():
    encoder = DistilBert(DistilBertConfig(20, **TINY))
    missing = {"pooler", "next_sentence", "replaced", "sentence_order"}
    for kind in HEADS.keys() - missing - {"chart", "crf"}:  # which `new_head` makes for any encoder
        assert encoder.new_head(kind) is not None
    for kind in sorted(missing):
        with pytest.raises(ConfigError, match=f"DistilBert has no head '{kind}'"):
            encoder.new_head(kind)


# ---- albert


@pytest.mark.parametrize(
    ("layers", "groups", "inner"),
    [(1, 1, 1), (3, 1, 1), (7, 3, 1), (2, 3, 1), (5, 5, 1), (0, 1, 1)],
)
def test_any_groups_of_layers_equal_transformers_and_are_written_back(layers, groups, inner):
    config = transformers.AlbertConfig(**BODY | dict(
        num_hidden_layers=layers, num_hidden_groups=groups, inner_group_num=inner,
        embedding_size=5, max_position_embeddings=T, attn_implementation="eager",
    ))  # fmt: skip
    torch.manual_seed(0)
    model = randomized(transformers.AlbertModel(config)).eval()
    ours = ours_of(model)
    assert ours.config.layers == layers * inner
    if layers:
        assert_same_outputs(model, ours, batch(2))
    published, tensors = to_published(ours)
    for name in ("num_hidden_layers", "num_hidden_groups", "inner_group_num"):
        assert published[name] == getattr(config, name)
    assert tensors.keys() == model.state_dict().keys()
    assert from_published(published, tensors).config == ours.config


# ---- electra

WORDS = "the chef cooked ate a meal un ##aff ##able".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXT = "The unaffable chef  ate the meal"


def electra(folder):
    """Tiny random weights and BERT's tokenizer, in the folder."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    tokenizer = transformers.ElectraTokenizer.from_pretrained(folder)
    config = transformers.ElectraConfig(
        vocab_size=len(VOCABULARY), embedding_size=6, hidden_size=12, intermediate_size=20,
        num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = randomized(transformers.ElectraForPreTraining(config).eval())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def test_probabilities_of_replaced_tokens_equal_those_of_transformers(tmp_path):
    model, tokenizer = electra(tmp_path)
    task = regard.load(tmp_path)
    texts = [TEXT, "meal", "a chef cooked"]
    for text, found in zip(texts, task.predict(texts, return_proba=True), strict=True):
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            wanted = model(**given).logits.sigmoid()[0, 1:-1]
        torch.testing.assert_close(torch.tensor(found.token_probabilities), wanted)
        assert list(found.tokens) == tokenizer.convert_ids_to_tokens(given["input_ids"][0])[1:-1]
    found = task.predict([TEXT], return_proba=True)[0]
    assert found.words == ("The", "unaffable", "chef", "ate", "the", "meal")
    assert found.probabilities[1] == max(found.token_probabilities[1:4])
    shares = dict(zip(found.words, found.probabilities, strict=True))
    assert task.predict(TEXT) == [word for word in found.words if shares[word] >= 0.5]
    assert isinstance(found, ReplacedTokens) and "chef/0." in str(found)


# ---- xlm roberta

TEXTS = ["Ein Haus am See", "a house", "une maison près du lac, là-bas", ""]


def multilingual(folder):
    """Tiny random weights of BERT and a tokenizer of XLM-R's kind, in the folder."""
    letters = sorted({char for text in TEXTS for char in text if char != " "})
    subwords = ["▁", "▁Haus", "▁house", "▁maison", "son", "ein", *letters]
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    scores = [(subword, -1.0 - i / 10) for i, subword in enumerate(subwords)]
    tokenizer = transformers.XLMRobertaTokenizer(vocab=[*special, *scores, ("<mask>", 0.0)])
    sizes = dict(hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), pad_token_id=1, max_position_embeddings=70, **sizes
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize("stated", ["BertTokenizer", "XLMRobertaTokenizer"])
def test_a_multilingual_sentence_encoder_opens_in_one_command(tmp_path, stated):
    """BERT's weights, unigram subwords and the modules of sentence-transformers."""
    model, tokenizer = multilingual(tmp_path)
    config = {
        "do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None,
        "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>",
        "mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>",
        "model_max_length": 512, "tokenizer_class": stated,
    }  # fmt: skip
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"},
    ]))  # fmt: skip
    (tmp_path / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 60, "do_lower_case": false}'
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({
        "word_embedding_dimension": 12, "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }))  # fmt: skip
    with torch.no_grad():
        hidden = model(given["input_ids"], given["attention_mask"]).last_hidden_state
    keep = given["attention_mask"][:, :, None]
    wanted = (hidden * keep).sum(1) / keep.sum(1)
    found = torch.as_tensor(regard.load(tmp_path).embed(TEXTS))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
