"""T5's folders as they are found (`regard.checkpoints.formats.t5`): embeddings, releases."""

from __future__ import annotations

import json

import pytest
import torch
from drawn_configs import DRAWN_ENCODER_DECODERS, saved_config
from safetensors.torch import load_file, save_file
from their_encoders import weights

from regard.checkpoints.formats import from_published
from regard.checkpoints.model_folder import open_folder
from regard.data.batches import Sequences
from regard.errors import ConfigError

IDS = torch.tensor([[3, 4, 5, 2], [9, 8, 7, 2]])
TEXTS = Sequences.full(IDS)
STACKS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


@torch.no_grad()
@pytest.mark.parametrize("names", [STACKS, STACKS[:1], ("shared.weight",)], ids=len)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_an_embedding_under_the_name_of_a_stack_is_that_of_both(family, tied, names, tmp_path):
    model = DRAWN_ENCODER_DECODERS[family].model("ForConditionalGeneration", 3)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    shared = tensors.pop("shared.weight")
    if tied:
        tensors.pop("lm_head.weight", None)
    else:
        tensors["lm_head.weight"] = torch.randn_like(shared)
    save_file(tensors | {name: shared.clone() for name in names}, path, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    theirs = type(model).from_pretrained(tmp_path, attn_implementation="eager").float().eval()
    ours = open_folder(tmp_path).model().eval()
    wanted = theirs(input_ids=IDS, decoder_input_ids=IDS).logits
    found = ours.head.logits(ours(TEXTS, TEXTS).hidden)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", DRAWN_ENCODER_DECODERS)
def test_under_an_unknown_class_name_the_tensors_decide(family):
    drawn = DRAWN_ENCODER_DECODERS[family]
    model = drawn.model(drawn.endings[0], 1).eval()
    config = saved_config(model, architectures=["MyOwnThing"])
    with pytest.warns(UserWarning, match="MyOwnThing"):
        ours = from_published(config, weights(model)).eval()
    named = from_published(saved_config(model), weights(model)).eval()
    assert torch.equal(ours(TEXTS, TEXTS).hidden, named(TEXTS, TEXTS).hidden)
    other = "ForCausalLM" if "t5" not in family else "ForQuestionAnswering"
    name = type(model).__name__.removesuffix(drawn.endings[0]) + other
    with pytest.raises(ConfigError, match=f"{name}.*not supported"):
        from_published(saved_config(model, architectures=[name]), weights(model))


@pytest.mark.parametrize("release", [None, "", "main", "v4", "4.0.0-rc-1", "5.1.0.dev0"])
def test_any_name_of_a_release_is_read(release):
    model = DRAWN_ENCODER_DECODERS["mt5"].model("ForConditionalGeneration", 0)
    config = saved_config(model, transformers_version=release)
    scaled = from_published(config, weights(model)).config.scale_output
    assert scaled == (release != "5.1.0.dev0")
