"""Rows of texts and labels from the files of GLUE and of the Stanford Sentiment Treebank.

The files of GLUE's nine tasks, as the benchmark distributes them and as their authors did.

A file's layout is recognized by its first line. Fields are separated by tabs, quotes are
characters, and texts and labels are not changed: a label that a file writes as "entailment" is
"entailment", one that it writes as "1" is "1".

Trees with a label at every node, as in the Stanford Sentiment Treebank (Socher et al. 2013).

    (3 (2 It) (4 (2 's) (4 (3 lovely) (2 .))))

One tree stands on a line. The label of a sentence is that of the whole tree, and every phrase has
one, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path

from regard.data.files import check_file, lines, split_member
from regard.data.readers import Numbered, RowReader
from regard.errors import DataError, check_choice
from regard.text.trees import TOKEN, UNESCAPED


@dataclass(frozen=True)
class _Layout:
    """Which columns hold the texts and the label: by name under a header, or by number.

    widths: how many fields a line may have in a table without header; () in one with a header
    """

    texts: tuple[str, ...] | tuple[int, ...]
    label: str | int
    widths: tuple[int, ...] = ()

    def columns(self, first: list[str]) -> dict[str, int]:
        """The numbers of the columns, in a table with this first line."""
        names = (*("text", "text_pair")[: len(self.texts)], "label")
        columns = zip(names, (*self.texts, self.label), strict=True)
        return {name: n if isinstance(n, int) else first.index(n) for name, n in columns}

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


def read_glue(task: str, path: str | PathLike[str], part: str = "") -> RowReader:
    """Rows with the columns `text`, of pairs `text_pair`, and `label` of a GLUE task; the numbers
    of a second file's rows follow the first's.

    If the benchmark's files and the original ones are in one folder, the benchmark's are read; of
    the test part, the original ones, whose labels are not hidden.

    task: a name of TASKS
    path: the folder of the task, or of all tasks; or one file, without a part
    part: train, dev or test; for MNLI dev_matched and so on

    Raises:
        ConfigError: the task or the part is unknown.
        DataError: there is no such file; or, when it is read, for an unknown layout or a fault.
    """
    key = task.lower().replace("-", "")
    check_choice("task", key, TASKS)
    files = _files(TASKS[key], Path(path), part)
    read = partial(_glue_rows, TASKS[key], files)
    return RowReader(" and ".join(files), read, files={file: file for file in files})


def _glue_rows(task: _Task, paths: Sequence[str]) -> Numbered:
    number = 0
    for path in paths:
        before = number
        columns, widths = dict[str, int](), tuple[int, ...]()
        for number, line in enumerate(lines(path), before + 1):
            fields = line.split("\t")
            if not line:
                continue
            if not columns:
                layout = _layout_of(task, path, number - before, fields)
                columns, widths = layout.columns(fields), layout.widths or (len(fields),)
                if not layout.widths:
                    continue
            if len(fields) not in widths:
                allowed = " or ".join(map(str, widths))
                problem = f"has {len(fields)} fields, but should have {allowed}."
                raise DataError(path, number - before, problem)
            if not task.takes(label := fields[columns["label"]]):
                problem = f"has the label {label!r}; in {task.name} it is "
                problem += f"{task.allowed()}. Hidden labels cannot be read."
                raise DataError(path, number - before, problem)
            yield number, {name: fields[column] for name, column in columns.items()}


def _layout_of(task: _Task, path: str, number: int, fields: list[str]) -> _Layout:
    """The layout of a file, by its first line."""
    for layout in task.layouts:
        if not layout.widths:
            fits = {*layout.texts, layout.label} <= {*fields}
        else:
            fits = len(fields) in layout.widths and task.takes(fields[int(layout.label)])
        if fits:
            return layout
    shown = ", ".join(repr(field[:20]) for field in fields[:12])
    layouts = "; ".join(map(str, task.layouts))
    problem = f"is no file of {task.name} with labels: it begins with {shown}."
    raise DataError(path, number, problem, f"Known are: {layouts}.")


def _files(task: _Task, path: Path, part: str) -> tuple[str, ...]:
    """The files to read: one, or those that together are a part."""
    if not path.is_dir():
        check_file(split_member(path)[0])
        if part:
            raise DataError(path, None, f"is not a folder, and has no part {part!r}.")
        return (str(path),)
    check_choice("part", part, task.files)
    folder = path / task.name if (path / task.name).is_dir() else path
    candidates = task.files[part].split()
    for names in candidates:
        files = [folder / name for name in names.split("+")]
        if all(file.is_file() for file in files):
            return tuple(map(str, files))
    held = ", ".join(sorted(child.name for child in folder.iterdir())[:8])
    problem = f"has no part {part!r} of {task.name}: looked for {', '.join(candidates)}."
    raise DataError(folder, None, problem, f"It holds: {held or 'nothing'}.")


# ---------------------------------------------------------------------------------- sentiment trees


def read_sentiment_trees(path: str | PathLike[str], *, phrases: bool = False) -> RowReader:
    """Rows with the columns `text` and `label` of a file of trees: its sentences, words joined by
    spaces.

    phrases: every phrase, down to single words, instead of the sentences alone; the same text with
        the same label is one row, where it stands first. Sentences are phrases.

    Raises:
        DataError: when it is read, for a file that does not exist, malformed brackets, or a node
            without a label or without a word.
    """
    return RowReader(str(path), partial(_tree_rows, str(path), phrases))


def _tree_rows(path: str, phrases: bool) -> Numbered:
    seen = set[tuple[str, str]]()
    empty = True
    for number, line in enumerate(lines(path), 1):
        try:
            nodes = _nodes(line)
        except ValueError as error:
            raise DataError(path, number, str(error)) from None
        empty = empty and not nodes
        for text, label in nodes if phrases else nodes[-1:]:
            if not phrases or (text, label) not in seen:
                seen.add((text, label))
                yield number, {"text": text, "label": label}
    if empty:
        raise DataError(path, None, "has no tree.")


def _nodes(line: str) -> list[tuple[str, str]]:
    """The text and the label of every node of a tree, those below it first; [] of an empty line.

    A word of the treebank may have a space ("3 1/2").

    Raises:
        ValueError: this is not one tree.
    """
    nodes: list[tuple[str, str]] = []
    open_labels: list[str] = []
    starts: list[int] = []  # the words before each open node
    words: list[str] = []
    before = ""
    for token in TOKEN.findall(line):
        if token == "(":
            if nodes and not starts:
                raise ValueError("has more than one tree.")
            starts.append(len(words))
            open_labels.append("")
        elif not starts:
            raise ValueError(f"has {token!r} outside of the tree.")
        elif token == ")":
            label, text = open_labels.pop(), " ".join(words[starts.pop() :])
            if not label or not text:
                raise ValueError(f"has a node without a {'word' if label else 'label'}.")
            nodes.append((text, label))
        elif before == "(":
            open_labels[-1] = token
        else:
            words.append(UNESCAPED.get(token, token))
        before = token
    if starts:
        raise ValueError(f"has {len(starts)} brackets that are not closed.")
    return nodes
