"""A finished run has its page."""

from __future__ import annotations

from regard import runs

RECIPE = """
task = "translation"
[data]
train = ["pairs.tsv"]
valid = ["pairs.tsv"]
[tokenizer]
vocab_size = 40
[model]
name = "{model}"
d_model = 16
[training]
updates = 2
"""


def test_a_finished_run_has_a_page_with_curves_samples_and_what_it_looks_at(tmp_path):
    lines = ["one <b>two</b>\teins zwei", "two one\tzwei eins", "one\teins"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    for model, looks in (("transformer", True), ("seq2seq", True)):
        recipe = tmp_path / f"{model}.toml"
        more = "heads = 2\nd_ff = 16\n" if model == "transformer" else "layers = 1\n"
        recipe.write_text(
            RECIPE.format(model=model).replace("d_model = 16\n", f"d_model = 16\n{more}")
        )
        folder, result = runs.train(recipe, out=tmp_path / model, show="none")
        page = (folder / "report.html").read_text()
        assert result.update == 2
        assert "eins zwei" in page and "one &lt;b&gt;two" in page and "<b>two" not in page
        assert ("What it looks at" in page) is looks
        assert (
            f"{sum(p.numel() for p in runs.load(folder).model.parameters()):,} parameters" in page
        )
        assert f"{result.scores['loss']:.4g}" in page
