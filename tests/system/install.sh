#!/usr/bin/env bash
# Installs the programs that are named, where apt-get and its rights are at hand; elsewhere says
# which are missing.
set -euo pipefail

declare -A packages=(
  [bwrap]=bubblewrap [dnsmasq]=dnsmasq-base [ip]=iproute2 [node]=nodejs [promtool]=prometheus
)
missing=()
for program in "$@"; do
  command -v "$program" >/dev/null || missing+=("${packages[$program]:-$program}")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
  echo "these tests need programs that are not here; install: ${missing[*]}" >&2
  exit 1
fi
echo "Installing ${missing[*]} ..."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
} > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
