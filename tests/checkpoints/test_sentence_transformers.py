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


@pytest.fixture
def folder(tmp_path):
    """A tiny random BERT with its tokenizer."""
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
    return path, model, tokenizer


def embedded(model, tokenizer, pooling):
    """The vectors of TEXTS, by our model and pooling."""
    template, limit = Bert.template(tokenizer), (pooling.max_length or 12) - 2
    rows = [template.apply([ids[:limit]]).ids for ids in tokenizer.encode_many(TEXTS)]
    texts = Sequences.of(rows, pad=0)
    with torch.no_grad():
        return pooling(model.encoder.encode(texts), texts)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), COMBINED, TURNED])
def test_sentence_transformers_embeds_a_written_folder_equally(folder, kinds, normalize):
    theirs = pytest.importorskip("sentence_transformers", reason="opens folders for comparison")
    path, model, tokenizer = folder
    pooling = Pooling(kinds, normalize, max_length=8)
    write_sentence_transformers(path, pooling, 16)
    opened = theirs.SentenceTransformer(str(path), device="cpu", local_files_only=True)
    found = opened.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    ours = embedded(model, tokenizer, pooling)
    assert found.shape == ours.shape == (len(TEXTS), 16 * len(kinds))
    assert (found - ours).abs().max() < 1e-5
    assert read_pooling(path) == pooling


def test_the_pooling_of_a_folder_saved_by_sentence_transformers_is_read(folder, tmp_path):
    theirs = pytest.importorskip("sentence_transformers", reason="writes folders to be read")
    path, model, tokenizer = folder
    write_sentence_transformers(path, Pooling(TURNED, True, 8), 16)
    opened = theirs.SentenceTransformer(str(path), device="cpu", local_files_only=True)
    opened.save(str(tmp_path / "saved"))
    assert read_pooling(tmp_path / "saved") == Pooling(TURNED, True, 8)


@pytest.mark.parametrize("named", ["BertForMaskedLM", "MyOwnEncoder"])
def test_a_folder_with_modules_is_an_embedder_whatever_class_config_names(folder, named):
    """all-mpnet-base-v2 names a class whose head it does not hold."""
    theirs = pytest.importorskip("sentence_transformers", reason="opens folders for comparison")
    path = folder[0]
    write_sentence_transformers(path, Pooling(("mean",)), 16)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": [named]}))
    opened = theirs.SentenceTransformer(str(path), device="cpu", local_files_only=True)
    expected = opened.encode(TEXTS, show_progress_bar=False)
    vectors = regard.load(path, device="cpu").embed(TEXTS)
    torch.testing.assert_close(torch.tensor(vectors), torch.tensor(expected), atol=1e-5, rtol=0)


def test_padding_does_not_change_pooled_vectors():
    hidden, pooling = torch.randn(2, 5, 3), Pooling(tuple(KINDS))
    texts = Sequences(torch.zeros(2, 5, dtype=torch.long), torch.tensor([5, 2]))
    alone = Sequences(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]))
    together = pooling(hidden, texts)[1]
    assert torch.equal(together, pooling.unpadded(hidden[1, :2], torch.tensor([2]))[0])
    assert torch.allclose(together, pooling(hidden[1:, :2], alone)[0], atol=1e-6)


def test_an_encoder_folder_without_modules_has_no_pooling(folder):
    assert read_pooling(folder[0]) is None


def test_an_unknown_pooling_raises_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError, match="no pooling 'means'. Did you mean 'mean'"):
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
    theirs = pytest.importorskip("sentence_transformers", reason="opens folders for comparison")
    path, draw, compared = folder[0], Random(seed), 0
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
            opened = theirs.SentenceTransformer(str(path), device="cpu", local_files_only=True)
            expected = opened.encode(TEXTS, show_progress_bar=False)
        except Exception:
            continue  # it opens no such folder
        assert abs(vectors - expected).max() < 1e-5, (file, name, value)
        compared += 1
    assert compared > 9


@pytest.mark.parametrize("name", ["roberta", "xlnet"])
def test_the_limit_of_a_folder_of_an_old_release_is_read(tmp_path, name):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    write_sentence_transformers(tmp_path, Pooling(max_length=9), 16)
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / f"sentence_{name}_config.json")
    assert read_pooling(tmp_path) == Pooling(max_length=9)
