"""What both estimators share: rows to devices, a plan, a run, and linear scores."""

import secrets
import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fedbudget.budget import Budget, Prices
from fedbudget.checks import Array, PerDevice, within
from fedbudget.data import Dataset
from fedbudget.errors import DataError, OneDeviceWarning
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
from fedbudget.simulation.devices import SimulatedDevices
from fedbudget.training import train

_SEED_IS_KNOWN = (
    "random_state fixes the noise, so nothing is promised against anyone who knows it"
)
_ONE_DEVICE = (
    "all rows are taken as one device; pass groups= with the device of each row (in a "
    "search or a cross-validation: enable metadata routing, set_fit_request("
    "groups=True))"
)


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A linear model, trained over devices within both budgets."""

    epsilon: PerDevice
    delta: PerDevice
    cost: PerDevice
    communication_price: PerDevice
    computation_price: PerDevice
    loss: str | None
    l2: float
    row_norm: float
    fit_intercept: bool
    dissimilarity: str | float
    planner: str
    accountant: str
    weights: str
    target: str
    random_state: Any

    plan_: Plan
    privacy_statement_: str
    n_features_in_: int
    coef_: Array  # shape (C, d)
    intercept_: Array  # shape (C,)

    _numeric = False  # the labels are numbers, not classes

    def fit(
        self,
        X: Any,  # noqa: N803  # scikit-learn's name
        y: Any,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Plan within the budgets and train; every call spends them anew.

        Args:
            X: Rows, dense, sparse or a DataFrame; shape (n, d).
            y: Labels; shape (n,).
            groups: The device of each row. Without them one device holds all rows:
                the promise is the same, but nothing is federated, and a
                `OneDeviceWarning` says so.
        """
        within("row_norm", self.row_norm, above=0)
        warn_of_pipeline(self)
        if groups is None:
            warnings.warn(_ONE_DEVICE, OneDeviceWarning, stacklevel=2)
        check_numbers(X)
        if self._numeric:
            _check_target(y)
        x, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=self._numeric
        )
        labels, caveats = self._labels(y)
        rows = unit_rows(x, row_norm=self.row_norm, intercept=self.fit_intercept)
        self._train(by_device(rows, labels, groups, classes=self._class_names()))
        if self.random_state is not None:
            caveats.append(_SEED_IS_KNOWN)
        self.privacy_statement_ = "; ".join([str(self.plan_.privacy), *caveats])
        return self

    def _train(self, data: Dataset) -> None:
        budget = Budget(epsilon=self.epsilon, delta=self.delta, cost=self.cost)
        prices = Prices(
            communication=self.communication_price, computation=self.computation_price
        )
        self.plan_ = plan(
            data.problem(loss=self.loss, l2=self.l2, dissimilarity=self.dissimilarity),
            budget,
            prices,
            planner=self.planner,
            accountant=self.accountant,
            weights=self.weights,
            target=self.target,
        )
        seed = (
            secrets.randbits(63)
            if self.random_state is None
            else int(check_random_state(self.random_state).randint(2**31 - 1))
        )
        devices = SimulatedDevices(data, seed=seed, budget=budget, prices=prices)
        theta = train(self.plan_, devices).theta
        self._keep(theta.reshape(self.plan_.model.num_outputs, -1))

    def _keep(self, theta: Array) -> None:
        """Turn the model of scaled rows into one of the rows that were given."""
        scale = row_scale(row_norm=self.row_norm, intercept=self.fit_intercept)
        self.intercept_ = np.zeros(len(theta))
        if self.fit_intercept:
            self.intercept_ = theta[:, -1] * scale * self.row_norm
            theta = theta[:, :-1]
        self.coef_ = theta * scale

    def _scores(self, rows: Any) -> Array:
        """Return scores of rows that are clipped as in training; shape (n, C)."""
        check_is_fitted(self)
        check_numbers(rows)
        x = validate_data(
            self, rows, accept_sparse="csr", dtype=np.float64, reset=False
        )
        shorten = self.row_norm / np.maximum(self.row_norm, row_norms(x))
        return np.asarray(scaled(x, shorten) @ self.coef_.T) + self.intercept_

    @abstractmethod
    def _labels(self, y: Any) -> tuple[Labels, list[str]]:
        """Return the labels as the losses take them, and what was read off them."""

    def _class_names(self) -> tuple[str, ...] | None:
        """Return the classes' names; none for regression."""
        return None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _check_target(y: Any) -> None:
    """Raise if what is to be predicted holds text."""
    values = np.asarray(y)
    if values.dtype.kind not in "USO":
        return
    text = next((v for v in values.ravel() if isinstance(v, str)), None)
    if text is not None:
        raise DataError(
            f"y holds text, {str(text)!r} for one, and a regressor predicts numbers: "
            "convert it, or take PrivateFederatedClassifier"
        )
