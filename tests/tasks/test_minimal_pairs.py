"""Log-likelihoods of texts against `transformers`, and the accuracy of minimal pairs."""

from __future__ import annotations

import json
from zipfile import ZipFile

import pytest
import torch
import transformers
from test_cli import done, refused
from tiny_folders import ENCODERS, folder

import regard
from regard.data.datasets.records import MinimalPair, read_minimal_pairs
from regard.errors import ConfigError, DataError, RegardError, TextError
from regard.models.kneser_ney import KneserNey, KneserNeyConfig
from regard.models.recurrent import AwdLstm, AwdLstmConfig, RecurrentConfig, RecurrentLanguageModel
from regard.models.transformer_xl import TransformerXL, TransformerXLConfig
from regard.models.xlnet import Xlnet, XlnetConfig
from regard.tasks.language_modeling import TextGenerator
from regard.tasks.log_likelihoods import minimal_pair_scores
from regard.text import train

TEXTS = [
    "the old cat sleeps on a warm mat .", "a dog", "ball", "who sleeps ?",
    "what does the dog do ? where is the ball ? the ball is very good and cheap .",
]  # fmt: skip
PAIRS = [
    MinimalPair("the dog runs .", "the dog run .", "agreement"),
    MinimalPair("the cat is good .", "the cat are good .", "agreement"),
    MinimalPair("who sleeps ?", "sleeps who on a mat ?", "order"),
]


def test_causal_log_likelihoods_are_those_of_transformers(tmp_path):
    task = regard.load(folder(tmp_path, "gpt2", "LMHeadModel"))
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    wanted = []
    for text in TEXTS:
        ids = torch.tensor([[0, *tokenizer(text)["input_ids"]]])  # 0: their bos and eos
        with torch.no_grad():
            found = theirs(ids).logits[0, :-1].log_softmax(-1)
        wanted.append(float(found.gather(1, ids[0, 1:, None]).sum()))
    assert task.log_likelihoods(TEXTS) == pytest.approx(wanted, rel=1e-5)
    alone = [task.log_likelihoods([text])[0] for text in TEXTS]
    assert task.log_likelihoods(TEXTS[::-1])[::-1] == pytest.approx(alone, rel=1e-6)
    assert task.log_likelihoods([]) == []
    with pytest.raises(TextError, match=r"Text 2 has 90 tokens, .* 64"):
        task.log_likelihoods(["a", " ball" * 90])


@pytest.mark.parametrize("family", ENCODERS)
def test_pseudo_log_likelihoods_mask_one_token_after_the_other(tmp_path, family):
    task = regard.load(folder(tmp_path, family, "ForMaskedLM"))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    wanted = []
    for text in TEXTS:
        ids, total = torch.tensor([tokenizer(text)["input_ids"]]), 0.0
        for at in range(1, ids.size(1) - 1):
            masked = ids.clone()
            masked[0, at] = tokenizer.mask_token_id
            with torch.no_grad():
                total += float(theirs(masked).logits[0, at].log_softmax(-1)[ids[0, at]])
        wanted.append(total)
    assert task.log_likelihoods(TEXTS) == pytest.approx(wanted, rel=1e-5)
    alone = [task.log_likelihoods([text])[0] for text in TEXTS]
    assert task.log_likelihoods(TEXTS[::-1])[::-1] == pytest.approx(alone, rel=1e-6)
    assert task.log_likelihoods([]) == []
    none = " " if task.tokenizer.encode("\u200b").ids else "\u200b"  # no token
    for wrong, message in (("a [MASK]", "Text 2 has a mask"), (none, "Text 2 is empty")):
        with pytest.raises(TextError, match=message):
            task.log_likelihoods(["a dog", wrong])
    with pytest.raises(TextError, match="Text 1 has"):
        task.log_likelihoods(["ball " * 90])


def of_lines(make, **options):
    tokenizer = train("words", ["the cat sat on the mat", "a dog ran to the sea"] * 3, 40)
    return TextGenerator(make(tokenizer), tokenizer, format="lines", **options)


