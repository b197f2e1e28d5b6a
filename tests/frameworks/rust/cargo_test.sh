#!/bin/bash
# The crates' tests that need no job: declarations against the header, one worker alone, and that the compiler refuses to
# touch memory in flight.
set -euo pipefail
source tests/frameworks/support/skip.sh
command -v cargo >/dev/null || skip "there is no cargo on this machine: tools/setup installs Debian's"

home=$TEST_TMPDIR/home
mkdir -p "$home/lib"
cp -L core/libbyteps.so "$home/lib/"
ln -s libbyteps.so "$home/lib/libbyteps.so.1" # its SONAME
export BYTEPS_HOME=$home CARGO_HOME=$TEST_TMPDIR/cargo CARGO_TARGET_DIR=$TEST_TMPDIR/target HOME=$TEST_TMPDIR
export BYTEPS_DEVICE=$PWD/device_plugins/fake/libbyteps_device_fake.so # a simulated GPU
cd frameworks/rust
cargo test --offline --lib --test layout --test alone --test log
cargo test --offline --doc -p byteps
