"""Coverage of 95 % intervals in simulated evaluations of many shapes.

    python benchmarks/intervals.py [--runs 2000] [--null-runs 1000]

A shape defines the difficulty of scenarios and the difference of a second model; each run draws new scenarios and
episodes. For each shape, number of scenarios and number of episodes: the share of runs whose interval holds the true
success of one model, and the true difference of the two, by our intervals and by scipy's percentile bootstrap over
scenarios. Then the p-value if two models are the same, or different but equally good: the share of runs in which it is
at most 0.01, 0.05, 0.1 and 0.5, and in which "at most 0.05" agrees with "the interval excludes 0". One JSON object on
stdout, a table on stderr.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap  # type: ignore[import-untyped]

from mcp_rl.evaluation.statistics import difference_interval, paired_p_value, success_interval

Rates = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Rates, Rates]]
RESAMPLES = 999
BOOTSTRAPPED = 400
"""Runs of each case for the bootstrap, which takes a hundred times as long."""


def mixed(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Scenarios from hopeless to certain; the second model is the same."""
    rates = random.beta(0.6, 0.4, count)
    return rates, rates


def trained(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Before and after training: 0.4 to 0.8."""
    rates = random.beta(0.6, 0.9, count)
    return rates, rates**0.25


def easy(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Nearly all scenarios are solved: 0.95 and 0.97."""
    rates = random.beta(9.5, 0.5, count)
    return rates, rates**0.6


def hard(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Hardly a scenario is solved: 0.05, and 0.15 by the second model."""
    rates = random.beta(1, 19, count)
    return rates, rates + 0.1 * (1 - rates)


def two_kinds(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """A scenario is nearly always solved or nearly never; the second model changes one in eight to the other."""
    rates = np.where(random.random(count) < 0.7, 0.98, 0.03)
    return rates, np.where(random.random(count) < 0.125, 1 - rates, rates)


def alike(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """All scenarios are equally hard: episodes are independent."""
    return np.full(count, 0.5), np.full(count, 0.6)


def strangers(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """The difficulties for the two models are independent."""
    return random.beta(2, 1, count), random.beta(2, 1, count)


SHAPES: list[Draw] = [mixed, trained, easy, hard, two_kinds, alike, strangers]


def coverage(shape: Draw, scenarios: int, samples: int, runs: int, seed: int) -> dict[str, Any]:
    """Return the shares of runs, 0 to 1, whose interval holds the truth."""
    random = np.random.default_rng([seed, scenarios, samples, SHAPES.index(shape)])
    truth = [float(rates.mean()) for rates in shape(random, 2_000_000)]
    difference = truth[1] - truth[0]
    held: dict[str, list[bool]] = {"success": [], "difference": [], "success bootstrap": [], "difference bootstrap": []}
    for number in range(runs):
        first, second = (
            (random.random((scenarios, samples)) < rates[:, None]).astype(float) for rates in shape(random, scenarios)
        )
        ours = success_interval(first.tolist()), difference_interval(first.tolist(), second.tolist())
        held["success"].append(_holds(ours[0], truth[0]))
        held["difference"].append(_holds(ours[1], difference))
        if number < min(runs, BOOTSTRAPPED):
            rates, differences = first.mean(1), second.mean(1) - first.mean(1)
            held["success bootstrap"].append(_holds(_percentile(rates, random), truth[0]))
            held["difference bootstrap"].append(_holds(_percentile(differences, random), difference))
    return {name: float(np.mean(found)) for name, found in held.items()}


def equally_easy(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Nearly all scenarios are solved by both models."""
    return (rates := random.beta(9.5, 0.5, count)), rates


def equally_hard(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """Hardly a scenario is solved by either model."""
    return (rates := random.beta(1, 19, count)), rates


def lopsided(random: np.random.Generator, count: int) -> tuple[Rates, Rates]:
    """The second model is much better at one scenario in ten and slightly worse at the others: the means are equal."""
    rates = np.full(count, 0.5)
    return rates, np.where(random.random(count) < 0.1, 0.95, 0.45)


NULLS: list[Draw] = [mixed, strangers, equally_easy, equally_hard, lopsided]
LEVELS = (0.01, 0.05, 0.1, 0.5)


def null(shape: Draw, scenarios: int, samples: int, runs: int, seed: int) -> dict[str, float]:
    """Return shares of runs, 0 to 1, for two models of equal mean: with a p-value of at most each level; with too few
    differing scenarios for any p-value under 0.05; and with p-value and interval in agreement."""
    random = np.random.default_rng([seed, scenarios, samples, NULLS.index(shape), 1])
    p_values: list[float] = []
    agree: list[bool] = []
    mute: list[bool] = []
    for _ in range(runs):
        first, second = (
            (random.random((scenarios, samples)) < rates[:, None]).astype(float) for rates in shape(random, scenarios)
        )
        differences = second.mean(1) - first.mean(1)
        p_values.append(paired_p_value(differences.tolist(), resamples=RESAMPLES, seed=len(p_values)))
        low, high = difference_interval(first.tolist(), second.tolist())
        agree.append((p_values[-1] <= 0.05) == (not low <= 0 <= high))
        mute.append(int(np.count_nonzero(differences)) < 6)  # 2 / 2**5 is more than 0.05
    found = {f"p<={level}": float(np.mean([p <= level + 1e-12 for p in p_values])) for level in LEVELS}
    return found | {"too_few_differ": float(np.mean(mute)), "agrees_with_interval": float(np.mean(agree))}


def _holds(interval: tuple[float, float], truth: float) -> bool:
    return bool(interval[0] - 1e-4 <= truth <= interval[1] + 1e-4)


def _percentile(values: Rates, random: np.random.Generator) -> tuple[float, float]:
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    found = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=random, vectorized=True
    ).confidence_interval
    return float(found.low), float(found.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--null-runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scenarios", type=int, nargs="+", default=[30, 100, 300])
    parser.add_argument("--samples", type=int, nargs="+", default=[1, 4])
    asked = parser.parse_args()
    rows = []
    for shape in SHAPES if asked.runs else []:
        for scenarios in asked.scenarios:
            for samples in asked.samples:
                found = [coverage(shape, scenarios, samples, asked.runs, seed) for seed in range(asked.seeds)]
                row = {"shape": shape.__name__, "scenarios": scenarios, "samples": samples}
                rows.append(row | {name: [one[name] for one in found] for name in found[0]})
                shares = "  ".join(f"{name} {np.mean([one[name] for one in found]):.3f}" for name in found[0])
                print(f"{shape.__name__:10} {scenarios:4} x {samples}  {shares}", file=sys.stderr, flush=True)
    nulls = []
    for shape in NULLS if asked.null_runs else []:
        for scenarios in asked.scenarios:
            for samples in asked.samples:
                row = {"shape": shape.__name__, "scenarios": scenarios, "samples": samples}
                nulls.append(row | null(shape, scenarios, samples, asked.null_runs, 0))
                print("  ".join(f"{name} {value}" for name, value in nulls[-1].items()), file=sys.stderr, flush=True)
    summary = {}
    for name in ("success", "difference", "success bootstrap", "difference bootstrap") if rows else ():
        every = [share for row in rows for share in row[name]]
        inside = [0.93 <= share <= 0.97 for share in every]
        summary[name] = {
            "inside_93_to_97": float(np.mean(inside)), "lowest": min(every), "highest": max(every), "cases": len(every)
        }  # fmt: skip
    measured = {"runs": asked.runs, "seeds": asked.seeds, "summary": summary, "rows": rows}
    print(json.dumps(measured | {"null_runs": asked.null_runs, "null": nulls}))


if __name__ == "__main__":
    main()
