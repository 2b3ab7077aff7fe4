#!/bin/sh
# Makes an archive for each site in ../handout. Each holds that site's private key: hand it over in a safe way.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p handout
for folder in sites/*/; do
    name="$(basename "$folder")"
    cp federation.toml "sites/$name/federation.toml"
    tar -czf "handout/$name.tar.gz" -C sites "$name"
    echo "handout/$name.tar.gz"
done
