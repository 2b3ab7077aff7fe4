#!/bin/sh
# Installs nginx where that takes no more than root and apt: the tests of deployments put it in front of a federation, and
# are skipped where there is none. Never fails.

PATH="$PATH:/usr/sbin:/sbin"
command -v nginx > /dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "tests of deployments behind a proxy will be skipped: there is no nginx"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
echo "install: nginx, for the tests of deployments"
# Only the program: Debian would start a web server on port 80, unless told that it may not.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
    trap 'exit 0' HUP INT TERM
fi
install="timeout 600 apt-get install -qq -y --no-install-recommends nginx"
# The list of packages is fetched only where the one at hand does not do.
{ $install || { timeout 300 apt-get update -qq && $install; }; } > /dev/null 2>&1 < /dev/null ||
    echo "nginx could not be installed: tests of deployments behind a proxy will be skipped"
exit 0
