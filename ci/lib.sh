# shellcheck shell=bash
# What the scripts in ci/ share. Source it; it only defines things.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Everything that is dear to make and safe to keep lies outside the checkout, so that a fresh clone finds it again.
CACHE=${ACCELKIT_CI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/accelkit-ci}
# The environment that every script here works in; `source .venv/bin/activate` gives it to you as well.
VENV=$ROOT/.venv
# All the shell there is, for shellcheck.
# shellcheck disable=SC2034  # ci/check reads it
SHELL_SCRIPTS=(.ci/run ci/lib.sh ci/setup-engine ci/base-image ci/build-cpu ci/check ci/check-images ci/demo ci/fix ci/test ci/xla-env)
# dockerd and its friends are installed where a plain user's PATH does not look.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf '%s\n' "$*"; }
note() { printf '%s\n' "$*" >&2; }
die() {
    printf '%s: %s\n' "ci/$(basename "$0")" "$1" >&2
    [ "$#" -lt 2 ] || printf '  %s\n' "${@:2}" >&2
    exit 1
}

# Print the comment block at the top of the calling script: its help text.
print_help() { sed -n '2,/^\($\|[^#]\)/{s/^# \{0,1\}//p}' "$0"; }

# True when a Docker engine answers the client of this machine.
engine_answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# Run a command quietly, with its output in a log of the cache folder; show the log's end when it fails.
logged() {
    local log=$CACHE/logs/$1.log
    shift
    mkdir -p "$CACHE/logs"
    "$@" >"$log" 2>&1 && return 0
    tail -n 25 "$log" >&2
    die "this failed: $*" "the whole log: $log"
}

# Take the lock NAME for the rest of the calling script (or subshell): two scripts at once wait for each other.
hold_lock() {
    mkdir -p "$CACHE"
    exec {LOCK_FD}>"$CACHE/$1.lock"
    flock "$LOCK_FD"
}

# --- apt: the machine's own sources say where packages come from ------------------------------------------

# A field of /etc/os-release: `os_release ID`, `os_release VERSION_CODENAME`.
os_release() { (. /etc/os-release 2>/dev/null && printf '%s' "${!1:-}"); }

is_debian_like() { [[ " $(os_release ID) $(os_release ID_LIKE) " == *" debian "* ]] && command -v apt-get >/dev/null; }

# Lines `ADDRESS RELEASE` of this machine's apt sources (apt reads both of their formats for us).
apt_sources() {
    # shellcheck disable=SC2016  # apt-get fills these in, not the shell
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u
}

# The mirror's address for the release NAME, as this machine's apt sources name it.
apt_mirror() { apt_sources | awk -v release="$1" '$2 == release { print $1; exit }'; }

# Install Debian packages; the package lists are fetched only where they are missing or too old to serve.
apt_install() {
    local log_name=$1
    shift
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    logged "$log_name-update" apt-get update
    logged "$log_name" apt-get install -y --no-install-recommends "$@"
}

# --- Python: one environment for everything in ci/ ---------------------------------------------------------

# Pinned, and always asked for by name: an unpinned torch may be a CUDA build of several gigabytes.
TORCH=torch==2.13.0
EXAMPLE_NEEDS=$ROOT/examples/requirements.txt

# A top-level `key: value` of an image's description, images/NAME/image.yaml; nothing where it is not there.
image_setting() {
    local file=$ROOT/images/$1/image.yaml
    [ ! -f "$file" ] || sed -n "s/^$2: *\([^ #]*\).*/\1/p" "$file" | tr -d '"'
}

# The base image of an image for its default Python.
image_base() {
    local python
    python=$(image_setting "$1" python)
    sed -n "/^base:/,/^[^ ]/s/^  \"$python\": *//p" "$ROOT/images/$1/image.yaml"
}

# DeepSpeed and what its tests need, apart from everything else: it asks for other packages than the rest, and compiles.
DEEPSPEED=deepspeed==0.19.8
DEEPSPEED_BESIDE=(ninja pytest-timeout 'transformers>=4.40')
DEEPSPEED_HOME=$CACHE/deepspeed

# The first Python on the PATH that accelkit runs on.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
        command -v "$candidate"
        return 0
    done
    return 1
}

make_venv() {
    local python
    if python=$(find_python) && "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        logged venv "$python" -m venv --clear "$VENV"
        return
    fi
    if is_debian_like && [ "$(id -u)" -eq 0 ] && [ -z "${1:-}" ]; then
        say "Installing python3-venv with apt ..."
        apt_install python python3 python3-venv
        make_venv again
        return
    fi
    die "accelkit needs Python 3.10 or newer with its venv module" "on Debian and Ubuntu: apt-get install python3-venv"
}

