#!/bin/sh
# Starts the SuperLink, which keeps the sites' keys and passes messages on. It listens on {{private}} only.
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
exec flower-superlink --host {{private_host}} --port {{private_port}} \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation --database superlink.db
