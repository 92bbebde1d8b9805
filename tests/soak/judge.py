"""Judges the figures of a soak (soak.py): is a series flat? `python3 judge.py` runs the tests of this file.

A long run is judged by the slope of a straight line: it fails if the slope's whole confidence interval lies above 1 % of
the mean an hour. A run of less than an hour behind its warm-up is too short to tell 1 % an hour from noise; it is judged
by what was added between its first and its last third, and the verdict says so."""

import math
import statistics
from typing import NamedTuple

DRIFT_PERCENT_MAX = 1.0
HOURS_MIN = 1.0
WARM_UP = 0.25
# Student's t, two-sided 95 %, by degrees of freedom; between the lines the line above holds.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 15: 2.13, 20: 2.09, 30: 2.04, 60: 2.0}


class Growth(NamedTuple):
    """What a short run may add, as a share of the series' beginning and in its own unit; the larger one counts."""

    share: float
    unit: float


class Verdict(NamedTuple):
    good: bool
    text: str


def slope(hours: list[float], values: list[float]) -> tuple[float, float]:
    """The slope of the least-squares line in percent of the mean an hour, and half its 95 % interval."""
    count, mean_x, mean_y = len(hours), statistics.fmean(hours), statistics.fmean(values)
    spread = sum((x - mean_x) ** 2 for x in hours)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(hours, values)) / spread
    rest = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in zip(hours, values))
    student = STUDENT[max(it for it in STUDENT if it <= count - 2)]
    half = student * math.sqrt(rest / (count - 2) / spread)
    return 100 * rise / mean_y, 100 * half / mean_y


def judge(hours: list[float], values: list[float], growth: Growth) -> Verdict:
    """Judges a series behind its warm-up, the first quarter of the run."""
    warm = [at for at, hour in enumerate(hours) if hour >= WARM_UP * hours[-1]]
    hours, values = [hours[at] for at in warm], [values[at] for at in warm]
    if len(hours) < 6:
        return Verdict(False, f"{len(hours)} samples behind the warm-up are too few to judge anything")
    if hours[-1] - hours[0] < HOURS_MIN:
        third = len(values) // 3
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        most = max(growth.unit, growth.share * first)
        text = f"{first:.0f} to {last:.0f}, at most {most:.0f} more; too short to judge a drift"
        return Verdict(last - first <= most, text)
    drift, half = slope(hours, values)
    text = f"{drift:+.2f} % an hour ({drift - half:+.2f} to {drift + half:+.2f}), at most {DRIFT_PERCENT_MAX:.0f} %"
    return Verdict(drift - half <= DRIFT_PERCENT_MAX, text)


def test() -> None:
    """Lines whose slope is known, with noise that is known."""
    noise = [0.0, 1.0, -1.0, 0.5, -0.5]
    long = [at / 60 for at in range(241)]

    def line(percent: float, hours: list[float]) -> list[float]:
        return [100 + percent * hour + noise[at % 5] for at, hour in enumerate(hours)]

    some = Growth(0.05, 0)
    drift, half = slope(long, line(2, long))
    assert abs(drift - 100 * 2 / 104) < 0.05 and 0.03 < half < 0.2, (drift, half)
    assert judge(long, line(0.5, long), some).good
    assert not judge(long, line(2, long), some).good
    assert judge(long, line(-5, long), some).good, "what shrinks is no leak"
    short = [at / 60 for at in range(13)]
    verdict = judge(short, line(20, short), some)
    assert verdict.good and "too short" in verdict.text, verdict
    assert not judge(short, line(90, short), some).good
    assert not judge(short, [8.0] * 9 + [9.0] * 4, Growth(0, 0)).good, "one descriptor more is a leak"
    assert judge(short, [9.0] + [8.0] * 12, Growth(0, 0)).good
    # Growth in the first quarter is no drift: caches fill.
    assert judge(long, [50.0] * 60 + [100.0] * 181, some).good
    assert not judge(short[:6], [1.0] * 6, some).good, "nothing is judged by five samples"


if __name__ == "__main__":
    test()
    print("judge: a line that drifts is told from one that does not")
