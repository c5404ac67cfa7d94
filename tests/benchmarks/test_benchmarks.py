"""The benchmarks run on tiny shapes, with our side alone, and leave out conditions that fail."""

from __future__ import annotations

import importlib

import pytest
import torch

from benchmarks import document, tables
from benchmarks.decoding.quality import told
from benchmarks.measure import Measured, Work, measure
from benchmarks.options import Options
from benchmarks.training import flops
from benchmarks.workers import Condition, Failed, Worker

TOYS = "tests.benchmarks.toys:"


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> Options:
    return Options(tmp_path_factory.mktemp("cache"), threads=1, quick=True)


def run_here(condition: Condition):
    module, _, name = condition.made.partition(":")
    if condition.prepare:
        writes, _, function = condition.prepare.partition(":")
        getattr(importlib.import_module(writes), function)(**condition.settings)
    one = getattr(importlib.import_module(module), name)(**condition.settings, threads=1)
    if hasattr(one, "ready"):
        one.ready()
    return one.turn()


@pytest.mark.parametrize(
    "name",
    [
        "translation",
        "training",
        "recurrent",
        "segments",
        "awd_lstm",
        "crf",
        "tokenizing",
    ],
)
def test_the_conditions_of_regard_run_on_tiny_shapes(name, options):
    threads = torch.get_num_threads()
    works = list(importlib.import_module(f"benchmarks.{name}").works(options))
    for work in works:
        ours = [c for c in work.conditions if c.name.startswith("regard")]
        assert ours and ours[0] is work.conditions[0]
        assert {*work.goals, *work.least, *work.amounts} <= {c.name for c in work.conditions} | {
            "transformers bfloat16 compiled"
        }
        for condition in ours:
            assert run_here(condition) is not None
    torch.set_num_threads(threads)


def run_sides(work):
    """What each installed library computes in float32."""
    sides = {c.name: c for c in work.conditions if not c.missing and "float32" in c.name}
    assert {"regard float32", "transformers float32"} <= sides.keys()
    return {name: run_here(condition) for name, condition in sides.items()}


def test_all_decoders_generate_the_same_tokens(options):
    """Random weights of a tiny shape, read by every installed library."""
    for work in importlib.import_module("benchmarks.decoding").works(options):
        found = run_sides(work)
        assert found["regard float32"] == found["transformers float32"]
        assert all(len(rows[0]) == 8 for rows in found.values())


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_all_translators_find_the_same_tokens_by_beam_and_by_greedy_search(name, options):
    beam, greedy = importlib.import_module(f"benchmarks.{name}").works(options)
    assert [one.name.endswith("greedy") for one in (beam, greedy)] == [False, True]
    for work in (beam, greedy):
        found = run_sides(work)
        wanted = found.pop("transformers float32")
        for rows in found.values():
            assert (rows if len(rows) == len(wanted) else rows[::8]) == wanted


def test_all_sides_compute_the_same_perplexity(options):
    for work in importlib.import_module("benchmarks.evaluation").works(options):
        sides = [c for c in work.conditions if not c.missing and "float32" in c.name]
        found = [run_here(condition) for condition in sides]
        assert len(found) == 2 and found[0] == pytest.approx(found[1], rel=1e-6)


def test_convolutions_and_torchs_give_the_same_and_so_do_steps_and_whole_texts(options):
    threads = torch.get_num_threads()
    for work in importlib.import_module("benchmarks.convolution").works(options):
        ours, other = map(run_here, work.conditions)
        assert ours == pytest.approx(other, rel=1e-5)
    torch.set_num_threads(threads)


def test_captions_of_images_are_those_of_torchs_parts_in_batches_or_alone(options):
    threads = torch.get_num_threads()
    (work,) = importlib.import_module("benchmarks.captioning").works(options)
    greedy = [one for one in work.conditions if "beams" not in one.name]
    found = {one.name: run_here(one) for one in greedy}
    assert {len(row) for rows in found.values() for row in rows} == {4}
    del found["regard, a Transformer"]
    assert len(found) == 4 and all(rows == found["regard"] for rows in found.values())
    torch.set_num_threads(threads)


def test_a_worker_returns_results_and_raises_errors_of_its_process():
    with Worker(Condition("sleeps", TOYS + "Sleeps", {"seconds": 0.1}), threads=1) as worker:
        worker.make()
        turn = worker.call("turn")
        assert 0.1 <= turn.seconds < 0.15 + 0.5 and turn.result == 1
        assert worker.call("turn").result == 2
        assert worker.peak() is None or 1 < worker.peak() < 1000
    with Worker(Condition("breaks", TOYS + "Breaks"), threads=1) as worker:
        worker.make()
        with pytest.raises(Failed, match="ValueError: broken"):
            worker.call("turn")
    with Worker(Condition("absent", "benchmarks.nowhere:Nothing"), threads=1) as worker:
        with pytest.raises(Failed, match="benchmarks.nowhere"):
            worker.make()


@pytest.mark.slow("benchmarks")
def test_failed_and_missing_conditions_are_left_out_with_the_reason():
    conditions = [
        Condition("regard", TOYS + "Sleeps", {"seconds": 0.01}),
        Condition("slow", TOYS + "Sleeps", {"seconds": 0.04}),
        Condition("broken", TOYS + "Breaks"),
        Condition("missing", TOYS + "Sleeps", {}, needs=("no_such_engine",)),
    ]
    said: list[str] = []
    work = Work("sleeping", "naps/s", 1.0, conditions, {"slow": 2.0}, amounts={"slow": 2.0})
    found = measure(work, 2, 1, said.append)
    assert list(found.seconds) == ["regard", "slow"]
    assert found.left_out == {
        "broken": "failed: ValueError: broken",
        "missing": "not installed (no_such_engine: pip install no_such_engine)",
    }
    assert any("missing is left out" in line for line in said)
    assert [len(each) for each in found.seconds.values()] == [2, 2]


