"""Folders of sentence-transformers: opened there as written here, read here as written there."""

from __future__ import annotations

import json
from random import Random

import pytest
import torch

import regard
from regard.checkpoints.formats import to_published
from regard.checkpoints.sentence_transformers import read_pooling, write_sentence_transformers
from regard.checkpoints.store import write_tensors
from regard.data.batches import Sequences
from regard.errors import ConfigError, RegardError
from regard.layers.pooling import KINDS, Pooling
from regard.models.bert import Bert
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.text import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "##s", "on"]
TEXTS = ["The cat", "the dogs sat on the cat", "sat", "", "the the the the the the the the the the"]
COMBINED = ("max", "mean")
TURNED = ("mean", "cls")


def opened(path):
    """By sentence-transformers."""
    theirs = pytest.importorskip("sentence_transformers", reason="opens folders for comparison")
    return theirs.SentenceTransformer(str(path), device="cpu", local_files_only=True)


@pytest.fixture
def folder(tmp_path):
    """A tiny random BERT with a tokenizer."""
    torch.manual_seed(1)
    sizes = dict(d_model=16, d_ff=24, heads=2, layers=2, max_length=12)
    model = EncoderWithHeads(Bert(Bert.Config(len(PIECES), **sizes)), {}).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config, tensors = to_published(model)
    path = tmp_path / "model"
    path.mkdir()
    (path / "vocab.txt").write_text("\n".join(PIECES))
    tokenizer = Tokenizer.load(path)
    (path / "vocab.txt").unlink()
    tokenizer.with_template(Bert.template(tokenizer)).save(path)
    write_tensors(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), COMBINED, TURNED])
@pytest.mark.filterwarnings("ignore")  # a text of more than 8 tokens
def test_sentence_transformers_embeds_folders_equally_and_saves_them(
    folder, tmp_path, kinds, normalize
):
    pooling = Pooling(kinds, normalize, max_length=8)
    assert read_pooling(folder) is None
    write_sentence_transformers(folder, pooling, 16)
    wanted = opened(folder).encode(TEXTS)
    assert wanted.shape == (len(TEXTS), 16 * len(kinds))
    opened(folder).save(str(tmp_path / "theirs"))
    regard.load(folder).save(tmp_path / "ours")
    assert abs(opened(tmp_path / "ours").encode(TEXTS) - wanted).max() < 1e-6
    for path in (folder, tmp_path / "theirs", tmp_path / "ours"):
        assert read_pooling(path) == pooling
        task = regard.load(path, device="cpu")
        assert task.input_format.max_length == 8
        found = task.encode(TEXTS, normalize_embeddings=False)  # as theirs by default
        assert abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("named", ["BertForMaskedLM", "MyOwnEncoder"])
def test_a_folder_with_modules_is_an_embedder_whatever_class_config_names(folder, named):
    """all-mpnet-base-v2 names a class whose head it does not hold."""
    write_sentence_transformers(folder, Pooling(("mean",)), 16)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [named]}))
    vectors = regard.load(folder, device="cpu").embed(TEXTS)
    assert abs(vectors - opened(folder).encode(TEXTS)).max() < 1e-5


def test_padding_does_not_change_pooled_vectors():
    hidden, pooling = torch.randn(2, 5, 3), Pooling(tuple(KINDS))
    texts = Sequences(torch.zeros(2, 5, dtype=torch.long), torch.tensor([5, 2]))
    alone = Sequences(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]))
    together = pooling(hidden, texts)[1]
    assert torch.equal(together, pooling.unpadded(hidden[1, :2], torch.tensor([2]))[0])
    assert torch.allclose(together, pooling(hidden[1:, :2], alone)[0], atol=1e-6)


def test_an_unknown_pooling_raises_an_error_that_names_all():
    with pytest.raises(ConfigError, match="must be one of cls, max, mean, .* but is 'means'"):
        Pooling(("means",))
    with pytest.raises(ConfigError, match="at least one kind"):
        Pooling(())


ODD = (
    *(None, "", "x", "0", "mean", "max", -1, 0, 1, 5, 7, 1.5, True, False, [], ["cls"], [1], {}),
    *({"x": 1}, {"trust_remote_code": True}, {"text": "y"}, ["mean", "cls"], "token_embeddings"),
    *("sentence_embedding", "../x", "feature-extraction", "SentenceTransformer", "1_Pooling"),
    *({"query": "a cat", "x": ""}, {"truncation_side": "left"}),
)
FIELDS = {
    "modules.json": ("idx", "name", "path", "type", "kwargs"),
    "1_Pooling/config.json": (
        *("pooling_mode", "pooling_mode_cls_token", "pooling_mode_mean_tokens"),
        *("pooling_mode_lasttoken", "pooling_mode_median", "word_embedding_dimension"),
        *("embedding_dimension", "include_prompt"),
    ),
    "2_Normalize/config.json": ("module_input_name", "module_output_name", "p"),
    "sentence_bert_config.json": (
        *("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "query_length"),
        *("module_output_name", "processing_kwargs", "unpad_inputs", "backend", "model_args"),
        *("tokenizer_args", "config_kwargs", "tokenizer_name_or_path", "cache_dir"),
    ),
    "config_sentence_transformers.json": (
        *("prompts", "default_prompt_name", "model_type", "similarity_fn_name", "truncate_dim"),
        "__version__",
    ),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore")
def test_an_odd_field_is_used_as_by_sentence_transformers_or_an_error_names_it(folder, seed):
    path, draw, compared = folder, Random(seed), 0
    for _ in range(60):
        write_sentence_transformers(path, Pooling(("mean",), True, max_length=6), 16)
        (path / "2_Normalize").mkdir(exist_ok=True)
        for file in ("2_Normalize/config.json", "config_sentence_transformers.json"):
            (path / file).write_text("{}")
        file, value = draw.choice([*FIELDS]), draw.choice(ODD)
        name, content = draw.choice(FIELDS[file]), json.loads((path / file).read_text())
        (draw.choice(content) if isinstance(content, list) else content)[name] = value
        (path / file).write_text(json.dumps(content))
        try:
            vectors = regard.load(path, device="cpu").embed(TEXTS, too_long="truncate")
        except RegardError as error:
            said = str(error)  # of a limit that the template does not fit into, of another folder
            assert str(path) in said, (file, name, value)
            assert any(word in said for word in (name, "max_length", "is missing")), said
            continue
        try:
            expected = opened(path).encode(TEXTS)
        except Exception:
            continue  # it opens no such folder
        assert abs(vectors - expected).max() < 1e-5, (file, name, value)
        compared += 1
    assert compared > 9
