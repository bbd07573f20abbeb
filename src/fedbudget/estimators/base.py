"""The base class of the estimators: plan, measure bounds if wanted, and train."""

import os
import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, PerDevice, one_of, within
from fedbudget.data import Dataset, Numeric
from fedbudget.data.row_weights import DIVIDE, check_sample_weight, weight_rows
from fedbudget.errors import DataError, InvalidInputError, OneDeviceWarning
from fedbudget.estimators.columns import ColumnBounds, read_bounds
from fedbudget.estimators.pipelines import warn_of_pipeline
from fedbudget.estimators.unit_rows import (
    by_device,
    check_numbers,
    row_norms,
    row_scale,
    scaled,
    unit_rows,
)
from fedbudget.losses import Labels
from fedbudget.planning import Plan, plan
from fedbudget.privacy import Kind, Trust, Unit
from fedbudget.problem import Problem
from fedbudget.release.devices import ReleaseDevices
from fedbudget.simulation.devices import SimulatedDevices
from fedbudget.simulation.scaling import PrivateBounds, plan_before, private_bounds
from fedbudget.training import Run, train

_ONE_DEVICE = (
    "all rows are treated as one device; pass groups= with the device of each row (in "
    "a search or a cross-validation: enable metadata routing, set_fit_request("
    "groups=True))"
)

# Bagging passes numbers of repetitions as weights.
_LARGE_WEIGHT = f"{DIVIDE}; in bagging, set bootstrap=False"

