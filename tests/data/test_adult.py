import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from fedbudget.data import Dataset, load
from fedbudget.data.adult import SCHEMA, load_adult
from fedbudget.errors import InvalidInputError

# Rows per education in the 32,561 rows, from the data set's documentation.
EDUCATION = {
    "HS-grad": 10_501,
    "Some-college": 7_291,
    "Bachelors": 5_355,
    "Masters": 1_723,
    "Assoc-voc": 1_382,
    "11th": 1_175,
    "Assoc-acdm": 1_067,
    "10th": 933,
    "7th-8th": 646,
    "Prof-school": 576,
    "9th": 514,
    "12th": 433,
    "Doctorate": 413,
    "5th-6th": 333,
    "1st-4th": 168,
    "Preschool": 51,
}


def sizes(data: Dataset) -> np.ndarray:
    return data.train.sizes + data.validation.sizes + data.test.sizes


@pytest.fixture(scope="module")
def by_education() -> Dataset:
    return load("adult", split="by-education", seed=0)


def test_the_devices_of_adult_1_are_the_education_levels(by_education: Dataset) -> None:
    counts = dict(zip(by_education.device_names, sizes(by_education), strict=True))
    assert counts == EDUCATION
    assert by_education.dissimilarity == "strong"
    assert not by_education.synthetic
    assert np.array_equal(
        by_education.num_samples, [int(0.8 * n) for n in sizes(by_education)]
    )


def test_a_device_holds_its_own_education_only(by_education: Dataset) -> None:
    m = by_education.device_names.index("Preschool")
    column = by_education.feature_names.index("education=Preschool")
    x, _ = by_education.train.device(m)
    assert isinstance(x, csr_array)
    assert np.all(x.toarray()[:, column] > 0)


def test_rows_are_8_ones_scaled_to_norm_one(by_education: Dataset) -> None:
    x = by_education.train.x
    assert isinstance(x, csr_array)
    assert by_education.dim == 102
    assert np.all(np.diff(x.indptr) == 8)
    assert np.allclose(x.data, 8**-0.5, atol=1e-6)
    assert np.sqrt(8 * x.data.max().astype(float) ** 2) <= 1
    counts = [len(SCHEMA.features[name].values) for name in SCHEMA.features]  # type: ignore[union-attr]
    assert counts == [9, 16, 7, 15, 6, 5, 2, 42]


def test_classes_and_empty_cells_are_counted_as_documented() -> None:
    data = load_adult(split="iid", num_devices=1)
    y = np.concatenate([p.y for p in (data.train, data.validation, data.test)])
    assert np.bincount(y).tolist() == [24_720, 7_841]
    assert data.classes == ("<=50K", ">50K")
    totals = np.sum(
        [p.x.sum(axis=0) for p in (data.train, data.validation, data.test)], axis=0
    )
    for name, count in (("workclass", 1836), ("occupation", 1843)):
        column = data.feature_names.index(f"{name}=?")
        assert totals[column] * 8**0.5 == pytest.approx(count, rel=1e-4)


def test_adult_2_is_even() -> None:
    data = load("adult", split="iid", seed=3)
    assert data.num_devices == 16
    assert np.ptp(sizes(data)) <= 1
    assert data.dissimilarity == "iid"
    assert load("adult", split="iid", num_devices=5).num_devices == 5


def test_both_files_have_48842_rows() -> None:
    data = load_adult(files="both")
    assert sizes(data).sum() == 48_842
    # The paper's std of 4,367 rows per device belongs to both files together.
    assert sizes(data).std() == pytest.approx(4367.09, abs=0.01)


@pytest.mark.parametrize("split", ["by-education", "iid"])
def test_the_seed_determines_the_rows(split: str) -> None:
    first, same, other = (load("adult", split=split, seed=s) for s in (1, 1, 2))
    assert isinstance(first.train.x, csr_array)
    assert isinstance(same.train.x, csr_array)
    assert np.array_equal(first.train.x.indices, same.train.x.indices)
    assert np.array_equal(first.test.y, same.test.y)
    assert not np.array_equal(first.train.y, other.train.y)


@pytest.mark.parametrize(("split", "low", "high"), [
    ("by-education", 0.85, 0.90),
    ("iid", 0.815, 0.845),
])  # fmt: skip
def test_logistic_regression_without_privacy_has_the_published_accuracy(
    split: str, low: float, high: float
) -> None:
    data = load("adult", split=split)
    model = LogisticRegression(C=10, max_iter=300).fit(data.train.x, data.train.y)
    correct = model.predict(data.test.x) == data.test.y
    per_device = np.add.reduceat(correct, data.test.offsets[:-1]) / data.test.sizes
    assert low < per_device.mean() < high
    assert 0.815 < correct.mean() < 0.845


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="choose one of by-education, iid"):
        load("adult", split="by-sensor")
    with pytest.raises(InvalidInputError, match="which has 16"):
        load("adult", num_devices=4)
    with pytest.raises(InvalidInputError, match="comes with the package"):
        load("adult", path="adult.csv")
    with pytest.raises(InvalidInputError, match="files 'test' is not known"):
        load_adult(files="test")  # type: ignore[arg-type]
