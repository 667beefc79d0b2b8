"""Progress: bars on a terminal, few lines elsewhere."""

import io

from rich.console import Console

from mqbroker_demo.report import BarSteps, PlainSteps, make_steps


def test_a_pipe_gets_a_line_for_each_quarter() -> None:
    out = io.StringIO()
    with make_steps(Console(file=out)) as steps:
        assert isinstance(steps, PlainSteps)
        steps.add("publish", 1000)
        for done in range(1, 1001):
            steps.at("publish", done)
        steps.say("a [bold]note[/bold]")
    assert out.getvalue().splitlines() == [
        "publish: 250 of 1,000",
        "publish: 500 of 1,000",
        "publish: 750 of 1,000",
        "publish: 1,000 of 1,000",
        "a [bold]note[/bold]",
    ]


def test_a_terminal_gets_a_bar_for_each_step() -> None:
    out = io.StringIO()
    with make_steps(Console(file=out, force_terminal=True, width=100)) as steps:
        assert isinstance(steps, BarSteps)
        steps.add("publish", 1000)
        steps.add("consume", 1000)
        steps.at("publish", 500)
        steps.say("a [bold]note[/bold]")
    assert "500/1000" in out.getvalue()
    assert "consume" in out.getvalue()
    assert "a [bold]note[/bold]" in out.getvalue()
