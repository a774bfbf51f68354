#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages of tools/dev/apt-packages.txt that are missing. With --test also those marked "test".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
want=build
[ "${1:-}" = "--test" ] && want='build|test'
packages=$(awk -v want="^(${want})$" '!/^#/ && NF >= 2 && $1 ~ want {print $2}' "$here/apt-packages.txt")
missing=()
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "cglint: installing ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "cglint: these packages are missing and there is no sudo: ${missing[*]}" >&2; exit 2; }
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
