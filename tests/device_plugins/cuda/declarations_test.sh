#!/usr/bin/env bash
# device_plugins/cuda/driver_api.h against cuda.h, where a CUDA Toolkit is installed.
set -euo pipefail

for include in ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include /usr/local/cuda-*/include /usr/include; do
  [[ -e $include/cuda.h ]] || continue
  echo "+ $include/cuda.h"
  g++ -std=c++20 -fsyntax-only -Wall -Werror -I. -isystem "$include" tests/device_plugins/cuda/declarations.cc
  # It sees what it must: a number that differs.
  if g++ -std=c++20 -fsyntax-only -I. -isystem "$include" -DkOutOfMemory=kNotReady \
    tests/device_plugins/cuda/declarations.cc 2>/dev/null; then
    echo "a wrong number was not seen"
    exit 1
  fi
  exit 0
done
echo "declarations_test: cuda.h is not here: nothing was compared"
