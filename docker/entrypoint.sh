#!/bin/sh
# Starts Lamina in the container. Before the first `serve` it makes one admin key and prints it:
# the service refuses to listen beyond loopback without keys.
set -eu
if [ "${1:-}" = serve ] && [ -z "$(lamina keys list)" ]; then
  echo "First start: this key is shown once; more with \`lamina keys create\`." >&2
  lamina keys create --scope admin >&2
fi
exec lamina "$@"
