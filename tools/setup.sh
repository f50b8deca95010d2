# Sourced by ./quickstart and ./test: system packages, .venv, the built and installed module.
# Needs: bash, the repository root as working folder. Defines functions only.

BUILD_PACKAGES="g++ cmake ninja-build ccache git python3 python3-venv python3-dev"
TEST_PACKAGES="make libgtest-dev libgmock-dev clang-19 libclang-rt-19-dev pocketsphinx-testdata chromium fonts-dejavu-core libegl1 libgl1-mesa-dri"
PY=.venv/bin/python
LOG=build/setup.log

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# The first errors a compiler or tool reported, then the end of the log; lines cut, the log has them whole.
failed_step() {
  say "$1: failed; from $LOG:"
  { grep -m 5 -A 2 -E '(error|ERROR):|^E: ' "$LOG" || true; echo ...; tail -n 8 "$LOG"; } | cut -c1-240 >&2
  exit 1
}

# quietly TITLE COMMAND...: a line with the time taken; the output goes to the log, and its end is shown on failure.
quietly() {
  local title=$1 start=$SECONDS
  shift
  mkdir -p build
  [ -t 2 ] && printf '%s ...' "$title" >&2
  if ! "$@" >"$LOG" 2>&1 </dev/null; then
    failed_step "$title"
  fi
  if [ -t 2 ]; then printf '\r\033[K%s: %d s\n' "$title" $((SECONDS - start)) >&2; else say "$title: $((SECONDS - start)) s"; fi
}

_ninja_progress() {
  local line first='' began=0 eta
  while IFS= read -r line; do
    [[ $line =~ \[([0-9]+)/([0-9]+)\] ]] || continue
    if [ -z "$first" ]; then first=${BASH_REMATCH[1]} began=$SECONDS; fi
    eta=starting
    if ((BASH_REMATCH[1] > first)); then
      eta="ETA $(((BASH_REMATCH[2] - BASH_REMATCH[1]) * (SECONDS - began) / (BASH_REMATCH[1] - first))) s"
    fi
    printf '\r\033[K%s: %d of %d files, %s' "$1" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "$eta" >&2
  done
}

# building TITLE COMMAND...: as quietly, with ninja's [done/total] as progress and ETA on a terminal.
building() {
  local title=$1 start=$SECONDS
  shift
  if [ ! -t 2 ]; then quietly "$title" "$@"; return; fi
  mkdir -p build
  if ! "$@" 2>&1 </dev/null | tee "$LOG" | _ninja_progress "$title"; then
    printf '\n' >&2
    failed_step "$title"
  fi
  printf '\r\033[K%s: %d s\n' "$title" $((SECONDS - start)) >&2
}

cores() { nproc 2>/dev/null || echo 2; }

# system_packages NAME...: installs what dpkg does not have. Without rights it says the one line to run.
system_packages() {
  local missing=() p line
  if ! command -v dpkg-query >/dev/null; then
    for p in g++ cmake ninja python3; do
      command -v "$p" >/dev/null || die "no $p, and this is no Debian system: install the equivalents of: $*"
    done
    return
  fi
  for p in "$@"; do
    case "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" in *"ok installed") ;; *) missing+=("$p") ;; esac
  done
  [ ${#missing[@]} -eq 0 ] && return
  line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then root=(sudo); else
      say "These system packages are missing. Run this one line as root, then this script again:"
      say "  $line"
      exit 1
    fi
  fi
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  say "installing: ${missing[*]}"
  if [ -t 2 ]; then
    # On a terminal apt shows bytes and time left itself.
    "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || die "apt failed; run by hand: $line"
  else
    quietly "apt-get update" "${apt[@]}" -q update
    quietly "apt-get install" "${apt[@]}" -q install -y --no-install-recommends "${missing[@]}"
  fi
}

virtual_environment() {
  if ! $PY -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is $(python3 -V 2>&1), wanted 3.11 or newer"
    quietly "creating .venv" python3 -m venv --clear .venv
  fi
  export PIP_DISABLE_PIP_VERSION_CHECK=1
}

# Digest of what the installed module was built from, names and contents.
sources_digest() {
  { find vivace python -type f ! -path '*/__pycache__/*' ! -name '*.md' -print0 | sort -z
    printf '%s\0' CMakeLists.txt pyproject.toml LICENSE README.md tools/*.cmake
  } | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# install_vivace [EXTRA]: builds the wheel (incremental, under build/) and installs it with its pinned requirements.
install_vivace() {
  local extra=${1:-} digest stamp
  digest=$(sources_digest)
  stamp=.venv/.vivace${extra:+-$extra}
  [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ] && return
  quietly "installing build requirements" $PY -m pip install $($PY -c '
import tomllib
print(*(r.replace(" ", "") for r in tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))')
  export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(cores)}"
  building "building and installing vivace${extra:+[$extra]}" $PY -m pip install -v --no-build-isolation \
    --config-settings=build.verbose=true ".${extra:+[$extra]}"
  printf '%s' "$digest" >.venv/.vivace
  printf '%s' "$digest" >"$stamp"
}
