#!/bin/sh
# Installs the Debian packages in /debs, without a network, and leaves nothing that holds a time.
set -eu
ls /debs/*.deb >/dev/null 2>&1 || exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null /debs/*.deb >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log \
    /var/log/alternatives.log
