import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import csr_array

import fedbudget as fb
from fedbudget.data import Dataset, Part, load
from fedbudget.data.dataset import all_rows, hold_out, select_devices, split_rows
from fedbudget.errors import DataError, InvalidInputError
from fedbudget.simulation.measuring import measure
from fedbudget.simulation.personal import fit, measure_personal
from tests.examples import small_data


def make(num_classes: int | None, *, synthetic: bool = False) -> Dataset:
    y = np.arange(40) % num_classes if num_classes else np.linspace(-1, 1, 40)
    parts = split_rows(np.zeros((40, 3), np.float32), y, np.arange(40) % 2)
    return Dataset(
        name="toy",
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        device_names=("a", "b"),
        feature_names=("x", "y", "z"),
        classes=tuple("abcdef"[:num_classes]) if num_classes else None,
        dissimilarity="mild",
        synthetic=synthetic,
    )


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0)
)
def test_every_row_lands_in_one_part_and_stays_on_its_device(
    counts: list[int], seed: int
) -> None:
    n = sum(counts)
    ids = np.random.default_rng(seed).permutation(np.repeat(range(len(counts)), counts))
    rows = np.arange(n)
    x = np.stack([rows, ids], axis=1).astype(np.float32) / 1024  # in the unit ball
    parts = split_rows(x, rows, ids, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([p.y for p in parts])), rows)
    for part in parts:
        assert part.x.dtype == np.float32
        for m in range(part.num_devices):
            own_x, own_y = part.device(m)
            assert np.all(own_x[:, 1] * 1024 == m)
            assert np.array_equal(np.asarray(own_x)[:, 0] * 1024, own_y)
    for m, count in enumerate(counts):
        sizes = [int(part.sizes[m]) for part in parts]
        assert sizes[0] == max(1, int(0.8 * count))
        assert sizes[1] == int(0.9 * count) - int(0.8 * count)
        assert sum(sizes) == count


def test_sparse_rows_are_split_like_dense_ones() -> None:
    x = np.eye(30, dtype=np.float32)
    ids, y = np.arange(30) % 4, np.arange(30)
    for dense, sparse in zip(
        split_rows(x, y, ids, seed=3),
        split_rows(csr_array(x), y, ids, seed=3),
        strict=True,
    ):
        assert isinstance(sparse.x, csr_array)
        assert np.array_equal(np.asarray(dense.x), sparse.x.toarray())
        own = sparse.device(1)[0]
        assert isinstance(own, csr_array)
        assert np.array_equal(np.asarray(dense.device(1)[0]), own.toarray())


