#!/usr/bin/env bash
# Installs into a folder, moves it, and uses it: programs by make, CMake and pkg-config, plugins by cc and CMake, the
# tools, the manual pages. Nothing of the source tree is used after that but the sources of what is built.
set -euo pipefail

work=${TEST_TMPDIR:-$(mktemp -d)}/install_test
rm -rf "$work"
mkdir -p "$work"
here=$PWD
hello=$here/tests/tools/install/hello
examples=$here/examples/plugins

fail() { echo "install_test: $*"; exit 1; }
expect() { grep -qE -- "$1" <<<"$2" || fail "expected \"$1\" in: $2"; }
# Programs are alone: no job of the tests' own surroundings.
alone() { env -i PATH="$PATH" HOME="$work" "$@"; }

tools/install/install --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
prefix=$work/moved

# Wrong calls.
for words in "" "--prefix" "--nonsense"; do
  # shellcheck disable=SC2086
  if tools/install/install $words >"$work/said" 2>&1; then fail "install $words is no error"; fi
done

[[ $(readlink "$prefix/lib/libbyteps.so") == libbyteps.so.1 ]] || fail "libbyteps.so is no link"
readelf -d "$prefix/lib/libbyteps.so.1" | grep -q 'SONAME.*\[libbyteps.so.1\]' || fail "no SONAME"

# make
cp -r "$hello" "$work/make"
chmod -R u+w "$work/make"
make -s -C "$work/make" hello BYTEPS_HOME="$prefix"
expect '^hello from BytePS 0\.' "$(alone "$work/make/hello")"

# pkg-config: prefix, flags, plugins' folder
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
[[ $(pkg-config --variable=plugindir byteps) -ef $prefix/lib/byteps/plugins ]] || fail "byteps.pc: plugindir"
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -pedantic -Werror "$hello/hello.c" -o "$work/by_pkg_config" $(pkg-config --cflags --libs byteps) \
  -Wl,-rpath,"$prefix/lib"
expect '^hello from BytePS 0\.' "$(alone "$work/by_pkg_config")"

# C++, whose header includes others that lie beside it
printf '%s\n' '#include <byteps/byteps.hpp>' 'int main() {' '  byteps::Session session;' \
  '  auto request = session.Start(byteps::Collective::AllGather("rows", std::vector<float>(6), {3, 2}));' \
  '  request.Wait();' '  return request.Output<float>().shape == byteps::Shape{3, 2} ? 0 : 1;' '}' >"$work/gather.cc"
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Werror "$work/gather.cc" -o "$work/gather" $(pkg-config --cflags --libs byteps) \
  -Wl,-rpath,"$prefix/lib"
alone "$work/gather" || fail "a collective of byteps.hpp"

# Linked by path, found by its SONAME elsewhere.
cc -std=c11 "$hello/hello.c" -o "$work/by_path" -I"$prefix/include" "$prefix/lib/libbyteps.so"
expect '^hello from BytePS 0\.' "$(alone LD_LIBRARY_PATH="$prefix/lib" "$work/by_path")"

# CMake
if command -v cmake >/dev/null; then
  cmake -S "$hello" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES="$examples" >"$work/cmake.log" 2>&1 ||
    { cat "$work/cmake.log"; fail "cmake"; }
  cmake --build "$work/cmake" >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "cmake --build"; }
  expect '^hello from BytePS 0\.' "$(alone "$work/cmake/hello")"
  expect '^hello from BytePS 0\.' "$(alone "$work/cmake/hello_cc")"
  by_cmake=$(alone "$prefix/bin/bps_conformance" --filter SaysWhatItIs \
    --scheduler "$work/cmake/libbyteps_scheduler_smallest_first.so")
  expect '^1 passed, 0 failed' "$by_cmake"
else
  echo "install_test: cmake is not here; what needs it was not tested"
fi

# A plugin by cc, as its first lines say; put where the library looks, it is found.
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -pedantic -Werror -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags byteps) \
  "$examples"/transport_unix/*.c -o "$prefix/lib/byteps/plugins/libbyteps_transport_unix.so"
info=$(alone "$prefix/bin/bps_info")
expect "transport unix 1\.0 +$prefix/lib/byteps/plugins/libbyteps_transport_unix\.so" "$info"
expect "library $prefix/lib/libbyteps\.so" "$info"
conformance=$(alone "$prefix/bin/bps_conformance" --filter 'Caps*' \
  --transport "$prefix/lib/byteps/plugins/libbyteps_transport_unix.so")
expect ' 0 failed' "$conformance"

# A whole job of what is installed, over shared memory.
job=$(alone "$prefix/bin/bpslaunch" --workers 2 -- "$work/by_pkg_config")
expect 'hello from BytePS' "$job"

# Every option that a program has is in its page.
for program in bpslaunch bps_info bps_conformance; do
  page=$prefix/share/man/man1/$program.1
  for option in $(alone "$prefix/bin/$program" --help | grep -oE '^ {1,6}--[a-z-]+' | tr -d ' '); do
    grep -qF -- "${option//-/\\-}" "$page" || fail "$option is not in $page"
  done
done
grep -q 'SYNOPSIS' "$prefix/share/man/man1/bps_perf.1" || fail "the page of bps_perf"
echo "install_test: all was as it should be"
