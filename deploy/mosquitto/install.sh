#!/bin/sh
# Install the broker's configuration and certificates; run it as root, in a clone:
#   sudo sh deploy/mosquitto/install.sh KEYS
# KEYS is the output folder of `fedbudget certs`. Run it again after `fedbudget certs renew`
# or `revoke`. The authority's key and other clients' keys are not copied.
# PREFIX=/some/folder installs below another root, to look at the result.
set -eu
keys=${1:?name the output folder of fedbudget certs}
here=$(cd "$(dirname "$0")" && pwd)
etc=${PREFIX:-}/etc/mosquitto
user=${MOSQUITTO_USER:-mosquitto}

for file in ca.pem crl.pem broker.pem broker.key; do
    [ -f "$keys/$file" ] || { echo "$keys/$file is missing: run fedbudget certs $keys" >&2; exit 1; }
done
install -d -m 755 "$etc" "$etc/conf.d"
install -d -m 750 -o "$user" -g "$user" "$etc/certs"
for file in ca.pem crl.pem broker.pem; do
    install -m 644 -o "$user" -g "$user" "$keys/$file" "$etc/certs/$file"
done
install -m 600 -o "$user" -g "$user" "$keys/broker.key" "$etc/certs/broker.key"
install -m 600 -o "$user" -g "$user" "$here/fedbudget.acl" "$etc/fedbudget.acl"
install -m 644 "$here/fedbudget.conf" "$etc/conf.d/fedbudget.conf"
# Debian's own mosquitto.conf has this setting already, and it may stand only once.
if grep -qs '^persistence_location' "$etc/mosquitto.conf"; then
    sed -i '/^persistence_location/d' "$etc/conf.d/fedbudget.conf"
fi
if [ -z "${PREFIX:-}" ] && [ -d /run/systemd/system ]; then
    systemctl restart mosquitto
    echo "installed below $etc; mosquitto is restarted"
else
    echo "installed below $etc; now restart mosquitto"
fi
