"""A real fleet: devices that enforce their own budgets, and their coordinator.

codec.py      CBOR, strictly: what is read from a network is untrusted
fields.py     types and ranges of what messages hold
messages.py   what devices and the coordinator say to each other
signing.py    orders are signed (Ed25519)
chunks.py     large messages in pieces
topics.py     where each message is published
channel.py    what a coordinator needs of a transport: MQTT, or Flower
certificates.py, mqtt.py, broker.py   mutual TLS, connections, the embedded broker
parcels.py, flower.py   several messages in one; the channel over Flower

On a device:

device.py     the process; guard.py decides what it answers, terms.py what it accepts
doorway.py    the guard behind a socket, for orders that Flower carries
policy.py     what its owner decides; toml_section.py reads it
rows_file.py  its data, without pandas or pyarrow
accounts.py   its ledger on disk; chain.py keeps the entries
steps.py      the noisy steps, with exact sums; noise.py draws exact noise

On the coordinator:

server.py     its whole life; roster.py gathers devices, status.py tells what it does
fleet_plan.py a plan for those who declared themselves, if they fit together
coordinator.py the `Devices` seam over a channel; open_round.py the open round
answers.py    what a reply is worth; tally.py what devices have spent at most
offers.py     each device's part of the plan; checkpoints.py its memory, in SQLite
trial.py, demo.py, flower_trial.py   a fleet on one machine

Nothing is imported here: a device loads only what it runs.
"""
