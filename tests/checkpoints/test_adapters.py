"""Low-rank adapters against `peft`: outputs, gradients, and folders in both directions."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import their_encoders
import their_gpts
import torch
from torch import Tensor, nn

from regard.attention.pruning import prune_heads, pruned_heads
from regard.checkpoints import adapters
from regard.checkpoints.adapters import AdapterOptions, add_adapters, write_adapter
from regard.checkpoints.model_folder import open_folder, read_model
from regard.checkpoints.store import read_tensors, write_tensors
from regard.data.batches import Sequences
from regard.errors import CheckpointError, ConfigError
from regard.layers.linear import LowRankLinear
from regard.models.conversions import adapted_layers, merged, quantize_layers
from regard.models.encoder_with_heads import EncoderWithHeads
from regard.models.recurrent import RecurrentLanguageModel

transformers = their_encoders.transformers

SAME = dict(atol=1e-5, rtol=1e-5)
MARIAN = dict(
    vocab_size=23, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
    decoder_attention_heads=3, encoder_ffn_dim=20, decoder_ffn_dim=20, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=16, pad_token_id=0,
    eos_token_id=2, decoder_start_token_id=1, scale_embedding=True, activation_function="relu",
    forced_eos_token_id=None, attn_implementation="eager",
)  # fmt: skip


def peft() -> Any:
    """Imported where it is called: it takes seconds, and not every worker runs these tests."""
    return pytest.importorskip("peft")


@dataclass(frozen=True)
class Case:
    """A model of `transformers`, the layers that get adapters, and peft's word for its task."""

    family: str
    ending: str
    targets: tuple[str, ...]
    task: str | None

    def __str__(self) -> str:
        return f"{self.family}-{self.ending}-{'-'.join(self.targets) or 'default'}"

    def theirs(self) -> Any:
        """With random weights."""
        if self.family == "marian":
            torch.manual_seed(0)
            made = transformers.MarianMTModel(transformers.MarianConfig(**MARIAN))
            positions = [p for n, p in made.named_parameters() if "embed_positions" in n]
            kept = [p.clone() for p in positions]
            their_encoders.randomized(made)
            with torch.no_grad():
                for parameter, values in zip(positions, kept, strict=True):
                    parameter.copy_(values)
            return made.eval()
        where = their_gpts if "gpt" in self.family else their_encoders
        return where.FAMILIES[self.family].model(self.ending)

    def their_scores(self, model: Any) -> Tensor:
        model = model.get_base_model() if isinstance(model, peft().PeftModel) else model
        if self.family == "marian":
            source, target = texts()
            return model(
                input_ids=source.ids,
                attention_mask=source.keep.long(),
                decoder_input_ids=target.ids,
            ).logits
        if "gpt" in self.family:
            found = their_gpts.ask(model, their_gpts.batch())
        else:
            pad = 1 if self.family == "roberta" else 0
            found = their_encoders.ask(model, self.batch(), pad=pad)
        if self.ending == "ForQuestionAnswering":
            return their_encoders.answers(found, "span")
        return found.last_hidden_state if self.ending == "Model" else found.logits

    def batch(self) -> Any:
        if "gpt" in self.family:
            return their_gpts.batch()
        return their_encoders.batch(their_encoders.FAMILIES[self.family].segments)

    def scores(self, model: Any) -> Tensor:
        if self.family == "marian":
            return model.head.logits(model(*texts()).hidden)
        heads = list(model.heads) if isinstance(model, EncoderWithHeads) else []
        kinds = [kind for kind in heads if kind != "pooler"]
        if kinds:
            return model.scores(kinds[0], self.batch())
        encoder = model.encoder if isinstance(model, EncoderWithHeads) else model
        hidden = encoder.encode(self.batch())
        return encoder.head.logits(hidden) if self.ending == "LMHeadModel" else hidden

    def assert_close(self, found: Tensor, expected: Tensor) -> None:
        """Padding left out, where there is an answer for each token."""
        assert expected.std() > 0.05  # there was something to compare
        if found.dim() == 3 and self.family != "marian":
            keep = self.batch().keep
            found, expected = found[keep], expected[keep]
        torch.testing.assert_close(found, expected, **SAME)


