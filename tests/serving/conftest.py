from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from served import running, service_of  # noqa: E402

from regard.tasks.search_index import SearchIndex  # noqa: E402

SEARCHED = ("a cat", "the warm sun", "who sat on the mat")  # the texts of an index
SERVED = (
    *("classification", "multi-label-classification", "regression", "tagging", "translation"),
    *("question-answering", "multiple-choice", "fill-mask", "parsing", "captioning"),
    *("language-modeling", "language-modeling-gpt2", "summarization", "embedding", "dialogue"),
)


@pytest.fixture(scope="session")
def service(folders, tmp_path_factory):
    """A running service with many models."""
    index = tmp_path_factory.mktemp("search") / "index"
    SearchIndex.build(folders["embedding"], SEARCHED).save(index)
    named = {**{name: folders[name] for name in SERVED}, "index": index}
    with running(service_of(named)) as made:
        yield made
