"""Options of a model that contradict each other or have no effect are errors that name them."""

from __future__ import annotations

import pytest
from random_weights import new_model
from test_registry import TINY, V

IMPOSSIBLE = [
    ("conv-seq2seq", dict(encoder=((2, 4),)), "must be odd, to have a middle: 2"),
    ("conv-seq2seq", dict(encoder=()), "`encoder` must have at least one layer"),
    ("conv-seq2seq", dict(decoder=()), "`decoder` must have at least one layer"),
    ("bytenet", dict(d_model=7), "`d_model` must be even, but is 7"),
    ("bytenet", dict(kernel=2), "`kernel` must be odd"),
    ("bytenet", dict(sets=5001), "must make at most 10,000 blocks, but make 10,002"),
    ("bytenet", dict(dilations=()), "`dilations` must name at least one"),
    ("lstm-seq2seq", dict(window="local-m"), '`window` has no effect with attention = "none"'),
    ("lstm-seq2seq", dict(selection="hard"), "`selection` has no effect with"),
    ("lstm-seq2seq", dict(attention="dot", half_width=3),
     '`half_width` .* "global": leave it out, or choose window = "local-m" or'),
    ("lstm-seq2seq", dict(attention="dot", choice_seed=0),
     '`choice_seed` has no effect with selection = "soft"'),
    ("lstm-seq2seq", dict(attention="dot", selection="hard-expected", expected_share=0.1),
     'choose selection = "hard"'),
    ("lstm-seq2seq", dict(attention="location"), "`max_length` must say how many positions"),
    ("lstm-seq2seq", dict(d_embedding=4), "`d_embedding` must be `d_model` .8. where the output"),
    ("deberta", dict(position_buckets=1), "`position_buckets` must be"),
    ("deberta", dict(position_buckets=40, max_relative_positions=21), "`position_buckets` must be"),
    ("deberta", dict(conv_kernel_size=2), "`conv_kernel_size` must be"),
    ("albert", dict(layers=3, layers_per_group=2),
     r"`layers` must be a multiple of `layers_per_group` \(2\), but is 3"),
    ("adaptive-transformer", dict(cutoffs=(5, 5)), "`cutoffs` must ascend strictly"),
    ("adaptive-transformer", dict(cutoffs=(0,)), "`cutoffs` must ascend strictly"),
    ("adaptive-transformer", dict(cutoffs=(V,)), "`cutoffs` must ascend strictly"),
    ("adaptive-transformer", dict(cutoffs=(5, 6), divisor=3),
     "`d_embedding` must be at least 9"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "message"), IMPOSSIBLE, ids=str)
def test_options_that_cannot_be_raise_an_error_that_names_them(name, options, message):
    with pytest.raises(ValueError, match=message):
        new_model(name, V, **TINY[name][0] | options)
