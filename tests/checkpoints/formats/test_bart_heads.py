"""BART and mBART under heads for classes and answers compute what `transformers` computes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.checkpoints.formats import from_published, to_published
from regard.checkpoints.formats.transformer import BART, MBART
from regard.checkpoints.model_folder import open_folder
from regard.data.batches import Sequences

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "tasks"))
from tiny_folders import TEXT, folder  # noqa: E402

PAD, EOS = 1, 2
ROWS = [[0, 10, 11, EOS, EOS, 14, 15, EOS], [0, 10, EOS], [0, EOS], [0, 12, EOS, 17, 18]]
KINDS = {"ForSequenceClassification": "classes", "ForQuestionAnswering": "span"}
NAMES, LAYOUTS = {"bart": "Bart", "mbart": "MBart"}, {"bart": BART, "mbart": MBART}
ODD = dict(classifier_dropout=0.2, encoder_ffn_dim=20, decoder_ffn_dim=12, scale_embedding=True)


def their_scores(model, rows) -> list[torch.Tensor]:
    """Row by row: their head for classes wants the same number of </s> in every row of a batch."""
    found = []
    for row in rows:
        output = model(torch.tensor([row]))
        if "logits" in output:
            found.append(output.logits[0])
        else:
            found.append(torch.stack([output.start_logits[0], output.end_logits[0]], -1))
    return found


def our_scores(model, kind: str, rows) -> list[torch.Tensor]:
    scores = model.scores(kind, Sequences.of(rows, PAD))
    return [
        one if kind == "classes" else one[: len(row)] for one, row in zip(scores, rows, strict=True)
    ]


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("ending", KINDS)
@pytest.mark.parametrize("options", [{}, ODD, {"decoder_layers": 3, "num_labels": 5}], ids=str)
def test_scores_and_gradients_are_those_of_transformers(family, ending, options, tmp_path):
    folder(tmp_path, family, ending, **options)
    theirs = getattr(transformers, f"{NAMES[family]}{ending}").from_pretrained(tmp_path).eval()
    ours, kind = open_folder(tmp_path).model().eval(), KINDS[ending]
    assert list(ours.heads) == [kind]
    expected, found = their_scores(theirs, ROWS), our_scores(ours, kind, ROWS)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch.manual_seed(0)
    weights = [torch.randn_like(one) for one in expected]
    for model, scores in ((ours, found), (theirs, expected)):
        model.zero_grad()
        sum((one * weight).sum() for one, weight in zip(scores, weights, strict=True)).backward()
    grads = {name: one.grad for name, one in theirs.named_parameters()}
    own = {name: one.grad for name, one in ours.named_parameters() if one.grad is not None}
    assert len(own) == len(dict(ours.named_parameters()))  # each parameter is read
    tied = {"encoder.bart.head.weight": own["encoder.bart.embedding.weight"]}
    for name, grad in LAYOUTS[family].names_of(ours).write(own | tied).items():
        torch.testing.assert_close(grad, grads[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", LAYOUTS)
def test_folders_classify_and_answer_as_in_transformers(family, tmp_path):
    path = folder(tmp_path / "classes", family, "ForSequenceClassification", num_labels=3)
    task = regard.load(path, device="cpu")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for given in (TEXT[0], (TEXT[0], TEXT[1])):
        texts = (given,) if isinstance(given, str) else given
        with torch.no_grad():
            wanted = theirs(**tokenizer(*texts, return_tensors="pt")).logits[0]
        (found,) = task.predict([given], return_proba=True)
        assert found.label == f"LABEL_{int(wanted.argmax())}"
        assert max(found.probabilities.values()) == pytest.approx(
            float(wanted.softmax(-1).max()), abs=1e-5
        )
    path = folder(tmp_path / "span", family, "ForQuestionAnswering")
    assert regard.load(path, device="cpu").name == "question-answering"


def test_a_head_without_its_tensors_is_refused_by_name(tmp_path):
    path = folder(tmp_path, "bart", "ForSequenceClassification")
    config, tensors = to_published(open_folder(path).model())
    for name in ("classification_head.dense.weight", "model.decoder.layers.0.fc1.bias"):
        with pytest.raises(regard.RegardError, match=name):
            from_published(config, {k: v for k, v in tensors.items() if k != name})


@pytest.mark.parametrize("family", LAYOUTS)
@pytest.mark.parametrize("ending", KINDS)
def test_the_tensors_tell_the_head_where_no_architecture_is_named(family, ending, tmp_path):
    model = open_folder(folder(tmp_path, family, ending)).model()
    config, tensors = to_published(model)
    assert [LAYOUTS[family].architecture_of(model)] == config["architectures"]
    assert [*from_published(config | {"architectures": None}, tensors).heads] == [KINDS[ending]]


@pytest.mark.parametrize("family", ["bart", "mbart", "t5"])
def test_a_whole_model_is_fine_tuned_under_a_head(family, tmp_path):
    start = {"decoder_start_token_id": 2} if family == "mbart" else {}
    path = folder(tmp_path / "whole", family, "ForConditionalGeneration", **start)
    examples = [(text, "yes" if "ball" in text else "no") for text in TEXT] * 3
    run = regard.train(
        task="classification", model=str(path), train=examples, valid=0.3, epochs=1, progress=False,
        out=tmp_path / "run",
    )  # fmt: skip
    again = regard.load(run.folder, device="cpu")
    assert again.predict(TEXT[0]) in ("yes", "no")
    config = (run.folder / "model" / "config.json").read_text()
    named = f'"{NAMES.get(family)}ForSequenceClassification"'
    assert (named in config) == (family in NAMES)
    if family in NAMES:
        auto = transformers.AutoModelForSequenceClassification
        theirs = auto.from_pretrained(run.folder / "model")
        tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
        with torch.no_grad():
            wanted = theirs.eval()(**tokenizer(TEXT[0], return_tensors="pt")).logits[0]
        assert again.predict(TEXT[0]) == theirs.config.id2label[int(wanted.argmax())]
