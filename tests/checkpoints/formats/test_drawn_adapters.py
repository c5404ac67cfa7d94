"""Adapters of `peft` with drawn options, over every family: equal outputs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_configs import DRAWN_ENCODER_DECODERS, DRAWN_ENCODERS, XLNET
from safetensors.torch import load_file, save_file
from their_encoders import transformers
from torch import Tensor, nn

from regard.checkpoints.model_folder import open_folder
from regard.data.batches import Sequences
from regard.errors import CheckpointError
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.folders import load

pytestmark = pytest.mark.filterwarnings("ignore")

PAIRS = {name: one for name, one in DRAWN_ENCODER_DECODERS.items() if name != "marian-separate"}
FAMILIES = DRAWN_ENCODERS | PAIRS | {"xlnet": XLNET}
CAUSAL = {"gpt_neo": ("ForCausalLM",), "llama": ("ForCausalLM",)}
TASKS = {
    "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS", "ForQuestionAnsweringSimple": "QUESTION_ANS",
    "ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM", "MTModel": "SEQ_2_SEQ_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM", "Model": "FEATURE_EXTRACTION",
}  # fmt: skip
KINDS = {
    "ForSequenceClassification": "classes", "ForTokenClassification": "tags",
    "ForQuestionAnsweringSimple": "span", "ForMultipleChoice": "multiple_choice",
}  # fmt: skip
# Their XLNet and BigBird read other texts in other ways; no memory, and no block.
PLAIN = {
    "xlnet": dict(mem_len=None, use_mems_eval=False, clamp_len=-1, attn_type="bi"),
    "big_bird": dict(attention_type="original_full"),
}
IDS = torch.tensor([[4, 5, 6, 7, 8, 9, 2], [9, 8, 6, 11, 12, 5, 2]])
SAME = dict(atol=1e-4, rtol=1e-4)  # of sums of large random numbers


def peft() -> Any:
    """Imported where it is called: it takes seconds, and not every worker runs these tests."""
    return pytest.importorskip("peft")


def their_scores(family: str, model: Any) -> Tensor:
    model = model.get_base_model()
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    if family in PAIRS:
        return model(**given, decoder_input_ids=IDS).logits
    if "MultipleChoice" in type(model).__name__:
        return model(**{name: one[None] for name, one in given.items()}).logits.T
    found = model(**given)
    if "QuestionAnswering" in type(model).__name__:
        return torch.stack([found.start_logits, found.end_logits], -1)
    if "logits" in found or "prediction_logits" in found:
        return found.logits if "logits" in found else found.prediction_logits
    return found.last_hidden_state


def our_scores(family: str, ending: str, model: Any) -> Tensor:
    texts = Sequences.full(IDS)
    if family in PAIRS:
        return model.head.logits(model(texts, texts).hidden)
    if ending in ("ForCausalLM", "LMHeadModel"):
        return model.head.logits(model.encode(texts))
    if ending == "Model":
        encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
        return encoder.encode(texts)
    if ending == "ForPreTraining" and family == "electra":
        return model.scores("replaced", texts)[..., 0]
    return model.scores(KINDS.get(ending, "masked_lm"), texts)


def saved_base(family: str, ending: str, seed: int, folder: Path) -> nn.Module:
    """Their model, read from the folder to which it was written."""
    one = FAMILIES[family]
    plain = PLAIN.get(family, {})
    plain |= {"chunk_size_feed_forward": 0} if "chunk_size_feed_forward" in one.fields() else {}
    model = one.model(ending, seed, **plain)
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, attn_implementation="eager").float().eval()


def linear_layers(model: nn.Module) -> list[str]:
    """How the names of linear layers end, but those of the heads that `peft` saves whole."""
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    heads = ("classifier", "score", "qa_outputs", "logits_proj", "out_proj")
    named = {name.split(".")[-1] for name, one in model.named_modules() if isinstance(one, kinds)}
    outputs = {name for name in named if "lm_head" in name or name in ("decoder", "lm_loss")}
    return sorted(named - {*heads} - outputs)


def drawn_options(draw: random.Random, model: nn.Module) -> dict[str, Any]:
    layers = linear_layers(model)
    targets = draw.sample(layers, draw.randint(1, min(4, len(layers))))
    options: dict[str, Any] = {
        "r": draw.choice([1, 2, 3]),
        "lora_alpha": draw.choice([1, 3, 16]),
        "use_rslora": draw.random() < 0.4,
        "bias": draw.choice(["none", "none", "all", "lora_only"]),
        "target_modules": targets,
    }
    if draw.random() < 0.5:
        options["rank_pattern"] = {draw.choice(targets): draw.choice([1, 4, 5])}
    return options


def adapted(base: nn.Module, folder: Path, **options: Any) -> Any:
    """Their model with an adapter that is not zero, which the folder holds."""
    torch.manual_seed(3)
    made = peft().get_peft_model(base, peft().LoraConfig(**options)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    made.save_pretrained(folder)
    return made


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_adapters_of_peft_give_its_outputs(family, seed, tmp_path):
    draw = random.Random(f"{family} {seed}")
    left_out = ("ForQuestionAnswering", "ForMultipleChoice")  # of which some read other positions
    endings = [one for one in FAMILIES[family].endings if one not in left_out]
    ending = draw.choice([*endings, *2 * CAUSAL.get(family, ())])
    base = saved_base(family, ending, seed, tmp_path / "base")
    task = TASKS.get(ending) if draw.random() < 0.8 else None
    theirs = adapted(base, tmp_path / "adapter", task_type=task, **drawn_options(draw, base))
    ours = open_folder(tmp_path / "adapter").model().eval()
    wanted = their_scores(family, theirs)
    torch.testing.assert_close(our_scores(family, ending, ours), wanted, **SAME)


# ---- embeddings


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapted_embedding_is_read_unless_the_output_was_tied_to_it(tied, tmp_path):
    one = DRAWN_ENCODERS["llama"]
    one.model("ForCausalLM", 1, tie_word_embeddings=tied).save_pretrained(tmp_path / "base")
    kind = transformers.LlamaForCausalLM
    base = kind.from_pretrained(tmp_path / "base", attn_implementation="eager").float()
    options = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    theirs = adapted(base, tmp_path / "adapter", task_type="CAUSAL_LM", **options)
    if tied:
        with pytest.raises(CheckpointError, match="tied to another tensor, .*embed_tokens"):
            open_folder(tmp_path / "adapter")
        return
    ours = open_folder(tmp_path / "adapter").model().eval()
    with torch.no_grad():
        wanted = their_scores("llama", theirs)
        torch.testing.assert_close(our_scores("llama", "ForCausalLM", ours), wanted, **SAME)


# ---- what the base says


def small_t5(folder: Path, **fields: Any) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=300, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        decoder_start_token_id=0, **fields,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    return model


def with_tokenizer(folder: Path) -> None:
    from regard.text import train

    train("unigram", ["a dog runs", "the cat sat on it"] * 9, 40).save(folder)


@pytest.mark.parametrize("own_tokenizer", [True, False])
def test_an_adapter_generates_as_its_base_says(own_tokenizer, tmp_path):
    several = {"summarization": {"prefix": "summarize: ", "num_beams": 4}}
    base = small_t5(tmp_path / "base", task_specific_params=several)
    generation = transformers.GenerationConfig(
        num_beams=3, max_new_tokens=7, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
    )
    generation.save_pretrained(tmp_path / "base")
    with_tokenizer(tmp_path / "base")
    adapted(base, tmp_path / "adapter", task_type="SEQ_2_SEQ_LM", target_modules=["q"])
    path = tmp_path / "adapter" / "adapter_config.json"
    written = json.loads(path.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}
    path.write_text(json.dumps(written))
    if own_tokenizer:
        with_tokenizer(tmp_path / "adapter")
    whole, made = load(tmp_path / "base"), load(tmp_path / "adapter")
    assert made.method == whole.method and whole.method.size == 3
    assert made.source_prefix == whole.source_prefix == "summarize: "


def test_a_folder_with_a_whole_model_and_an_adapter_is_refused(tmp_path):
    base = saved_base("bert", "Model", 0, tmp_path / "base")
    adapted(base, tmp_path / "adapter", target_modules=["query"])
    save_file(
        load_file(tmp_path / "base/model.safetensors"), tmp_path / "adapter/model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"a whole model and an adapter.*Remove"):
        open_folder(tmp_path / "adapter")
