"""Filter expressions: ours evaluated beside the Java system's filter module."""

import json
from pathlib import Path

from tests.filter.cases import by_chance, questions
from tests.filter.test_against_java import answer, recorded
from tests.interop.peers import PeerHost

#: Other ones than in the recorded table.
SEED = 4972


def test_expressions_have_the_same_outcomes(host: PeerHost, tmp_path: Path) -> None:
    asked = [*questions(), *by_chance(SEED, 5000)]
    cases, answers = tmp_path / "cases", tmp_path / "answers"
    cases.write_text("".join(json.dumps(question) + "\n" for question in asked))
    peer = host.start("filters", ["filters", "--cases", str(cases), "--answers", str(answers)])
    assert peer.wait_events("answered")[0]["count"] == len(asked)
    peer.finish()
    theirs = [json.loads(line) for line in answers.read_text().splitlines()]
    assert theirs[: len(questions())] == [row["answer"] for row in recorded()]
    different = [
        (question, ours, java_s)
        for question, java_s in zip(asked, theirs, strict=True)
        if (ours := answer(question)) != java_s
    ]
    assert different == []
