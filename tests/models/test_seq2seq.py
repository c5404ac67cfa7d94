"""Sequence to sequence: gradients, names of scores, options without effect, the published size."""

from __future__ import annotations

import pytest
import torch

from regard.data.batches import Sequences
from regard.errors import ConfigError
from regard.models.seq2seq import RNNSearch, RNNSearchConfig, Seq2Seq, Seq2SeqConfig

FORMS = {
    **{kind: {"attention": kind} for kind in ("none", "additive", "dot", "general")},
    "location": {"attention": "location", "max_length": 12},
    "scaled-dot": {"attention": "scaled-dot"},
    "local-m": {"attention": "content-based", "window": "local-m", "half_width": 1},
    "local-p": {"attention": "general", "window": "local-p", "half_width": 2},
    "hard": {"attention": "general", "selection": "hard"},
    "hard-drawn": {"attention": "cosine", "selection": "hard", "choice_seed": 5},
    "hard-expected": {"attention": "dot", "window": "local-p", "selection": "hard-expected"},
}
KINDS = list(FORMS)
SMOOTH = [kind for kind in KINDS if not kind.startswith("hard")]
WORDS = 17
SOURCES = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 2]]
TARGETS = torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 3, 3], [1, 16, 15, 14, 2]])


def tiny(kind="general", **options):
    """A model with one of the forms, whose scores are so far apart that choices are certain."""
    torch.manual_seed(0)
    form = FORMS.get(kind, {"attention": kind})
    sizes = {"d_model": 8, "layers": 2, "dropout": 0.3}
    model = Seq2Seq(Seq2SeqConfig(WORDS, **sizes | form | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("decoder.score", "decoder.form")):
                parameter.mul_(3.0)
    return model


def sources(rows=SOURCES):
    return Sequences.of(rows, pad=0)


def assert_close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("attention", SMOOTH)
def test_gradients_equal_finite_differences(attention):
    """The gradients of the loop, gathered over its steps, against finite differences."""
    model = tiny(attention).double()
    weigh = torch.randn(3, 5, 8, dtype=torch.float64)

    def loss():
        return (model(sources(), Sequences.full(TARGETS)).hidden * weigh).sum()

    loss().backward()
    for name, parameter in model.named_parameters():
        if name == "head.bias":
            continue
        assert parameter.grad is not None and parameter.grad.any(), name
        way = torch.randn_like(parameter)
        with torch.no_grad():
            ends = []
            for sign in (1e-5, -1e-5):
                parameter += sign * way
                ends.append(loss())
                parameter -= sign * way
        grad = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close((parameter.grad * way).sum(), grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("options", "message"), [
    ({"attention": "none", "window": "local-m"}, '`window` has no effect with attention = "none"'),
    ({"attention": "none", "selection": "hard"}, "`selection` has no effect with"),
    ({"half_width": 3}, '`half_width` .* "global": leave it out, or choose window = "local-m" or'),
    ({"choice_seed": 0}, '`choice_seed` has no effect with selection = "soft"'),
    ({"selection": "hard-expected", "expected_share": 0.1}, 'choose selection = "hard"'),
    ({"attention": "location"}, "`max_length` must say how many positions"),
    ({"d_embedding": 4}, "`d_embedding` must be `d_model` .8. where the output is tied"),
])  # fmt: skip
def test_unknown_forms_and_options_without_effect_raise_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        Seq2Seq(Seq2SeqConfig(WORDS, d_model=8, layers=1, **options))


@pytest.mark.parametrize(
    ("name", "alias"),
    [("additive", "concat"), ("additive", "multi-layer-perceptron"), ("general", "bilinear")],
)
def test_other_names_of_a_score_give_the_same_model(name, alias):
    one, other = tiny(name), tiny(alias)
    assert other.load_state_dict(one.state_dict())
    assert_close(*(model(sources(), Sequences.full(TARGETS)).hidden for model in (one, other)), 0.0)


def test_the_default_size_has_the_parameters_of_the_paper_s_matrices():
    """Section A.2.3: n = 1000, m = 620, l = 500, n' = 1000."""
    with torch.device("meta"):
        model = RNNSearch(RNNSearchConfig(30_000))
    n, m, maxout, inner = 1000, 620, 500, 1000
    encoder = 2 * 3 * n * (m + n)
    decoder = 3 * n * (m + n + 2 * n) + n * n
    alignment = inner * (n + 2 * n + 1)
    output = 2 * maxout * (n + m + 2 * n) + 30_000 * (maxout + 2 * m)
    biases = 2 * 3 * n + 3 * n + n + inner + 2 * maxout + 30_000  # which the paper leaves out
    expected = encoder + decoder + alignment + output + biases
    assert sum(p.numel() for p in model.parameters()) == expected
