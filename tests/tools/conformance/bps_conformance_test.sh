#!/usr/bin/env bash
# bps_conformance on plugins that keep their contract (today's, and those of version 1.0), on those that do not, and on
# what is no plugin: report and exit status.
set -uo pipefail

tool=tools/conformance/bps_conformance
output=${TEST_TMPDIR:-/tmp}/conformance_output
failed=0

# expect STATUS TEXT ARGUMENT...: the exit status, and an extended regular expression that the output must match.
expect() {
  local status=$1 text=$2
  shift 2
  "$tool" "$@" >"$output" 2>&1
  local found=$?
  if [[ $found -ne $status ]] || ! grep -qE -- "$text" "$output"; then
    echo "bps_conformance $*: exit status $found, expected $status and: $text"
    sed 's/^/    /' "$output"
    failed=1
  fi
}

kept='^[0-9]+ passed, 0 failed, [0-9]+ skipped: the .* keeps its contract$'
expect 0 "$kept" --scheduler examples/plugins/libbyteps_scheduler_smallest_first.so
expect 0 "$kept" --transport examples/plugins/libbyteps_transport_unix.so
expect 0 "$kept" --scheduler tests/abi/v1_0_plugins/libbyteps_scheduler_smallest_first.so
expect 0 "$kept" --transport tests/abi/v1_0_plugins/libbyteps_transport_unix.so
grep -q 'written for version 1.0 of the contract' "$output" || { echo "1.0 is not named"; failed=1; }
expect 0 '^  skipped ' --transport examples/plugins/libbyteps_transport_unix.so --filter 'AReadFetches*'
expect 0 '^SaysWhatItIs$' --scheduler examples/plugins/libbyteps_scheduler_smallest_first.so --list

# Those that break it: the test that found it is named.
expect 1 '^  FAILED   AnEmptyOneHasNothing|^  FAILED   ' --scheduler tests/plugins/libbyteps_scheduler_minimal.so
expect 1 'does not keep its contract$' --scheduler tests/plugins/libbyteps_scheduler_hoards.so
expect 1 'threw an exception in next' --scheduler tests/plugins/libbyteps_scheduler_throwslater.so
expect 1 '^  FAILED   ' --transport tests/plugins/libbyteps_transport_failsopen.so --filter 'Caps*:*Messages*'

# What cannot be tested at all.
expect 2 'no such file' --scheduler ./libbyteps_scheduler_absent.so
expect 2 'not a name of the form libbyteps_scheduler_<name>.so' --scheduler ./absent.so
expect 2 'invalid ELF header' --scheduler tests/plugins/libbyteps_scheduler_notelf.so
expect 2 'exports no function bps_scheduler_plugin_v1' --scheduler tests/plugins/libbyteps_scheduler_noentry.so
expect 2 'written for major version 2' --scheduler tests/plugins/libbyteps_scheduler_major.so
expect 2 'lacks the required: next, withdraw' --scheduler tests/plugins/libbyteps_scheduler_nofunction.so
expect 2 'this processor lacks what the test asks for' --scheduler tests/plugins/libbyteps_scheduler_explains.so
expect 2 'it cannot be used on this machine: ' --transport tests/plugins/libbyteps_transport_failsprobe.so
expect 2 'name a plugin'
expect 2 'unknown option --all' --all
expect 2 'no test matches' --scheduler examples/plugins/libbyteps_scheduler_smallest_first.so --filter Nothing
expect 0 'does a plugin keep its contract' --help
exit $failed
