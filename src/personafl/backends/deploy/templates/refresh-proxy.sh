#!/bin/sh
# Lets nginx know of keys that were added to keys/, and of what ../federation.toml trains: larger answers are refused.
set -eu
umask 077
cd "$(dirname "$0")"
PATH="$PATH:/usr/sbin:/sbin"
status=0
state="$(python3 -c 'from personafl.backends.deploy.proxy import main; main()' "$PWD")" || status=$?
if [ "$state" = changed ] && [ -s nginx.pid ]; then
    nginx -p "$PWD" -c "$PWD/nginx.conf" -e stderr -s reload || true
fi
exit $status
