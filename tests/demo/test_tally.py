"""Counting what comes at least once."""

import pytest

from mqbroker_demo.corpus import Corpus, Count, Tally, line_key


def test_a_line_counts_once_however_often_it_comes() -> None:
    tally = Tally()
    for key, body in [("f:1", b"a b\n"), ("f:2", b"\n"), ("f:1", b"a b\n"), ("g:1", b"c")]:
        tally.add(key, body)
    assert (tally.arrived, tally.distinct, tally.duplicates) == (4, 3, 1)
    assert tally.counts() == {"f": Count(2, 2), "g": Count(1, 1)}


def test_all_lines_of_a_corpus_give_its_plain_count() -> None:
    corpus = Corpus({"a b": b"one two\n\nthree", "c": b"x\n"}, 0)
    tally = Tally()
    for line in corpus.lines():
        tally.add(line_key(line), line.body)
    assert tally.counts() == corpus.plain_count()


def test_a_key_that_is_not_a_lines_is_an_error() -> None:
    tally = Tally()
    tally.add("no-number", b"x")
    with pytest.raises(ValueError):
        tally.counts()
