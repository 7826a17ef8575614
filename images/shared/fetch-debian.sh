#!/bin/sh
# Fetches Debian packages into /debs, by name and version, and checks their sha256, in a stage that does not stay.
#   fetch-debian.sh FILE        FILE: lines `name version sha256 file`
# They come from where the base image's own apt sources point.
set -eu
mkdir -p /debs
[ -s "$1" ] || exit 0
if [ -f /run/secrets/ca ]; then
    printf 'Acquire::https::CAInfo "/run/secrets/ca";\n' >/etc/apt/apt.conf.d/99accelkit
fi
apt-get update -qq
cd /debs
while read -r name version sha256 file; do
    apt-get download -qq "$name=$version" >/dev/null || {
        echo "accelkit: Debian package $name $version: no source of the base image has it any more" >&2
        exit 4
    }
    # apt escapes the epoch's colon in names of files.
    found=$(find . -maxdepth 1 -name "${name%%:*}_*.deb" | head -n 1)
    if ! printf '%s  %s\n' "$sha256" "$found" | sha256sum --check --status; then
        echo "accelkit: Debian package $name $version: not the locked file ($sha256)" >&2
        exit 4
    fi
    [ "$found" = "./$file" ] || mv "$found" "$file"
done <"$1"
