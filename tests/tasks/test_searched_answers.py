"""Answers by XLNet's own head against `transformers` and a plain search over its beams.

Tests of `regard.tasks.question_answering`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from letter_folders import LETTERS, transformers
from recipe_files import planned, written
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import regard
from regard.errors import RegardError

STORY = "the cat sat in the hat (size 7) while rain fell on 3 towns, then it went in. "
PAIRS = [
    ("who sat?", STORY * 3 + "a dog came at 12:30! " + STORY),
    ("what", "the cat"),
    ("where is it raining?", STORY),
]
STARTS, ENDS, LIMIT, OVERLAP, LONGEST = 4, 3, 48, 12, 9
SPECIALS = ["<unk>", "<pad>", "<sep>", "<cls>", "<s>", "</s>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An XLNet with this head, and a tokenizer of letters."""
    path = tmp_path_factory.mktemp("search") / "xlnet"
    pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    letters = Tokenizer(models.WordPiece(ids, unk_token="<unk>"))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    letters.post_processor = processors.TemplateProcessing(
        single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
        special_tokens=[("<sep>", 2), ("<cls>", 3)],
    )  # fmt: skip
    names = ("unk", "pad", "sep", "cls", "bos", "eos")
    named = {f"{name}_token": token for name, token in zip(names, SPECIALS, strict=True)}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters,
        padding_side="left",
        **named,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(path)
    config = transformers.XLNetConfig(
        vocab_size=len(pieces), d_model=16, n_layer=2, n_head=2, d_inner=24, pad_token_id=1,
        start_n_top=STARTS, end_n_top=ENDS, dropout=0.0, bos_token_id=4, eos_token_id=5,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.XLNetForQuestionAnswering(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.5 if weight.dim() > 1 else 0.05)
    model.save_pretrained(path)
    return path


def opened(folder: Path) -> tuple[Any, Any, Any]:
    """Our task, and their tokenizer and model."""
    loaded = regard.load(folder)
    options = dict(max_length=LIMIT, doc_stride=OVERLAP, answer_tokens=LONGEST)
    task = type(loaded)(loaded.module, loaded.tokenizer, **options)
    theirs = transformers.XLNetForQuestionAnswering.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return task, tokenizer, theirs


def windows(tokenizer: Any, question: str, context: str) -> Any:
    """What their model is given of each window, the offsets, and the positions of the context."""
    found = tokenizer(
        question, context, truncation="only_second", max_length=LIMIT, stride=OVERLAP,
        return_overflowing_tokens=True, return_offsets_mapping=True, return_token_type_ids=True,
    )  # fmt: skip
    for i, ids in enumerate(found["input_ids"]):
        inside = [k for k, text in enumerate(found.sequence_ids(i)) if text == 1]
        banned = torch.ones(1, len(ids))
        banned[0, [*inside, len(ids) - 1]] = 0
        given = {
            "input_ids": torch.tensor([ids]), "p_mask": banned,
            "token_type_ids": torch.tensor([found["token_type_ids"][i]]),
            "cls_index": torch.tensor([len(ids) - 1]),
        }  # fmt: skip
        yield given, found["offset_mapping"][i], inside


@torch.no_grad()
def test_answers_of_long_texts_equal_the_beams_of_transformers(folder):
    task, tokenizer, model = opened(folder)
    answers = task.predict(PAIRS, n_best=5, return_proba=True)
    for (question, context), answer in zip(PAIRS, answers, strict=True):
        spans: dict[tuple[int, int], float] = {}
        none = math.inf
        for given, offsets, inside in windows(tokenizer, question, context):
            beams = model(**given)
            none = min(none, float(beams.cls_logits))
            starts, ends = beams.start_top_index.size(1), beams.end_top_index.size(1) // STARTS
            for k in range(starts * ends):
                s, e = k % starts, k // starts
                a, b = int(beams.start_top_index[0, s]), int(beams.end_top_index[0, k])
                p = beams.start_top_log_probs[0, s] * beams.end_top_log_probs[0, e * starts + s]
                if a in inside and b in inside and a <= b < a + LONGEST:
                    span = offsets[a][0], offsets[b][1]
                    spans[span] = max(spans.get(span, -math.inf), float(p.log()))
        ranked = sorted(((score, *span) for span, score in spans.items()), reverse=True)
        assert answer.no_answer == pytest.approx(
            1 / (1 + math.exp(-none)) if spans else 1, abs=1e-5
        )
        assert len(answer.best) == min(5, len(ranked)) and (ranked or context != STORY)
        for passage, (score, start, stop) in zip(answer.best, ranked, strict=False):
            assert passage.score == pytest.approx(score, abs=1e-4)
            assert passage.text == context[start:stop].strip()


def questions(file: Path) -> Path:
    """Questions with an answer and without one."""
    context = STORY * 3 + "a dog came at 12:30! " + STORY
    asked = [("who?", "dog came"), ("when?", "12:30!"), ("what?", "the cat sat"), ("why?", "")]
    lines = [
        {
            "id": str(i), "question": question, "context": context, "is_impossible": not text,
            "answers": [{"text": text, "answer_start": context.index(text)}] if text else [],
        }
        for i, (question, text) in enumerate(asked)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


RECIPE = dict(
    task="question-answering", training=dict(max_steps=2),
    data=dict(max_length=LIMIT, doc_stride=OVERLAP, batch_size=4),
)  # fmt: skip


def test_the_loss_of_training_equals_that_of_transformers(folder, tmp_path):
    data = questions(tmp_path / "asked.jsonl")
    files = dict(data=dict(train=data, valid=data))
    task = planned(tmp_path / "r.toml", RECIPE, files, dict(model=dict(path=folder))).task
    task.module.eval()
    _, tokenizer, model = opened(folder)
    ours = theirs = 0.0
    for line in map(json.loads, data.read_text().splitlines()):
        for given, offsets, inside in windows(tokenizer, line["question"], line["context"]):
            first = last = given["cls_index"]
            for answer in line["answers"]:
                start, stop = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                a = [k for k in inside if offsets[k][0] == start]
                b = [k for k in inside if offsets[k][1] == stop]
                if a and b:
                    first, last = torch.tensor(a), torch.tensor(b)
            given |= dict(start_positions=first, end_positions=last)
            given["is_impossible"] = (first == given["cls_index"]).float()
            with torch.no_grad():
                theirs += float(model(**given).loss)
    batches = task.train_batches()
    for _ in range(batches.batches_per_epoch):
        loss, _ = task.losses(next(batches))[0]["loss"]
        ours += float(loss.detach())
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_new_head_is_trained_kept_in_its_folder_and_opened_by_transformers(folder, tmp_path):
    data = questions(tmp_path / "asked.jsonl")
    new = dict(name="xlnet", d_model=16, d_ff=24, heads=2, layers=1)
    options = dict(data=dict(train=data, valid=data), answers=dict(start_n_top=3), model=new)
    options["tokenizer"] = dict(path=folder / "tokenizer.json")
    file = written(tmp_path / "r.toml", RECIPE, options)
    trained = regard.train(file, progress=False, out=tmp_path / "run")
    run, result = trained.folder, trained.result
    task = regard.load(run)
    assert task.name == "question-answering" and task.head == "span_search"
    assert 0 <= result.scores["f1"] <= 100 and 0 <= task.threshold <= 1
    saved = tmp_path / "saved"
    regard.save(task, saved)
    assert regard.load(saved).predict(PAIRS, return_proba=True) == task.predict(
        PAIRS, return_proba=True
    )
    model, report = transformers.XLNetForQuestionAnswering.from_pretrained(
        saved, output_loading_info=True
    )
    assert model.start_n_top == 3 and not report["missing_keys"]
    with pytest.raises(RegardError, match="Bert has no head 'span_search'"):
        bert = written(tmp_path / "b.toml", RECIPE, options, dict(model=dict(name="bert")))
        regard.train(bert, out=tmp_path / "none")
