"""Seconds by stage: what overlaps within a stage counts once."""

from __future__ import annotations

from antiphon.learner.record.stages import GENERATE, SCORE, StageClock


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pieces_that_overlap_count_once_and_pauses_between_them_do_not() -> None:
    time = Time()
    clock = StageClock(time)
    with clock.measure(GENERATE):
        time.now += 1
        with clock.measure(GENERATE):
            time.now += 2
        time.now += 4
    time.now += 8
    with clock.measure(GENERATE):
        time.now += 16
    assert clock.take()[GENERATE] == 1 + 2 + 4 + 16


def test_stages_that_overlap_each_count_in_full_and_start_anew_when_taken() -> None:
    time = Time()
    clock = StageClock(time)
    with clock.measure(GENERATE), clock.measure(SCORE):
        time.now += 3
    seconds = clock.take()
    assert (seconds[GENERATE], seconds[SCORE]) == (3, 3)
    assert set(clock.take().values()) == {0.0}


def test_work_that_fails_is_measured_too() -> None:
    time = Time()
    clock = StageClock(time)
    try:
        with clock.measure(SCORE):
            time.now += 5
            raise ValueError
    except ValueError:
        time.now += 7
    assert clock.take()[SCORE] == 5
