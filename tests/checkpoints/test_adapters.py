"""Low-rank adapters against `peft`: drawn options over every family, folders in both directions.

A folder of one is an `AdapterFolder`, whose `generation_path` may be that of its base.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import their_gpts
import torch
from drawn_configs import DRAWN_ENCODER_DECODERS, DRAWN_ENCODERS, XLNET
from their_encoders import transformers
from torch import Tensor, nn

from regard.attention.pruning import prune_heads, pruned_heads
from regard.checkpoints import adapters
from regard.checkpoints.adapters import AdapterOptions, add_adapters, write_adapter
from regard.checkpoints.model_folder import open_folder, read_model
from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError
from regard.layers.linear import LowRankLinear
from regard.models.conversions import adapted_layers, merged, quantize_layers
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.tasks.folders import load
from regard.text import train

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
    "ForQuestionAnswering": "span", "ForQuestionAnsweringSimple": "span",
    "ForMultipleChoice": "multiple_choice",
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
        encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
        return encoder.head.logits(encoder.encode(texts))
    if ending == "Model":
        encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
        return encoder.encode(texts)
    if ending == "ForPreTraining" and family == "electra":
        return model.scores("replaced", texts)[..., 0]
    return model.scores(KINDS.get(ending, "masked_lm"), texts)


def saved_base(family: str, ending: str, seed: int, folder: Path) -> nn.Module:
    """Their model, read from the folder to which it was written."""
    if family in their_gpts.FAMILIES:
        model = their_gpts.FAMILIES[family].model(ending)
    else:
        one, plain = FAMILIES[family], dict(PLAIN.get(family, {}))
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
    if draw.random() < 0.3:
        names = [part for name, _ in model.named_modules() for part in name.split(".")]
        last = min(1, max(int(part) for part in names if part.isdigit()))
        options["layers_to_transform"] = draw.choice([last, [0], [last, 0]])
    if len(targets) > 1 and draw.random() < 0.3:
        options["exclude_modules"] = targets[1:]
    return options


def adapted(base: nn.Module, folder: Path, **options: Any) -> Any:
    """Their model with an adapter that is not zero, which the folder holds."""
    made = peft().get_peft_model(base, peft().LoraConfig(**options)).eval()
    away_from_start(made)
    made.save_pretrained(folder)
    return made


@torch.no_grad()
def away_from_start(model: nn.Module) -> None:
    """Change what is trained."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * 0.3)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(2))
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


# ---- our folders

CLASSIFIER = ("bert", "ForSequenceClassification", ())
CASES = [
    CLASSIFIER,
    ("bert", "ForSequenceClassification", ("key", "attention.output.dense")),
    ("bert", "ForTokenClassification", ("all-linear",)),
    ("bert", "ForMaskedLM", ()),
    ("bert", "Model", ()),
    ("roberta", "ForSequenceClassification", ()),
    ("distilbert", "ForQuestionAnswering", ("k_lin", "lin1", "lin2")),
    ("gpt2", "LMHeadModel", ()),
    ("gpt2", "ForSequenceClassification", ("c_attn", "c_proj", "c_fc")),
    ("gpt", "LMHeadModel", ()),
    ("marian", "MTModel", ()),
    ("marian", "MTModel", ("k_proj", "out_proj", "fc1", "fc2")),
]


def with_adapters(base: Path, targets: tuple[str, ...]) -> nn.Module:
    """Our model of a folder with adapters that are not zero."""
    model = read_model(base)
    add_adapters(model, AdapterOptions(rank=2, alpha=3.0, targets=targets))
    away_from_start(model)
    return model.eval()


def opened_by_peft(base: nn.Module, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # missing or unexpected keys are warnings
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return peft().PeftModel.from_pretrained(base, folder, is_trainable=True).eval()


@pytest.mark.parametrize("family, ending, targets", CASES, ids=str)
def test_peft_opens_our_folder_with_equal_outputs_and_gradients(family, ending, targets, tmp_path):
    base = saved_base(family, ending, 1, tmp_path / "base")
    ours = with_adapters(tmp_path / "base", targets)
    options = AdapterOptions(rank=2, alpha=3.0, targets=targets)
    write_adapter(tmp_path / "adapter", ours, options, str(tmp_path / "base"))
    theirs = opened_by_peft(base, tmp_path / "adapter")
    found, expected = our_scores(family, ending, ours), their_scores(family, theirs)
    assert expected.std() > 0.05  # there was something to compare
    torch.testing.assert_close(found, expected, **SAME)
    weigh = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    (found * weigh).sum().backward()
    (expected * weigh).sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.requires_grad}
    compared = 0
    for projection, update in adapters._adapted_projections(adapters._layout(merged(ours)), ours):
        both = projection.to_published(update.A.grad, update.B.grad)
        for name, mine in zip("AB", both, strict=True):
            wanted = gradients[f"base_model.model.{projection.name}.lora_{name}.default.weight"]
            torch.testing.assert_close(mine, wanted, **SAME)
            compared += 1
    assert compared == sum("lora_" in name for name in gradients)


