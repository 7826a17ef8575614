#!/bin/sh
# Fetches the wheels that a file of locked requirements names into /wheelhouse, by version and sha256, in a stage that does not stay.
#   fetch.sh FILE        FILE: lines `name==version --hash=sha256:...`
# Mounted: /wheels (the user's own), and the build secrets ca, index and torch-index where there are any.
set -eu
want=${PYTHON:?}
have=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$have" != "$want" ]; then
    echo "accelkit: the base image has Python $have, the build is for Python $want" >&2
    exit 3
fi
mkdir -p /wheelhouse
[ -s "$1" ] || exit 0
if [ -f /run/secrets/ca ]; then
    export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca
fi
# The hashes decide, so that no index can pass off another file, nor anybody on the way from one without TLS.
trust() {
    case $1 in http://*)
        host=${1#http://}
        host=${host%%/*}
        export PIP_TRUSTED_HOST="${PIP_TRUSTED_HOST:-} ${host##*@}"
        ;;
    esac
}
if [ -f /run/secrets/index ]; then
    PIP_INDEX_URL=$(cat /run/secrets/index)
    export PIP_INDEX_URL
    trust "$PIP_INDEX_URL"
fi
# Only where a package comes from there.
if [ -f /run/secrets/torch-index ]; then
    PIP_EXTRA_INDEX_URL=$(cat /run/secrets/torch-index)
    export PIP_EXTRA_INDEX_URL
    trust "$PIP_EXTRA_INDEX_URL"
fi
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --require-hashes \
    --find-links /wheels --dest /wheelhouse --requirement "$1"