def test_ratios_are_computed_for_each_round():
    conditions = [Condition("regard", ""), Condition("peer", "")]
    least = {"regard": ("read GB/s", 40.0)}
    work = Work("w", "tokens/s", 100.0, conditions, {"peer": 2.0}, least, {"peer": 50.0})
    found = Measured(work, {"regard": [1.0, 2.0, 4.0], "peer": [2.0, 2.0, 2.0]})
    ours, theirs = found.rows()
    assert (ours["condition"], ours["rate"]) == ("regard", 50.0)
    ceilings = {"read GB/s": 80.0}
    assert tables.share(ours, ceilings) == 0.25  # 40 GB at 80 GB/s is half a second, of two
    assert tables.share(theirs, ceilings) is None
    assert (theirs["rate"], theirs["ratios"]) == (25.0, [4.0, 2.0, 1.0])


def test_the_report_has_medians_goals_and_left_out_conditions(tmp_path):
    row = {
        "condition": "peer",
        "rate": 250.0,
        "seconds": [0.5, 0.4, 0.6],
        "others": [0.0, 0.05, 1.5],
        "ceiling": "copy GB/s",
        "least": 7.0,
        "memory MB": None,
        "quality": "",
        "goal": 2.0,
        "ratios": [1.5, 1.0, 3.0],
    }
    work = {"name": "w", "unit": "seconds", "note": "", "rows": [row], "left out": {"x": "why"}}
    ceilings = {"copy GB/s": 70.0}
    found = {"machine": {}, "ceilings": ceilings, "rounds": 3, "load": 0, "works": [work]}
    tables.write(found, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| peer | 0.004 | 1.50 (1.00-3.00) | 2 ✗ | 20% of copy |" in text
    assert "more than 0.1 of a core in 1 of 3 rounds, 1.50 cores" in text
    assert "Left out: x, why" in text
    assert "memory" not in text  # a column with nothing in it
    assert (tmp_path / "report.svg").read_text().startswith("<svg")


def report(load, seconds, ratios, ceiling):
    rows = [
        {"condition": "regard", "amount": 10.0, "seconds": seconds, "others": [0.0] * len(seconds)},
        {"condition": "peer", "amount": 10.0, "seconds": [2.0], "others": [0.0], "ratios": ratios},
    ]
    for row in rows:
        row |= {"memory MB": 10.0 + load, "quality": "", "goal": 2.0, "rate": 0.0}
        row |= {"ceiling": "read GB/s", "least": 10.0}
    work = {"name": "w", "unit": "tokens/s", "note": "", "amount": 10.0, "rows": rows}
    work["left out"] = {}
    found = {"machine": {}, "rounds": len(seconds), "load": load, "works": [work]}
    return found | {"ceilings": {"read GB/s": ceiling}}


def test_merged_reports_keep_rest_and_load_apart():
    reports = [report(0, [1.0, 3.0], [2.0, 4.0], 5.0), report(1, [9.0], [1.0], 20.0)]
    found = document.merged([*reports, report(0, [2.0], [3.0], 10.0)])
    ours, peer = sorted(found["works"][0]["rows"], key=lambda row: row["condition"] == "peer")
    assert (ours["seconds"], ours["rate"]) == ([1.0, 3.0, 2.0], 5.0)
    assert (peer["ratios"], peer["ratios under load"]) == ([2.0, 4.0, 3.0], [1.0])
    assert peer["memory MB"] == 11.0  # the most of all
    assert found["ceilings"] == {"read GB/s": 20.0}
    text = tables.markdown(found)
    assert "| 3.00 (2.00-4.00) | 1.00 (1.00-1.00) | 2 ✗ |" in text  # the goal is missed under load


def test_exceeded_names_conditions_faster_than_the_ceiling():
    (work,) = report(0, [1.0], [2.0], 5.0)["works"]
    assert tables.exceeded(work, {"read GB/s": 5.0}) == ["regard"]  # 10 GB in a second
    assert tables.exceeded(work, {"read GB/s": 12.0}) == []


def test_flops_of_an_update_equal_the_sum_of_its_products():
    sizes = {"vocab_size": 50, "d_model": 8, "d_ff": 32, "heads": 2, "layers": 3}
    rows, length = 2, 10
    masked = 0.15 * rows * length
    products = 2 * (4 * 8 * 8 + 2 * 8 * 32) * rows * length  # projections and feed-forward
    products += 2 * 2 * rows * length * length * 8  # scores and sums
    products += 2 * 8 * 8 * rows * length  # the last layer's keys and values
    products += masked * (2 * 8 * 8 + 2 * 8 * 32 + 2 * length * 8)  # the rest of it where words are
    products += masked * (8 * 8 + 8 * 50)  # masked, and the head
    assert flops(sizes, rows, length) == pytest.approx(3 * 2 * products)


def test_the_quality_of_logits_is_their_loss_and_argmax():
    logits = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    lost, best = told(logits, [0, 1, 2])
    wanted = -(logits[0].log_softmax(0)[1] + logits[1].log_softmax(0)[2])
    assert lost == pytest.approx(float(wanted)) and best == [1, 0]
