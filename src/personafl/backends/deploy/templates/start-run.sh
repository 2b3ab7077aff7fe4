#!/bin/sh
# Starts a run and shows its log. A run that was cut short goes on after its last checkpoint. Another run:
#     start-run.sh FOLDER
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
./refresh-proxy.sh
python3 -c 'from personafl.backends.deploy.expiry import main; main()' "$PWD"
out="$(realpath -m "${1:-../run}")"
config="$(realpath ../federation.toml)"
exec ./flwr.sh run ../app personafl --stream --run-config "config=\"$config\" out=\"$out\" keys=\"$PWD\""
