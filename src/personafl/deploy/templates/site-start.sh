#!/bin/sh
# Joins the federation as {{name}} and stays. Nothing on this machine has to be reachable from outside.
set -eu
cd "$(dirname "$0")"
. ./connection.env
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"
exec flower-supernode --superlink "$SUPERLINK" --root-certificates ca.crt --auth-supernode-private-key node.key \
    --host 127.0.0.1 --port "$RUNTIME_PORT" --node-config "site=\"$PWD/site.toml\""