def recurrent(tokenizer):
    torch.manual_seed(0)
    config = RecurrentConfig(tokenizer.vocab_size, d_model=8, init_range=0.5)
    return RecurrentLanguageModel(config).eval()


def backward(tokenizer):
    torch.manual_seed(0)
    config = AwdLstmConfig(tokenizer.vocab_size, d_model=6, d_hidden=8, backward=True)
    return AwdLstm(config).eval()


def transformer_xl(tokenizer):
    torch.manual_seed(0)
    sizes = dict(d_model=8, heads=2, head_dim=4, layers=2, d_ff=16)
    lengths = dict(target_length=3, memory_length=5)
    return TransformerXL(TransformerXLConfig(tokenizer.vocab_size, **sizes, **lengths)).eval()


def n_grams(tokenizer):
    eos = tokenizer.eos_id
    ids = [eos]
    for text in ("the cat sat on the mat", "a dog ran to the sea", "the dog sat on a cat"):
        ids += [*tokenizer.encode(text).ids, eos]
    config = KneserNeyConfig(tokenizer.vocab_size, 3, tokenizer.pad_id, tokenizer.bos_id, eos)
    return KneserNey.fit(torch.tensor(ids * 2).numpy(), config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [recurrent, backward, transformer_xl, n_grams])
def test_the_log_likelihood_of_a_line_is_what_its_perplexity_is_made_of(make):
    task = of_lines(make)
    texts = ["the cat sat on the mat", "a dog", "the sea ran to a dog on a mat", "sat"]
    wanted = [-task.evaluate([text]).named[0].nats for text in texts]
    assert task.log_likelihoods(texts) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("make", [recurrent, transformer_xl])
def test_a_folder_opens_as_a_causal_model_of_transformers(tmp_path, make):
    """Scored as the evaluation pipeline of BabyLM scores: from the second token on, padded."""
    task = of_lines(make)
    task.save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    texts, tokenizer = ["the cat sat on the mat", "a dog"], transformers.AutoTokenizer
    tokenizer = tokenizer.from_pretrained(tmp_path, padding_side="right")
    rows = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        log_probs = theirs(**rows).logits[:, :-1].log_softmax(-1)
    own = log_probs.gather(2, rows["input_ids"][:, 1:, None])[..., 0]
    wanted = (own * rows["attention_mask"][:, 1:]).sum(1).tolist()
    found = task.likelihoods_by_kind["causal-without-line-end"](texts)
    assert found == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(RegardError, match="on the right"):
        theirs(rows["input_ids"], rows["attention_mask"].flip(1))


def xlnet(tokenizer):
    torch.manual_seed(0)
    sizes = dict(d_model=8, d_ff=16, heads=2, layers=2, init_range=0.3)
    return Xlnet(XlnetConfig(tokenizer.vocab_size, **sizes)).eval()


@pytest.mark.parametrize("make", [recurrent, xlnet])
def test_texts_of_any_length_are_read_with_all_that_is_before(make):
    task = of_lines(make)
    text = " ".join(["the cat sat on a mat to the dog"] * 40)  # 360 words
    ids = [task.tokenizer.eos_id, *task.tokenizer.encode(text).ids, task.tokenizer.eos_id]
    with torch.no_grad():
        hidden = task.module(torch.tensor([ids[:-1]])).hidden[0]
        log_probs = task.module.head.logits(hidden).double().log_softmax(-1)
    wanted = float(log_probs.gather(1, torch.tensor(ids[1:])[:, None]).sum())
    assert len(ids) > 360
    assert task.log_likelihoods([text, "a dog"])[0] == pytest.approx(wanted, rel=1e-5)


