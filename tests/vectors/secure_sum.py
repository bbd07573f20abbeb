"""The published test vectors of a secure sum, as `secure_sum.json` has them.

`python -m tests.vectors.secure_sum` writes the file; tests compute it again. Secrets
are SHA-256 of "round/LABEL/COUNT" (`tests.fleet.secure.rounds.stream`), so that another
implementation can start from the same. Bytes are in hex, vectors are lists of numbers.
"""

import json
from pathlib import Path
from typing import Any

from fedbudget.fleet.secure import protocol, shamir, unmasking
from tests.fleet.secure.rounds import SecureRound, vectors


def vectors_of_a_round() -> dict[str, Any]:
    """Return four devices in one attempt; the last one drops out before its upload."""
    current, count, answered = SecureRound(4), 4, [0, 1, 2]
    inputs = vectors(4, count)
    announced = current.announce(range(4))
    roster = current.roster(announced)
    uploads = current.upload(roster, inputs, answered)
    shares = current.reveal(roster, announced, answered, answered)
    total = unmasking.unmask(roster, uploads, shares, ring_bits=32)
    signatures = {m: current.devices[m].confirm(roster, answered) for m in answered}
    self_mask = protocol.self_mask(
        roster, 0, current.secrets[0].self_secret, count, ring_bits=32
    )
    pair_mask = protocol.pair_mask(
        roster, 0, 1, current.secrets[0].mask_secret, count, 32
    )
    peers = current.peers
    return {
        "run": current.attempt.run.hex(),
        "round": current.attempt.round,
        "attempt": current.attempt.number,
        "colluders": peers.colluders,
        "threshold": peers.neighbourhood.threshold,
        "quorum": peers.quorum,
        "peers_digest": peers.digest.hex(),
        "roster_digest": roster.digest.hex(),
        "answered": answered,
        "devices": [_device(current, announced, m) for m in range(4)],
        "vectors": inputs.tolist(),
        "self_mask_0": self_mask.tolist(),
        "pair_mask_0_1": pair_mask.tolist(),
        "uploads": {str(m): upload.tolist() for m, upload in uploads.items()},
        "confirmations": {
            str(m): signature.hex() for m, signature in signatures.items()
        },
        "revealed": {
            str(m): {str(of): share.hex() for of, share in held.items()}
            for m, held in shares.items()
        },
        "sum": total.tolist(),
    }


def _device(current: SecureRound, announced: Any, m: int) -> dict[str, Any]:
    member, secrets = current.peers.members[m], current.secrets[m]
    key, sealed = announced[m].key, announced[m].sealed
    return {
        "name": member.name,
        "run_secret": current.devices[m].keys.secret.hex(),
        "verify_key": member.verify_key.hex(),
        "share_key": member.share_key.hex(),
        "mask_secret": shamir.to_bytes(secrets.mask_secret).hex(),
        "self_secret": shamir.to_bytes(secrets.self_secret).hex(),
        "mask_key": key.mask_key.hex(),
        "commitment": key.commitment.hex(),
        "signature": key.signature.hex(),
        "sealed": {str(holder): data.hex() for holder, data in sealed.items()},
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("secure_sum.json")
    path.write_text(json.dumps(vectors_of_a_round(), indent=1) + "\n")
    print(path)
