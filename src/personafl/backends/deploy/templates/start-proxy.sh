#!/bin/sh
# Starts nginx, the public side of the federation, on {{listen}}.
set -eu
umask 077
cd "$(dirname "$0")"
PATH="$PATH:/usr/sbin:/sbin"
# Started by root, nginx would give its work to a user who may not enter this folder.
user=""
if [ "$(id -u)" = 0 ]; then user="user root;"; fi
exec nginx -p "$PWD" -c "$PWD/nginx.conf" -e stderr -g "daemon off; $user"
