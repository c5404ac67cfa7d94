"""Names of other libraries: each in the table means something here, and what ours means."""

from __future__ import annotations

import dataclasses

import pytest

import regard
from regard import decoding, habit_names
from regard.call_options import DecodingOptions
from regard.data.in_memory import infer_columns
from regard.errors import ConfigError
from regard.experiments.recipe_options import (
    NO_OPTIONS,
    FineTuneSection,
    checked_recipe,
    recipe_from_keywords,
)
from regard.models import MODELS, model_class
from regard.recipe import names_in, parse, read, sections_of, with_section
from regard.suggest import nearest
from regard.tasks import TASKS, task_class
from regard.tasks.task import EmbedOptions
from regard.training import TrainingOptions

LANGUAGE = dict(task="language-modeling", train="a.txt", valid="b.txt", epochs=1)


def options_that_exist() -> set[str]:
    """The dotted names of the options of all recipes."""
    found = {f"model.{name}" for name in FineTuneSection.model_fields}
    for kind in map(task_class, TASKS):
        if kind.Recipe is not None:
            schema = with_section(kind.Recipe, "training", TrainingOptions)
            for section in sections_of(schema):
                found |= {f"{section}.{name}" for name in names_in(schema, section)}
    for name in MODELS:
        fields = dataclasses.fields(model_class(name).Config)
        found |= {f"model.{field.name}" for field in fields if field.name not in NO_OPTIONS}
    return found


def test_every_other_name_means_an_option_and_is_none_itself():
    known = options_that_exist() | {f"decoding.{name}" for name in DecodingOptions.__annotations__}
    ours = {name.rpartition(".")[2] for name in known}
    assert {*habit_names.OPTIONS.values()} <= known
    assert not habit_names.OPTIONS.keys() & ours - {*DecodingOptions.__annotations__}
    assert {*habit_names.EMBEDDING.values()} <= EmbedOptions.__annotations__.keys()
    assert not habit_names.ELSEWHERE.keys() & (habit_names.OPTIONS.keys() | ours)
    names = {*habit_names.OPTIONS, *habit_names.DECODING, *habit_names.EMBEDDING}
    assert habit_names.VALUES.keys() <= names


def test_every_other_name_of_a_task_or_a_model_means_one():
    assert {*habit_names.TASKS.values()} <= TASKS.keys()
    assert not habit_names.TASKS.keys() & {name for name in TASKS if "-" not in name}
    for name, size in habit_names.MODELS.values():
        assert size in {"", *model_class(name).SIZES}
    for name in TASKS:  # question_answering
        assert habit_names.task_name(name.replace("-", "_")) == name
    for name in MODELS:
        assert habit_names.model_options(name.replace("-", "_"), "")["name"] == name


def test_a_recipe_with_the_names_of_transformers_equals_one_with_ours():
    theirs = parse(
        'task = "token-classification"\ntokenizer = "wordpiece"\n'
        '[model]\nname = "bert-tiny"\nhidden_size = 16\nnum_hidden_layers = 1\n'
        "num_attention_heads = 2\nintermediate_size = 8\nmax_position_embeddings = 32\n"
        '[data]\ntrain_file = "a.conll"\nper_device_train_batch_size = 4\nmax_seq_length = 20\n'
        "[training]\nnum_train_epochs = 2\nlr = 1e-4\nwarmup_ratio = 0.1\nbf16 = true\n"
        'schedule = "linear"\noptimizer = "adamw"\n',
        ["n_layer=3", "training.wd=0.5"],
    )
    ours = parse(
        'task = "tagging"\n[tokenizer]\nkind = "wordpiece"\n'
        '[model]\nname = "bert"\nsize = "tiny"\nd_model = 16\nlayers = 3\nheads = 2\nd_ff = 8\n'
        'max_length = 32\n[data]\ntrain = "a.conll"\nbatch_size = 4\nmax_length = 20\n'
        '[training]\nepochs = 2\nprecision = "bfloat16"\n'
        '[training.optimizer]\nname = "adamw"\nlearning_rate = 1e-4\n'
        'weight_decay = 0.5\n[training.schedule]\nname = "linear"\nwarmup = 0.1\n'
    )
    assert checked_recipe(theirs) == checked_recipe(ours)


