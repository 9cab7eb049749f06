#!/bin/sh
# Installs the real servers that the integration tests start: InfluxDB, VictoriaMetrics, Chromium.
# Only on Debian as root; elsewhere it says what is missing, and the tests that need it say that they are skipped.
set -u
missing=""
command -v influxd >/dev/null 2>&1 || missing="$missing influxdb"
command -v victoria-metrics >/dev/null 2>&1 || missing="$missing victoria-metrics"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing for the tests:$missing"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # one word per package
  if apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
    exit 0
  fi
  echo "apt-get could not install:$missing"
fi
echo "not installed, so the tests that need it are skipped:$missing (on Debian: sudo apt-get install$missing)"
exit 0
