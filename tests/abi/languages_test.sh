#!/usr/bin/env bash
# The headers, and a program that uses them, compile without a warning: each compiler there is, each version of both
# languages. clang-tidy is clang's front end, for machines without clang itself.
set -euo pipefail

program=tests/abi/headers_program.c
flags=(-Wall -Wextra -pedantic -Wconversion -Wstrict-aliasing -Wshadow -Iabi)
compiled=0
compile() {
  echo "+ $*"
  "$@" || { echo "^ does not compile without a warning"; exit 1; }
  compiled=$((compiled + 1))
}

for language in c:c11 c:c17 c++:c++17 c++:c++20; do
  options=(-x "${language%:*}" "-std=${language#*:}" "${flags[@]}")
  for compiler in gcc g++ clang clang-14 clang-16 clang-19; do
    command -v "$compiler" >/dev/null || continue
    compile "$compiler" "${options[@]}" -Werror -fsyntax-only "$program"
  done
  for tidy in clang-tidy-14 clang-tidy; do
    command -v "$tidy" >/dev/null || continue
    compile "$tidy" --quiet --checks='-*,clang-diagnostic-*,misc-definitions-in-headers' --warnings-as-errors='*' "$program" -- "${options[@]}"
  done
done
[[ $compiled -ge 4 ]] || { echo "there is no compiler"; exit 1; }
echo "$compiled compilations"
