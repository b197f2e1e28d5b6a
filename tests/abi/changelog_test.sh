#!/usr/bin/env bash
# A header of the ABI that changed without a line in abi/CHANGELOG.md is a failure. So is a frozen copy of an earlier
# version that changed, or that is missing.
set -euo pipefail

failed=0
headers="byteps device plugin scheduler transport"
hash_of() { sha256sum "$@" | cut -c1-16; }
# The entry number $1 of the changelog: from its "## " to the next.
entry() { awk -v number="$1" '/^## /{n++} n==number' abi/CHANGELOG.md; }

newest=$(entry 1)
for header in $headers; do
  hash=$(hash_of "abi/$header.h")
  if ! grep -qF "$header.h $hash" <<<"$newest"; then
    echo "abi/$header.h changed: say how in the newest entry of abi/CHANGELOG.md, and put its new hash there:"
    echo "  - $header.h $hash"
    failed=1
  fi
done

# The version that the header claims is the newest one.
claimed=$(sed -n 's/^#define BPS_ABI_M[AI][JN]OR //p' abi/byteps.h | paste -sd.)
if ! head -1 <<<"$newest" | grep -qF "byteps.h $claimed,"; then
  echo "abi/byteps.h says version $claimed, the newest entry of abi/CHANGELOG.md: $(head -1 <<<"$newest")"
  failed=1
fi

# Each earlier one has its copies, whose only change is the folder in their own includes.
for ((number = 2; ; ++number)); do
  text=$(entry $number)
  [[ $text ]] || break
  version=$(grep -oE 'byteps.h 1\.[0-9]+' <<<"$text" | head -1 | grep -oE '1\.[0-9]+')
  folder=tests/abi/v${version/./_}
  for header in $headers; do
    recorded=$(grep -oE "  - $header.h [0-9a-f]{16}" <<<"$text" | grep -oE '[0-9a-f]{16}$' || true)
    # A header that came later has neither.
    [[ $recorded || -e $folder/$header.h ]] || continue
    if [[ $(sed "s|\"$folder/|\"abi/|" "$folder/$header.h" | hash_of) != "$recorded" ]]; then
      echo "$folder/$header.h is not the header of version $version ($recorded in abi/CHANGELOG.md): frozen copies never change"
      failed=1
    fi
  done
done
# Nor do the plugins of 1.0.
(cd tests/abi/v1_0_plugins && sha256sum --check --quiet SHA256SUMS) || {
  echo "tests/abi/v1_0_plugins: the sources of frozen plugins never change"
  failed=1
}
[[ $number -gt 2 ]] || { echo "abi/CHANGELOG.md has no earlier versions"; failed=1; }
exit $failed
