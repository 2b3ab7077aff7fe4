# What the operator's scripts share. They are started in their own folder.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_HOME="$PWD/flower"

# Flower wants the certificate's absolute path, and this folder may have moved.
mkdir -p flower
cat > flower/config.toml <<END
[superlink]
default = "personafl"

[superlink.personafl]
address = "{{private}}"
root-certificates = "$PWD/ca.crt"
END

programs="$(python3 -c 'from importlib.util import find_spec; print(find_spec("personafl").submodule_search_locations[0])')/backends/deploy"
