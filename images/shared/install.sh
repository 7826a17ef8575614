#!/bin/sh
# Installs the wheels in /wheelhouse that a file of locked requirements names into /opt/venv, without a network.
#   install.sh FILE
set -eu
[ -x /opt/venv/bin/python ] || python3 -m venv --without-pip /opt/venv
[ -s "$1" ] || exit 0
python3 -m pip --disable-pip-version-check --python /opt/venv/bin/python install --quiet --no-index --no-deps --no-compile --no-cache-dir \
    --require-hashes --find-links /wheelhouse --requirement "$1"

# Byte code beside each new source: the image's user may not write it, and every rank would compile torch anew. Unchecked, since an
# image never changes, and without times. Each handful of files has an interpreter of its own: how references are written down depends on
# what an interpreter did before, and two builds are to give the same bytes.
cat >/tmp/byte_compile.py <<'EOF'
import os, sys
from importlib.util import cache_from_source
from py_compile import PycInvalidationMode, PyCompileError, compile

for path in sys.argv[1:]:
    if not os.path.exists(cache_from_source(path)):
        try:
            compile(path, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        except (PyCompileError, SyntaxError, ValueError):
            pass  # templates that packages ship are not always Python
EOF
find /opt/venv/lib -name '*.py' -print0 | LC_ALL=C sort --zero-terminated |
    PYTHONHASHSEED=0 xargs --null --max-procs="$(nproc)" --max-args=64 /opt/venv/bin/python -S /tmp/byte_compile.py
