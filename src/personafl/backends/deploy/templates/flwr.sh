#!/bin/sh
# Flower's own program, logged in as the operator. Which runs there were: flwr.sh list personafl
set -eu
umask 077
cd "$(dirname "$0")"
. ./environment.sh
exec python3 -P "$programs/login.py" flwr runtime "$@"
