"""The files of GLUE's nine tasks, as the benchmark distributes them and as their authors did.

A file's layout is recognized by its first line. Fields are separated by tabs, quotes are
characters, and texts and labels are not changed: a label that a file writes as "entailment" is
"entailment", one that it writes as "1" is "1".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal

from regard.data.datasets.records import check_choice
from regard.data.files import check_file, lines, split_member
from regard.data.readers import Row, RowReader
from regard.data.token_arrays import ReadReport
from regard.errors import ConfigError, DataError
from regard.suggest import nearest

OnError = Literal["error", "skip"]
_HIDDEN = ("-1", "-", "")  # a label that a test set hides, or that annotators did not agree on


@dataclass(frozen=True)
class _Layout:
    """Which columns hold the texts and the label: by name under a header, or by number.

    widths: how many fields a line may have in a table without header; () in one with a header
    """

    texts: tuple[str, ...] | tuple[int, ...]
    label: str | int
    widths: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.widths:
            return f"a header with {', '.join(map(str, (*self.texts, self.label)))}"
        return f"{self.widths[0]} fields without a header, the label in field {self.label} from 0"


_PLAIN = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True)
class _Task:
    """A task of the benchmark.

    labels: none for a score from 0 to 5
    files: for each part, file names in the task's folder; the first that exists is read. Names
        joined by `+` are read one after the other.
    """

    name: str
    labels: tuple[str, ...]
    layouts: tuple[_Layout, ...]
    files: Mapping[str, str] = field(default_factory=lambda: _PLAIN)

    def takes(self, label: str) -> bool:
        """Whether this is a label of the task."""
        if self.labels:
            return label in self.labels
        try:
            return 0 <= float(label) <= 5
        except ValueError:
            return False

    def allowed(self) -> str:
        """The labels, in words."""
        return f"one of {', '.join(self.labels)}" if self.labels else "a number from 0 to 5"


_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment", *_BINARY)
_THREE = ("entailment", "neutral", "contradiction", "0", "1", "2")
_ONE, _TWO = _Layout(("sentence",), "label"), _Layout(("sentence1", "sentence2"), "label")
_QUESTIONS = ("question1", "question2")
_COLA = {
    "train": "train.tsv raw/in_domain_train.tsv in_domain_train.tsv",
    "dev": "dev.tsv raw/in_domain_dev.tsv+raw/out_of_domain_dev.tsv "
    "in_domain_dev.tsv+out_of_domain_dev.tsv",
    "test": "test.tsv",
}
_SST2 = {
    "train": "train.tsv sentiment-train",
    "dev": "dev.tsv sentiment-dev",
    "test": "sentiment-test test.tsv",
}
_MRPC = {
    "train": "train.tsv msr_paraphrase_train.txt",
    "dev": "dev.tsv",
    "test": "msr_paraphrase_test.txt test.tsv",
}
_STSB = {
    "train": "train.tsv original/sts-train.tsv sts-train.tsv sts-train.csv",
    "dev": "dev.tsv original/sts-dev.tsv sts-dev.tsv sts-dev.csv",
    "test": "original/sts-test.tsv sts-test.tsv sts-test.csv test.tsv",
}
_MNLI = {
    "train": "train.tsv multinli_1.0_train.txt",
    "dev_matched": "dev_matched.tsv multinli_1.0_dev_matched.txt",
    "dev_mismatched": "dev_mismatched.tsv multinli_1.0_dev_mismatched.txt",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_MRPC_LAYOUT = _Layout(("#1 String", "#2 String"), "Quality")
_STSB_LAYOUTS = _Layout(_TWO.texts, "score"), _TWO, _Layout((5, 6), 4, widths=(7, 8, 9))
_MNLI_LAYOUTS = _Layout(_TWO.texts, "gold_label"), _Layout(("premise", "hypothesis"), "label")

TASKS: dict[str, _Task] = {
    "cola": _Task("CoLA", _BINARY, (_ONE, _Layout((3,), 1, widths=(4,))), _COLA),
    "sst2": _Task("SST-2", _BINARY, (_ONE, _Layout((0,), 1, widths=(2,))), _SST2),
    "mrpc": _Task("MRPC", _BINARY, (_MRPC_LAYOUT, _TWO), _MRPC),
    "stsb": _Task("STS-B", (), _STSB_LAYOUTS, _STSB),
    "qqp": _Task(
        "QQP", _BINARY, (_Layout(_QUESTIONS, "is_duplicate"), _Layout(_QUESTIONS, "label"))
    ),
    "mnli": _Task("MNLI", _THREE, _MNLI_LAYOUTS, _MNLI),
    "qnli": _Task("QNLI", _ENTAILED, (_Layout(("question", "sentence"), "label"),)),
    "rte": _Task("RTE", _ENTAILED, (_TWO,)),
    "wnli": _Task("WNLI", _BINARY, (_TWO,)),
}


def read_glue(
    task: str,
    path: str | PathLike[str],
    part: str = "",
    *,
    labels: bool = True,
    on_error: OnError = "error",
) -> GlueReader:
    """Rows (text, label) or (text, second text, label) of a GLUE task.

    If the benchmark's files and the original ones are in one folder, the benchmark's are read; of
    the test part, the original ones, whose labels are not hidden.

    task: a name of TASKS
    path: the folder of the task, or of all tasks; or one file, without a part
    part: train, dev or test; for MNLI dev_matched and so on
    labels: whether labels are read; without them, rows are the texts alone
    on_error: for a row with a wrong number of fields or no label of the task, raise an error, or
        `skip` it and count it in the report

    Raises:
        ConfigError: the task, the part or `on_error` is unknown.
        DataError: there is no such file; or, when it is read, for an unknown layout or a fault.
    """
    check_choice("on_error", on_error, ("error", "skip"))
    key = task.lower().replace("-", "")
    if key not in TASKS:
        raise ConfigError(f"`task` is {task!r}, which is none of GLUE's. {nearest(key, TASKS)}")
    files = _files(TASKS[key], Path(path), part)
    return GlueReader(TASKS[key], files, labels, on_error)


class GlueReader(RowReader):
    """The rows of one part of a task; the numbers of a second file's rows follow the first's."""

    def __init__(self, task: _Task, paths: tuple[str, ...], labels: bool, on_error: OnError):
        self.task, self.paths, self.labels, self.on_error = task, paths, labels, on_error
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
                if not line or table.is_header(number - before, fields):
                    continue
                report.read += 1
                fault = table.fault(number - before, fields)
                if fault and self.on_error == "error":
                    raise fault[1]
                if fault:
                    report.note(f"{fault[0]}, example left out", number)
                    continue
                report.kept += 1
                yield number, tuple(fields[column] for column in table.columns)
        if not report.kept:
            problem = "no row is left." if report.read else "is empty: it has not one row."
            raise DataError(self.file_of(0), None, problem, f"{report}." * bool(report.read))


class _Table:
    """A file's layout, decided by its first line: the columns that are read, the label's last."""

    def __init__(self, task: _Task, path: str, labels: bool):
        self.task, self.path, self.labels = task, path, labels
        self.widths: tuple[int, ...] = ()
        self.columns: tuple[int, ...] = ()

    def is_header(self, number: int, fields: list[str]) -> bool:
        """Whether these fields are the header. The first call decides the layout."""
        if self.widths:
            return False
        layout = self._layout(number, fields)
        self.widths = layout.widths or (len(fields),)
        names = (*layout.texts, layout.label) if self.labels else layout.texts
        if layout.widths:
            self.columns = tuple(map(int, names))
            return False
        if self.labels and layout.label not in fields:
            problem = f"has no column {layout.label!r}: the labels of this part are hidden."
            raise DataError(
                self.path, number, problem, "In Python, labels=False gives the texts alone."
            )
        if twice := [name for name in names if fields.count(str(name)) > 1]:
            problem = f"has more than one column {twice[0]!r}."
            raise DataError(self.path, number, problem, "Rename one.")
        self.columns = tuple(fields.index(str(name)) for name in names)
        return True

    def _layout(self, number: int, fields: list[str]) -> _Layout:
        layouts = self.task.layouts
        headed = [
            layout for layout in layouts if not layout.widths and set(layout.texts) <= set(fields)
        ]
        if headed:
            return min(headed, key=lambda layout: layout.label not in fields)
        for layout in layouts:
            if len(fields) in layout.widths and self.task.takes(fields[int(layout.label)]):
                return layout
        shown = ", ".join(repr(field[:20]) for field in fields[:12])
        problem = f"is no file of {self.task.name} that is known here: it begins with {shown}."
        raise DataError(self.path, number, problem, f"Known are: {'; '.join(map(str, layouts))}.")

    def fault(self, number: int, fields: list[str]) -> tuple[str, DataError] | None:
        """The kind of fault of a row, if it has one, and the error that describes it."""
        hint = "With on_error='skip' such rows are left out and counted"
        count = len(fields)
        if count not in self.widths:
            widths = " or ".join(map(str, self.widths))
            problem = f"has {count} field{'s' if count != 1 else ''}, but should have {widths}."
            return "wrong number of fields", DataError(self.path, number, problem, f"{hint}.")
        label = fields[self.columns[-1]]
        if not self.labels or self.task.takes(label):
            return None
        if label in _HIDDEN:
            problem, kind = f"has no label: the field is {label!r}.", "no label"
            hint += "; in Python, labels=False gives the texts alone."
        else:
            problem = f"has the label {label!r}; in {self.task.name} it is {self.task.allowed()}."
            hint, kind = f"{hint}.", "unknown label"
        return kind, DataError(self.path, number, problem, hint)


def _files(task: _Task, path: Path, part: str) -> tuple[str, ...]:
    """The files to read: one, or those that together are a part."""
    if not path.is_dir():
        check_file(split_member(path)[0])
        if part:
            problem = f"is not a folder, and only a folder has parts, such as {part!r}."
            raise DataError(path, None, problem, "A file is given without a part.")
        return (str(path),)
    if part not in task.files:
        said = f"is {part!r}" if part else "is missing"
        hint = nearest(part, task.files) if part else f"Known are: {', '.join(task.files)}."
        raise ConfigError(f"`part` of {task.name} {said}. {hint}")
    folder = path / task.name if (path / task.name).is_dir() else path
    candidates = task.files[part].split()
    for names in candidates:
        files = [folder / name for name in names.split("+")]
        if all(file.is_file() for file in files):
            return tuple(map(str, files))
    tried = ", ".join(candidates).replace("+", " with ")
    held = ", ".join(sorted(child.name for child in folder.iterdir())[:8])
    problem = f"has no part {part!r} of {task.name}: looked for {tried}."
    raise DataError(folder, None, problem, f"It holds: {held or 'nothing'}.")
