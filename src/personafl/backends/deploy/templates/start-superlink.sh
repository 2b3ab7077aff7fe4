#!/bin/sh
# Starts the SuperLink, which keeps the sites' keys and passes messages on. It listens on {{private}} only, and does what
# its operator asks for who shows the secret in runtime/, made anew at every start: flwr.sh does.
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
python3 -P "$programs/login.py" prepare runtime
python3 -P "$programs/tasks.py" work-runs runtime {{private}} $$ &
exec python3 -P "$programs/login.py" serve runtime --host {{private_host}} --port {{private_port}} \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation --database superlink.db \
    --isolation process --superexec-auth-secret-file runtime/secret
