#!/bin/sh
# Tells the SuperLink that keys count no more: unregister-site.sh KEY.pub ... (personafl deploy revoke calls this)
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
./refresh-proxy.sh || true  # whatever is wrong with ../federation.toml
exec python3 -c 'from personafl.backends.deploy.superlink import main; main()' "$PWD" "{{private}}" "$@"
