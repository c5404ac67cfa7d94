"""Packages of runtimes that are missing, incomplete or damaged: each error says what to install."""

from __future__ import annotations

import pytest

from regard.errors import MissingExtra, RegardError
from regard.exporting.runtime import package


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (None, MissingExtra, "needs `their_runtime`, .* pip install their-runtime"),
        ("import no_such_one", MissingExtra, "The package `their_runtime.*` needs `no_such_one`"),
        (
            "import their_runtime.native",
            RegardError,
            "`their_runtime` is incomplete: it lacks `their_runtime.native`. .* "
            "pip install --force-reinstall their-runtime$",
        ),
        ("raise OSError('no libgomp')", RegardError, "cannot be imported: no libgomp"),
    ],
)
@pytest.mark.parametrize("name", ["their_runtime", "their_runtime.specs"])
def test_an_error_says_what_to_install(tmp_path, monkeypatch, name, source, kind, said):
    if source is not None:
        (tmp_path / "their_runtime").mkdir()
        (tmp_path / "their_runtime/__init__.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RegardError, match=said) as caught:
        package(name, "their-runtime")
    assert type(caught.value) is kind