CASES = [
    Case("bert", "ForSequenceClassification", (), "SEQ_CLS"),
    Case("bert", "ForSequenceClassification", ("key", "attention.output.dense"), "SEQ_CLS"),
    Case("bert", "ForTokenClassification", ("all-linear",), "TOKEN_CLS"),
    Case("bert", "ForMaskedLM", (), None),
    Case("bert", "Model", (), None),
    Case("roberta", "ForSequenceClassification", (), "SEQ_CLS"),
    Case("distilbert", "ForSequenceClassification", (), "SEQ_CLS"),
    Case("distilbert", "ForQuestionAnswering", ("k_lin", "lin1", "lin2"), "QUESTION_ANS"),
    Case("gpt2", "LMHeadModel", (), "CAUSAL_LM"),
    Case("gpt2", "ForSequenceClassification", ("c_attn", "c_proj", "c_fc"), "SEQ_CLS"),
    Case("gpt", "LMHeadModel", (), "CAUSAL_LM"),
    Case("marian", "MTModel", (), "SEQ_2_SEQ_LM"),
    Case("marian", "MTModel", ("k_proj", "out_proj", "fc1", "fc2"), "SEQ_2_SEQ_LM"),
]
DEFAULT = {
    "bert": ["query", "value"], "roberta": ["query", "value"], "distilbert": ["q_lin", "v_lin"],
    "gpt2": ["c_attn"], "gpt": ["c_attn"], "marian": ["q_proj", "v_proj"],
}  # fmt: skip


LINEAR = ["query", "key", "value", "dense"]  # peft's own "all-linear" fails for tags


def texts() -> tuple[Sequences, Sequences]:
    made = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 3, 5])
    source = torch.randint(3, 23, (3, 7), generator=made) * (torch.arange(7) < lengths[:, None])
    target = torch.randint(3, 23, (3, 6), generator=made)
    return Sequences(source, lengths), Sequences(target, torch.tensor([6, 6, 6]))


def saved_base(case: Case, folder: Path) -> Any:
    """Their base model, read from the folder to which it was written."""
    model = case.theirs()
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, attn_implementation="eager").eval()


def away_from_start(parameters) -> None:
    made = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.3)


def with_adapters(case: Case, folder: Path) -> nn.Module:
    """Our model of a folder with adapters that are not zero."""
    model = read_model(folder)
    add_adapters(model, AdapterOptions(rank=2, alpha=3.0, targets=case.targets))
    away_from_start(p for p in model.parameters() if p.requires_grad)
    return model


def their_adapted(case: Case, base: Any, **options: Any) -> Any:
    """Their model with adapters that are not zero, trained heads included."""
    targets = case.targets or DEFAULT[case.family]
    config = peft().LoraConfig(
        task_type=case.task,
        target_modules=LINEAR if targets == ("all-linear",) else list(targets),
        fan_in_fan_out="gpt" in case.family,
        **({"r": 2, "lora_alpha": 3, "lora_dropout": 0.0} | options),
    )
    made = peft().get_peft_model(base, config)
    away_from_start(p for p in made.parameters() if p.requires_grad)
    return made.eval()


def opened_by_peft(case: Case, base: Path, folder: Path) -> Any:
    kind = getattr(transformers, type(case.theirs()).__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # missing or unexpected keys are warnings
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = kind.from_pretrained(base, attn_implementation="eager")
        return peft().PeftModel.from_pretrained(model, folder, is_trainable=True)


# ---- outputs and gradients -----------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_peft_opens_our_folder_with_equal_outputs_and_gradients(case, tmp_path):
    saved_base(case, tmp_path / "base")
    ours = with_adapters(case, tmp_path / "base").train()
    options = AdapterOptions(rank=2, alpha=3.0, targets=case.targets)
    write_adapter(tmp_path / "adapter", ours, options, str(tmp_path / "base"))
    theirs = opened_by_peft(case, tmp_path / "base", tmp_path / "adapter").train()
    found, expected = case.scores(ours), case.their_scores(theirs)
    case.assert_close(found, expected)
    weigh = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    if found.dim() == 3 and case.family != "marian":
        weigh = weigh * case.batch().keep[..., None]
    (found * weigh).sum().backward()
    (expected * weigh).sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.requires_grad}
    layout = adapters._layout(merged(ours))
    compared = 0
    for projection, update in adapters._adapted_projections(layout, ours):
        for name, mine in zip(
            "AB", projection.to_published(update.A.grad, update.B.grad), strict=True
        ):
            wanted = gradients[f"base_model.model.{projection.name}.lora_{name}.default.weight"]
            torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
            compared += 1
    assert compared == sum("lora_" in name for name in gradients)


def test_a_new_head_comes_from_the_adapter(tmp_path):
    """The base predicts masked words, and the adapter comes with a classifier of three labels."""
    base = Case("distilbert", "ForMaskedLM", (), None)
    case = Case("distilbert", "ForSequenceClassification", (), "SEQ_CLS")
    saved_base(base, tmp_path / "base")
    kind = transformers.DistilBertForSequenceClassification
    model = kind.from_pretrained(tmp_path / "base", num_labels=3, attn_implementation="eager")
    theirs = their_adapted(case, model, modules_to_save=["pre_classifier"])
    theirs.save_pretrained(tmp_path / "adapter")
    ours = open_folder(tmp_path / "adapter").model().eval()
    assert ours.outputs() == {"classes": 3}
    with torch.no_grad():
        case.assert_close(case.scores(ours), case.their_scores(theirs))


