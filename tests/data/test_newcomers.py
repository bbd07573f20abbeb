"""Devices held out of training, and what they find when they join."""

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.data.newcomers import hold_out, only
from fedbudget.simulation.fitting import fit
from fedbudget.simulation.measuring import measure
from fedbudget.simulation.personal import measure_personal
from tests.examples import small_data

DATA = small_data(devices=6, rows=30)


def test_every_device_is_on_one_side_with_all_its_rows() -> None:
    there, late = hold_out(DATA, count=2, seed=1)
    assert sorted(there.device_names + late.device_names) == list("012345")
    for side in (there, late):
        for place, name in enumerate(side.device_names):
            for part in ("train", "validation", "test"):
                mine = getattr(side, part).device(place)
                whole = getattr(DATA, part).device(int(name))
                assert (mine[0] == whole[0]).all() and (mine[1] == whole[1]).all()
    again = hold_out(DATA, count=2, seed=1)
    assert again[1].device_names == late.device_names
    assert {hold_out(DATA, count=2, seed=s)[1].device_names for s in range(9)} > {
        late.device_names
    }


def test_sparse_rows_and_any_order() -> None:
    adult = fb.load("adult", split="iid")
    few = only(adult, [5, 2])
    assert few.num_samples.tolist() == [1628, 1628]
    assert (few.train.device(1)[0] != adult.train.device(2)[0]).nnz == 0  # type: ignore[union-attr]


def test_somebody_has_to_train() -> None:
    with pytest.raises(fb.InvalidInputError, match="hold out at most 5"):
        hold_out(DATA, count=6)
    with pytest.raises(fb.InvalidInputError, match="device 7"):
        only(DATA, [7])


def test_newcomers_find_a_model_better_than_their_own() -> None:
    data = small_data(devices=12, rows=24, dim=8)
    there, late = hold_out(data, count=4)
    loss = data.problem().model
    theta = fit(loss, there.train.x, there.train.y, strength=1e-3)
    found = measure_personal(late, loss, theta)
    assert measure(late, loss, theta)["test_loss"] < found["alone_test_loss"]
    assert found["personal_test_loss"] < found["alone_test_loss"]
    assert np.isfinite(list(found.values())).all()