def test_the_seed_decides_the_split() -> None:
    x, y, ids = np.zeros((50, 1), np.float32), np.arange(50), np.arange(50) % 3
    first, same, other = (split_rows(x, y, ids, seed=s)[0].y for s in (0, 0, 1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_million_devices_split() -> None:
    ids = np.random.default_rng(0).permutation(2_000_000) % 1_000_000
    train, _, test = split_rows(np.zeros((len(ids), 2), np.float32), ids, ids)
    assert train.num_devices == 1_000_000
    assert np.array_equal(train.y, np.arange(1_000_000))
    assert np.array_equal(test.y, np.arange(1_000_000))


def test_a_device_without_rows_is_refused() -> None:
    x = np.zeros((2, 1), np.float32)
    with pytest.raises(DataError, match="device 1 has no row"):
        split_rows(x, np.zeros(2), [0, 2])
    with pytest.raises(DataError, match="device 1 has no row"):
        split_rows(x, np.zeros(2), [0, 0], num_devices=2)


def test_parts_and_data_sets_that_do_not_fit_together_are_refused() -> None:
    x = np.zeros((2, 1), np.float32)
    with pytest.raises(DataError, match="offsets end at 3"):
        Part(x=x, y=np.zeros(2), offsets=np.array([0, 3]))
    with pytest.raises(DataError, match="y holds nan in row 1"):
        Part(x=x, y=np.array([0, np.nan]), offsets=np.array([0, 2]))
    with pytest.raises(DataError, match="not decrease"):
        Part(x=x, y=np.zeros(2), offsets=np.array([0, 3, 2]))
    part = Part(x=x, y=np.zeros(2), offsets=np.array([0, 2]))
    with pytest.raises(
        InvalidInputError, match=r"device 1 does not exist: choose 0 \.\. 0"
    ):
        part.device(1)
    with pytest.raises(DataError, match=r"1 device and 1 column, .* names for 2 and 1"):
        Dataset(
            name="toy",
            train=part,
            validation=part,
            test=part,
            device_names=("a", "b"),
            feature_names=("x",),
            classes=None,
            dissimilarity="iid",
        )


def test_one_line_describes_a_data_set_and_marks_synthetic_data() -> None:
    assert str(make(2)) == (
        "toy: 2 devices, 40 rows (32 train, 4 validation, 4 test), 3 columns, "
        "2 classes, dissimilarity mild"
    )
    assert "SYNTHETIC" in str(make(2, synthetic=True))
    part = Part(x=np.zeros((1, 1)), y=np.zeros(1), offsets=np.array([0, 1]))
    none = Part(x=np.zeros((0, 1)), y=np.zeros(0), offsets=np.array([0, 0]))
    single = Dataset(
        name="toy",
        train=part,
        validation=none,
        test=none,
        device_names=("a",),
        feature_names=("x",),
        classes=None,
        dissimilarity="iid",
    )
    assert "1 device, 1 row (1 train, 0 validation, 0 test), 1 column, " in str(single)
    assert "regression" in repr(make(None))


@pytest.mark.parametrize(
    ("num_classes", "default", "unfit"),
    [(2, "logistic", "huber"), (4, "softmax", "hinge"), (None, "huber", "logistic")],
)
def test_a_problem_is_the_public_shape(
    num_classes: int | None, default: str, unfit: str
) -> None:
    data = make(num_classes)
    problem = data.problem(l2=0.1)
    assert problem.num_samples.tolist() == [16, 16] == data.num_samples.tolist()
    assert (problem.dim, problem.dissimilarity) == (3, "mild")
    assert problem.model.name == default
    assert problem.model.l2 == 0.1
    assert data.problem(dissimilarity="strong").dissimilarity == "strong"
    with pytest.raises(InvalidInputError, match=f"use .*{default}"):
        data.problem(loss=unfit)


DATA = small_data(devices=6, rows=30)


def test_every_device_is_on_one_side_with_all_its_rows() -> None:
    remaining, held_out = hold_out(DATA, count=2, seed=1)
    assert sorted(remaining.device_names + held_out.device_names) == list("012345")
    for side in (remaining, held_out):
        for index, name in enumerate(side.device_names):
            for part in ("train", "validation", "test"):
                x, y = getattr(side, part).device(index)
                original = getattr(DATA, part).device(int(name))
                assert (x == original[0]).all() and (y == original[1]).all()
    again = hold_out(DATA, count=2, seed=1)
    assert again[1].device_names == held_out.device_names
    assert {hold_out(DATA, count=2, seed=s)[1].device_names for s in range(9)} > {
        held_out.device_names
    }


def test_sparse_rows_and_any_order() -> None:
    adult = fb.load("adult", split="iid")
    selected = select_devices(adult, [5, 2])
    assert selected.num_samples.tolist() == [1628, 1628]
    assert (selected.train.device(1)[0] != adult.train.device(2)[0]).nnz == 0  # type: ignore[union-attr]


def test_one_device_must_train() -> None:
    with pytest.raises(fb.InvalidInputError, match="hold out at most 5"):
        hold_out(DATA, count=6)
    with pytest.raises(fb.InvalidInputError, match="device 7"):
        select_devices(DATA, [7])


def test_held_out_devices_gain_from_the_common_model() -> None:
    data = small_data(devices=12, rows=24, dim=8)
    remaining, held_out = hold_out(data, count=4)
    loss = data.problem().model
    theta = fit(loss, remaining.train.x, remaining.train.y, strength=1e-3)
    measured = measure_personal(held_out, loss, theta)
    common = measure(held_out, loss, theta)
    assert common["test_loss"] < measured["alone_test_loss"]
    assert measured["personal_test_loss"] < measured["alone_test_loss"]
    assert np.isfinite(list(measured.values())).all()


@pytest.mark.parametrize("name", ["adult", "vehicle"])
def test_all_rows_are_every_part_device_by_device(name: str) -> None:
    data = load(name)
    rows = all_rows(data)
    for m in range(data.num_devices):
        x, y = rows.device(m)
        parts = [p.device(m) for p in (data.train, data.validation, data.test)]
        assert y.tolist() == np.concatenate([labels for _, labels in parts]).tolist()
        total = sum(float(part.sum()) for part, _ in parts)
        assert float(x.sum()) == pytest.approx(total, rel=1e-3)
