"""PrivateFederatedClassifier and PrivateFederatedRegressor."""

import warnings
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from fedbudget.budget import (
    COMMUNICATION_PRICE,
    COMPUTATION_PRICE,
    FIRST_COST,
    TRUST,
    UNIT,
)
from fedbudget.checks import Array, PerDevice, number
from fedbudget.data import Numeric
from fedbudget.data.row_weights import balanced_threshold, check_shares
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from fedbudget.estimators.base import LABEL, PrivateLinearModel
from fedbudget.losses import MARGIN_LOSSES, Labels
from fedbudget.planning.settings import ACCOUNTANT, PLANNER, TARGET, WEIGHTING
from fedbudget.privacy import Trust, Unit
from fedbudget.problem import USUAL_DISSIMILARITY
from fedbudget.simulation.scaling import PrivateBounds
from fedbudget.text import shown

EPSILON = 1.0  # scikit-learn requires a default: a strong guarantee


class PrivateFederatedClassifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """A linear classifier, trained device by device within both budgets.

    A fit is a release: exact sums, and exact noise of the operating system. With a
    `random_state` it is a simulation, and nothing is promised for its model. Every
    `fit` spends the budgets again: cross-validation with k folds fits k times,
    and epsilons add up. Scores and accuracies are computed on rows without noise, and
    are not private.

    Args:
        epsilon: Privacy budget of each device for a fit: a number, or one per device in
            the sorted order of `groups`. The same holds for delta, cost and the prices.
        delta: Of (epsilon, delta); by default the smaller of 1e-4 and 1 / (10 n) for
            the n rows of the largest device, rounded down to one digit.
        cost: Cost budget of each device for a fit, in the prices' unit.
        trust: What the server would see: uploads (of each device, which adds all the
            noise) or sum (only sums of uploads, so that devices share the noise). In
            this process it decides the noise alone: for a model that is published, sum
            is as private, and more accurate.
        unit: What epsilon protects: a sample, or a device with all of its samples.
        least_answers: Uploads that a sum has at least; by default those of all devices.
        colluders: Devices that may collude with the server, for trust sum.
        communication_price: Per round.
        computation_price: Per local step.
        secure_round_price: Per round of secure aggregation, with trust "sum"; None: as
            any round.
        loss: logistic, hinge or smooth_hinge for two classes, softmax for any number;
            by default logistic for two and softmax for more. hinge and smooth_hinge
            have no `predict_proba`.
        l2: Weight of the L2 term.
        row_norm: Public bound on the norm of a row, after `bounds`. Longer rows are
            clipped to it, in `fit` and in `predict`. It must not be computed from
            private rows.
        bounds: Public (low, high) of all columns, or such a pair for each: values are
            clipped to them and scaled to [-1, 1], in `fit` and in `predict`. None: the
            columns as they are.
        scale: "private" narrows the bounds (and the regressor's range of y) by a noisy
            query, which is charged to every device: a fifth of mu squared, and the
            cost of three rounds of one step. For bounds that are wider than the values.
        fit_intercept: Add a constant column, which takes half of each row's squared
            norm.
        classes: The classes, which must be public. Without them, they are read from y,
            and a `NotPrivateWarning` is issued.
        class_weight: "balanced" lets all classes count the same: rows of frequent
            classes are left out at random, by `class_shares`. Or a weight for
            each class, {class: weight}; if one is above 1, all are divided by the
            largest. The guarantee and the noise stay.
        class_shares: The publicly known share of each class, {class: share}, never
            counted on private rows.
        threshold: With two classes that have probabilities: predict the second one
            above this probability, a number in (0, 1), or "shares": above its share in
            `class_shares`. None: 0.5. `decision_function` does not depend on it.
        dissimilarity: How heterogeneous (unlike) the devices are: iid, mild, strong or
            a number.
        planner: joint, bound or paper.
        accountant: gdp, zcdp or pld.
        weights: auto, uniform or size.
        target: The objective of auto weights: all devices count the same (uniform), or
            all rows (size).
        random_state: None makes every fit a release, which nothing can repeat.
            Anything else makes it a reproducible simulation, for trying things out.

    Attributes:
        plan_: The `Plan` of the fit.
        kind_: `release` or `simulation`.
        privacy_statement_: The privacy guarantee, in words, and its exceptions.
        classes_: The classes, in the order of the columns of `predict_proba`.
        coef_: Coefficients of the linear model, for rows within bounds and `row_norm`.
        intercept_: Intercept of the linear model.
        bounds_: The bounds that rows are scaled by, shape (d, 2); None without.
        n_features_in_: Number of columns of X.

    >>> x = np.random.default_rng(0).normal(size=(4000, 3)) / 4
    >>> y = np.where(x @ [1, -2, 1] > 0, "yes", "no")
    >>> model = PrivateFederatedClassifier(epsilon=4, classes=["no", "yes"])
    >>> model = model.fit(x, y, groups=np.arange(4000) % 8)
    >>> bool(model.score(x, y) > 0.9), model.plan_.num_devices
    (True, 8)
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        epsilon: PerDevice = EPSILON,
        delta: PerDevice | None = None,
        cost: PerDevice = FIRST_COST,
        trust: Trust = TRUST,
        unit: Unit = UNIT,
        least_answers: int | None = None,
        colluders: int = 0,
        communication_price: PerDevice = COMMUNICATION_PRICE,
        computation_price: PerDevice = COMPUTATION_PRICE,
        secure_round_price: PerDevice | None = None,
        loss: str | None = None,
        l2: float = 0.0,
        row_norm: float = 1.0,
        bounds: Any = None,
        scale: str | None = None,
        fit_intercept: bool = True,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        class_shares: Mapping[Any, float] | None = None,
        threshold: float | str | None = None,
        dissimilarity: str | float = USUAL_DISSIMILARITY,
        planner: str = PLANNER,
        accountant: str = ACCOUNTANT,
        weights: str = WEIGHTING,
        target: str = TARGET,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.cost = cost
        self.trust = trust
        self.unit = unit
        self.least_answers = least_answers
        self.colluders = colluders
        self.communication_price = communication_price
        self.computation_price = computation_price
        self.secure_round_price = secure_round_price
        self.loss = loss
        self.l2 = l2
        self.row_norm = row_norm
        self.bounds = bounds
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.class_weight = class_weight
        self.class_shares = class_shares
        self.threshold = threshold
        self.dissimilarity = dissimilarity
        self.planner = planner
        self.accountant = accountant
        self.weights = weights
        self.target = target
        self.random_state = random_state

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the class of each row; shape (n,)."""
        scores = self.decision_function(X)
        if scores.ndim > 1:
            return np.asarray(self.classes_[scores.argmax(axis=1)])
        threshold = self.plan_.threshold
        above = scores > log(threshold / (1 - threshold))
        return np.asarray(self.classes_[above.astype(np.int64)])

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return scores: of the second class, shape (n,), or of all, shape (n, C)."""
        scores = self._scores(X)
        if len(self.classes_) > 2:
            return scores
        return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]

    @available_if(lambda self: self.loss not in MARGIN_LOSSES)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability of each class; shape (n, C)."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _labels(self, y: Any) -> tuple[Labels, list[str]]:
        check_classification_targets(y)
        present = np.unique(y)
        caveats = []
        if self.classes is None:
            self.classes_ = present
            warnings.warn(
                f"the {len(present)} classes were read from y, and no privacy "
                "guarantee covers them; pass classes=[...] with the publicly known "
                "classes",
                NotPrivateWarning,
                stacklevel=3,
            )
            caveats.append("NOT covered: the classes, which were read from y")
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise DataError(
                f"there is one class, {self.classes_[0]!r}, and a classifier needs at "
                "least 2: check y, or pass classes=[...]"
            )
        unknown = present[~np.isin(present, self.classes_)]
        if len(unknown):
            raise DataError(
                f"y holds {unknown[0]!r}, which is not one of the {len(self.classes_)} "
                "classes: correct it, drop the row, or add it to classes"
            )
        return np.searchsorted(self.classes_, y).astype(np.int64), caveats

    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_))

    def _by_name(self, argument: str, values: Any) -> dict[str, float]:
        """Return values of classes by the classes' names."""
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"{argument} {shown(values)} is not a mapping: give "
                f"{{class: number}} for each of the {len(self.classes_)} classes",
                argument=argument,
            )
        names = dict(zip(self.classes_.tolist(), self._class_names(), strict=True))
        return {names.get(each, str(each)): value for each, value in values.items()}

    def _class_options(self) -> dict[str, Any]:
        weight, shares = self.class_weight, self.class_shares
        if weight is not None and not isinstance(weight, str):
            weight = self._by_name("class_weight", weight)
        if shares is not None:
            shares = self._by_name("class_shares", shares)
            check_shares(shares, self._class_names())
        return {"class_weight": weight, "class_shares": shares}

    def _threshold(self) -> float:
        if self.threshold is None:
            return 0.5
        if self.threshold == "shares":
            if self.class_shares is None:
                raise InvalidInputError(
                    "threshold 'shares' needs publicly known class shares: give "
                    "class_shares={class: share}",
                    argument="class_shares",
                )
            shares = self._by_name("class_shares", self.class_shares)
            return balanced_threshold(shares, self._class_names())
        if len(self.classes_) != 2:
            raise InvalidInputError(
                f"threshold {shown(self.threshold)} is for two classes, there are "
                f"{len(self.classes_)}: leave it out",
                argument="threshold",
            )
        remedy = "give a probability, or 'shares' with class_shares"
        return number("threshold", self.threshold, above=0, below=1, remedy=remedy)


