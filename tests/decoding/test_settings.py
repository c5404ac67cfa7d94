"""Options by name: the methods and errors that they give, and generation_config.json both ways."""

import pytest

from regard.decoding import (
    GNMT,
    Beam,
    Greedy,
    MinTokens,
    NoRepeatNGram,
    Power,
    RelativeLimit,
    Sampling,
    Temperature,
    TopK,
    TopP,
    save,
)

METHODS = [
    Greedy(),
    Greedy(GNMT(0.8), (MinTokens(3), NoRepeatNGram(2)), RelativeLimit(1.5, 7)),
    Beam(5, 3, Power(0.6), True, (NoRepeatNGram(3),), 77),
    Beam(4, 1, GNMT(1.0), False, (), RelativeLimit()),
    Beam(4, 1, Power(0.0), "never"),
    Sampling(),
    Sampling((Temperature(0.8), TopK(50), TopP(0.95)), 4, 11, max_tokens=20),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_transformers_loads_saved_methods(method, tmp_path):
    transformers = pytest.importorskip("transformers")
    save(method, tmp_path, ids={"eos_token_id": 2})
    read = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert read.eos_token_id == 2
    assert read.do_sample == isinstance(method, Sampling)
    assert (read.num_beams or 1) == (method.size if isinstance(method, Beam) else 1)
    if isinstance(method, Sampling):
        parts = {type(part): part for part in method.filters}
        assert read.temperature == (parts[Temperature].value if Temperature in parts else 1.0)
        assert read.top_k == (parts[TopK].count if TopK in parts else 0)
        assert read.top_p == (parts[TopP].mass if TopP in parts else 1.0)
    if isinstance(method, Beam):
        assert read.num_return_sequences == method.n_best
        assert read.length_penalty == method.length_penalty.alpha
        assert read.early_stopping == method.early_stopping
