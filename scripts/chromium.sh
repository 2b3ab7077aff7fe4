#!/bin/sh
# Installs Chromium where that takes no more than root and apt: the tests of reports look at them in a real browser, and
# are skipped where there is none. Never fails.

for name in chromium chromium-browser google-chrome; do
    command -v "$name" > /dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "tests of reports in a browser will be skipped: there is no chromium"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
echo "install: chromium, for the tests of reports"
install="timeout 600 apt-get install -qq -y --no-install-recommends chromium"
# The list of packages is fetched only where the one at hand does not do.
{ $install || { timeout 300 apt-get update -qq && $install; }; } > /dev/null 2>&1 < /dev/null ||
    echo "chromium could not be installed: tests of reports in a browser will be skipped"
exit 0
