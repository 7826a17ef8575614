#!/bin/sh
# Installs one group of packages while the image is built. Reads the CA and the index from build secrets, so that neither stays.
#   install.sh torch VERSION INDEX | packages NAME... | requirements TORCH_VERSION
set -eu
group=$1
shift
if [ -f /run/secrets/ca ]; then
    export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca
fi
if [ -f /run/secrets/index ]; then
    PIP_INDEX_URL=$(cat /run/secrets/index)
    export PIP_INDEX_URL
fi
pip() { python3 -m pip --disable-pip-version-check install --no-compile --find-links /wheels "$@"; }
case $group in
torch)
    # A wheel of the user's own needs no index of PyTorch's; plain torch from the package index would be the CUDA build.
    if ls /wheels/torch-"$1"*.whl >/dev/null 2>&1; then
        pip "torch==$1"
    else
        pip --extra-index-url "$2" "torch==$1+cpu"
    fi
    ;;
packages) pip "$@" ;;
requirements)
    # torch stays what it is: a requirement that asks for another one is an error here, not a second build of it.
    printf 'torch==%s\n' "$1" >/tmp/constraints.txt
    for file in /extra/*.txt; do
        if [ -f "$file" ]; then pip --constraint /tmp/constraints.txt --requirement "$file"; fi
    done
    rm -f /tmp/constraints.txt
    ;;
esac
