"""What a call of the drivers says of itself: nothing at first, a line now and then, and the end of a long one."""

from __future__ import annotations

import io

from hidet_build.narrator import FIRST, INTERVAL, Narrator


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds since some time."""
        return self.now


def told(narrator: Narrator, stream: io.StringIO, clock: Clock, until: float) -> list[str]:
    """What is said while time passes in steps of a tenth of a second."""
    started = clock.now
    while clock.now < started + until:
        clock.now += 0.1
        narrator.tick()
    return stream.getvalue().splitlines()


def test_quick_calls_are_silent() -> None:
    """What is soon done needs no word, and no word of its end."""
    clock, stream = Clock(), io.StringIO()
    narrator = Narrator("2 modules", stream, clock)
    narrator.lowering(1, 2)
    said = told(narrator, stream, clock, FIRST - 0.5)
    narrator.close()

    assert [] == said
    assert "" == stream.getvalue()


def test_counts_and_the_end() -> None:
    """A line after two seconds, others at intervals, each with what was done by then."""
    clock, stream = Clock(), io.StringIO()
    narrator = Narrator("2 modules", stream, clock)
    clock.now += FIRST
    narrator.lowering(1, 2)
    narrator.actions_added(4)
    told(narrator, stream, clock, INTERVAL + 1)
    narrator.close()

    assert [
        "hidet-build: 2 modules: lowering, 1 of 2 done (2 s)",
        "hidet-build: 2 modules: compiling, 0 of 4 steps done (17 s)",
        "hidet-build: 2 modules: done (18 s)",
    ] == stream.getvalue().splitlines()


def test_waiting_for_others() -> None:
    """Who is waited for is told for as long as it lasts."""
    clock, stream = Clock(), io.StringIO()
    narrator = Narrator("2 modules", stream, clock)
    narrator.actions_added(4)
    narrator.waiting("//0:launch", 17, "there", 0.0)
    told(narrator, stream, clock, FIRST + 1)
    narrator.waited("//0:launch")
    told(narrator, stream, clock, INTERVAL)

    assert [
        "compiling, 0 of 4 steps done, waiting for process 17 on there, which compiles the same (2 s)",
        "compiling, 0 of 4 steps done (17 s)",
    ] == [line.removeprefix("hidet-build: 2 modules: ") for line in stream.getvalue().splitlines()]


def test_stream_that_is_closed() -> None:
    """A caller who has closed standard error, or has none, is not disturbed."""
    clock, stream = Clock(), io.StringIO()
    stream.close()
    for one in (stream, None):
        narrator = Narrator("2 modules", one, clock)
        clock.now += FIRST
        narrator.tick()
        narrator.close()
