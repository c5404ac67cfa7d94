"""The files of GLUE's nine tasks, as the benchmark distributes them and as their authors did.

Which of the layouts a file has is seen from its first line. Fields are separated by tabs, quotes
are characters, and texts and labels come out as they stand: a label that a file writes as
"entailment" is "entailment", one that it writes as "1" is "1".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

from regard.data.datasets.records import one_of
from regard.data.files import check_file, lines, split_member
from regard.data.readers import Row, RowReader
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError
from regard.suggest import nearest

Faults = Literal["error", "skip"]
_HIDDEN = ("-1", "-", "")  # where a test set hides its label, or annotators did not agree


@dataclass(frozen=True)
class _Layout:
    """Where the texts and the label stand: under these names of a header, or at these places.

    `widths`: how many fields a line may have in a table without header, () in one with a header.
    """

    texts: tuple[str, ...] | tuple[int, ...]
    label: str | int
    widths: tuple[int, ...] = ()

    def said(self) -> str:
        """The layout in words."""
        if not self.widths:
            return f"a header with {', '.join(map(str, (*self.texts, self.label)))}"
        return f"{self.widths[0]} fields without a header, the label in field {self.label} from 0"


@dataclass(frozen=True)
class _Task:
    """A task's name in print, its labels (none for a score from 0 to 5), its layouts and files.

    `files`: for each part, where it may lie in the task's folder; the first that is there is read.
    Several names in one string, with `+` between, are read one after the other.
    """

    name: str
    labels: tuple[str, ...]
    layouts: tuple[_Layout, ...]
    files: Mapping[str, tuple[str, ...]]

    def takes(self, label: str) -> bool:
        """Whether this is a label of the task."""
        if self.labels:
            return label in self.labels
        try:
            return 0 <= float(label) <= 5
        except ValueError:
            return False

    def wanted(self) -> str:
        """The labels, in words."""
        return f"one of {', '.join(self.labels)}" if self.labels else "a number from 0 to 5"


_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment", *_BINARY)
_SENTENCE = _Layout(("sentence",), "label")
_SENTENCES = _Layout(("sentence1", "sentence2"), "label")
_PLAIN = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}

TASKS: dict[str, _Task] = {
    "cola": _Task(
        "CoLA",
        _BINARY,
        (_SENTENCE, _Layout((3,), 1, widths=(4,))),
        {
            "train": ("train.tsv", "raw/in_domain_train.tsv", "in_domain_train.tsv"),
            "dev": (
                "dev.tsv",
                "raw/in_domain_dev.tsv+raw/out_of_domain_dev.tsv",
                "in_domain_dev.tsv+out_of_domain_dev.tsv",
            ),
            "test": ("test.tsv",),
        },
    ),
    "sst2": _Task(
        "SST-2",
        _BINARY,
        (_SENTENCE, _Layout((0,), 1, widths=(2,))),
        {part: (f"{part}.tsv", f"sentiment-{part}") for part in ("train", "dev")}
        | {"test": ("sentiment-test", "test.tsv")},
    ),
    "mrpc": _Task(
        "MRPC",
        _BINARY,
        (_Layout(("#1 String", "#2 String"), "Quality"), _SENTENCES),
        {
            "train": ("train.tsv", "msr_paraphrase_train.txt"),
            "dev": ("dev.tsv",),
            "test": ("msr_paraphrase_test.txt", "test.tsv"),
        },
    ),
    "stsb": _Task(
        "STS-B",
        (),
        (
            _Layout(("sentence1", "sentence2"), "score"),
            _SENTENCES,
            _Layout((5, 6), 4, widths=(7, 8, 9)),
        ),
        {
            "train": ("train.tsv", "original/sts-train.tsv", "sts-train.tsv", "sts-train.csv"),
            "dev": ("dev.tsv", "original/sts-dev.tsv", "sts-dev.tsv", "sts-dev.csv"),
            "test": ("original/sts-test.tsv", "sts-test.tsv", "sts-test.csv", "test.tsv"),
        },
    ),
    "qqp": _Task(
        "QQP",
        _BINARY,
        (
            _Layout(("question1", "question2"), "is_duplicate"),
            _Layout(("question1", "question2"), "label"),
        ),
        _PLAIN,
    ),
    "mnli": _Task(
        "MNLI",
        ("entailment", "neutral", "contradiction", "0", "1", "2"),
        (
            _Layout(("sentence1", "sentence2"), "gold_label"),
            _Layout(("premise", "hypothesis"), "label"),
        ),
        {
            "train": ("train.tsv", "multinli_1.0_train.txt"),
            "dev_matched": ("dev_matched.tsv", "multinli_1.0_dev_matched.txt"),
            "dev_mismatched": ("dev_mismatched.tsv", "multinli_1.0_dev_mismatched.txt"),
            "test_matched": ("test_matched.tsv",),
            "test_mismatched": ("test_mismatched.tsv",),
        },
    ),
    "qnli": _Task("QNLI", _ENTAILED, (_Layout(("question", "sentence"), "label"),), _PLAIN),
    "rte": _Task("RTE", _ENTAILED, (_SENTENCES,), _PLAIN),
    "wnli": _Task("WNLI", _BINARY, (_SENTENCES,), _PLAIN),
}


def read_glue(
    task: str,
    path: str | PathLike[str],
    part: str = "",
    *,
    labels: bool = True,
    faults: Faults = "error",
) -> GlueReader:
    """Rows (text, label) or (text, second text, label) of a GLUE task: a name of TASKS.

    `path` is the folder of the task, or of all tasks, with the `part` to read (train, dev, test;
    for MNLI dev_matched and so on), or one file without a part. Where the benchmark's files lie
    beside the original ones, the benchmark's are read; of the test part, the original ones, whose
    labels are not hidden.

    `labels=False` gives the texts alone. A row that has another number of fields than it should, or
    no label of the task, is refused; `faults="skip"` leaves it out and counts it in `report`.
    """
    one_of("faults", faults, ("error", "skip"))
    key = task.lower().replace("-", "")
    if key not in TASKS:
        raise ConfigError(f"`task` is {task!r}, which is none of GLUE's. {nearest(key, TASKS)}")
    files = _files(TASKS[key], Path(path), part)
    return GlueReader(TASKS[key], files, labels, faults)


class GlueReader(RowReader):
    """The rows of one part of a task. Rows of a second file are numbered on from the first's."""

    def __init__(self, task: _Task, paths: tuple[str, ...], labels: bool, faults: Faults):
        self.task, self.paths, self.labels, self.faults = task, paths, labels, faults
        self.report = ReadReport(paths)

    def file_of(self, field: int) -> str:
        return " and ".join(self.paths)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        self.report = report = ReadReport(self.paths)
        number = 0
        for path in self.paths:
            table, before = _Table(self.task, path, self.labels), number
            for number, line in enumerate(lines(path), before + 1):
                fields = line.split("\t")
                if not line or table.begins(number - before, fields):
                    continue
                report.read += 1
                fault = table.fault(number - before, fields)
                if fault and self.faults == "error":
                    raise fault[1]
                if fault:
                    report.note(f"{fault[0]}, row left out", number)
                    continue
                report.kept += 1
                yield number, table.row(fields)
        if not report.kept:
            problem = "no row is left." if report.read else "is empty: it has not one row."
            raise DataError(self.file_of(0), None, problem, f"{report}." * bool(report.read))