@torch.no_grad()
def test_a_new_head_comes_from_the_adapter(tmp_path):
    """The base predicts masked words, and the adapter comes with a classifier of three labels."""
    saved_base("distilbert", "ForMaskedLM", 0, tmp_path / "base")
    kind = transformers.DistilBertForSequenceClassification
    model = kind.from_pretrained(tmp_path / "base", num_labels=3, attn_implementation="eager")
    options = {"target_modules": ["q_lin", "v_lin"], "modules_to_save": ["pre_classifier"]}
    theirs = adapted(model, tmp_path / "adapter", task_type="SEQ_CLS", **options)
    ours = open_folder(tmp_path / "adapter").model().eval()
    assert ours.outputs() == {"classes": 3}
    found = our_scores("distilbert", "ForSequenceClassification", ours)
    torch.testing.assert_close(found, their_scores("distilbert", theirs), **SAME)


@torch.no_grad()
@pytest.mark.parametrize("family, ending, targets", CASES[-5:], ids=str)
def test_merged_is_unmerged(family, ending, targets, tmp_path):
    saved_base(family, ending, 0, tmp_path)
    model = with_adapters(tmp_path, targets)
    plain = merged(model)
    assert adapted_layers(model) and not adapted_layers(plain)
    assert not any(isinstance(module, LowRankLinear) for module in plain.modules())
    wanted = our_scores(family, ending, model)
    torch.testing.assert_close(our_scores(family, ending, plain), wanted, **SAME)


@pytest.fixture
def base(tmp_path) -> Path:
    saved_base("bert", "ForSequenceClassification", 0, tmp_path / "base")
    return tmp_path / "base"


@torch.no_grad()
def test_adapters_change_nothing_at_the_start(base):
    model = read_model(base).eval()
    before = our_scores(*CLASSIFIER[:2], model)
    add_adapters(model, AdapterOptions(rank=3))
    torch.testing.assert_close(our_scores(*CLASSIFIER[:2], model), before, atol=1e-6, rtol=0)


def test_adapters_and_head_alone_are_trained(base):
    model = with_adapters(base, ())
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".updates." in name or name.startswith("heads.") for name in trained)
    assert {name.split(".")[-2] for name in trained if ".updates." in name} == {"query", "value"}
    assert sum(name.startswith("heads.") for name in trained) == 4  # pooler and classifier


# ---- errors ----------------------------------------------------------------------------------


def adapter_in(tmp_path: Path) -> Path:
    """A folder of peft's with its base."""
    base = saved_base("bert", "ForSequenceClassification", 0, tmp_path / "base")
    options = {"r": 2, "target_modules": ["query", "value"]}
    adapted(base, tmp_path / "adapter", task_type="SEQ_CLS", **options)
    return tmp_path / "adapter"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_quantized_and_pruned_models_take_no_adapters(base):
    with pytest.raises(ConfigError, match="adapters cannot be added to bert"):
        add_adapters(quantize_layers(read_model(base), "int8"), AdapterOptions())
    model = read_model(base)
    prune_heads(model, {1: [2]})
    with pytest.raises(ConfigError, match="adapters cannot be added to bert.*with all heads"):
        add_adapters(model, AdapterOptions())


def test_heads_under_adapters_are_not_pruned_but_those_of_the_merged_model_are(base):
    model = read_model(base)
    add_adapters(model, AdapterOptions())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match="adapters or quantized weights, which cannot be cut"):
        prune_heads(model, {1: [2]})
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    plain = merged(model)
    prune_heads(plain, {1: [2]})
    assert pruned_heads(plain) == (("encoder", 1, (2,)),)


def test_a_missing_base_is_named(tmp_path):
    folder = adapter_in(tmp_path)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(CheckpointError, match="adapter_config.json: .*: the base cannot be opened"):
        open_folder(folder)
    change(folder, base_model_name_or_path=None)
    with pytest.raises(ConfigError, match="`base_model_name_or_path` must be a string, but is nul"):
        open_folder(folder)
    change(folder, base_model_name_or_path=str(folder))
    with pytest.raises(CheckpointError, match="holds an adapter itself"):
        open_folder(folder)


# ---- embeddings


def test_an_adapted_embedding_is_read(tmp_path):
    one = DRAWN_ENCODERS["llama"]
    one.model("ForCausalLM", 1, tie_word_embeddings=False).save_pretrained(tmp_path / "base")
    kind = transformers.LlamaForCausalLM
    base = kind.from_pretrained(tmp_path / "base", attn_implementation="eager").float()
    options = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    theirs = adapted(base, tmp_path / "adapter", task_type="CAUSAL_LM", **options)
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
    copyfile(tmp_path / "base/model.safetensors", tmp_path / "adapter/model.safetensors")
    with pytest.raises(CheckpointError, match=r"a whole model and an adapter.*Remove"):
        open_folder(tmp_path / "adapter")
