import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from sklearn.svm import LinearSVC

from fedbudget.data import Dataset, load
from fedbudget.data.vehicle import COUNTS, SHARE_POSITIVE, draw_standin, load_vehicle
from fedbudget.errors import DataError, InvalidInputError, NotPrivateWarning
from tests.data.examples import cells, write_mat


@pytest.fixture
def mat(tmp_path: Path) -> Path:
    return write_mat(tmp_path / "vehicle.mat")


@pytest.fixture(scope="module")
def standin() -> Dataset:
    return load("vehicle")


def test_the_standin_is_labelled_synthetic(standin: Dataset) -> None:
    assert standin.synthetic
    assert standin.name == "vehicle (synthetic)"
    assert "SYNTHETIC" in str(standin)


def test_the_standin_has_the_real_shape(standin: Dataset) -> None:
    parts = (standin.train, standin.validation, standin.test)
    assert tuple(np.sum([part.sizes for part in parts], axis=0)) == COUNTS
    assert sum(COUNTS) == 43_695
    assert np.std(COUNTS) == pytest.approx(348.9, abs=0.05)
    assert (standin.num_devices, standin.dim) == (23, 100)
    assert standin.classes == ("-1", "+1")
    share = np.mean(np.concatenate([part.y for part in parts]))
    assert share == pytest.approx(SHARE_POSITIVE, abs=0.01)
    norms = np.linalg.norm(np.asarray(standin.train.x, dtype=np.float64), axis=1)
    assert norms.max() <= 1
    assert norms.min() > 1 - 1e-6


def test_the_standin_is_always_the_same_and_the_seed_splits_it(
    standin: Dataset,
) -> None:
    again, other = load("vehicle"), load("vehicle", seed=1)
    assert np.array_equal(np.asarray(standin.train.x), np.asarray(again.train.x))
    assert not np.array_equal(standin.train.y, other.train.y)
    assert np.array_equal(draw_standin(seed=4)[0][:5], draw_standin(seed=4)[0][:5])


@pytest.mark.parametrize(
    ("split", "low", "high"), [("by-sensor", 0.85, 0.87), ("iid", 0.865, 0.885)]
)
def test_a_linear_svm_has_about_the_accuracy_of_the_real_data(
    split: str, low: float, high: float
) -> None:
    data = load("vehicle", split=split)
    model = LinearSVC(loss="hinge", max_iter=20_000).fit(data.train.x, data.train.y)
    correct = model.predict(data.test.x) == data.test.y
    per_device = np.add.reduceat(correct, data.test.offsets[:-1]) / data.test.sizes
    assert low < per_device.mean() < high
    if split == "by-sensor":
        assert per_device[5] < 0.25  # its labels are inverted
        assert np.delete(per_device, 5).min() > 0.7


def test_the_standin_has_the_real_data_s_order_of_magnitude() -> None:
    # 1,860 real rows, scaled to norm 1: spectrum 0.244, 0.197, 0.044; gap 0.535.
    x, y, _ = draw_standin()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    spectrum = np.linalg.eigvalsh(unit.T @ unit / len(unit))[::-1]
    assert spectrum[:3] == pytest.approx([0.244, 0.197, 0.044], rel=0.35)
    gap = unit[y == 1].mean(axis=0) - unit[y == 0].mean(axis=0)
    assert 0.3 < np.linalg.norm(gap) < 0.6


def test_the_real_file_is_read_cell_by_cell(mat: Path) -> None:
    data = load_vehicle(mat, check=False)
    assert not data.synthetic
    assert data.name == "vehicle"
    assert data.num_samples.tolist() == [24, 16, 8]
    assert data.dissimilarity == "mild"
    assert set(data.train.y) == {0, 1}
    assert np.linalg.norm(np.asarray(data.train.x, np.float64), axis=1).max() <= 1
    even = load_vehicle(mat, check=False, split="iid")
    assert even.num_samples.tolist() == [16, 16, 16]


def test_another_file_is_refused_by_its_git_id(mat: Path) -> None:
    raw = mat.read_bytes()
    blob = hashlib.sha1(f"blob {len(raw)}\0".encode() + raw).hexdigest()
    with pytest.raises(DataError, match=f"git id {blob}.*check=False"):
        load("vehicle", path=mat)


def test_standardising_warns_that_it_is_not_private(mat: Path) -> None:
    with pytest.warns(NotPrivateWarning, match="standardise=False"):
        data = load_vehicle(mat, check=False, standardise=True)
    plain = load_vehicle(mat, check=False)
    assert abs(np.asarray(data.train.x).mean()) < 0.01
    assert np.asarray(plain.train.x).mean() > 0.05


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.mat"
    with pytest.raises(DataError, match="does not exist"):
        load_vehicle(path)
    path.write_bytes(b"no matlab file " * 20)
    with pytest.raises(DataError, match="not a MATLAB file"):
        load_vehicle(path, check=False)
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(DataError, match="holds Z: it must hold cells X and Y"):
        load_vehicle(path, check=False)
    savemat(path, {"X": cells([np.zeros((3, 4))]), "Y": cells([np.ones((2, 1))])})
    with pytest.raises(DataError, match="differ in their numbers of rows"):
        load_vehicle(path, check=False)
    savemat(path, {"X": cells([np.zeros((2, 4))]), "Y": cells([np.zeros((2, 1))])})
    with pytest.raises(DataError, match="labels other than -1 and"):
        load_vehicle(path, check=False)


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="choose one of by-sensor, iid"):
        load("vehicle", split="by-education")
    with pytest.raises(InvalidInputError, match="which has 23"):
        load("vehicle", num_devices=4)
