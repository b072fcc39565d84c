import io

from rich.console import Console

from zerogap.obs import Progress


class FakeClock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def _console(*, is_terminal=False):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def test_without_a_terminal_a_long_phase_prints_a_line_now_and_then():
    console, clock = _console(), FakeClock()
    with Progress(console, clock=clock).phase("generate", total=100, unit="tokens") as phase:
        for second in range(40):
            clock.now_s = float(second)
            phase.advance(2)
    assert console.file.getvalue().splitlines() == [
        "  generate: 32/100 tokens after 15.0 s",
        "  generate: 62/100 tokens after 30.0 s",
    ]


def test_without_a_terminal_a_short_phase_prints_nothing():
    console = _console()
    with Progress(console).phase("train") as phase:
        phase.update(3, total=9)
    assert console.file.getvalue() == ""


def test_on_a_terminal_a_bar_is_shown_and_removed():
    console = _console(is_terminal=True)
    with Progress(console).phase("generate", total=10, unit="samples") as phase:
        phase.advance(4)
        phase.update(7, total=14)
    shown = console.file.getvalue()
    assert "generate" in shown
    assert "samples" in shown
    assert "7/14" in shown


def test_quiet_shows_nothing_anywhere():
    console = _console(is_terminal=True)
    with Progress(console, is_quiet=True).phase("generate", total=10) as phase:
        phase.advance()
        phase.update(5)
    assert console.file.getvalue() == ""
