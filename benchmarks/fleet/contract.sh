#!/usr/bin/env bash
# The contract of a fleet's devices, many times in a row beside two busy loops:
#
#   benchmarks/fleet/contract.sh [TIMES] [BROKER...]     20 by default, over both brokers
#
# Prints one line per run, and exits with 1 after the first failure, with its output.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python} times=${1:-20}
brokers=("${@:2}")
[ ${#brokers[@]} -gt 0 ] || brokers=(amqtt mosquitto)
log=$(mktemp)
busy=()
trap 'kill "${busy[@]}"; rm -f "$log"' EXIT
for _ in 1 2; do
  "$python" -c 'while True: pass' &
  busy+=($!)
done
for broker in "${brokers[@]}"; do
  for number in $(seq "$times"); do
    began=$SECONDS
    "$python" -m pytest -q -n 0 -p no:cacheprovider -k "$broker" \
      tests/fleet/coordinator/test_contract_mqtt.py >"$log" 2>&1 || { cat "$log"; exit 1; }
    grep -q ' passed' "$log" || { cat "$log"; exit 1; }  # a broker that is not installed
    echo "$broker $number of $times: $(tail -1 "$log"), $((SECONDS - began)) s"
  done
done