@pytest.mark.parametrize("case", CASES[-5:], ids=str)
def test_merged_is_unmerged(case, tmp_path):
    saved_base(case, tmp_path / "base")
    model = with_adapters(case, tmp_path / "base").eval()
    plain = merged(model)
    assert adapted_layers(model) and not adapted_layers(plain)
    assert not any(isinstance(module, LowRankLinear) for module in plain.modules())
    with torch.no_grad():
        case.assert_close(case.scores(plain), case.scores(model))


def test_adapters_change_nothing_at_the_start(tmp_path):
    saved_base(CASES[0], tmp_path / "base")
    model = read_model(tmp_path / "base").eval()
    with torch.no_grad():
        before = CASES[0].scores(model)
        add_adapters(model, AdapterOptions(rank=3))
        torch.testing.assert_close(CASES[0].scores(model), before, atol=1e-6, rtol=0)


def test_adapters_and_head_alone_are_trained(tmp_path):
    saved_base(CASES[0], tmp_path / "base")
    model = with_adapters(CASES[0], tmp_path / "base")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".updates." in name or name.startswith("heads.") for name in trained)
    assert {name.split(".")[-2] for name in trained if ".updates." in name} == {"query", "value"}
    assert sum(name.startswith("heads.") for name in trained) == 4  # pooler and classifier


# ---- errors ----------------------------------------------------------------------------------


def adapter_in(tmp_path: Path) -> Path:
    """A folder of peft's with its base."""
    theirs = their_adapted(CASES[0], saved_base(CASES[0], tmp_path / "base"))
    theirs.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def change(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_target_that_the_model_lacks_is_named(tmp_path):
    saved_base(CASES[0], tmp_path / "base")
    said = "no linear layer 'quary'. It has query, key, value.*'query'"
    with pytest.raises(ConfigError, match=said):
        add_adapters(read_model(tmp_path / "base"), AdapterOptions(targets=("quary",)))


def test_recurrent_quantized_and_pruned_models_take_no_adapters(tmp_path):
    config = RecurrentLanguageModel.Config(vocab_size=9, d_model=4)
    with pytest.raises(ConfigError, match="adapters cannot be added to lstm-lm"):
        add_adapters(RecurrentLanguageModel(config), AdapterOptions())
    saved_base(CASES[0], tmp_path / "base")
    with pytest.raises(ConfigError, match="adapters cannot be added to bert"):
        add_adapters(quantize_layers(read_model(tmp_path / "base"), "int8"), AdapterOptions())
    model = read_model(tmp_path / "base")
    prune_heads(model, {1: [2]})
    with pytest.raises(ConfigError, match="adapters cannot be added to bert.*with all heads"):
        add_adapters(model, AdapterOptions())


def test_heads_under_adapters_are_not_pruned_but_those_of_the_merged_model_are(tmp_path):
    saved_base(CASES[0], tmp_path / "base")
    model = read_model(tmp_path / "base")
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(peft_type="IA3"), "`peft_type` must be 'LORA', but is"),
        (dict(use_dora=True), "`use_dora` is True"),
        (dict(init_lora_weights="pissa"), "`init_lora_weights` must be .*, but is"),
        (dict(alpha_pattern={"query": 1}), "`alpha_pattern` must be .*, but is"),
        (dict(r="two"), "`r` must be a whole number"),
    ],
    ids=str,
)
def test_adapters_that_are_not_computed_here(fields, message, tmp_path):
    folder = adapter_in(tmp_path)
    change(folder, **fields)
    with pytest.raises(ConfigError, match=message):
        open_folder(folder)


def test_tensors_that_do_not_fit_the_base_are_named(tmp_path):
    folder = adapter_in(tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = {name: t.clone() for name, t in read_tensors(path).items()}
    name = next(name for name in tensors if name.endswith("query.lora_A.weight"))
    write_tensors(path, tensors | {name: torch.zeros(2, 11)})
    with pytest.raises(CheckpointError, match=r"wrong shape: .*query must be \(12, 12\)"):
        open_folder(folder)
    write_tensors(path, tensors | {"base_model.model.bert.odd.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="extra: odd.weight"):
        open_folder(folder)
    write_tensors(path, {key: t for key, t in tensors.items() if key != name})
    with pytest.raises(CheckpointError, match="without matrices A and B of one rank: .*query"):
        open_folder(folder)
