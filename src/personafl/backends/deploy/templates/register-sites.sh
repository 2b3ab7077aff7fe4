#!/bin/sh
# Tells the SuperLink whose keys may join: all of keys/, or the ones that are named, as in: register-sites.sh NAME
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
./refresh-proxy.sh
if [ $# = 0 ]; then
    for key in keys/*.pub; do set -- "$@" "$(basename "$key" .pub)"; done
fi
for name in "$@"; do
    ./flwr.sh supernode register "keys/$name.pub" personafl --name "$name"
done
