"""The options of `fedbudget train` about the run, and which of them go together."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedbudget.checks import one_of
from fedbudget.cli.sources import NAMES
from fedbudget.data.row_weights import balanced_threshold
from fedbudget.errors import InvalidInputError
from fedbudget.simulation.queries import Query

_THRESHOLDS = ("shares", "measure")  # beside a number


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, beside those of its data, its budgets and its plan."""

    release: bool
    participation: float
    personal: bool
    keep: bool
    scale: str | None
    measure_dissimilarity: bool
    new_devices: int
    measure_every: int
    no_privacy: bool
    threshold: str | None  # a number, shares or measure
    class_weight: str | None
    class_shares: dict[str, float] | None
    track: tuple[str, ...]
    out: str | None

    @property
    def query(self) -> Query | None:
        """What devices measure before the run; at most one value, as checked."""
        if self.scale is not None:
            return "bounds"
        if self.measure_dissimilarity:
            return "dissimilarity"
        return "threshold" if self.threshold == "measure" else None

    def check(self, data: str | None) -> None:
        """Refuse options that do not go together."""
        if self.keep and not (self.personal and self.out):
            raise InvalidInputError(
                "--keep writes personal models into the run's folder: give --personal "
                "and --out FOLDER, too",
                argument="keep",
            )
        self._check_threshold()
        if self.measure_dissimilarity and self.threshold == "measure":
            raise InvalidInputError(
                "--dissimilarity measure and --threshold measure: measure one, and "
                "state the other"
            )
        if self.scale is not None:
            self._check_scale(self.scale, data)
        if self.release:
            self._check_folder()
            self._check_release()

    def _check_threshold(self) -> None:
        """Refuse a threshold that is none, before any row is read."""
        if self.threshold in (None, *_THRESHOLDS):
            return
        with suppress(ValueError):
            if 0 < float(str(self.threshold)) < 1:
                return
        raise InvalidInputError(
            f"--threshold {self.threshold!r} is none: give a number above 0 and below "
            f"1, or one of {', '.join(_THRESHOLDS)}",
            argument="threshold",
        )

    def _check_scale(self, scale: str, data: str | None) -> None:
        """Refuse what private bounds do not go with."""
        one_of("scale", scale, ("private",))
        if data in NAMES:
            raise InvalidInputError(
                f"--scale private does not go with {data}, whose bounds are built in: "
                "leave it out"
            )
        measures = self.measure_dissimilarity or self.threshold == "measure"
        if measures or self.no_privacy:
            raise InvalidInputError(
                "--scale private does not go with another measurement, for each would "
                "plan for the rest of the budget, or with --no-privacy, which spends "
                "none: leave one of them out"
            )

    def _check_folder(self) -> None:
        """Refuse a release whose model or whose measurement would be lost."""
        if self.out is None:
            raise InvalidInputError(
                "--release without --out would spend the budgets and lose the model: "
                "name a folder"
            )
        if self.query is not None and Path(self.out).exists():
            raise InvalidInputError(
                f"--out {self.out!r} exists, and --scale private, --dissimilarity "
                "measure and --threshold measure would spend privacy again: a release "
                "that measured cannot be resumed; name a new folder"
            )

    def _check_release(self) -> None:
        """Refuse options that only a simulation has."""
        for option, given in (
            ("--personal", self.personal),
            ("--no-privacy", self.no_privacy),
            (f"--participation {self.participation:g}", self.participation != 1),
            (f"--new-devices {self.new_devices}", self.new_devices != 0),
        ):
            if given:
                raise InvalidInputError(
                    f"{option} does not go with --release, which simulates and "
                    "measures nothing: leave one of them out"
                )

    def stated_threshold(self, classes: tuple[str, ...] | None) -> float | None:
        """Return the threshold that is given, or that public shares give."""
        if self.threshold in (None, "measure"):
            return None
        if self.threshold != "shares":
            return float(str(self.threshold))
        if self.class_shares is None or classes is None:
            raise InvalidInputError(
                "--threshold shares needs --class-shares: give publicly known shares, "
                "such as no=0.97,yes=0.03"
            )
        return balanced_threshold(self.class_shares, classes)
