#!/usr/bin/env bash
# A RabbitMQ cluster of three nodes on this machine, as a fleet's broker: MQTT over mutual
# TLS, one user per certificate, and the same rules as deploy/mosquitto/fedbudget.acl.
#
#   cluster.sh up FOLDER CERTS [PORT]   start; nodes listen on PORT, PORT+1 and PORT+2
#   cluster.sh kill FOLDER NODE         kill node 1, 2 or 3 as a power cut would
#   cluster.sh start FOLDER NODE        start it again
#   cluster.sh down FOLDER              stop all of them
#
# CERTS is what `fedbudget certs` has made; FOLDER keeps data, logs and settings.
# Needs the Debian package rabbitmq-server (3.10 or later). On three machines, the same
# rabbitmq.conf serves each of them, with cluster_formation in place of join_cluster.
set -euo pipefail

bin=/usr/lib/rabbitmq/bin
[ -x "$bin/rabbitmq-server" ] || { echo "rabbitmq-server is not installed" >&2; exit 1; }
action=$1 folder=$(mkdir -p "$2" && cd "$2" && pwd)

in_node() {  # NODE COMMAND...: run a command with the settings of a node
  local number=$1; shift
  local home=$folder/node$number
  HOME=$folder \
  RABBITMQ_NODENAME="fedbudget$number@localhost" \
  RABBITMQ_DIST_PORT=$((25680 + number)) \
  RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf \
  RABBITMQ_MNESIA_BASE=$home RABBITMQ_LOG_BASE=$home \
  RABBITMQ_PID_FILE=$home/pid \
  RABBITMQ_ENABLED_PLUGINS_FILE=$folder/plugins \
  RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}" \
  RABBITMQ_CTL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}" \
    "$@"
}

start_node() {
  # A node that crashes leaves its dump where it was started.
  in_node "$1" setsid env -C "$folder/node$1" "$bin/rabbitmq-server" >"$folder/node$1/out.log" 2>&1 </dev/null &
  in_node "$1" "$bin/rabbitmqctl" --quiet wait --timeout 120 "$folder/node$1/pid"
}

write_config() {  # NODE PORT
  mkdir -p "$folder/node$1"
  cat >"$folder/node$1/rabbitmq.conf" <<CONF
listeners.tcp = none
mqtt.listeners.tcp = none
mqtt.listeners.ssl.1 = 127.0.0.1:$2
ssl_options.cacertfile = $certs/ca.pem
ssl_options.certfile = $certs/broker.pem
ssl_options.keyfile = $certs/broker.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.2
ssl_cert_login_from = common_name
mqtt.ssl_cert_login = true
mqtt.allow_anonymous = false
mqtt.tcp_listen_options.nodelay = true
mqtt.subscription_ttl = 2592000000
CONF
}

add_user() {  # NAME PUBLISHES READS: regular expressions over topics, with dots
  local queue="^(amq\\.topic|mqtt-subscription-$(regex "$1")qos[01])\$"
  in_node 1 "$bin/rabbitmqctl" --quiet eval "
    Name = <<\"$1\">>, Queue = <<\"${queue//\\/\\\\}\">>,
    case rabbit_auth_backend_internal:exists(Name) of
      true -> ok; false -> rabbit_auth_backend_internal:add_user(Name, <<>>, <<\"setup\">>)
    end,
    rabbit_auth_backend_internal:set_permissions(
      Name, <<\"/\">>, Queue, Queue, Queue, <<\"setup\">>),
    rabbit_auth_backend_internal:set_topic_permissions(
      Name, <<\"/\">>, <<\"amq.topic\">>,
      <<\"${2//\\/\\\\}\">>, <<\"${3//\\/\\\\}\">>, <<\"setup\">>)." >/dev/null
}

regex() { printf '%s' "$1" | sed 's/[.]/[.]/g'; }

topic() { printf '%s' "$1" | sed 's/[.]/\//g'; }  # RabbitMQ swaps dots and slashes

add_users() {
  add_user coordinator '^fedbudget\.1\.(offer|order|declare|status)\.' '^fedbudget\.1\.'
  add_user measure '^fedbudget\.1\.measure\.' '^fedbudget\.1\.measure\.'
  for file in "$certs"/devices/*.pem; do
    local name; name=$(basename "$file" .pem)
    local level; level=$(topic "$name")
    add_user "$name" "^fedbudget\\.1\\.(declare|status|reply)\\.$level(\\.[0-9]+)?\$" \
      "^fedbudget\\.1\\.(order\\.|offer\\.$level(\\.|\$))"
  done
}

case $action in
  up)
    certs=$(cd "$3" && pwd) port=${4:-8883}
    echo "[rabbitmq_mqtt]." >"$folder/plugins"
    for node in 1 2 3; do write_config $node $((port + node - 1)); done
    for node in 1 2 3; do start_node $node; done
    for node in 2 3; do
      in_node $node "$bin/rabbitmqctl" --quiet stop_app
      in_node $node "$bin/rabbitmqctl" --quiet join_cluster fedbudget1@localhost
      in_node $node "$bin/rabbitmqctl" --quiet start_app
    done
    add_users
    # A sleeping device's session must outlive the node that it was begun on.
    in_node 1 "$bin/rabbitmqctl" --quiet set_policy sessions '^mqtt-subscription-' \
      '{"ha-mode": "all", "ha-sync-mode": "automatic"}' --apply-to queues
    in_node 1 "$bin/rabbitmqctl" --quiet delete_user guest
    echo "three nodes listen on 127.0.0.1:$port to $((port + 2))"
    ;;
  start) start_node "$3" ;;
  kill) kill -9 "$(cat "$folder/node$3/pid")" ;;
  down)
    for node in 3 2 1; do
      in_node $node "$bin/rabbitmqctl" --quiet stop >/dev/null 2>&1 || true
    done
    ;;
  *) sed -n '2,12p' "$0" >&2; exit 2 ;;
esac
