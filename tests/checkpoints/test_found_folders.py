"""Drawn folders, as they are found: the results of `transformers`, or an error that names a field.

The judge is `transformers`: what it computes from the same folder.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from found_folders import HEADS as HEADS_OF
from found_folders import MUTATIONS, Found, drawn, plain, transformers
from hard_texts import HARD
from safetensors.torch import load_file
from torch import Tensor

from regard import load, save
from regard.checkpoints.model_folder import open_folder
from regard.data.batches import Sequences
from regard.decoding import generate
from regard.decoding.generation_config import with_options
from regard.errors import RegardError
from regard.models.encoder_with_heads import EncoderWithHeads

SAME = dict(atol=2e-5, rtol=1e-4)
HEADS = {
    "ForMaskedLM": "masked_lm",
    "ForSequenceClassification": "classes",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "multiple_choice",
}
SPECIALS = [
    "[MASK]",
    "<s>",
    "</s>",
    "<|endoftext|>",
    "[CLS]",
    "<mask>",
    "[E1]",
    "new tok",
    "\t",
    "\n",
]
WORDS = ["the", "a", "in", "cafe", "thing", "e1", "x", ",", "an", "is", "<e>", "don't", "1"]


def their_model(found: Found, folder: Path) -> Any:
    return (
        getattr(transformers, found.kind)
        .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )


def drawn_ids(found: Found, draw: Random) -> list[list[int]]:
    """Sequences of any ids, the last of them with padding inside and at the end."""
    size, pad = found.config["vocab_size"], max(0, found.config.get("pad_token_id") or 0)
    others = [i for i in range(size) if i != pad]
    rows = [draw.choices(others, k=length) for length in (1, 4, 9, 16)]
    return [*rows, [*rows[1], pad, rows[1][0], pad, pad]]


def their_answers(found: Found, model: Any, ids: list[int]) -> Tensor:
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
    if found.ending == "ForMultipleChoice":
        given = {name: value[None] for name, value in given.items()}
    if found.family in ("marian", "pegasus"):
        given["decoder_input_ids"] = given["input_ids"]
    with torch.no_grad():
        output = model(**given, return_dict=True)
    if found.ending == "Model":
        return output.last_hidden_state[0]
    if found.ending == "ForQuestionAnswering":
        return torch.stack([output.start_logits, output.end_logits], -1)[0]
    return output.logits[0]


def our_answers(found: Found, model: Any, ids: list[int]) -> Tensor:
    batch = Sequences.full(torch.tensor([ids]))
    with torch.no_grad():
        if found.ending in HEADS:
            return model.scores(HEADS[found.ending], batch)[0]
        if found.ending == "Model":
            encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
            return encoder.encode(batch)[0]
        if found.family in ("marian", "pegasus"):
            return model.head.logits(model(batch, batch).hidden)[0]
        return model.head.logits(model(batch.ids).hidden)[0]


def opened(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(folder, device="cpu")


def check_answers(found: Found, ours: Any, theirs: Any, draw: Random) -> None:
    for ids in drawn_ids(found, draw):
        wanted = their_answers(found, theirs, ids)
        torch.testing.assert_close(our_answers(found, ours, ids), wanted, **SAME)


def check_texts(found: Found, task: Any, model: Any, tokenizer: Any, draw: Random) -> None:
    """Texts and pairs of any length through both libraries, from the text to the probabilities."""
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 25))) for _ in range(6)] + HARD[::9]
    for text in texts:
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert task.tokenizer.encode(text).ids == wanted, text
    if found.ending != "ForSequenceClassification":
        return
    limit = min(tokenizer.model_max_length, 24)
    pairs = [(text,) for text in texts[:6]] + [
        tuple(" ".join(draw.choices(WORDS, k=draw.randint(1, 18))) for _ in range(2))
        for _ in range(12)
    ]
    found_ones = task.predict(
        [p if len(p) > 1 else p[0] for p in pairs], too_long="truncate", return_proba=True
    )
    scores = task.text_scores(task.encoded([p if len(p) > 1 else p[0] for p in pairs], "truncate"))
    for pair, one, row in zip(pairs, found_ones, scores, strict=True):
        given = tokenizer(*pair, truncation=True, max_length=limit, return_tensors="pt")
        accepted = ("input_ids", "attention_mask", "token_type_ids")
        given = {name: value for name, value in given.items() if name in accepted}
        if found.family != "bert":
            given.pop("token_type_ids", None)
        with torch.no_grad():
            logits = model(**given).logits[0]
        torch.testing.assert_close(row, logits, **SAME)
        check_prediction(found, one, logits)


def check_prediction(found: Found, one: Any, logits: Tensor) -> None:
    """What a prediction says, from their logits as their pipeline takes them."""
    multi = found.config.get("problem_type") == "multi_label_classification"
    wanted = logits.sigmoid() if multi else logits.softmax(-1)
    torch.testing.assert_close(torch.tensor([*one.probabilities.values()]), wanted, **SAME)


def check_saved(found: Found, task: Any, theirs: Any, out: Path, draw: Random) -> None:
    """What is saved opens in `transformers` as what it was, with weights of the same type."""
    save(task, out)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [found.kind]
    stored = {tensor.dtype for tensor in load_file(out / "model.safetensors").values()}
    assert stored - {torch.int64} == {next(iter(found.tensors.values())).dtype}
    check_answers(found, opened(out).module, theirs, draw)
    again = their_model(found, out)
    for ids in drawn_ids(found, draw)[:2]:
        wanted = their_answers(found, theirs, ids)
        torch.testing.assert_close(their_answers(found, again, ids), wanted, **SAME)


def check_embeddings(found: Found, task: Any, folder: Path, draw: Random) -> None:
    """The vectors of sentence-transformers, from the folder without the fields it does not open."""
    theirs = pytest.importorskip("sentence_transformers", reason="embeds for comparison")
    clean = folder.with_name(f"{folder.name}-clean")
    shutil.copytree(folder, clean)
    for file, name in found.unread:
        content = json.loads((clean / file).read_text())
        content.pop(name, None)
        (clean / file).write_text(json.dumps(content))
    opened = theirs.SentenceTransformer(str(clean), device="cpu", local_files_only=True).float()
    texts = [" ".join(draw.choices(WORDS, k=k)) for k in (1, 3, 6)]
    wanted = opened.encode(texts, convert_to_tensor=True, show_progress_bar=False)
    ours = torch.tensor(task.embed(texts, too_long="truncate"))
    torch.testing.assert_close(ours, wanted, **SAME)


def check_error(found: Found, error: RegardError, folder: Path) -> None:
    """It names the folder, and one of the fields that may be refused."""
    said = str(error)
    assert str(folder) in said, said
    assert any(f"`{name}`" in said for name in found.refusable), (said, found.refusable)


def one_folder(seed: int, folder: Path) -> bool:
    """Whether the folder of a seed opens; every other outcome is an error of the test."""
    draw = Random(seed)
    source, out = folder / f"{seed}", folder / f"{seed}-saved"
    source.mkdir()
    found = drawn(draw, source)
    try:
        task = opened(source)
    except RegardError as error:
        check_error(found, error, source)
        return False
    theirs = their_model(found, source)
    check_answers(found, task.module, theirs, draw)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    check_texts(found, task, theirs, tokenizer, draw)
    if "modules.json" in found.files:
        check_embeddings(found, task, source, draw)
    check_saved(found, task, theirs, out, draw)
    return True


MORE = pytest.mark.slow("regard/checkpoints", "regard/text", "regard/models")


@pytest.mark.parametrize("tens", [0, 1, *(pytest.param(n, marks=MORE) for n in range(2, 6))])
def test_drawn_folders_give_the_results_of_transformers_or_name_a_field(tens, tmp_path):
    opens = sum(one_folder(seed, tmp_path) for seed in range(10 * tens, 10 * tens + 10))
    assert opens >= 5


def drawn_texts(draw: Random, count: int) -> list[str]:
    """Words, pieces of hard texts and special tokens, with and without spaces between."""
    pieces = [*WORDS, *SPECIALS, *(piece for text in HARD for piece in (text, *text.split()))]
    return [
        draw.choice(["", " "]).join(draw.choices(pieces, k=draw.randint(0, 6)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "gpt2", "openai-gpt", "marian"]
)
def test_tokenizers_are_equal_on_four_thousand_drawn_texts(family, tmp_path):
    draw = Random(3)
    found = plain(family, HEADS_OF[family][0], draw, tmp_path)
    for name in ("unknown_fields", "tokenizer_settings", "missing_fields"):
        MUTATIONS[name](found, draw)
    found.write(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = drawn_texts(draw, 4_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = open_folder(tmp_path).tokenizer()
    wanted = theirs(texts, add_special_tokens=False)["input_ids"]
    different = [
        text
        for text, ids, row in zip(texts, ours.encode_many(texts), wanted, strict=True)
        if ids != row
    ]
    assert not different


def test_several_ends_of_config_json_end_a_text_as_in_transformers(tmp_path):
    draw = Random(5)
    found = plain("gpt2", "LMHeadModel", draw, tmp_path)
    prompts = [draw.choices(range(5, found.config["vocab_size"]), k=3) for _ in range(4)]
    found.write(tmp_path)
    free = [
        best[0].tokens
        for best in generate(
            opened(tmp_path).module, Sequences.of(prompts, pad=0), max_tokens=12, eos=0
        )
    ]
    ends = [free[0][4], free[1][7]]  # tokens that the texts reach
    found.config["eos_token_id"] = ends
    found.write(tmp_path)
    task, theirs = opened(tmp_path), their_model(found, tmp_path)
    stopped = 0
    for prompt in prompts:
        given = torch.tensor([prompt])
        wanted = theirs.generate(given, max_new_tokens=12, do_sample=False, pad_token_id=0)
        method = with_options(task.method, max_tokens=12)
        ours = method.run(task.module, Sequences.of([prompt], pad=0))[0][0]
        tokens = wanted[0, len(prompt) :].tolist()
        stopped += tokens[-1] in ends
        assert [*ours.tokens, *tokens[len(ours.tokens) :]] == tokens
        assert len(tokens) - len(ours.tokens) == int(ours.finished)
    assert stopped >= 2
    assert opened_config(task, tmp_path / "saved")["eos_token_id"] == ends


def opened_config(task: Any, folder: Path) -> dict[str, Any]:
    """generation_config.json of a task that is saved."""
    save(task, folder)
    return json.loads((folder / "generation_config.json").read_text())


# ------------------------------------------------------------------------------ odd fields

ODD: tuple[Any, ...] = (
    *(None, "", "x", "3", -1, 0, 1, 2, 3, 5, 1.5, 0.0, 0.3, True, False, [], [1], ["a"], [[]], {}),
    *({"a": 1}, {"0": []}, {"0": "x"}, {"0": "x", "1": "y"}, "gelu", "relu", "first", 10**6),
)
OF_TOKENIZERS = (
    *("model_max_length", "padding_side", "truncation_side", "clean_up_tokenization_spaces"),
    *("split_special_tokens", "add_prefix_space", "do_lower_case", "strip_accents", "never_split"),
    *("tokenize_chinese_chars", "model_input_names", "bos_token", "eos_token", "unk_token"),
    *("pad_token", "cls_token", "sep_token", "mask_token", "added_tokens_decoder", "stride"),
    *("additional_special_tokens", "extra_special_tokens", "add_bos_token", "add_eos_token"),
    *("legacy", "errors", "use_fast", "image_token", "src_lang", "fast_tokenizer_files"),
)
# What says the same as other fields, or which program wrote the folder.
NOT_ODD = ("transformers_version", "architectures", "model_type", "return_dict")


def odd_folder(case: tuple[str, str], draw: Random, folder: Path) -> tuple[Found, list[str]]:
    """A folder with one or two fields of odd values, and the names of these."""
    found = plain(*case, draw, folder)
    fields = {*vars(getattr(transformers, found.kind).config_class()), *found.config}
    names = [("config.json", name) for name in sorted(fields - {*NOT_ODD}) if name[0] != "_"]
    names += [("tokenizer_config.json", name) for name in OF_TOKENIZERS]
    chosen = draw.sample(names, draw.randint(1, 2))
    for file, name in chosen:
        target = found.config if file == "config.json" else found.files[file]
        target[name] = draw.choice(ODD)
    found.write(folder)
    return found, [name for _, name in chosen]


def odd_answers(found: Found, task: Any, theirs: Any, tokenizer: Any) -> None:
    """The logits of texts from both libraries, each by its own tokenizer and template."""
    for item in ("the cafe in a thing", "An  is, x don't", ("the cafe", "a thing in x")):
        texts = [item] if isinstance(item, str) else list(item)
        if found.ending == "LMHeadModel":
            ids = tokenizer(texts[0], add_special_tokens=False)["input_ids"]
            assert task.tokenizer.encode(texts[0]).ids == ids
            ours, wanted = our_answers(found, task.module, ids), their_answers(found, theirs, ids)
        else:
            limit = min(tokenizer.model_max_length, 20)
            read = tokenizer(*texts, truncation=True, max_length=limit, return_tensors="pt")
            if found.family != "bert":
                read.pop("token_type_ids", None)
            with torch.no_grad():
                wanted = theirs(**read).logits[0]
            ours = task.text_scores(task.encoded([item], "truncate"))[0]
        torch.testing.assert_close(ours, wanted, **SAME)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "case",
    [
        ("bert", "ForSequenceClassification"),
        ("roberta", "ForSequenceClassification"),
        ("distilbert", "ForSequenceClassification"),
        ("gpt2", "LMHeadModel"),
        ("openai-gpt", "LMHeadModel"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_field_is_used_as_in_transformers_or_an_error_names_it(case, seed, tmp_path):
    compared = 0
    for number in range(25):
        draw = Random(f"{case} {seed} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        found, names = odd_folder(case, draw, folder)
        try:
            task = opened(folder)
            task.predict("a", **({"max_tokens": 1} if task.decodes else {}))
        except RegardError as error:
            sizes = ("weights do not fit the model that config.json describes", "asks for a tensor")
            assert any(said in str(error) for said in (*names, *sizes, "max_length")), names
            continue
        try:
            theirs = their_model(found, folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            theirs(torch.tensor([[5, 6]]))
            tokenizer("the cafe")
        except Exception:
            continue  # it opens no such folder
        odd_answers(found, task, theirs, tokenizer)
        compared += 1
    assert compared
