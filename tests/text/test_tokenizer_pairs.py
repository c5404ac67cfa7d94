"""Sources and targets with a vocabulary each: trained, saved, loaded and exported."""

from __future__ import annotations

import pickle
from pathlib import Path

import regard
from regard.text import Tokenizer

PAIRS = [("ein alter hund", "an old dog"), ("die katze schläft", "the cat sleeps")] * 8
MODEL = dict(name="transformer", d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)


def trained(folder: Path, **tokenizer: object) -> regard.Run:
    return regard.train(
        task="translation", train=PAIRS, valid=PAIRS, model=dict(MODEL, max_length=32),
        tokenizer={"vocab_size": 60, **tokenizer}, max_steps=2, progress=False, out=folder,
    )  # fmt: skip


def test_a_pair_of_tokenizers_is_trained_saved_loaded_and_exported(tmp_path):
    run = trained(tmp_path / "run", shared=False)
    task = run.model
    source, target = task.tokenizer, task.tokenizer.for_targets
    assert "katze</w>" not in target.vocab() and "cat</w>" not in source.vocab()
    assert task.module.config.source_vocab_size == source.vocab_size
    assert task.module.config.vocab_size == target.vocab_size
    task.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved")
    text = "ein alter hund"
    assert again.translate(text, max_tokens=5) == task.translate(text, max_tokens=5)
    assert again.tokenizer.fingerprint() == pickle.loads(pickle.dumps(source)).fingerprint()
    assert again.tokenizer.decode(target.encode("the cat").ids) == "the cat"
    assert source.with_eos_template().for_targets is target
    made = regard.export(tmp_path / "saved", "ctranslate2", check=False)
    assert (
        Tokenizer.load(made.path.parent if made.path.is_file() else made.path).for_targets.vocab()
        == target.vocab()
    )
