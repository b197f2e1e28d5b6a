#!/usr/bin/env bash
# A header of the ABI that changed without a line in abi/CHANGELOG.md is a failure; the copies of version 1.0 must be the
# headers themselves as long as 1.0 is not released.
set -euo pipefail

failed=0
# The newest entry: from the first "## " to the next.
entry=$(awk '/^## /{n++} n==1' abi/CHANGELOG.md)
for header in byteps plugin scheduler transport; do
  hash=$(sha256sum "abi/$header.h" | cut -c1-16)
  if ! grep -qF "$header.h $hash" <<<"$entry"; then
    echo "abi/$header.h changed: say how in the newest entry of abi/CHANGELOG.md, and put its new hash there:"
    echo "  - $header.h $hash"
    failed=1
  fi
done

if head -1 <<<"$entry" | grep -q '1\.0 (unreleased)'; then
  for header in byteps plugin scheduler transport; do
    if ! diff -u <(sed 's|"abi/|"tests/abi/v1_0/|' "abi/$header.h") "tests/abi/v1_0/$header.h"; then
      echo "1.0 is not released: sed 's|\"abi/|\"tests/abi/v1_0/|' abi/$header.h > tests/abi/v1_0/$header.h"
      failed=1
    fi
  done
fi
exit $failed