# Where the CPU build of torch comes from: wheels that pip finds by itself (PIP_FIND_LINKS, pip.conf), else PyTorch's own index.
torch_options() {
    local index
    "$VENV/bin/pip" install --quiet --dry-run --no-deps --no-index "$TORCH" >/dev/null 2>&1 && return 0
    index=$(image_setting cpu torch_index)
    [ -z "$index" ] || printf '%s\n' --extra-index-url "${index/\{build\}/$(image_setting cpu build)}"
}

fill_venv() {
    local options constraint=$VENV/constraints.txt needs=()
    say "Installing accelkit, torch and the tools into .venv (a minute or two, only when pyproject.toml changes) ..."
    printf '%s\n' "$TORCH" >"$constraint"
    mapfile -t options < <(torch_options)
    [ ! -f "$EXAMPLE_NEEDS" ] || needs=(--requirement "$EXAMPLE_NEEDS")
    logged pip-install "$VENV/bin/pip" install --constraint "$constraint" "${options[@]}" \
        "$TORCH" --editable "${ROOT}[runtime,test,dev]" "${needs[@]}"
}

# Make .venv and install the checkout into it, unless that was done for this very pyproject.toml; then use it.
use_venv() {
    local wanted stamp=$VENV/installed-for
    wanted=$({ cat "$ROOT/pyproject.toml" "$EXAMPLE_NEEDS" || true; } 2>/dev/null | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
        (
            hold_lock "venv-$(sha256sum <<<"$ROOT" | cut -c1-12)"
            [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] || exit 0
            "$VENV/bin/python" -c '' 2>/dev/null || make_venv
            fill_venv
            printf '%s\n' "$wanted" >"$stamp"
        )
    fi
    PATH=$VENV/bin:$PATH
}

# --- DeepSpeed: an environment of its own, in the cache folder --------------------------------------------

# Its communication on CPUs is compiled on the machine: that takes a C++ compiler, and ninja, which pip installs.
need_compiler() {
    ! command -v g++ >/dev/null || return 0
    if is_debian_like && [ "$(id -u)" -eq 0 ]; then
        say "Installing g++ with apt ..."
        apt_install compiler g++
        return
    fi
    die "the deepspeed tier needs a C++ compiler" "on Debian and Ubuntu: apt-get install g++"
}

fill_deepspeed() {
    local options pip=$DEEPSPEED_HOME/venv/bin/pip
    mapfile -t options < <(torch_options)
    logged deepspeed-torch "$pip" install --no-compile "${options[@]}" "$TORCH" setuptools wheel "${DEEPSPEED_BESIDE[@]}" \
        --editable "${ROOT}[runtime,test]"
    # Without isolation: its set-up looks for torch.
    logged deepspeed "$pip" install --no-compile --no-build-isolation "${options[@]}" "$TORCH" "$DEEPSPEED"
    rm -rf "$DEEPSPEED_HOME/extensions"
    PATH=$DEEPSPEED_HOME/venv/bin:$PATH logged deepspeed-op "$DEEPSPEED_HOME/venv/bin/python" -c \
        'from deepspeed.accelerator import get_accelerator as chosen; chosen().create_op_builder("ShareMemCommBuilder").load()'
}

# Make the environment unless that was done for this very pyproject.toml and version; then use it.
use_deepspeed() {
    local wanted stamp=$DEEPSPEED_HOME/installed-for
    export TORCH_EXTENSIONS_DIR=$DEEPSPEED_HOME/extensions DS_ACCELERATOR=cpu PYTHONPATH=$ROOT
    wanted=$({ cat "$ROOT/pyproject.toml" && printf '%s\n' "$TORCH" "$DEEPSPEED" "${DEEPSPEED_BESIDE[@]}"; } | sha256sum)
    need_compiler
    (
        hold_lock deepspeed
        [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] || exit 0
        say "Installing DeepSpeed into an environment of its own, and compiling (a minute or two, only when versions change) ..."
        mkdir -p "$DEEPSPEED_HOME"
        [ -x "$DEEPSPEED_HOME/venv/bin/pip" ] || logged deepspeed-venv "$VENV/bin/python" -m venv --clear "$DEEPSPEED_HOME/venv"
        fill_deepspeed
        printf '%s\n' "$wanted" >"$stamp"
    )
    PATH=$DEEPSPEED_HOME/venv/bin:$PATH
}
