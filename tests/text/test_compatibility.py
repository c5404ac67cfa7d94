"""A tokenizer that does not fit a model's ids is an error; a suspicious one gives a warning."""

from __future__ import annotations

import warnings

import pytest

from regard.errors import CheckpointError
from regard.text import Tokenizer
from regard.text.compatibility import check_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    return Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"vocab_size": 7},
        {"vocab_size": 64, "pad_token_id": 0, "mask_token_id": 4, "cls_token_id": None},
        {"vocab_size": 7, "eos_token_id": 50256, "bos_token_id": [1, 2]},  # it has no such pieces
    ],
)
def test_a_matching_tokenizer_gives_no_warning(tokenizer, config):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_tokenizer(tokenizer, config)
    assert told == []


def test_a_bos_id_that_starts_the_decoder_gives_no_warning(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "<s>", "</s>"]))
    tokenizer = Tokenizer.load(tmp_path)
    config = {"vocab_size": 9, "bos_token_id": 8, "eos_token_id": 8}
    with pytest.warns(UserWarning, match="`bos_token_id` 8, but"):
        check_tokenizer(tokenizer, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_tokenizer(tokenizer, config | {"decoder_start_token_id": 8})


def test_ids_beyond_the_vocabulary_raise_an_error_naming_the_last_token(tokenizer):
    with pytest.raises(CheckpointError, match=r"go up to 6 \('cat'\).*`vocab_size` 6"):
        check_tokenizer(tokenizer, {"vocab_size": 6})


@pytest.mark.parametrize("role", ["pad", "mask", "cls", "sep", "unk"])
def test_an_ordinary_token_with_a_special_id_of_the_model_raises_an_error(tokenizer, role):
    with pytest.raises(CheckpointError, match=f"`{role}_token_id` 5.*ordinary token 'the'"):
        check_tokenizer(tokenizer, {"vocab_size": 7, f"{role}_token_id": 5})


def test_exchanged_special_tokens_give_a_warning(tokenizer):
    with pytest.warns(
        UserWarning, match=r"`pad_token_id` 2, but .* pad token '\[PAD\]' has the id 0"
    ):
        check_tokenizer(tokenizer, {"vocab_size": 7, "pad_token_id": 2})
