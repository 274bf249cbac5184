#!/bin/sh
# Starts Lamina in the container. The service refuses to listen beyond loopback without keys, so
# before the first `serve` this makes one admin key, in a file that only the service's user can
# read: what is printed would stay in the container's log.
set -eu
if [ "${1:-}" = serve ]; then
  keys=
  if [ -e "$LAMINA_DATA/service.sqlite" ]; then
    keys=$(lamina keys list)
  fi
  if [ -z "$keys" ]; then
    file=$LAMINA_DATA/admin.key
    rm -f "$file"
    (umask 077 && lamina keys create --scope admin --name "first start" >"$file")
    echo "First start: the admin key is in $file; read it, then remove the file." >&2
  elif ! printf '%s\n' "$keys" | cut -f 4 | grep -qx "in force"; then
    echo "Every key is revoked. Make one in a container on the same volume, for instance with" >&2
    echo "  docker compose --profile cpu run --rm lamina keys create --scope admin" >&2
  fi
fi
exec lamina "$@"
