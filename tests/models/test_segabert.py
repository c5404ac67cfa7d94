"""SegaBERT, judged by BERT of `transformers` in float64, to whose embeddings the sums of positions
are added by hand: no other library has the model."""

from __future__ import annotations

import random

import pytest
import torch
from their_encoders import transformers

from regard import text
from regard.checkpoints.formats import from_published, to_published
from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.segabert import (
    EXTRAS,
    SegaBert,
    SegaBertConfig,
    indexed_input,
    indices_of,
    with_indices,
)
from regard.text.sentences import TokenSentences

TABLES = ("para_position_embeddings", "sent_position_embeddings", "token_position_embeddings")
ENDINGS = (
    *("Model", "ForMaskedLM", "ForNextSentencePrediction", "ForPreTraining"),
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    "ForMultipleChoice",
)
PER_TOKEN = ("Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering")
LOGITS = {
    "ForMaskedLM": ("masked_lm", "logits"),
    "ForSequenceClassification": ("classes", "logits"),
    "ForTokenClassification": ("tags", "logits"),
    "ForNextSentencePrediction": ("next_sentence", "logits"),
    "ForQuestionAnswering": ("span", "start_logits"),
}


def released(ending="Model", sizes=(4, 5, 6), segments=2, **options):
    """config.json and weights as in the published folders: BERT's, with three further tables."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, type_vocab_size=segments, 
        num_labels=2 if ending == "ForQuestionAnswering" else 3,
        attn_implementation="eager", **options,
    )  # fmt: skip
    model = getattr(transformers, f"Bert{ending}")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prefix = "" if ending == "Model" else "bert."
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    for name, size in zip(TABLES, sizes, strict=True):
        tensors[f"{prefix}embeddings.{name}.weight"] = 0.3 * torch.randn(size, 12)
    stated = config.to_diff_dict() | {"architectures": [f"Bert{ending}"], "model_type": "bert"}
    return model, stated, tensors, prefix


def judged(model, tensors, prefix, batch):
    """What the released program computes, in float64: their BERT without its own positions."""
    whole = model.double()
    body = whole if prefix == "" else whole.bert
    torch.nn.init.zeros_(body.embeddings.position_embeddings.weight)
    embedded = body.embeddings.word_embeddings(batch.ids)
    for name, extra in zip(TABLES, EXTRAS, strict=True):
        table = tensors[f"{prefix}embeddings.{name}.weight"].double()
        embedded = embedded + table[batch.extras[extra].clamp(max=len(table) - 1)]
    options = dict(attention_mask=batch.keep.long(), token_type_ids=batch.segments)
    with torch.no_grad():
        return whole(inputs_embeds=embedded, **options)


def drawn(largest=8):
    """Two texts of other lengths, with indices within and beyond the tables."""
    draw = torch.Generator().manual_seed(2)
    batch = Sequences(
        torch.randint(5, 31, (2, 9), generator=draw),
        torch.tensor([9, 4]),
        torch.randint(0, 2, (2, 9), generator=draw),
    )
    indices = torch.randint(0, largest, (2, 9, 3), generator=draw)
    return with_indices(batch, [[tuple(i) for i in row] for row in indices.tolist()])


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_head_equals_bert_with_the_sums_added_by_hand(ending):
    theirs, config, tensors, prefix = released(ending)
    batch, ours = drawn(), from_published(config, tensors).eval()
    assert type(ours.encoder) is SegaBert
    if ending in ("ForMultipleChoice", "ForPreTraining"):
        return  # the first has rows of another shape, the second the heads of two others
    expected = judged(theirs, tensors, prefix, batch)
    if ending == "Model":
        found, wanted = ours.encoder.encode(batch), expected[0]
    else:
        kind, name = LOGITS[ending]
        found, wanted = ours.scores(kind, batch), expected[name]
        found = found[..., 0] if kind == "span" else found
    if ending in PER_TOKEN:
        found, wanted = found[batch.keep], wanted[batch.keep]
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)


def test_a_folder_is_recognized_by_its_tensors_and_written_as_it_was():
    theirs, config, tensors, _ = released("ForPreTraining")
    ours = from_published(config, tensors)
    assert isinstance(ours, EncoderWithHeads) and {*ours.heads} == {"masked_lm", "next_sentence"}
    written, weights = to_published(ours)
    assert written["model_type"] == "bert" and written["architectures"] == ["BertForPreTraining"]
    assert [written[f"max_{name}"] for name in TABLES] == [4, 5, 6]
    for name, tensor in weights.items():
        assert torch.equal(tensor, tensors[name]), name
    assert {*tensors} - {*weights} <= {
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.position_ids",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }
    again = from_published(written, weights)
    batch = drawn()
    assert torch.equal(again.encoder.encode(batch), ours.encoder.encode(batch))
    plain = {name: t for name, t in tensors.items() if not any(table in name for table in TABLES)}
    assert type(from_published(config, plain).encoder) is not SegaBert
    with pytest.raises(CheckpointError, match="sent_position_embeddings"):
        from_published(config, {n: t for n, t in tensors.items() if TABLES[1] not in n})
    with pytest.raises((CheckpointError, ConfigError), match="max_para_position_embeddings|shape"):
        from_published(config | {"max_para_position_embeddings": 50}, tensors)


def test_defaults_are_those_of_the_released_program():
    config = SegaBertConfig(30_522)
    sizes = (config.paragraphs, config.sentences, config.sentence_length, config.max_length)
    assert sizes == (50, 100, 512, 512)


LINES = [
    "Dr. Smith met J. K. Rowling. She smiled! (Really.)",
    'It costs 3.5 euros. "Why?" He left...',
    "No. 5 is alive. The U.S. Army came at 5 p.m. yesterday.",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """An uncased WordPiece vocabulary."""
    made = text.train("wordpiece", [*LINES] * 3, 300, lowercase=True)
    return made.with_roles({"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"})


def test_indices_count_paragraphs_their_sentences_and_the_tokens_of_these(tokenizer):
    texts = [["She smiled!", "(Really.)"], ["No. 5 is alive."]]
    first, last = tokenizer.cls_id, tokenizer.sep_id
    ids, wanted, ends = [first], [(0, 0, 0)], []
    for p, sentences in enumerate(texts):
        encoded = [tokenizer.encode(sentence).ids for sentence in sentences]
        wanted += [(p, s, t) for s, tokens in enumerate(encoded) for t in range(len(tokens))]
        ends.append(len(wanted))
        wanted.append((p, len(encoded) - 1, len(encoded[-1])))
        ids += [*sum(encoded, []), last]
    assert indices_of(ids, tokenizer) == wanted
    del ids[ends[0]], wanted[ends[0]]  # between lines there is no special token
    assert indexed_input("\n".join(map(" ".join, texts)), tokenizer) == (ids, wanted)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "words"])
def test_sentences_in_tokens_are_those_of_the_text(kind):
    words = ["the", "cat", "Dog", "sat", "Mr.", "e.g.", "one", "Two", "seven"]
    draw = random.Random(4)
    lines = [" ".join(draw.choices(words, k=6)) + draw.choice(".!?") for _ in range(60)]
    made = text.train(kind, lines, 400)
    finder = TokenSentences(made)
    for first, second in zip(lines, lines[1:], strict=False):
        one, two = (made.encode(part).ids for part in (first, f" {second}"))
        ends = not second[:1].islower()
        assert finder.starts([*one, *two]) == ([0, len(one)] if ends else [0])


def test_indices_of_a_batch_survive_unpadding_and_are_not_replaced(tokenizer):
    torch.manual_seed(0)
    sizes = dict(d_model=12, d_ff=20, heads=3, layers=2, max_length=40, dropout=0.0)
    model = SegaBert(SegaBertConfig(tokenizer.vocab_size, sentence_length=7, **sizes)).eval()
    rows = [[tokenizer.cls_id, *tokenizer.encode(line).ids, tokenizer.sep_id] for line in LINES]
    batch = model.complete(Sequences.of(rows, 0), tokenizer)
    assert model.complete(batch, tokenizer) is batch
    whole = model.encode(batch)
    unpadded = batch.unpadded()
    torch.testing.assert_close(unpadded.pad(model.encode(unpadded))[batch.keep], whole[batch.keep])
    plain = model.encode(Sequences.of(rows, 0))
    assert (plain - whole)[batch.keep].abs().max() > 1e-3
    for number, row in enumerate(rows):  # padding changes nothing
        alone = model.encode(model.complete(Sequences.of([row], 0), tokenizer))
        torch.testing.assert_close(alone[0], whole[number, : len(row)], atol=1e-5, rtol=0)
