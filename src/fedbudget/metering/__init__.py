"""What a local step and a round cost on this device: c1 and c2, measured.

steps.py    local steps, in seconds
links.py    a round's messages, over loopback TCP or through an MQTT broker
energy.py   joules, from RAPL counters or from a given wattage
meter.py    all of it, as prices
"""
