"""A real fleet: devices that enforce their own budgets, and their coordinator.

Where to begin reading; every module's own first lines say what it is for:

messages.py      what devices and the coordinator say to each other: signed, in CBOR
channel.py       what a coordinator needs of a transport: mqtt.py, or flower.py
device.py        a device's process; guard.py decides what it answers
accounts.py      a device's ledger on disk: charged before data are touched
steps.py         a device's noisy steps, with exact sums; noise.py draws exact noise
server.py        the coordinator's whole life; coordinator.py is its `Devices` seam
checkpoints.py   the coordinator's memory: what it has asked is asked in the same bytes
demo.py          a fleet on one machine

Nothing is imported here: a device loads only what it runs.
"""
