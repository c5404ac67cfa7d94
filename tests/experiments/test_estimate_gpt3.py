"""Estimates of models that no machine here could hold: FLOPs of attention, and shards."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ConfigError
from regard.experiments.estimate import estimate, memory_of, sharded_memory
from regard.models import model_class
from regard.training import OptimizerOptions, TrainingOptions

RECIPE = Path(__file__).parents[2] / "recipes" / "gpt3.toml"
V = 50_257


@pytest.fixture(autouse=True)
def no_text(monkeypatch):
    monkeypatch.delenv("TEXT", raising=False)


def asked(*overrides, **options):
    return estimate(RECIPE, overrides, measure=False, **options)


def keys_read(length: int, window: int, size: int) -> int:
    """Of one row computed by blocks: (query, key) pairs, every block with as many keys as the one
    of its group that has most; the groups are those that make the fewest pairs.
    """
    count = -(-length // size)
    blocks = [n - max(0, (n * size - window + 1) // size) + 1 for n in range(count)]
    ordered = sorted(blocks)
    totals = [few * ordered[few - 1] + (count - few) * ordered[-1] for few in range(1, count + 1)]
    return min(totals) * size * size


@pytest.mark.parametrize("length, window", [(256, 256), (512, 256), (1024, 256), (2048, 256)])
def test_the_flops_equal_the_formula_with_dense_and_local_layers(length, window):
    found = asked(
        "model.layers=4", "model.d_model=64", "model.heads=2", f"data.sequence_length={length}",
        "data.batch_size=3", "training.tokens=6144000",
    )  # fmt: skip
    rows, width, layers = 3, 64, 4
    matrices = 6 * rows * length * (12 * layers * width**2 + width * V)
    dense = 12 * rows * length**2 * width
    by_blocks = length >= 4 * window
    local = 12 * rows * width * (keys_read(length, window, 64) if by_blocks else length**2)
    assert found.attention_flops == 2 * dense + 2 * local
    assert found.flops == matrices + found.attention_flops
    totals = found.totals()
    assert totals["attention_flops_per_item"] == found.attention_flops / (rows * length)
    share = found.attention_flops / found.flops
    assert f"{share:.1%}" in found.text() and "of attention" in found.text()


def test_175_billion_parameters_are_estimated_in_seconds():
    began = time.process_time()
    found = asked("model.size=175B", "data.batch_size=64", devices=64)
    assert time.process_time() - began < 60
    totals = found.totals()
    assert totals["parameters"] == 174_604_259_328
    assert found.memory["weights"] == 4 * totals["parameters"]
    assert found.memory["adamw's tables"] == 8 * totals["parameters"]
    # The paper counts 6 FLOPs for each parameter and each of 300 billion tokens, and no attention.
    printed = {one.quantity: one.value for one in found.published}
    assert printed["FLOPs"] == pytest.approx(3.14e23, rel=2e-3)
    without_attention = totals["flops"] * (1 - found.attention_flops / found.flops)
    assert without_attention == pytest.approx(printed["FLOPs"], rel=2e-3)
    assert totals["memory_per_device"] == sum(found.shards.values()) < 100e9


def test_attention_keeps_no_weights_for_the_backward_pass_as_fused_kernels_do():
    base = ("model.layers=2", "model.d_model=64", "model.heads=2", "data.batch_size=1",
            "training.activation_checkpointing=false")  # fmt: skip
    short, long = (
        asked(*base, f"data.sequence_length={length}").memory["activations"]
        for length in (1024, 2048)
    )
    head = 4 * V * 64
    assert long - head < 2.1 * (short - head)  # weights would make it almost four times as much


OPTIONS = TrainingOptions(max_steps=1, optimizer=OptimizerOptions(name="adamw"))


@pytest.mark.parametrize("devices", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["gpt3", "bert", "transformer"])
def test_shards_are_those_of_fsdp2(name, devices):
    """Sizes that the devices do not divide; the first device has the largest parts."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    model = model_class(name)(model_class(name).Config(50, d_model=32, heads=4))
    wanted = sharded_memory(model, OPTIONS, 900, 9, devices)
    whole = memory_of(model, OPTIONS, 900)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    try:
        mesh = init_device_mesh("cpu", (devices,))
        for block in model.repeated_blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        kept = sum(one.to_local().numel() * 4 for one in model.parameters())
    finally:
        distributed.destroy_process_group()
    assert wanted["weights"] == wanted["gradients"] == kept
    assert wanted["adamw's tables"] == 2 * kept
    assert wanted["activations"] == 900 * -(-9 // devices) // 9
    assert kept >= whole["weights"] / devices
    if devices == 1:
        assert {use: wanted[use] for use in whole} == whole


def test_gathered_bytes_are_two_blocks_the_gradients_of_one_and_parameters_in_no_block():
    kind = model_class("gpt3")
    model = kind(kind.Config(50, d_model=32, heads=4, layers=3, max_length=16))
    found = sharded_memory(model, OPTIONS, 0, 4, 4)
    block = 4 * (12 * 32**2 + 13 * 32)
    assert found["gathered"] == 4 * (50 + 16 + 2) * 32 + 3 * block
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    assert sharded_memory(model, OPTIONS, 0, 4, 4)["gathered"] == 4 * (50 + 16 + 2) * 32 + 2 * block


def test_more_devices_than_rows_are_refused():
    with pytest.raises(ConfigError, match="`devices` must be at most 2, the rows of a batch, but"):
        asked("model.layers=1", "data.batch_size=2", "data.sequence_length=8", devices=3)


def test_the_command_line_reports_shards(tmp_path):
    small = ("model.layers=1", "model.d_model=16", "model.heads=2", "data.batch_size=4",
             "data.sequence_length=16", "tokenizer.vocab_size=300")  # fmt: skip
    asked_for = ["train", str(RECIPE), *small, "--dry-run", "--devices", "2"]
    result = CliRunner().invoke(app, [*asked_for, "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["devices"] == 2 and facts["shards"]["weights"] >= facts["memory"]["weights"] / 2
    assert facts["totals"]["memory_per_device"] == sum(facts["shards"].values())
    text = CliRunner().invoke(app, asked_for).stdout
    assert "on each device" in text and "sharded over 2" in text
    refused = CliRunner().invoke(app, ["train", str(RECIPE), "--devices", "2"])
    assert refused.exit_code and "--devices has no effect" in refused.output
