"""Files that are written completely or not at all, on disks that refuse."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from regard.errors import CheckpointError
from regard.file_writing import creating, rename_new, write_text


def test_a_disk_that_is_read_only_is_named_with_the_file_and_not_with_a_temporary_one(
    tmp_path, monkeypatch
):
    """As Linux does, which refuses to remove a file that does not exist there."""

    def refuse(path: Path, *given: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CheckpointError, match=r"results.json could not be written: .*Read-only"):
        write_text(tmp_path / "results.json", "{}")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_gets_a_new_name_unless_another_file_has_it(tmp_path, monkeypatch, links):
    def no_link(*paths: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    for name in "ab":
        (tmp_path / name).write_text(name)
    rename_new(tmp_path / "a", tmp_path / "new")
    with pytest.raises(FileExistsError):
        rename_new(tmp_path / "b", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "a" and (tmp_path / "b").read_text() == "b"
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("folder", [False, True])
def test_of_two_that_write_a_new_path_at_once_the_first_that_ends_keeps_it(tmp_path, folder):
    """Neither sees or removes what the other has begun."""

    def write(path: Path, text: str) -> None:
        if folder:
            path.mkdir()
            (path / text).write_text(text)
        else:
            path.write_text(text)

    path, first = tmp_path / "new", creating(tmp_path / "new")
    write(first.__enter__(), "a")
    with pytest.raises(CheckpointError, match="new is there already"), creating(path) as temporary:
        write(temporary, "b")
        first.__exit__(None, None, None)
    assert [one.name for one in tmp_path.iterdir()] == ["new"]
    assert (path / "a" if folder else path).read_text() == "a"
    assert not folder or [one.name for one in path.iterdir()] == ["a"]


@pytest.mark.parametrize("place", ["file/new", "x" * 250])
def test_a_path_that_cannot_be_is_an_error_that_names_it(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{place} could not be written"):
        with creating(tmp_path / place) as temporary:
            temporary.touch()
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("folder", [False, True])
def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path, folder):
    if (process := os.fork()) == 0:
        with creating(tmp_path / "new") as temporary:
            temporary.mkdir() if folder else temporary.write_text("half")
            os._exit(0)
    os.waitpid(process, 0)
    assert list(tmp_path.iterdir())
    with creating(tmp_path / "new") as temporary:
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
