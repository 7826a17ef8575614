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

# Byte code beside each new source: the image's user may not write it, and every rank would compile torch anew. Unchecked, since an
# image never changes, and without times, so that two builds give the same bytes.
python3 - <<'EOF'
import multiprocessing, pathlib, sysconfig
from importlib.util import cache_from_source
from py_compile import PycInvalidationMode, PyCompileError, compile

def byte_compile(path):
    try:
        compile(path, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    except (PyCompileError, SyntaxError, ValueError):
        pass  # templates that packages ship are not always Python

sources = map(str, pathlib.Path(sysconfig.get_path("purelib")).rglob("*.py"))
missing = [path for path in sources if not pathlib.Path(cache_from_source(path)).exists()]
with multiprocessing.get_context("fork").Pool() as pool:
    pool.map(byte_compile, missing, chunksize=64)
EOF
