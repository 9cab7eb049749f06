#!/bin/sh
# Installs an endpoint that others wrote, in an environment of its own, for tests/integration/test_third_party.py.
# usage: install-third-party.sh [litellm|guidellm]
# Where: $TOKSWARM_LITELLM_VENV or .venv-litellm in the checkout (0.8 GB, about a minute), $TOKSWARM_GUIDELLM_VENV or
# .venv-guidellm (6 GB, most of it PyTorch, which its mock server does not use). An environment that is named and
# has the program is left as it is. When the installation fails, the tests say that they are skipped.
set -u
what="${1:-litellm}"
case "$what" in
  litellm) requirement='litellm[proxy]==1.108.7' named="${TOKSWARM_LITELLM_VENV:-}" ;;
  guidellm) requirement='guidellm==0.8.1' named="${TOKSWARM_GUIDELLM_VENV:-}" ;;
  *) echo "usage: $0 [litellm|guidellm], not '$what'" >&2; exit 2 ;;
esac
venv="${named:-$(dirname "$0")/../.venv-$what}"
installed="$venv/.installed-$requirement"
[ -e "$installed" ] && exit 0
[ -n "$named" ] && [ -e "$venv/bin/$what" ] && exit 0
echo "installing for the tests: $requirement (once)"
if "${PYTHON:-python3}" -m venv "$venv" &&
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$requirement"; then
  touch "$installed"
else
  echo "could not install $requirement, so the tests that need it are skipped"
fi
exit 0