def test_the_sentence_with_the_larger_sum_is_preferred_and_ties_are_half_right(monkeypatch):
    task = of_lines(recurrent)
    values = {"good": -3.0, "same": -3.000001, "worse": -4.5}
    kinds = {"causal": lambda texts: [values[text] for text in texts]}
    monkeypatch.setattr(TextGenerator, "likelihoods_by_kind", kinds)
    pairs = [
        MinimalPair("good", "worse", "one", "x"), MinimalPair("good", "same", "one", "x"),
        MinimalPair("worse", "good", "one", "x"), MinimalPair("same", "worse", "two", "x"),
    ]  # fmt: skip
    (score,) = minimal_pair_scores(task, pairs)
    assert score.value == pytest.approx((1 / 2 + 1) / 2)  # the mean of both sets
    assert score.signature == (
        f"likelihood:causal|tok:words-{task.tokenizer.vocab_size}|sets:2|count:4|ties:1|unk:8"
    )
    assert score.facts()["sets"]["one"] == {"accuracy": 1 / 2, "ties": 1, "pairs": 3}
    assert score.facts()["phenomena"] == {"x": 3 / 4}
    assert "one  " in str(score.report) and "0.7500" in str(score.report)
    with pytest.raises(RegardError, match="of nothing"):
        minimal_pair_scores(task, [])


@pytest.mark.parametrize("family, ending", [("gpt2", "LMHeadModel"), ("bert", "ForMaskedLM")])
def test_pairs_are_scored_from_the_command_line(tmp_path, family, ending):
    model = folder(tmp_path / "model", family, ending)
    task, file = regard.load(model), tmp_path / "pairs.jsonl"
    rows = [{"sentence_good": p.good, "sentence_bad": p.bad, "UID": p.name} for p in PAIRS]
    file.write_text("\n".join(map(json.dumps, rows)))
    likelihoods = [task.log_likelihoods([p.good, p.bad]) for p in PAIRS]
    right = [good > bad for good, bad in likelihoods]
    wanted = (sum(right[:2]) / 2 + right[2]) / 2
    asked = ("evaluate", model, "--minimal-pairs", "--data", file)
    score, *others = json.loads(done(*asked, "--json"))["scores"]
    assert not others
    assert score["value"] == pytest.approx(wanted) and score["sets"]["order"]["pairs"] == 1
    assert "agreement" in (shown := done(*asked)) and score["signature"] in shown
    (first,) = json.loads(done(*asked, "--pairs-per-set", 1, "--json"))["scores"]
    assert first["count"] == 1
    assert "needs --data" in refused("evaluate", model, "--minimal-pairs")
    assert "--last-word has no effect" in refused(*asked, "--last-word")
    assert "--columns has no effect" in refused(*asked, "--columns", "0,1")
    assert "no effect without --minimal-pairs" in refused("evaluate", model, "--pairs-per-set", 2)
    assert "--beams" in refused(*asked, "--beams", 3)
    assert "at least 1" in refused(*asked, "--pairs-per-set", 0)


def test_minimal_pairs_are_read_from_files_folders_and_archives(tmp_path):
    lines = {name: [{"good": f"{name} {n}", "bad": "x"} for n in range(3)] for name in "ba"}
    for name, rows in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "note.txt").write_text("no pairs")
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("b.jsonl", "a.jsonl", "note.txt"):
            archive.write(tmp_path / name, f"data/{name}")
        archive.writestr("__MACOSX/data/._a.jsonl", b"\0")
    wanted = [MinimalPair(f"{name} {n}", "x", name) for name in "ab" for n in range(3)]
    assert read_minimal_pairs(tmp_path) == read_minimal_pairs(tmp_path / "all.zip") == wanted
    assert read_minimal_pairs(tmp_path / "b.jsonl") == wanted[3:]
    assert read_minimal_pairs(tmp_path, pairs_per_set=1) == wanted[::3]
    assert read_minimal_pairs(wanted) == wanted
    (tmp_path / "no.zip").write_bytes(b"PK")
    for given, message in [
        (tmp_path / "no.zip", "is no zip archive"),
        (tmp_path / "missing.zip", "does not exist"),
        ([{"good": "a"}], r"has no field 'sentence_bad'. It has: good"),
        ([{"good": 3, "bad": "b"}], "sentence_good must be text, but is a whole number"),
        (["a"], "a minimal pair must be an object"),
        ([], "has not one minimal pair"),
    ]:
        with pytest.raises(DataError, match=message):
            read_minimal_pairs(given)
    with pytest.raises(ConfigError, match="`pairs_per_set` must be at least 1"):
        read_minimal_pairs(tmp_path, pairs_per_set=0)