@pytest.mark.parametrize(
    ("task", "name", "model"),
    [
        ("causal-lm", "lstm", {"name": "lstm-lm"}),
        ("language-modeling", "gru", {"name": "lstm-lm", "cell": "gru"}),
        ("translation", "lstm", {"name": "lstm-seq2seq"}),
        ("ner", "lstm", {"name": "bilstm"}),
        ("causal-lm", "gpt2-medium", {"name": "gpt2", "size": "355M"}),
        ("masked-lm", "big_bird", {"name": "bigbird"}),
    ],
)
def test_the_name_of_a_model_depends_on_the_task(task, name, model):
    assert parse(f'task = "{task}"\n[model]\nname = "{name}"\n').tables["model"] == model
    other = parse(f'task = "{task}"\n', [f"model.name={name}"]).overrides
    assert other == {f"model.{key}": f'"{value}"' for key, value in model.items()}


def test_the_name_alone_of_a_model_is_one_with_random_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {*MODELS, *habit_names.MODELS, "bert-base-cased", "t5-3b", "transformer-big"}
    for name in names:
        try:
            model = recipe_from_keywords(None, {**LANGUAGE, "model": name}).tables["model"]
        except ConfigError as error:
            assert "ORG/NAME" in str(error) and 'model={"name": "' in str(error)
        else:
            assert model["name"] in MODELS and habit_names.model_options(name, "") == model
    for name in ("bert-base", "gpt2", "gpt2-medium", "t5-small", "xlmr"):
        with pytest.raises(ConfigError, match=f"no folder '{name}'"):
            recipe_from_keywords(None, {**LANGUAGE, "model": name})
    tables = recipe_from_keywords(None, {**LANGUAGE, "model": "bert_tiny"}).tables
    assert tables["model"] == {"name": "bert", "size": "tiny"}
    (tmp_path / "kim-cnn").mkdir()
    tables = recipe_from_keywords(None, {**LANGUAGE, "model": "kim-cnn"}).tables
    assert tables["model"] == {"path": str(tmp_path / "kim-cnn")}


@pytest.mark.parametrize(
    "keywords",
    [
        dict(lr=1.0, learning_rate=2.0),
        dict(lr=1.0, lr_max=2.0),
        dict(lr=1.0, training={"optimizer": {"learning_rate": 2.0}}),
        dict(warmup_ratio=0.1, warmup_steps=4),
        dict(model={"hidden_size": 4, "d_model": 4}),
    ],
    ids=str,
)
def test_two_names_of_one_option_are_an_error_that_names_both(keywords):
    with pytest.raises(ConfigError, match="`.*` and `.*` mean the same"):
        habit_names.recipe(keywords)


def test_low_rank_adapters_have_the_names_of_peft():
    theirs = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["query"]}
    ours = {"rank": 4, "alpha": 8, "dropout": 0.1, "targets": ["query"]}
    recipe = habit_names.recipe({"model": {"path": "some/model", "lora": theirs}})
    assert recipe == {"model": {"path": "some/model", "lora": ours}}
    assert "r" not in habit_names.recipe({"model": {"lora": {"rank": 1}}, "r": 4})["model"]["lora"]


@pytest.mark.parametrize("name", habit_names.ELSEWHERE)
def test_a_name_of_what_is_no_option_says_what_to_do(name):
    assert nearest(name, ("task", "valid", "seed")) == habit_names.ELSEWHERE[name]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (dict(num_beams=4, num_return_sequences=2), dict(beams=4, n_best=2)),
        (dict(num_beams=2, max_new_tokens=9), dict(beams=2, max_tokens=9)),
        (dict(min_new_tokens=2, no_repeat_ngram_size=3), dict(min_tokens=2, no_repeat_ngram=3)),
        (dict(do_sample=True), dict(temperature=1.0)),
        (dict(do_sample=True, top_k=5, num_return_sequences=3), dict(top_k=5, samples=3)),
        (dict(do_sample=False, num_beams=3), dict(beams=3)),
    ],
    ids=str,
)
def test_options_of_generation_equal_ours(theirs, ours):
    assert decoding.options(**theirs) == decoding.options(**ours)
    method = decoding.options(max_tokens=50)
    assert decoding.with_options(method, **theirs) == decoding.with_options(method, **ours)


