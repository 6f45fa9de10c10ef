# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Packages of npm for the page and for its tests, outside of the checkout. Sourced.

# A status that says: there is no npm, or no registry of packages can be reached.
readonly NO_PACKAGES=77

# Prints a folder for packages that lasts, or one of this test.
packages_cache() {
  local home
  home=$(getent passwd "$(id -u)" | cut -d: -f6)
  local cache=${XDG_CACHE_HOME:-${home:-/nonexistent}/.cache}/gpumem/web
  if mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]]; then
    echo "$cache"
  else
    echo "${TEST_TMPDIR:-${TMPDIR:-/tmp}/gpumem-web-$EUID}"
  fi
}

# install_packages FOLDER: installs what FOLDER's lock file names, without running scripts of packages,
# and prints the folder that has node_modules. Returns $NO_PACKAGES, after a reason on standard error.
install_packages() {
  local from=$1 cache to new log
  if ! command -v npm >/dev/null; then
    echo "there is no npm (Debian package npm)" >&2
    return "$NO_PACKAGES"
  fi
  # npm trusts the authorities that it comes with. The machine's may be more, as behind a proxy.
  if [[ -z ${NODE_EXTRA_CA_CERTS:-} && -e /etc/ssl/certs/ca-certificates.crt ]]; then
    export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
  fi
  cache=$(packages_cache)
  to=$cache/$(cat "$from/package.json" "$from/package-lock.json" | sha256sum | cut -c 1-16)
  if [[ ! -d $to/node_modules ]]; then
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new.XXXXXX")
    cp -L "$from/package.json" "$from/package-lock.json" "$from/.npmrc" "$new/"
    log=$new/npm.log
    if ! (cd "$new" && HOME=$new npm ci --ignore-scripts --cache "$new/cache" \
      --fetch-retries 1 --fetch-timeout 60000) &>"$log"; then
      if grep -Eq 'EINTEGRITY|EUSAGE' "$log"; then
        cat "$log" >&2
        return 1
      fi
      echo "npm cannot install the packages: $(grep -m 1 'npm \(ERR!\|error\)' "$log")" >&2
      rm -rf "$new"
      return "$NO_PACKAGES"
    fi
    rm -rf "$new/cache" "$log"
    # Another test may have been faster.
    mv -T "$new" "$to" 2>/dev/null || rm -rf "$new"
  fi
  echo "$to"
}
