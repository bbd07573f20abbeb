"""A real fleet: devices that enforce their own budgets, and their coordinator.

wire/          what devices and the coordinator send each other: signed messages in CBOR
transport/     how it travels: MQTT over mutual TLS; an embedded broker for trials
device/        a device's process. guard.py decides what it answers; ledger_file.py is
               charged on disk before data are touched; exact_steps.py and
               exact_noise.py compute the answer
coordinator/   the coordinator's process. devices.py is its `Devices` seam;
               checkpoints.py remembers every order, so that it is repeated in the same
               bytes; flower.py carries the same messages over Flower
demo.py        a fleet on one machine

Nothing is imported here: a device loads only what it runs.
"""
