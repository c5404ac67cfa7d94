"""The benchmark of long texts in its quick form."""

from __future__ import annotations

from benchmarks import long_texts


def test_the_quick_benchmark_measures_every_kind_and_prints_ratios(capsys, monkeypatch):
    monkeypatch.setattr(long_texts, "_in_a_process", long_texts.measured)
    found = long_texts.main(
        "--quick --rounds 1 --threads 1 --layers 1 --lengths 256 512 --dense 256".split()
    )
    kinds = [(one.setting.what, one.setting.length) for one in found]
    assert kinds == [
        ("attention", 256), ("attention", 512), ("dense attention", 256),
        ("model", 256), ("model", 512), ("dense model", 256),
    ]  # fmt: skip
    assert all(one.seconds > 0 for one in found)
    printed = capsys.readouterr().out
    assert printed.count("tokens") == 4 and "512" in printed


def test_training_is_measured_with_the_backward_pass():
    sizes = dict(d_model=16, d_ff=16, heads=2, layers=1, block_size=8, random_blocks=1)
    for what in ("attention", "dense attention", "model", "dense model"):
        one = long_texts.Setting(what, 100, 1, True, sizes, threads=1)
        assert long_texts.measured(one).seconds > 0
