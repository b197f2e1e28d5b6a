#!/bin/bash
# The package's tests that need no job: structs against the header, and one worker alone.
set -euo pipefail
source tests/frameworks/support/skip.sh
home=$(getent passwd "$(id -u)" | cut -d: -f6)
julia=$(command -v julia || compgen -G "$home/.cache/byteps/julia-*/bin/julia" | tail -1) ||
  skip "there is no Julia on this machine, and tools/fetch_julia has not got one"

mkdir -p "$TEST_TMPDIR/home/lib"
cp -L core/libbyteps.so "$TEST_TMPDIR/home/lib/"
export BYTEPS_DEVICE=$PWD/device_plugins/fake/libbyteps_device_fake.so
export BYTEPS_HOME=$TEST_TMPDIR/home JULIA_DEPOT_PATH=$TEST_TMPDIR/depot HOME=$TEST_TMPDIR
"$julia" --startup-file=no --project=frameworks/julia/BytePS frameworks/julia/BytePS/test/runtests.jl
