#!/bin/sh
# Runs each importer's fuzz target for SECONDS over its corpus: tests/fuzz/run.sh BUILD_DIR SECONDS [target...]
set -eu
build=$1
seconds=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -gt 0 ] || set -- dot kineto nsys-sqlite
for target in "$@"; do
  mkdir -p "$build/fuzz/corpus/$target"
  "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/fuzz/$target-" "$build/fuzz/corpus/$target" "$root/tests/corpus/$target"
done
