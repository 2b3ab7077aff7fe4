#!/bin/sh
# Joins the federation as {{name}} and stays. Nothing on this machine has to be reachable from outside.
set -eu
umask 077
cd "$(dirname "$0")"
. ./connection.env
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"
# The SuperNode's own port is for this user alone: whoever asks for a task there has to know a secret.
tasks="$(python3 -c 'from importlib.util import find_spec; print(find_spec("personafl").submodule_search_locations[0])')/backends/deploy/tasks.py"
python3 -P "$tasks" prepare runtime
python3 -P "$tasks" work runtime "$RUNTIME_PORT" $$ &
exec python3 -P "$tasks" join runtime --superlink "$SUPERLINK" --root-certificates ca.crt --auth-supernode-private-key node.key \
    --host 127.0.0.1 --port "$RUNTIME_PORT" --node-config "site=\"$PWD/site.toml\"" \
    --isolation process --superexec-auth-secret-file runtime/secret \
    --ssl-certfile runtime/crt --ssl-keyfile runtime/key --ssl-ca-certfile runtime/crt
