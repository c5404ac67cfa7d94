"""Masks and next sentences against transformers; vocabularies that are not words.

Tests of `regard.tasks.masked_language_modeling`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tiny_folders import ENCODERS, folder, their_scores
from tokenizers import models, pre_tokenizers, processors

import regard
from regard.errors import RegardError
from regard.experiments import runs

TEXTS = [
    "the old [MASK] sleeps on a warm mat .", "[MASK] dog runs after a [MASK] ball", "[MASK]",
    "what does the dog do ? [MASK] [MASK]",
]  # fmt: skip


def their_masks(path: Path, text: str) -> list[torch.Tensor]:
    """Probabilities of all words at each mask, as transformers has them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    text = text.replace("[MASK]", tokenizer.mask_token)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    scores = their_scores("AutoModelForMaskedLM", path, text)[0]
    return list(scores[ids == tokenizer.mask_token_id].softmax(-1))


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("ending", ["ForMaskedLM", "ForPreTraining"])
def test_masks_have_the_probabilities_of_transformers(tmp_path, family, ending):
    if ending == "ForPreTraining" and family != "bert":
        pytest.skip("BERT alone has both heads")
    task = runs.load(folder(tmp_path, family, ending))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, filled in zip(TEXTS, task.fill(TEXTS, top=4), strict=True):
        theirs = their_masks(tmp_path, text)
        assert len(filled.masks) == len(theirs) == text.count("[MASK]")
        for ours, shares in zip(filled.masks, theirs, strict=True):
            best = shares.topk(4)
            assert [tokenizer.convert_ids_to_tokens(int(i)) for i in best.indices] == [
                one.token for one in ours
            ]
            assert [one.probability for one in ours] == pytest.approx(best.values.tolist(), 1e-4)
    assert task.predict(TEXTS, return_proba=True)[1] == task.fill(
        TEXTS[1]
    )  # company changes nothing
    assert task.predict(TEXTS) == [filled.text for filled in task.fill(TEXTS)]
    own = TEXTS[0].replace("[MASK]", tokenizer.mask_token)
    assert task.fill(own) == task.fill(TEXTS[0])


def test_the_filled_text_has_the_most_probable_word_for_each_mask(tmp_path):
    task = runs.load(folder(tmp_path, "bert", "ForMaskedLM"))
    filled = task.fill("The OLD [MASK], after a [MASK]!", top=10**6)
    best = [max(mask, key=lambda one: one.probability).word for mask in filled.masks]
    assert filled.text == f"The OLD {best[0]}, after a {best[1]}!" == str(filled)
    assert {one.token for one in filled.masks[0]} == set(task.tokenizer.vocab())
    assert sum(one.probability for one in filled.masks[0]) == pytest.approx(1)


def put(task, text, token):
    """The text with this token, whatever is the most probable one."""
    only = torch.zeros_like(task._in_vocabulary)
    only[task.tokenizer.id(token)] = True
    task._in_vocabulary = only
    return task.fill(text).text


def test_filled_subwords_are_joined_to_the_word_before(tmp_path):
    task = runs.load(folder(tmp_path / "bert", "bert", "ForMaskedLM"))
    (part,) = [piece for piece in task.tokenizer.vocab() if piece.startswith("##")][:1]
    assert put(task, "a do [MASK] runs", part) == f"a do{part[2:]} runs"
    task = runs.load(folder(tmp_path / "roberta", "roberta", "ForMaskedLM"))
    assert put(task, "a <mask> runs", "Ġdog") == "a dog runs"
    assert put(task, "a do <mask> runs", "g") == "a dog runs"


def amino_acids(path: Path, **config: str) -> Path:
    """A BERT for proteins: letters, and specials with names of their own; one row to spare."""
    pieces = ["<none>", "<begin>", "<end>", "<any>", "<gap>", *"ACDEFGHIKLMNPQRSTVWY"]
    fast = tokenizers.Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, "<any>"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.add_special_tokens(pieces[:5])
    fast.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>",
        pair="<begin> $A <end> $B:1 <end>:1",
        special_tokens=[("<begin>", 1), ("<end>", 2)],
    )
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    torch.manual_seed(2)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(vocab_size=len(pieces) + 3, initializer_range=1.0, **sizes)
    )
    model.save_pretrained(path)
    fast.save(str(path / "tokenizer.json"))
    roles = {"pad": "<none>", "cls": "<begin>", "sep": "<end>", "unk": "<any>", **config}
    stated = {f"{role}_token": piece for role, piece in roles.items()}
    stated |= {"tokenizer_class": "PreTrainedTokenizerFast",
               "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(stated))
    return path


def test_masks_in_texts_without_spaces_are_filled(tmp_path):
    task = runs.load(amino_acids(tmp_path, mask="<gap>"))
    filled = task.fill("MKT[MASK]YIAK<gap>R", top=30)
    theirs = their_masks(tmp_path, "MKT<gap>YIAK<gap>R")
    for ours, shares in zip(filled.masks, theirs, strict=True):
        assert len(ours) == 25  # three rows of the embedding are no piece
        kept = {one.token: one.probability for one in ours}
        assert kept["A"] == pytest.approx(float(shares[5]), rel=1e-4)
    assert put(task, "MKT[MASK]", "W") == "MKTW"
    with pytest.raises(RegardError, match=r"has no \[MASK\] \(or <gap>\)"):
        task.fill("MKT")


@pytest.mark.parametrize("ending", ["ForNextSentencePrediction", "ForPreTraining"])
def test_the_next_sentence_probability_equals_that_of_transformers(tmp_path, ending):
    task = regard.load(folder(tmp_path, "bert", ending), task="next-sentence")
    pair = ("a dog runs after a red ball .", "where is the ball ?")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = getattr(transformers, f"Bert{ending}").from_pretrained(tmp_path).eval()
    with torch.no_grad():
        found = model(**tokenizer(*pair, return_tensors="pt"))
    scores = found.logits if ending != "ForPreTraining" else found.seq_relationship_logits
    kept = float(scores.softmax(-1)[0, 0])  # theirs: 0 is the text that follows
    assert task.follows(*pair) == pytest.approx(kept, abs=1e-5)
    if ending == "ForNextSentencePrediction":
        assert task.name == "next-sentence"
        (answer,) = task.predict([pair], return_proba=True)
        assert answer.probability == pytest.approx(kept, abs=1e-5)
        assert task.predict(pair) is answer.follows is (kept >= 0.5)
        with pytest.raises(RegardError, match="is asked of two"):
            task.predict("alone")