class _Table:
    """A file's layout, decided by its first line, and what a row of it must be."""

    def __init__(self, task: _Task, path: str, labels: bool):
        self.task, self.path, self.labels = task, path, labels
        self.widths: tuple[int, ...] = ()
        self.places: tuple[int, ...] = ()
        self.label = -1

    def begins(self, number: int, fields: list[str]) -> bool:
        """Whether these fields are the header. The first line decides the layout."""
        if self.widths:
            return False
        layout = self._recognized(number, fields)
        if layout.widths:
            self.widths = layout.widths
            self.places, self.label = tuple(map(int, layout.texts)), int(layout.label)
            return False
        self.widths = (len(fields),)
        self.places = tuple(fields.index(str(name)) for name in layout.texts)
        if self.labels:
            self.label = self._label(number, fields, str(layout.label))
        return True

    def _recognized(self, number: int, fields: list[str]) -> _Layout:
        task = self.task
        headed = [x for x in task.layouts if not x.widths and set(x.texts) <= set(fields)]
        for layout in sorted(headed, key=lambda x: x.label not in fields):
            return layout
        for layout in task.layouts:
            if len(fields) in layout.widths and task.takes(fields[int(layout.label)]):
                return layout
        shown = ", ".join(repr(field[:20]) for field in fields[:12])
        problem = f"is no file of {task.name} that is known here: it begins with {shown}."
        known = "; ".join(layout.said() for layout in task.layouts)
        raise DataError(self.path, number, problem, f"Known are: {known}.")

    def _label(self, number: int, fields: list[str], name: str) -> int:
        if name in fields:
            return fields.index(name)
        problem = f"has no column {name!r}: the labels of this part are hidden."
        raise DataError(self.path, number, problem, "labels=False gives the texts alone.")

    def fault(self, number: int, fields: list[str]) -> tuple[str, DataError] | None:
        """What kind of fault this row has, and the error that says it in full."""
        hint = "With faults='skip' such rows are left out and counted"
        count = len(fields)
        if count not in self.widths:
            wanted = " or ".join(map(str, self.widths))
            problem = f"has {count} field{'s' if count != 1 else ''}, but should have {wanted}."
            return "wrong number of fields", DataError(self.path, number, problem, f"{hint}.")
        label = fields[self.label] if self.labels else ""
        if not self.labels or self.task.takes(label):
            return None
        if label in _HIDDEN:
            problem = f"has no label: {label!r} stands in its place."
            hint += "; labels=False gives the texts alone."
            return "no label", DataError(self.path, number, problem, hint)
        problem = f"has the label {label!r}; in {self.task.name} it is {self.task.wanted()}."
        return "unknown label", DataError(self.path, number, problem, f"{hint}.")

    def row(self, fields: list[str]) -> Row:
        places = (*self.places, self.label) if self.labels else self.places
        return tuple(fields[place] for place in places)


def _files(task: _Task, path: Path, part: str) -> tuple[str, ...]:
    """The files to read: one, or those that together are a part."""
    if not path.is_dir():
        check_file(split_member(path)[0])
        if part:
            problem = f"is not a folder, and only of a folder a part is read: {part!r}."
            raise DataError(path, None, problem, "A file is given without a part.")
        return (str(path),)
    if part not in task.files:
        said = f"is {part!r}" if part else "is missing"
        hint = nearest(part, task.files) if part else f"Known are: {', '.join(task.files)}."
        raise ConfigError(f"`part` of {task.name} {said}. {hint}")
    folder = path / task.name if (path / task.name).is_dir() else path
    for names in task.files[part]:
        found = [folder / name for name in names.split("+")]
        if all(file.is_file() for file in found):
            return tuple(map(str, found))
    tried = ", ".join(names.replace("+", " with ") for names in task.files[part])
    held = ", ".join(sorted(child.name for child in folder.iterdir())[:8])
    problem = f"has no part {part!r} of {task.name}: looked for {tried}."
    raise DataError(folder, None, problem, f"It holds: {held or 'nothing'}.")
