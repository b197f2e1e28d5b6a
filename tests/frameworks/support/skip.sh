# skip.sh - how a shell test of Bazel says that it could not run:
#
#     source tests/frameworks/support/skip.sh
#     command -v cargo >/dev/null || skip "there is no cargo: tools/setup installs it"
#
# Ends the test as passed for Bazel, and as skipped for tools/test, which reads the results.
skip() {
  echo "skipped: $1"
  if [[ -n ${XML_OUTPUT_FILE-} ]]; then
    printf '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites><testsuite name="%s" tests="1"><testcase name="%s"><skipped message="%s"/></testcase></testsuite></testsuites>\n' \
      "${TEST_TARGET-}" "${TEST_TARGET-}" "$1" >"$XML_OUTPUT_FILE"
  fi
  exit 0
}
