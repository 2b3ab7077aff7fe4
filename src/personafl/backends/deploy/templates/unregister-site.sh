#!/bin/sh
# Tells the SuperLink that keys count no more: unregister-site.sh KEY.pub ... (personafl deploy revoke calls this)
set -eu
umask 077
cd "$(dirname "$0")"
./refresh-proxy.sh
exec python3 -c 'from personafl.backends.deploy.superlink import main; main()' "$PWD" "{{private}}" "$@"
