"""The power goes at every write of the ledger: no answer is ever left uncharged.

A device answers some rounds while a preloaded library writes down every change of its
folder's files, in order, and every time they are forced to disk. Then each moment is
played back in three ways: the disk has all that was written (the process was killed),
only what was forced to it (the power was cut), or half of the last write as well. From
each of these the device is started again.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbudget.errors import LedgerError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import Accounts
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.statement import read_statement
from tests.fleet.devices import SIGNER, write_device
from tests.fleet.examples import RUN, offer, order, reply

ROOT = Path(__file__).parents[3] / "src"
ROUNDS = 2
ROUND_COST = 105.0

DEVICE = """
import os, sys
from pathlib import Path
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
folder, *messages = sys.argv[1:]
guard = Guard(read_policy(f"{folder}/policy.toml"))
sent = os.open(f"{folder}/sent", os.O_WRONLY | os.O_CREAT, 0o600)
for place, message in enumerate(messages):
    answer = guard.answer_order if place else guard.answer_offer
    (reply,) = answer(bytes.fromhex(message))
    assert reply.code in ("accepted", "answered"), reply
    if reply.theta is not None:
        os.write(sent, reply.to_bytes())
os._exit(0)  # nothing is closed in good order
"""


class Change(NamedTuple):
    kind: str  # w: written; t: cut to a length; u: removed; s: forced to disk
    name: str
    offset: int
    data: bytes


def read_journal(path: Path) -> Iterator[Change]:
    data, place = path.read_bytes(), 0
    while place < len(data):
        kind, name_size, offset, size = struct.unpack_from("<cIQQ", data, place)
        place += 21
        name = data[place : place + name_size].decode()
        place += name_size
        yield Change(kind.decode(), name, offset, data[place : place + size])
        place += size


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Change]]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux, to write down what reaches the disk")
    folder = tmp_path_factory.mktemp("power")
    library, journal = folder / "journal.so", folder / "journal"
    source = Path(__file__).with_name("write_journal.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True
    )
    home = folder / "device"
    write_device(home)
    messages = [SIGNER.sign(offer(drift_momentum=0.5))]
    messages += [SIGNER.sign(order(round=n)) for n in range(1, ROUNDS + 1)]
    before = os.environ.get("PYTHONPATH", "")
    subprocess.run(
        [sys.executable, "-c", DEVICE, str(home), *(m.hex() for m in messages)],
        check=True,
        env=os.environ
        | {
            "LD_PRELOAD": str(library),
            "WATCHED": str(home),
            "JOURNAL": str(journal),
            "PYTHONPATH": os.pathsep.join([*filter(None, [before]), str(ROOT)]),
        },
    )
    return home, list(read_journal(journal))


def on_disk(changes: list[Change], mode: str) -> dict[str, bytearray]:
    """Return the files as they are after these changes and then a cut."""
    files: dict[str, bytearray] = defaultdict(bytearray)
    last_sync = {c.name: i for i, c in enumerate(changes) if c.kind == "s"}
    for place, change in enumerate(changes):
        # A name is removed for good once its folder is forced to disk.
        synced = last_sync.get("" if change.kind == "u" else change.name, -1)
        forced = place <= synced or change.name == "sent"
        torn = mode == "torn" and place == len(changes) - 1 and change.name != "sent"
        if change.kind == "s" or (mode != "all" and not (forced or torn)):
            continue
        if change.kind == "u":
            files.pop(change.name, None)
        else:
            apply(files[change.name], change, half=torn)
    return files


def apply(file: bytearray, change: Change, *, half: bool) -> None:
    if change.kind == "t":
        del file[change.offset :]
        file.extend(bytes(change.offset - len(file)))
        return
    data = change.data[: len(change.data) // 2] if half else change.data
    file.extend(bytes(max(0, change.offset - len(file))))
    file[change.offset : change.offset + len(data)] = data


def start_again(home: Path, folder: Path, files: dict[str, bytearray]) -> Guard:
    folder.mkdir()
    for name in ("rows.npz", "policy.toml"):
        (folder / name).symlink_to(home / name)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Guard(read_policy(folder / "policy.toml"))


@pytest.mark.parametrize("mode", ["all", "forced", "torn"])
def test_the_ledger_never_counts_too_little(
    recorded: tuple[Path, list[Change]], mode: str, tmp_path: Path
) -> None:
    home, changes = recorded
    kinds = {change.kind for change in changes}
    assert {"w", "s"} <= kinds and len(changes) > 50
    seen = set()
    for moment in range(len(changes) + 1):
        files = on_disk(changes[:moment], mode)
        sent = bytes(files.pop("sent", b""))
        folder = tmp_path / str(moment)
        guard = start_again(home, folder, files)
        answers = split_answers(sent)
        statement = read_statement(folder / "ledger.sqlite")
        charged = sum(run.charged for run in statement.runs)
        assert charged >= len(answers)
        assert statement.cost == charged * ROUND_COST
        for number, answer in enumerate(answers, 1):
            (again,) = guard.answer_order(SIGNER.sign(order(round=number)))
            # The last one that was charged is there; one before it may be gone.
            gone = number < charged and again.code == "wrong-round"
            assert gone or again.to_bytes() == answer
        if charged > len(answers):
            (again,) = guard.answer_order(SIGNER.sign(order(round=charged)))
            assert again.code in ("already-charged", "answered")
        assert read_statement(folder / "ledger.sqlite").cost == statement.cost
        # What drift control keeps is there with the answer, or neither is.
        guard.close()
        policy = read_policy(folder / "policy.toml")
        accounts = Accounts(policy.ledger, policy.budget, lineage=policy.data.lineage)
        kept = accounts.last_answer(RUN)
        assert (kept is None) == (sum(run.answered for run in statement.runs) == 0)
        if kept is not None:
            assert accounts.answer(RUN, kept.round) == kept.reply
        accounts.close()
        seen.add((charged, len(answers)))
        shutil.rmtree(folder)
    # All rounds, and the moments between a charge and its answer, were among them.
    assert {(n, n) for n in range(ROUNDS + 1)} <= seen
    assert {(n + 1, n) for n in range(ROUNDS)} <= seen


def split_answers(sent: bytes) -> list[bytes]:
    """Answers of the first rounds have one length."""
    size = len(reply(theta=bytes(32)).to_bytes())
    assert len(sent) % size == 0
    return [sent[place : place + size] for place in range(0, len(sent), size)]


def test_a_lost_force_to_disk_would_be_found(
    recorded: tuple[Path, list[Change]], tmp_path: Path
) -> None:
    # The witness can fail: without what was forced to disk last, a charge is missing.
    home, changes = recorded
    ignored = [c for c in changes if not (c.kind == "s" and c.name.endswith("-wal"))]
    files = on_disk(ignored, "forced")
    sent = split_answers(bytes(files.pop("sent")))
    with pytest.raises(LedgerError, match="once had"):
        start_again(home, tmp_path / "device", files)
    assert len(sent) == ROUNDS
