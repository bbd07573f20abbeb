"""Personal models on a device: adapted with NumPy, kept there, used for predictions."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbudget.errors import InvalidInputError
from fedbudget.fleet.device.exact_steps import ExactRows
from fedbudget.fleet.device.personal_model import adapted
from fedbudget.interop.export import LinearModel
from fedbudget.losses import loss_named
from fedbudget.simulation.personal import adapt
from tests.cli.running import run
from tests.fleet.devices import SIGNER

SCHEMA = {
    "label": {"name": "alarm", "values": ["no", "yes"]},
    "features": {"heat": {"low": -1, "high": 1}, "noise": {"low": -1, "high": 1}},
}


def sample(seed: int, count: int) -> tuple[ExactRows, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    x /= 1.001 * np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ np.array([3.0, -2.0, 1.0]) + 0.3 * rng.normal(size=count) > 0).astype(int)
    return ExactRows.rounded(x, y), np.array([-1.0, 2.0, 0.0])  # a model that is wrong


@pytest.mark.parametrize("name", ["logistic", "hinge", "smooth_hinge"])
def test_it_is_about_as_good_as_the_reference(name: str) -> None:
    loss = loss_named(name)
    rows, released = sample(0, 400)
    test, _ = sample(1, 4000)
    own = adapted(loss, released, rows)
    train = rows.first(320)
    reference = adapt(
        loss,
        (train.x.astype(float), train.y),
        (rows.x[320:].astype(float), rows.y[320:]),
        released,
    ).theta
    values = [loss.value(t, test.x.astype(float), test.y) for t in (own, reference)]
    before = loss.value(released, test.x.astype(float), test.y)
    assert values[0] < 0.7 * before
    assert values[0] == pytest.approx(values[1], rel=0.25)


def test_few_rows_that_agree_change_little() -> None:
    loss = loss_named("logistic")
    rows, _ = sample(0, 10)
    good = 5 * np.array([3.0, -2.0, 1.0])
    moved = np.linalg.norm(adapted(loss, good, rows) - good) / np.linalg.norm(good)
    assert moved < 0.5
    with pytest.raises(InvalidInputError, match="9 rows are too few"):
        adapted(loss, good, rows.first(9))


def write_site(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    heat, noise = rng.uniform(-1, 1, (2, 200))
    lines = ["heat,noise,alarm"] + [
        f"{h:.3f},{n:.3f},{'yes' if h > n else 'no'}"
        for h, n in zip(heat, noise, strict=True)
    ]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    path = folder / "policy.toml"
    path.write_text(
        'device = "oven"\n[data]\nfile = "rows.csv"\nschema = "schema.json"\n'
        "[budget]\nepsilon = 4.0\ndelta = 1e-4\ncost = 100\n"
        "[prices]\ncommunication = 1\ncomputation = 1\n"
        f'[orders]\ntrusted = ["{SIGNER.public_key}"]\n[broker]\nhost = "localhost"\n'
    )
    return path


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedbudget.data.schema import Schema

    policy, schema = str(write_site(tmp_path)), Schema.from_dict(SCHEMA)
    dim = len(schema.feature_names)
    LinearModel(theta=np.zeros(dim), loss="logistic", schema=schema).save(
        tmp_path / "released.json"
    )
    made = run(capsys, "device", "personal", policy, str(tmp_path / "released.json"))
    assert made.code == 0 and "200 rows" in made.out
    personal = tmp_path / "personal.json"
    assert personal.stat().st_mode & 0o777 == 0o600
    (tmp_path / "new.csv").write_text("heat,noise\n0.9,-0.9\n-0.9,0.9\n")
    shown = run(
        capsys, "device", "predict", policy, str(tmp_path / "new.csv"), "--json"
    )
    first = json.loads(shown.out)["first"]
    assert [row["predicted_alarm"] for row in first] == ["yes", "no"]
    other = LinearModel(theta=np.zeros(dim + 1), loss="logistic")
    other.save(tmp_path / "other.json")
    refused = run(capsys, "device", "personal", policy, str(tmp_path / "other.json"))
    assert refused.code == 2 and "use the model of its own fleet" in refused.err
