"""ELECTRA: its parameters, and which words its discriminator takes for replaced ones."""

from __future__ import annotations

import pytest
import torch
from their_encoders import transformers

import regard
from regard.tasks.replaced_tokens import ReplacedTokens

WORDS = "the chef cooked ate a meal un ##aff ##able".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXT = "The unaffable chef  ate the meal"


@pytest.fixture
def folder(tmp_path):
    """`folder("ForPreTraining")`: tiny random weights and BERT's tokenizer."""

    def make(ending: str):
        (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
        tokenizer = transformers.ElectraTokenizer.from_pretrained(tmp_path)
        config = transformers.ElectraConfig(
            vocab_size=len(VOCABULARY), embedding_size=6, hidden_size=12, intermediate_size=20,
            num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=16,
        )  # fmt: skip
        torch.manual_seed(0)
        model = getattr(transformers, f"Electra{ending}")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return model, tokenizer

    return make


def test_probabilities_of_replaced_tokens_equal_those_of_transformers(folder, tmp_path):
    model, tokenizer = folder("ForPreTraining")
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


def test_a_generator_fills_masks_and_its_folder_is_written_as_it_was(folder, tmp_path):
    model, tokenizer = folder("ForMaskedLM")
    task = regard.load(tmp_path)
    given = tokenizer("the [MASK] ate", return_tensors="pt")
    with torch.no_grad():
        wanted = model(**given).logits.softmax(-1)[0, 2]
    best = task.fill("the [MASK] ate", top=len(VOCABULARY)).masks[0]
    for candidate in best:
        share = float(wanted[VOCABULARY.index(candidate.token)])
        assert candidate.probability == pytest.approx(share, abs=1e-5)
    regard.save(task, tmp_path / "saved")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor)
