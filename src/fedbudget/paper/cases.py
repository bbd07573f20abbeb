"""The paper's four cases and budgets, and how much of the evaluation to run."""

from dataclasses import dataclass, field

from fedbudget.budget import Prices
from fedbudget.checks import choice
from fedbudget.data import Dataset, load

PRICES = Prices(communication=100, computation=1)
DELTA = 1e-4

# What DP-SGD and DP-PASGD stand for in the paper's first figure.
SGD_TAU, PASGD_TAU, FIRST_EPSILON, FIRST_COST = 1, 10, 10.0, 1000.0
DP_SGD, DP_PASGD = f"DP-SGD (tau = {SGD_TAU})", f"DP-PASGD (tau = {PASGD_TAU})"

LONGEST_TAU = 20  # of the paper's search


@dataclass(frozen=True, kw_only=True)
class Case:
    """A data set, how its rows are dealt out, and the loss."""

    name: str
    data: str
    split: str
    loss: str

    def load(self, *, repeat: int, vehicle: str | None = None) -> Dataset:
        """Return the rows; every repeat splits them 80/10/10 in its own way."""
        path = vehicle if self.data == "vehicle" else None
        return load(self.data, split=self.split, seed=repeat, path=path)

    def synthetic(self, vehicle: str | None = None) -> bool:
        """Say whether the rows are a stand-in for real ones."""
        return self.data == "vehicle" and vehicle is None

    def label(self, vehicle: str | None = None) -> str:
        """Return the name, marked where the rows are not real."""
        marked = f"{self.name} (SYNTHETIC stand-in)"
        return marked if self.synthetic(vehicle) else self.name


CASES = (
    Case(name="Adult-1", data="adult", split="by-education", loss="logistic"),
    Case(name="Adult-2", data="adult", split="iid", loss="logistic"),
    Case(name="Vehicle-1", data="vehicle", split="by-sensor", loss="hinge"),
    Case(name="Vehicle-2", data="vehicle", split="iid", loss="hinge"),
)


def case_named(name: str) -> Case:
    """Return the case of that name, however it is capitalised."""
    known = {case.name.lower(): case for case in CASES}
    return known[choice("case", name.strip().lower(), tuple(known))]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much to run: budgets, grids and repeats."""

    name: str
    epsilons: tuple[float, ...] = (1, 2, 4, 10)  # privacy budgets of the grid
    costs: tuple[float, ...] = (500, 1000)  # cost budgets of the grid
    short_costs: tuple[float, ...] = (200,)  # that pay for one round: regret only
    line_costs: tuple[float, ...] = tuple(range(200, 1001, 100))
    line_epsilons: tuple[float, ...] = tuple(range(1, 11))
    panel_costs: tuple[float, ...] = (200, 500, 800, 1000)
    repeats: int = 10  # of what is planned: a split and a noise of its own each
    baseline_repeats: int = 5
    curve_repeats: int = 5  # of each tau's best grid point
    rate_repeats: int = 3  # of the paper's plans with every learning rate
    screens: int = 1  # of every grid point; the best of the full grid are run again
    # Grid points of a budget, and of each tau in it, that are run again before one is
    # picked: the best of one noisy run each is mostly the luckiest.
    finalists: int = 40
    final_repeats: int = 4
    tau_finalists: int = 3
    tau_repeats: int = 3
    taus: tuple[int, ...] = tuple(range(1, LONGEST_TAU + 1))  # every K of them
    far_taus: tuple[int, ...] = (25, 50, 150, 400, 900)
    rates: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16, 32, 64)
    full_taus: tuple[int, ...] = (1, 2, 3, 5, 10, 20, 50, 150, 400, 900)
    momenta: tuple[float, ...] = (0.0, 0.5, 0.8)
    powers: tuple[float, ...] = (0.0, 0.5, 1.0)  # weights as a power of a device's rows
    controls: tuple[bool, ...] = (False, True)  # drift control, on unlike devices
    cases: tuple[Case, ...] = field(default=CASES)

    @property
    def budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost of the grid search."""
        return [(epsilon, cost) for cost in self.costs for epsilon in self.epsilons]

    @property
    def short_budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost that pay for one round."""
        return [(e, cost) for cost in self.short_costs for e in self.epsilons]

    @property
    def line_budgets(self) -> list[tuple[float, float]]:
        """Pairs of epsilon and cost that the trade-off figures need."""
        by_cost = {(e, c) for e in self.epsilons for c in self.line_costs}
        by_epsilon = {(e, c) for e in self.line_epsilons for c in self.panel_costs}
        return sorted(
            by_cost | by_epsilon | set(self.budgets) | set(self.short_budgets)
        )


FULL = Scale(name="full")
QUICK = Scale(
    name="quick",
    epsilons=(1, 10),
    line_costs=(200, 500, 1000),
    line_epsilons=(1, 4, 10),
    panel_costs=(200, 1000),
    repeats=3,
    baseline_repeats=1,
    curve_repeats=3,
    rate_repeats=1,
    finalists=6,
    final_repeats=2,
    tau_finalists=1,
    taus=(1, 2, 4, 7, 10, 14, 20),
    far_taus=(50, 150),
    rates=(1, 4, 16),
    full_taus=(1, 5, 20, 50),
    momenta=(0.0, 0.8),
    powers=(0.5,),
)
