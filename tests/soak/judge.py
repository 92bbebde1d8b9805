"""Judges the figures of a soak (soak.py): is a series flat? `python3 judge.py` runs the tests of this file.

A long run is judged by the slope of a straight line: it fails if the slope's whole confidence interval lies above 1 % of
the mean an hour. The interval of 95 % is one for all series of a kind together: of ten series of mere noise, one or
more would fail in 22 of 100 runs if each had its own. A run of less than an hour behind its warm-up is too short to
tell 1 % an hour from noise; it is judged by what was added between its first and its last third, and the verdict says
so."""

import math
import statistics
from typing import NamedTuple

DRIFT_PERCENT_MAX = 1.0
HOURS_MIN = 1.0
WARM_UP = 0.25


class Growth(NamedTuple):
    """What a short run may add, as a share of the series' beginning and in its own unit; the larger one counts."""

    share: float
    unit: float


class Verdict(NamedTuple):
    good: bool
    text: str


def warm(hours: list[float]) -> list[int]:
    """Which samples lie behind the warm-up, the first quarter of the run."""
    return [at for at, hour in enumerate(hours) if hour >= WARM_UP * hours[-1]]


def is_long(hours: list[float]) -> bool:
    """Whether the run is judged by a slope."""
    return bool(hours) and hours[-1] - hours[warm(hours)[0]] >= HOURS_MIN


def student(freedom: int, alike: int) -> float:
    """The quantile of Student's t for a two-sided interval of 95 % that holds for `alike` series together (Bonferroni);
    from the normal one by the first term of its expansion, which is 1 % off at ten degrees of freedom."""
    z = statistics.NormalDist().inv_cdf(1 - 0.025 / alike)
    return z + (z**3 + z) / (4 * freedom)


def slope(hours: list[float], values: list[float], alike: int = 1) -> tuple[float, float]:
    """The slope of the least-squares line in percent of the mean an hour, and half its interval (`student`)."""
    count, mean_x, mean_y = len(hours), statistics.fmean(hours), statistics.fmean(values)
    spread = sum((x - mean_x) ** 2 for x in hours)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(hours, values)) / spread
    rest = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in zip(hours, values))
    half = student(count - 2, alike) * math.sqrt(rest / (count - 2) / spread)
    return 100 * rise / mean_y, 100 * half / mean_y


def judge(hours: list[float], values: list[float], growth: Growth, alike: int = 1) -> Verdict:
    """Judges one of `alike` series behind its warm-up."""
    long = is_long(hours)
    behind = warm(hours)
    hours, values = [hours[at] for at in behind], [values[at] for at in behind]
    if len(hours) < 6:
        return Verdict(False, f"{len(hours)} samples behind the warm-up are too few to judge anything")
    if not long:
        third = len(values) // 3
        first, last = statistics.median(values[:third]), statistics.median(values[-third:])
        most = max(growth.unit, growth.share * first)
        text = f"{first:.0f} to {last:.0f}, at most {most:.0f} more; too short to judge a drift"
        return Verdict(last - first <= most, text)
    drift, half = slope(hours, values, alike)
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
    # From tables of Student's t.
    for freedom, alike, wanted in ((30, 1, 2.042), (60, 1, 2.000), (60, 10, 2.915), (120, 10, 2.860)):
        assert abs(student(freedom, alike) - wanted) < 0.01, (freedom, alike, student(freedom, alike))
    assert judge(long, line(0.5, long), some).good
    assert not judge(long, line(2, long), some).good
    assert judge(long, line(-5, long), some).good, "what shrinks is no leak"
    short = [at / 60 for at in range(13)]
    verdict = judge(short, line(20, short), some)
    assert verdict.good and "too short" in verdict.text, verdict
    assert not judge(short, line(90, short), some).good
    assert not judge(short, [8.0] * 9 + [9.0] * 4, Growth(0, 0)).good, "one descriptor more is a leak"
    assert judge(short, [9.0] + [8.0] * 12, Growth(0, 0)).good
    # What comes in the first quarter is no drift: caches fill.
    assert judge(long, [50.0] * 60 + [100.0] * 181, some).good
    assert not judge(short[:6], [1.0] * 6, some).good, "nothing is judged by five samples"


if __name__ == "__main__":
    test()
    print("judge: a line that drifts is told from one that does not")
