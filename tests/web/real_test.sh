#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The page in a browser, from the real gpumem-web beside the real gpumemd: on its unix socket, and on
# TCP through the link of gpumemctl web.
#
#   real_test.sh GPUMEMD GPUMEMCTL GPUMEM_WEB
#
# Skipped where page_test.sh is.
set -euo pipefail
shopt -s inherit_errexit
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
GPUMEMD=$(realpath "$1") GPUMEMCTL=$(realpath "$2") GPUMEM_WEB=$(realpath "$3")
readonly HERE GPUMEMD GPUMEMCTL GPUMEM_WEB

# Not TEST_TMPDIR: paths of sockets are short.
WORK=$(mktemp -d /tmp/gpumem-web.XXXXXX)
export GPUMEM_RUNTIME_DIR=$WORK/run
pids=()

stop() {
  local pid
  for pid in "${pids[@]}" $(cat "$WORK/daemon.pid" 2>/dev/null || true); do
    kill "$pid" 2>/dev/null || true
  done
  wait
  rm -rf "$WORK"
}
trap stop EXIT

fail() {
  echo "real_test: $*" >&2
  tail -n 20 "$WORK"/*.log >&2
  exit 1
}

# Runs the command until it succeeds.
await() {
  local end=$((SECONDS + 60))
  until "$@" >"$WORK/await.log" 2>&1; do
    ((SECONDS < end)) || fail "not within a minute: $*"
    read -rt 0.05 <> <(:) || true
  done
}

background() {
  "$@" >>"$WORK/background.log" 2>&1 &
  pids+=($!)
}

is_listed() { "$GPUMEMCTL" "$1" -o json | jq -e "$2"; }

cat >"$WORK/config.toml" <<END
[daemon]
backend = "host"
[host]
devices = 2
device_bytes = "1GiB"
[[tenant]]
name = "serving"
guarantee = "256MiB"
limit = "768MiB"
[[tenant]]
name = "research"
[[tenant]]
name = "alice"
parent = "research"
limit = "512MiB"
[[rule]]
tenant = "serving"
default = true
[[rule]]
tenant = "alice"
default = true
END

cat >"$WORK/start.sh" <<END
#!/bin/sh
"$GPUMEMD" --config "$WORK/config.toml" --state-dir "$WORK/state" </dev/null >>"$WORK/daemon.log" 2>&1 &
echo \$! >"$WORK/daemon.pid"
until "$GPUMEMCTL" status >/dev/null 2>&1; do kill -0 \$! || exit 1; done
END
# Ends the daemon without warning.
cat >"$WORK/kill.sh" <<END
#!/bin/sh
kill -9 "\$(cat "$WORK/daemon.pid")"
END

mkdir "$WORK/state" && chmod 700 "$WORK/state"
sh "$WORK/start.sh" || fail "no daemon"
background "$GPUMEMCTL" hold --as serving --size 64MiB --count 5
background "$GPUMEMCTL" hold --as alice --size 48MiB --count 3
head -c 40M /dev/zero >"$WORK/weights.bin"
"$GPUMEMCTL" publish weights --as serving --file "$WORK/weights.bin" >"$WORK/publish.log" 2>&1 ||
  fail "no publication"
background "$GPUMEMCTL" hold --as alice --size 400MiB --wait forever
await is_listed ps '.sessions | length == 3'
await is_listed ps '.waiting | length == 1'

background "$GPUMEM_WEB" --listen "unix:$WORK/web.sock" --listen 127.0.0.1:0
await curl -sf --unix-socket "$WORK/web.sock" http://localhost/api/v1/snapshot

GPUMEM_WEB_SOCKET=$WORK/web.sock GPUMEM_WEB_KILL="sh $WORK/kill.sh" \
  GPUMEM_WEB_START="sh $WORK/start.sh" "$HERE/page_test.sh" real ||
  fail "the page on the unix socket"
link=$("$GPUMEMCTL" web --socket "$WORK/web.sock") || fail "no link"
GPUMEM_WEB_URL=$link "$HERE/page_test.sh" real || fail "the page on TCP"
