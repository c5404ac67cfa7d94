"""Texts that are difficult for tokenizers, and strategies that draw more of them."""

from __future__ import annotations

from hypothesis import strategies as st

FRAGMENTS = [
    "the",
    "Unaffable",
    "naïve café",
    "e\u0301\u0302",  # combining marks on a letter
    "\u0301",  # and on nothing
    "ÅÄÖ ß ẞ",
    "İıſK",  # letters whose lower case has another length, or is ASCII
    "ǅ ﬁ ½ ²",
    "Straße Ωmega ς",
    "日本語の文",
    "中文字符",
    "한국어 \u1112\u1161\u11ab",  # precomposed and conjoining
    "हिन्दी ไทย தமிழ்",
    "שלום \u200fעולם",
    "مرحبا بالعالم",
    "👩\u200d👩\u200d👧\u200d👦",  # ZWJ sequence
    "👍🏽 🇫🇷 ❤\ufe0f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎",
    "\t",
    "\n",
    "\r\n",
    "  ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\x00",
    "\x1c",
    "\x7f",
    "\u200b",
    "\ufeff",
    "\ufffd",
    "\ue000",
    "\U000f0000",  # private use, as the trainer's own marks are
    "\U0010ffff",
    "don't we'll I'M",
    "...,,,!?",
    "$1,234.56",
    "a_b-c/d\\e",
    "http://x.y/?q=1&r=%20",
    "##ing",
    "</w>",
    "x" * 150,
    "ab" * 60,
    "é" * 101,
]

HARD = [
    "",
    " ",
    "     ",
    "\n\n\t \r\n",
    *FRAGMENTS,
    *(f" {fragment} {fragment}," for fragment in FRAGMENTS),
    "The quick brown fox, l'été à Paris; 3.14 % (ça va?)",
    "".join(FRAGMENTS),
    " ".join(FRAGMENTS),
]

SPECIAL_TEXTS = [
    "a [MASK] b",
    "[CLS]x[SEP]",
    "<s>a</s>",
    "x<|endoftext|>y",
    "[mask] [UNK]",
    "<unk>",
]

texts = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from([*FRAGMENTS, " ", "a", "Z"]), max_size=8).map("".join),
)
