import hashlib
from importlib.resources import files

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import fedbudget as fb
from fedbudget.data.wisdm import SCHEMA
from fedbudget.errors import InvalidInputError


@pytest.fixture(scope="module")
def watches() -> fb.Dataset:
    return fb.load("wisdm")


def sizes(data: fb.Dataset) -> np.ndarray:
    return data.train.sizes + data.validation.sizes + data.test.sizes


def test_devices_are_51_people_with_up_to_144_windows(watches: fb.Dataset) -> None:
    assert watches.num_devices == 51
    assert watches.device_names[0] == "1600"
    assert sizes(watches).sum() == 7296
    assert set(sizes(watches)) == {120, 144}
    assert watches.classes == tuple(SCHEMA.target.values)  # type: ignore[union-attr]
    assert watches.dim == 52  # 51 statistics and the intercept
    assert not watches.synthetic


def test_activities_are_balanced(watches: fb.Dataset) -> None:
    parts = (watches.train, watches.validation, watches.test)
    counts = np.bincount(np.concatenate([part.y for part in parts]))
    assert sorted(counts) == [1200, 1200, 1224, 1224, 1224, 1224]


def test_the_file_is_the_one_that_is_attributed() -> None:
    folder = files("fedbudget.data") / "files"
    digest = hashlib.sha256((folder / "wisdm_watch.npz").read_bytes()).hexdigest()
    text = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert digest in text
    assert "CC BY 4.0" in text and "Weiss" in text


def test_a_linear_model_without_privacy_has_the_reference_accuracy(
    watches: fb.Dataset,
) -> None:
    """0.858 with columns standardised on the rows: public bounds must not cost much."""
    model = LogisticRegression(C=30, max_iter=500)
    model.fit(watches.train.x, watches.train.y)
    correct = model.predict(watches.test.x) == watches.test.y
    assert 0.83 < correct.mean() < 0.92


def test_an_even_split() -> None:
    data = fb.load("wisdm", split="iid", num_devices=10, seed=1)
    assert data.num_devices == 10
    assert np.ptp(sizes(data)) <= 1
    assert data.dissimilarity == "iid"


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="choose one of by-person, iid"):
        fb.load("wisdm", split="by-education")
    with pytest.raises(InvalidInputError, match="which has 51"):
        fb.load("wisdm", num_devices=4)
    with pytest.raises(InvalidInputError, match="comes with the package"):
        fb.load("wisdm", path="watch.npz")
