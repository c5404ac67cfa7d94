"""Entities and their F1 against seqeval; conversions between schemes."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import scheme as schemes
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities

from regard.metrics import EntityF1, convert_tags, spans

TYPES = ("PER", "LOC", "MISC-X")
SCHEMES = ("IOB1", "IOB2", "IOBES")


def tags(prefixes="BIES"):
    # Two outsides, so that entities end now and then.
    return st.sampled_from(["O", "O", *(f"{p}-{t}" for p in prefixes for t in TYPES)])


def corpora(prefixes="BIES"):
    """Pairs of predicted and wanted tags of sentences."""
    pair = st.tuples(tags(prefixes), tags(prefixes))
    copied = tags(prefixes).map(lambda tag: (tag, tag))  # or few would be right
    sentence = st.lists(st.one_of(copied, copied, pair), max_size=12)
    return st.lists(sentence, min_size=1, max_size=5).map(
        lambda rows: tuple([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    )


def seqeval(found, wanted, **how):
    """(precision, recall, F1, number wanted): both averages, and of each type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of divisions by zero
        report = classification_report(wanted, found, output_dict=True, **how)
    rows = {name: tuple(row.values()) for name, row in report.items()}
    averages = {name: rows[f"{name} avg"] for name in ("micro", "macro")}
    return averages, {k: row for k, row in rows.items() if not k.endswith(" avg")}


def check(metric, found, wanted, **how):
    for at in range(0, len(found), 2):
        metric.add(found[at : at + 2], wanted[at : at + 2])
    score = metric.result()
    report = score.report.scores
    if not report.classes:
        assert (score.value, score.precision, score.recall) == (0, 0, 0)
        assert report.macro.precision_recall_f1() == (0, 0, 0)
        return
    averages, types = seqeval(found, wanted, **how)
    assert (score.precision, score.recall, score.value) == pytest.approx(averages["micro"][:3])
    for name, one in (("micro", report.micro), ("macro", report.macro)):
        assert (*one.precision_recall_f1(), one.targets) == pytest.approx(averages[name], abs=1e-12)
    assert {one.label for one in report.classes} == types.keys()
    for one in report.classes:
        assert (*one.precision_recall_f1(), one.targets) == pytest.approx(
            types[one.label], abs=1e-12
        )


@given(corpora())
def test_entity_f1_of_any_tags_equals_seqeval(corpus):
    check(EntityF1(), *corpus)
    for sentence in corpus[0]:
        expected = [(name, start, end + 1) for name, start, end in get_entities(sentence)]
        assert spans(sentence) == expected


@pytest.mark.parametrize("scheme", SCHEMES)
@given(sentence=st.lists(tags(), max_size=15))
def test_converted_tags_are_well_formed_and_have_the_same_entities(scheme, sentence):
    converted = convert_tags(sentence, scheme)
    assert spans(converted) == spans(sentence)
    # Well-formed: the strict reader sees just as many.
    tokens = schemes.Tokens(converted, getattr(schemes, scheme))
    assert [(e.tag, e.start, e.end) for e in tokens.entities] == spans(sentence)
    assert convert_tags(converted, scheme) == converted
    for other in SCHEMES:
        assert convert_tags(convert_tags(converted, other), scheme) == converted


@given(st.lists(tags(), max_size=15))
def test_bilou_has_the_entities_that_seqeval_reads_in_it(sentence):
    letters = {"E": "L", "S": "U"}
    bilou = [letters.get(tag[0], tag[0]) + tag[1:] for tag in convert_tags(sentence, "IOBES")]
    tokens = schemes.Tokens(bilou, schemes.BILOU)
    assert [(e.tag, e.start, e.end) for e in tokens.entities] == spans(bilou)


def sentences(path):
    found = [[]]
    for line in path.read_text().splitlines():
        if line.startswith("-DOCSTART-") or not line.strip():
            found.append([])
        else:
            found[-1].append(line.split()[-1])
    return [tags for tags in found if tags]


def test_conll_2003_has_the_published_entities_and_converts_to_iob2_and_back(shared):
    """The counts are those of the shared task's paper (Tjong Kim Sang and De Meulder 2003)."""
    counts = {"LOC": 1668, "MISC": 702, "ORG": 1661, "PER": 1617}
    wanted = sentences(shared("conll2003/eng.testb"))
    assert len(wanted) == 3453
    assert any("I-" in tag for tag in wanted[1]) and not any("B-" in tag for tag in wanted[1])
    metric = EntityF1()
    metric.add(wanted, wanted)
    score = metric.result()
    assert score.value == 1
    assert {one.label: one.targets for one in score.report.scores.classes} == counts
    converted = [convert_tags(tags, "IOB2") for tags in wanted]
    metric = EntityF1()
    metric.add(converted, wanted)
    assert metric.result().value == 1
    assert [convert_tags(tags, "IOB1") for tags in converted] == wanted
