# Read by the scripts beside it: names and places of what `make dist` builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv-dist/bin:$PATH"
# Apart from target/release: another profile, and removed as a whole by `make dist-clean`.
export CARGO_TARGET_DIR="$PWD/target/dist"
PACKAGES="$PWD/target/packages"
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
mkdir -p "$PACKAGES"

# The name that Debian has for an architecture.
debian_name() {
  case "$1" in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) echo "packaging: no package is made for $1; take x86_64 or aarch64" >&2; exit 2 ;;
  esac
}

# size FILE MAX_MB: prints the size and fails above the bound.
size() {
  local bytes; bytes=$(stat -c %s "$1")
  awk -v b="$bytes" -v n="$(basename "$1")" -v m="$2" 'BEGIN {
    printf "%-60s %6.1f MB (at most %s)\n", n, b / 1e6, m; exit b > m * 1e6 }' \
    || { echo "packaging: $1 is larger than $2 MB; find out why, or raise the bound where it is written" >&2; exit 1; }
}

# A command for a program of another architecture.
emulated() {
  if [ "$1" = "$(uname -m)" ]; then shift; "$@"
  else local arch=$1; shift; "qemu-$arch" "$@"; fi
}
