#!/usr/bin/env bash
# install - installs library, plugins, headers, programs and manual pages below a folder.
#
#     bazel run //tools/install -- --prefix DIR
#
# What is installed finds its parts relative to itself: the folder may be moved. Nothing is removed from it. The Python
# packages are in the wheel (pip install .), not here. A relative DIR is one of the folder where bazel was called.
set -euo pipefail

fail() { echo "install: $*" >&2; exit 2; }

prefix=
while [[ $# -gt 0 ]]; do
  case $1 in
    --prefix) [[ $# -ge 2 ]] || fail "--prefix takes a folder"; prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#--prefix=}; shift ;;
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown argument $1 (try --help)" ;;
  esac
done
[[ $prefix ]] || fail "name the folder: --prefix DIR"
[[ $prefix == /* ]] || prefix=${BUILD_WORKING_DIRECTORY:-$PWD}/$prefix

# Bazel starts this where its data are; a test that runs it by itself has named that place, or lies there.
for root in . "${TEST_SRCDIR:-/nowhere}/byteps" "${BASH_SOURCE[0]}.runfiles/byteps"; do
  [[ -e $root/core/libbyteps.so ]] && break
done
[[ -e $root/core/libbyteps.so ]] || fail "run it by bazel run //tools/install"
cd "$root"

put() { install -D -m "$1" -- "$2" "$prefix/$3"; }

release=$(grep -o '"[0-9][^"]*"' core/base/version.h | tr -d '"' | head -1)
put 755 core/libbyteps.so lib/libbyteps.so.1
ln -sfn libbyteps.so.1 "$prefix/lib/libbyteps.so"
for plugin in scheduler_plugins/*/*.so transport_plugins/*/*.so device_plugins/*/*.so; do
  put 755 "$plugin" "lib/byteps/plugins/$(basename "$plugin")"
done
for header in byteps device plugin scheduler transport; do put 644 "abi/$header.h" "include/byteps/$header.h"; done
for header in byteps collective element request status; do
  put 644 "tools/install/$header.hpp" "include/byteps/$header.hpp"
done
for program in server/byteps_server tools/bps_info tools/conformance/bps_conformance; do
  put 755 "$program" "bin/$(basename "$program")"
done
put 755 tools/install/bpslaunch bin/bpslaunch
put 755 tools/scripts/bps_perf bin/bps_perf
sed -i '1s|.*|#!/usr/bin/env python3|' "$prefix/bin/bps_perf"
find -L launcher \( -name '*.py' -o -name '*.gdb' \) -type f -print | while read -r file; do
  put 644 "$file" "share/byteps/$file"
done
for model in tools/models/*.model; do put 644 "$model" "share/byteps/models/$(basename "$model")"; done
for page in tools/install/*.1; do put 644 "$page" "share/man/man1/$(basename "$page")"; done
put 644 LICENSE share/doc/byteps/LICENSE
for example in examples/plugins/*/*.[ch]; do put 644 "$example" "share/doc/byteps/$example"; done

put 644 tools/install/byteps.pc lib/pkgconfig/byteps.pc
for file in byteps-config.cmake byteps-config-version.cmake; do put 644 "tools/install/$file" "lib/cmake/byteps/$file"; done
echo "install: BytePS $release is in $prefix"
