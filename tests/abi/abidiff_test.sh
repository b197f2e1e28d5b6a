#!/usr/bin/env bash
# abidiff (package abigail-tools) between the frozen headers of each earlier version and today's: nothing but appended
# fields. Where abidiff is not installed layout_test.c and the frozen trainers are what holds the layout.
set -euo pipefail

if ! command -v abidiff >/dev/null; then
  echo "abidiff_test: abidiff is not here (package abigail-tools): nothing was compared"
  exit 0
fi
work=${TEST_TMPDIR:-$(mktemp -d)}
build() { cc -std=c11 -g -O0 -shared -fPIC -I. -I"$1" tests/abi/types.c -o "$2"; }
# Insertions behind the last field move nothing; whatever else there is, is said by one of these.
breaks='offset changed|type name changed|(entity|return type|parameter .*) .*changed|member deletion|[1-9][0-9]* Removed'
compare() {
  local report
  report=$(abidiff --no-added-syms "$1" "$2" || true)
  ! grep -E -- "$breaks" <<<"$report" || { echo "$report"; return 1; }
}

build abi "$work/today.so"
failed=0
for folder in tests/abi/v1_*/; do
  build "$folder" "$work/earlier.so"
  echo "+ $folder"
  compare "$work/earlier.so" "$work/today.so" || failed=1
done

# It sees what it must: a field that was retyped, one that was moved.
mkdir -p "$work/broken"
for edit in 's/int32_t has_place; /int64_t has_place; /' 's/  int64_t priority;  *\/\* larger is sooner \*\//  int32_t inserted;\n&/'; do
  cp abi/*.h "$work/broken"
  sed -i "$edit" "$work/broken/byteps.h"
  cmp -s abi/byteps.h "$work/broken/byteps.h" && { echo "the edit $edit changes nothing"; failed=1; }
  build "$work/broken" "$work/broken.so"
  if compare "$work/today.so" "$work/broken.so" >/dev/null; then
    echo "abidiff does not see: $edit"
    failed=1
  fi
done
exit $failed
