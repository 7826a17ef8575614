# shellcheck shell=bash
# What the scripts in ci/ share. Source it; it only defines things.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Everything that is dear to make and safe to keep lies outside the checkout, so that a fresh clone finds it again.
CACHE=${ACCELKIT_CI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/accelkit-ci}
# The environment that every script here works in; `source .venv/bin/activate` gives it to you as well.
VENV=$ROOT/.venv
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
print_help() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

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