def test_vectors_and_texts_with_the_names_of_others_equal_those_with_ours():
    import every_task

    task = every_task.MAKERS["embedding"]()
    texts = ["the cat sleeps", "a dog"]
    theirs = task.embed(texts, normalize_embeddings=True, batch_size=1, show_progress_bar=False)
    assert (theirs == task.embed(texts, normalize=True)).all()
    writer = every_task.MAKERS["translation"]()
    found = writer.generate(texts, num_beams=3, num_return_sequences=2, max_new_tokens=3)
    assert found == writer.generate(texts, beams=3, n_best=2, max_tokens=3)
    assert [len(several) for several in found] == [2, 2]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("text", "label", "label_text"), ("text", "label_text")),
        (("idx", "sentence1", "sentence2", "label"), ("sentence1", "sentence2", "label")),
        (("id", "dialogue", "summary", "topic"), ("dialogue", "summary")),
        (("summary", "document"), ("document", "summary")),
        (("sentiment", "review"), ("review", "sentiment")),
        (("Label", "Text"), ("Text", "Label")),
        (("english", "french"), ("english", "french")),
    ],
    ids=str,
)
def test_columns_are_found_by_the_names_of_published_data(names, columns):
    assert infer_columns([dict.fromkeys(names, "x")]) == columns
    with pytest.raises(
        ConfigError, match=r"the columns mood, note, .* columns=\[text column, label"
    ):
        infer_columns([{"mood": "glad", "note": "a fine day"}])
    assert infer_columns([("a fine day", "glad")]) == (0, 1)


def test_sentences_of_published_data_have_tokens_and_tags():
    from regard.data import read_conll

    rows = [
        {"id": "0", "tokens": ["Anna", "ran"], "pos_tags": ["N", "V"], "ner_tags": ["B-P", "O"]}
    ]
    assert [tuple(row) for row in read_conll(rows)] == [(("Anna", "ran"), ("B-P", "O"))]


@pytest.mark.parametrize(
    ("name", "known", "offered"),
    [
        ("sentiment", TASKS, "classification"),
        ("num_beamz", ("n_best", "beams", "samples"), "beams"),
        ("token_classification", TASKS, "tagging"),
        ("gradient_clipping", ("max_grad_norm", "betas"), "max_grad_norm"),
    ],
)
def test_an_unknown_name_offers_what_is_near_here_and_elsewhere(name, known, offered):
    assert nearest(name, known) == f"Did you mean {offered!r}?"


def test_a_name_that_nothing_is_near_of_names_all_or_where_they_are_listed():
    assert nearest("qqq", ("seed", "task")) == "Known are: seed, task."
    with pytest.raises(ConfigError, match="`regard init TASK` lists all"):
        regard.train(**LANGUAGE, model="lstm", qqq=1)


@pytest.mark.parametrize("model", ["some/model", "bilstm"])
@pytest.mark.parametrize(
    "section", ['path = "other/model"\ndropout = 0.5', 'name = "kim-cnn"\nd_words = 8']
)
def test_a_model_on_the_command_line_replaces_that_of_the_recipe(tmp_path, model, section):
    data = 'task = "classification"\n[data]\ntrain = "a.tsv"\n'
    file = tmp_path / "r.toml"
    file.write_text(f"{data}[model]\n{section}\n")
    given = checked_recipe(read(file, [f"model={model}"]))
    assert given.model == checked_recipe(recipe_from_keywords(file, {"model": model})).model
    key = "model.path" if "/" in model else "model.name"
    assert given.model == checked_recipe(parse(data, [f"{key}={model}"])).model
