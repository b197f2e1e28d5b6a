#!/usr/bin/env bash
# The functions that byteps.h declares, those that the version script exports and those of the reviewed list are the
# same; and, with a library as argument, those that it really shows.
set -euo pipefail

declared=$(grep -oE '^BPS_API .*' abi/byteps.h | grep -oE 'bps_[a-z_]+\(' | tr -d '(' | sort)
scripted=$(grep -oE '^ +bps_[a-z_]+;' abi/exports.lds | tr -d ' ;' | sort)
listed=$(sed 's/@@.*//' abi/exports.txt | sort)

failed=0
compare() {
  if ! diff <(echo "$2") <(echo "$4"); then
    echo "^ $1 (<) and $3 (>) differ"
    failed=1
  fi
}
compare abi/byteps.h "$declared" abi/exports.txt "$listed"
compare abi/exports.lds "$scripted" abi/exports.txt "$listed"
if [[ $# -gt 0 ]]; then
  # Every name with its version. The node itself (A) is no function, and what is local (lower case) is no export.
  shown=$(nm -D --defined-only --with-symbol-versions "$1" | awk '$2 !~ /^[Aabcdgnprst]$/ {print $3}' | sort)
  compare "$1" "$shown" abi/exports.txt "$(sort abi/exports.txt)"
fi
exit $failed
