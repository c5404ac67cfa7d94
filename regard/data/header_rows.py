"""First lines of tables that name the columns, though the columns were given by their numbers.

Such a line is a header where its fields are different and all of them usual names of columns; any
other is an example. `header = true` or `false` in [data] says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regard.data.files import ENDINGS, ending
from regard.data.readers import Row, RowReader
from regard.habit_names import TARGETS, TEXTS

USUAL_NAMES = {
    *TARGETS,
    *(name for names in TEXTS for name in names),
    *"article body category comment content context document gold_label headline input".split(),
    *"intent labels output polarity post query question rating review sentiment score".split(),
    *"source src stars summary target targets tgt title topic tweet".split(),
    *"cs de en es fi fr hi it ja nl pl pt ro ru zh english french german spanish".split(),
}


@dataclass(frozen=True, eq=False)
class WithoutHeader(RowReader):
    """The rows of a reader without the first line of a table, where it is a header."""

    reader: RowReader

    @property
    def may_have_header(self) -> bool:
        """See `RowReader`."""
        return self.reader.may_have_header

    def file_of(self, field: int) -> str:
        return self.reader.file_of(field)

    def numbered(self) -> Iterator[tuple[int, Row]]:
        """See `RowReader`."""
        rows = self.reader.numbered()
        if self.may_have_header:
            first = next(rows)
            names = [name.strip().lower().replace(" ", "_").replace("-", "_") for name in first[1]]
            if len({*names}) < len(names) or not USUAL_NAMES.issuperset(names):
                yield first
        yield from rows


def header_hint(file: str, line: int) -> str:
    """What to do where a wrong target stands in what may be a header; "" elsewhere."""
    if line > 1 or ENDINGS.get(ending(file)) not in ("tsv", "csv"):
        return ""
    return (
        'If this line is a header, give the columns by name, such as columns = ["text", "label"].'
    )