LABEL = "y"  # no column of X has this name: these are numbers


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A linear model, trained on devices within both budgets."""

    epsilon: PerDevice
    delta: PerDevice | None
    cost: PerDevice
    trust: Trust
    unit: Unit
    least_answers: int | None
    colluders: int
    communication_price: PerDevice
    computation_price: PerDevice
    secure_round_price: PerDevice | None
    loss: str | None
    l2: float
    row_norm: float
    bounds: Any
    scale: str | None
    fit_intercept: bool
    dissimilarity: str | float
    planner: str
    accountant: str
    weights: str
    target: str
    random_state: Any

    plan_: Plan
    kind_: Kind
    privacy_statement_: str
    n_features_in_: int
    bounds_: Array | None  # shape (d, 2)
    coef_: Array  # shape (C, d)
    intercept_: Array  # shape (C,)

    _numeric = False  # the labels are numbers, not classes
    _columns: ColumnBounds | None

    def fit(
        self,
        X: Any,  # noqa: N803  # scikit-learn's name
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Plan within the budgets and train; every call spends the budgets again.

        Args:
            X: Rows, dense, sparse or a DataFrame; shape (n, d).
            y: Labels; shape (n,).
            groups: The device of each row. Without them, one device holds all rows:
                the guarantee is the same, but nothing is federated, and a
                `OneDeviceWarning` is issued.
            sample_weight: A weight in [0, 1] per row, which must depend on that row
                only; shape (n,). A row is kept with its weight as the probability, or
                trains nothing: the guarantee and the noise stay as they are.
        """
        within("row_norm", self.row_norm, above=0)
        if self.scale is not None:
            one_of("scale", self.scale, ("private",))
        around = warn_of_pipeline(self)
        if groups is None:
            warnings.warn(_ONE_DEVICE, OneDeviceWarning, stacklevel=2)
        check_numbers(X)
        if self._numeric:
            _check_target(y)
        x, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=self._numeric
        )
        labels, caveats = self._labels(y)
        if around:
            steps = ", ".join(around)
            caveats.append(f"NOT covered: what {steps} learns from the same rows")
        if sample_weight is not None:
            sample_weight = check_sample_weight(
                sample_weight, len(labels), remedy=_LARGE_WEIGHT
            )
            caveats.append(
                "NOT covered: sample_weight, if a row's weight depends on other rows"
            )
        run = self._fitted(x, y, labels, groups, sample_weight)
        self.plan_, self.kind_ = run.plan, run.kind
        self.privacy_statement_ = str(replace(run.privacy, caveats=tuple(caveats)))
        self._store(run.theta.reshape(run.plan.model.num_outputs, -1))
        return self

    def _fitted(
        self, x: Any, y: Any, labels: Labels, groups: Any, sample_weight: Any
    ) -> Run:
        """Return the run of a fit; first measure narrower bounds, if wanted."""
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        kinds = self._public_bounds(x)
        data, order = self._arranged(x, labels, groups)
        answer = None
        own = None if sample_weight is None else np.asarray(sample_weight)[order]
        weights_seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        if self.scale is not None:
            # Refuses what is wrong before anything is charged.
            ahead = self._problem(self._weighted(data, own, weights_seed))
            ahead_plan = plan_before(ahead, *self._limits(), **self._method())
            replace(ahead_plan, threshold=self._threshold())
            answer = self._measured_bounds(kinds, data, x[order], y[order], seed)
            data, _ = self._arranged(x, self._narrow(labels, y, answer), groups)
        data = self._weighted(data, own, weights_seed)
        problem = self._problem(data)
        if answer is not None:
            problem = answer.spent(problem)
        best = plan(problem, *self._limits(), **self._method())
        best = replace(best, threshold=self._threshold())
        return train(best, self._devices(data, seed))

    def _weighted(self, data: Dataset, own: Array | None, seed: int) -> Dataset:
        options = self._class_options()
        return weight_rows(data, **options, sample_weight=own, seed=seed)

    def _problem(self, data: Dataset) -> Problem:
        return data.problem(
            loss=self.loss, l2=self.l2, dissimilarity=self.dissimilarity
        )

    def _method(self) -> dict[str, Any]:
        """Return the options of `plan`."""
        return {
            "planner": self.planner,
            "accountant": self.accountant,
            "weights": self.weights,
            "target": self.target,
        }

    def _public_bounds(self, x: Any) -> dict[str, Numeric]:
        """Return the public bounds of the columns; they scale the rows from now on."""
        kinds: dict[str, Numeric] = {}
        if self.bounds is not None:
            kinds = read_bounds(self.bounds, x)
        elif self.scale is not None:
            raise InvalidInputError(
                "scale 'private' narrows public bounds, and there are none: give "
                "bounds=(low, high) for all columns, or one such pair for each",
                argument="bounds",
            )
        self._set_bounds(kinds)
        return kinds

    def _set_bounds(self, kinds: dict[str, Numeric]) -> None:
        self._columns, self.bounds_ = None, None
        if kinds:
            self._columns = ColumnBounds.of(kinds)
            self.bounds_ = np.array([(kind.low, kind.high) for kind in kinds.values()])

    def _measured_bounds(
        self,
        kinds: dict[str, Numeric],
        data: Dataset,
        x: Array,
        y: Array,
        seed: int | None,
    ) -> PrivateBounds:
        """Let the devices measure narrower bounds, charged to each of them.

        Args:
            kinds: The public bounds of the columns.
            data: The rows under public bounds.
            x: The columns of the same rows, in the same order.
            y: Their labels.
            seed: None for a release.
        """
        values = {name: x[:, j] for j, name in enumerate(kinds)}
        label = self._label_bounds()
        if label is not None:
            kinds, values = {**kinds, LABEL: label}, {**values, LABEL: y}
        devices = self._devices(data, seed)
        return private_bounds(devices, values, kinds, *self._limits())

    def _narrow(self, labels: Labels, y: Array, answer: PrivateBounds) -> Labels:
        """Use narrower bounds from now on; return the labels under them."""
        kinds = {n: kind for n, kind in answer.bounds.items() if n != LABEL}
        self._set_bounds(kinds)
        return labels

    def _arranged(self, x: Any, labels: Labels, groups: Any) -> Any:
        """Return the rows in the unit ball, device by device, and their order."""
        z = x if self._columns is None else self._columns.scaled(x)
        rows = unit_rows(z, row_norm=self.row_norm, intercept=self.fit_intercept)
        return by_device(rows, labels, groups, classes=self._class_names())

    def _limits(self) -> tuple[Budget, Prices]:
        budget = Budget(
            epsilon=self.epsilon,
            delta=self.delta,
            cost=self.cost,
            trust=self.trust,
            unit=self.unit,
            least_answers=self.least_answers,
            colluders=self.colluders,
        )
        prices = Prices(
            communication=self.communication_price,
            computation=self.computation_price,
            secure_round=self.secure_round_price,
        )
        return budget, prices

    def _devices(
        self, data: Dataset, seed: int | None
    ) -> ReleaseDevices | SimulatedDevices:
        """Return devices that release a model; with a seed, they simulate one."""
        budget, prices = self._limits()
        if seed is None:
            return ReleaseDevices(data, budget=budget, prices=prices)
        return SimulatedDevices(data, seed=seed, budget=budget, prices=prices)

    def _store(self, theta: Array) -> None:
        """Store the model in the scale of the unscaled rows."""
        scale = row_scale(row_norm=self.row_norm, intercept=self.fit_intercept)
        self.intercept_ = np.zeros(len(theta))
        if self.fit_intercept:
            self.intercept_ = theta[:, -1] * scale * self.row_norm
            theta = theta[:, :-1]
        self.coef_ = theta * scale
        if self._columns is not None:
            self.coef_ = self.coef_ / self._columns.half
            self.intercept_ = self.intercept_ - self.coef_ @ self._columns.middle

    def _scores(self, rows: Any) -> Array:
        """Return the scores of rows, clipped as in training; shape (n, C)."""
        check_is_fitted(self)
        check_numbers(rows)
        sparse = "csr" if self._columns is None else False
        x = validate_data(
            self, rows, accept_sparse=sparse, dtype=np.float64, reset=False
        )
        z = x if self._columns is None else self._columns.scaled(x)
        z = scaled(z, self.row_norm / np.maximum(self.row_norm, row_norms(z)))
        inside = z if self._columns is None else self._columns.unscaled(z)
        return np.asarray(inside @ self.coef_.T) + self.intercept_

    @abstractmethod
    def _labels(self, y: Any) -> tuple[Labels, list[str]]:
        """Return the labels for the loss, and caveats for the privacy statement."""

    def _label_bounds(self) -> Numeric | None:
        """Return the public bounds of a label that is a number."""
        return None

    def _class_names(self) -> tuple[str, ...] | None:
        """Return the classes' names; none for regression."""
        return None

    def _class_options(self) -> dict[str, Any]:
        """Return the options of `weight_rows` for classes; none for regression."""
        return {}

    def _threshold(self) -> float:
        """Return the plan's threshold, which regression does not use."""
        return 0.5

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.bounds is None  # bounds move the zeros
        return tags


def _check_target(y: Any) -> None:
    """Raise if the target holds text."""
    values = np.asarray(y)
    if values.dtype.kind not in "USO":
        return
    text = next((v for v in values.ravel() if isinstance(v, str)), None)
    if text is not None:
        raise DataError(
            f"y holds text, such as {str(text)!r}, and a regressor predicts numbers: "
            "convert it, or use PrivateFederatedClassifier"
        )