class PrivateFederatedRegressor(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """A linear regressor with the Huber loss, trained within both budgets.

    Parameters and attributes are those of `PrivateFederatedClassifier`, without those
    of classes and except for:

    Args:
        target_range: Public (low, high) of y; values outside are clipped in `fit`.
            Without it, the range is read from y, and a `NotPrivateWarning` is issued.
        loss: huber, which is also the default: squared up to half of the range.

    >>> x = np.random.default_rng(0).normal(size=(4000, 2)) / 3
    >>> y = 10 + x @ [3.0, -1.0]
    >>> model = PrivateFederatedRegressor(epsilon=4, target_range=(0, 20))
    >>> model = model.fit(x, y, groups=np.arange(4000) % 8)
    >>> bool(model.score(x, y) > 0.6)
    True
    """

    _numeric = True

    def __init__(
        self,
        *,
        epsilon: PerDevice = EPSILON,
        delta: PerDevice | None = None,
        cost: PerDevice = FIRST_COST,
        trust: Trust = TRUST,
        unit: Unit = UNIT,
        least_answers: int | None = None,
        colluders: int = 0,
        communication_price: PerDevice = COMMUNICATION_PRICE,
        computation_price: PerDevice = COMPUTATION_PRICE,
        secure_round_price: PerDevice | None = None,
        loss: str | None = None,
        l2: float = 0.0,
        row_norm: float = 1.0,
        bounds: Any = None,
        scale: str | None = None,
        fit_intercept: bool = True,
        target_range: tuple[float, float] | None = None,
        dissimilarity: str | float = USUAL_DISSIMILARITY,
        planner: str = PLANNER,
        accountant: str = ACCOUNTANT,
        weights: str = WEIGHTING,
        target: str = TARGET,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.cost = cost
        self.trust = trust
        self.unit = unit
        self.least_answers = least_answers
        self.colluders = colluders
        self.communication_price = communication_price
        self.computation_price = computation_price
        self.secure_round_price = secure_round_price
        self.loss = loss
        self.l2 = l2
        self.row_norm = row_norm
        self.bounds = bounds
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.target_range = target_range
        self.dissimilarity = dissimilarity
        self.planner = planner
        self.accountant = accountant
        self.weights = weights
        self.target = target
        self.random_state = random_state

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted number of each row; shape (n,)."""
        return self._scores(X)[:, 0]

    def _labels(self, y: Any) -> tuple[Labels, list[str]]:
        caveats = []
        if self.target_range is None:
            low, high = float(y.min()), float(y.max())
            if low == high:  # a constant y: any range around it works
                low, high = low - 1, high + 1
            warnings.warn(
                f"the range of y, {low:g} to {high:g}, was read from private rows, and "
                "no privacy guarantee covers it; pass target_range=(low, high) with "
                "the publicly known range",
                NotPrivateWarning,
                stacklevel=3,
            )
            caveats.append("NOT covered: the range of y, which was read from y")
        else:
            low, high = map(float, self.target_range)
        if not -np.inf < low < high < np.inf:
            raise InvalidInputError(
                f"target_range must be (low, high) with low below high, got "
                f"({low:g}, {high:g}): give the public range of y"
            )
        self._range = Numeric(low, high)
        return self._range.encode("y", y), caveats

    def _label_bounds(self) -> Numeric:
        return self._range

    def _narrow(self, labels: Labels, y: Array, answer: PrivateBounds) -> Labels:
        super()._narrow(labels, y, answer)
        self._range = answer.bounds[LABEL]
        return self._range.encode("y", y)

    def _store(self, theta: Array) -> None:
        super()._store(theta)
        middle, top = self._range.decode(np.array([0.0, 1.0]))
        half = top - middle
        self.coef_ = self.coef_ * half
        self.intercept_ = self.intercept_ * half + middle

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With 200 rows and epsilon 1, noise dominates: the checks require R^2 > 0.5.
        tags.regressor_tags.poor_score = True
        return tags
