"""Draw docs/images/overview.svg, the README's picture: `python docs/overview.py`.

Accuracy on Adult over the privacy budget, where federating pays and where it does not.
Eight splits of the rows, one run of the default plan on each.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import fedbudget as fb
from fedbudget.checks import Array
from fedbudget.reporting import style
from fedbudget.reporting.baselines import centralised, constant, local_only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILONS = (0.5, 1.0, 2.0, 4.0, 10.0)
SPLITS = range(8)
CASES = (
    ("iid", 200, "200 devices, 130 rows each: federating pays above epsilon 1"),
    (
        "by-education",
        16,
        "16 heterogeneous devices: local only is better",
    ),
)
PRICES = fb.Prices(communication=100, computation=1)


def planned_accuracies(data: fb.Dataset, seed: int) -> list[float]:
    """Return the test accuracy of the default plan, for every epsilon."""
    plans = [
        fb.plan(data.problem(), fb.Budget(epsilon=e, delta=1e-4, cost=1000), PRICES)
        for e in EPSILONS
    ]
    accuracy = fb.sweep(data, plans, seeds=[seed]).measured["test_accuracy"]
    return [float(value) for value in accuracy[:, 0]]


def measure_case(split: str, num_devices: int) -> tuple[Array, dict[str, float]]:
    """Return planned accuracies, (splits, epsilons), and the means of the baselines."""
    planned, others = [], []
    for seed in SPLITS:
        data = fb.load("adult", split=split, seed=seed, num_devices=num_devices)
        planned.append(planned_accuracies(data, seed))
        baselines = (centralised(data), local_only(data), constant(data))
        others.append([baseline.measured["test_accuracy"] for baseline in baselines])
    names = ("centralised, no privacy", "local only, nothing sent", "a constant")
    return np.array(planned), dict(zip(names, np.mean(others, axis=0), strict=True))


def draw_case(
    axes: "Axes", title: str, planned: Array, others: dict[str, float]
) -> None:
    """Draw one panel."""
    mean = 100 * planned.mean(axis=0)
    error = 100 * planned.std(axis=0, ddof=1) / np.sqrt(len(planned))
    axes.errorbar(
        EPSILONS,
        mean,
        error,
        **style.LINES[1].options(linestyle="-", linewidth=2.2, markersize=6),
        label="federated within both budgets",
    )
    looks = ((style.BLACK, (0, (5, 2))), (style.RED, "-"), (style.GREY, (0, (1, 1.5))))
    for (name, value), (color, dash) in zip(others.items(), looks, strict=True):
        axes.axhline(
            100 * value, color=color, linestyle=dash, linewidth=1.4, label=name
        )
    axes.set_title(title)
    axes.set_xscale("log")
    axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes.minorticks_off()
    axes.set_xlabel("privacy budget epsilon of every device (smaller is more private)")
    axes.set_ylabel("test accuracy, %")


def main() -> None:
    """Measure both cases and write the picture."""
    path = Path(__file__).parent / "images" / "overview.svg"
    with style.drawing():
        figure, ((left, right),) = style.panels(1, 2, size=(9.2, 3.5))
        for axes, (split, num_devices, title) in zip((left, right), CASES, strict=True):
            draw_case(axes, title, *measure_case(split, num_devices))
        style.legend_below(figure, [left, right], columns=4)
        style.save(figure, path.with_suffix(""), formats=("svg",))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
