#!/bin/sh
# Runs fuzz targets for SECONDS each: tests/fuzz/run.sh BUILD_DIR SECONDS [target...]   (many cores: pack.py and campaign.py)
# The corpus grows in FUZZ_CORPUS (default: BUILD_DIR/fuzz/corpus); inputs.py makes seeds and dictionaries from files of the repository.
# Crashing inputs are written to BUILD_DIR/fuzz. One line per target for tests/fuzz/LOG.md is printed at the end of each.
set -eu
build=$1
seconds=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
corpus=${FUZZ_CORPUS:-$build/fuzz/corpus}
inputs=$build/fuzz/inputs
python3 "$root/tests/fuzz/inputs.py" "$inputs"
[ $# -gt 0 ] || set -- dot kineto nsys-sqlite nsys-rows capture compressed moe-config config kernel-table lint join convert
cpu_seconds() {  # of the processes that have ended so far
  times >"$build/fuzz/times"  # of a pipe's subshell it would be 0
  cpu=$(awk 'NR == 2 {split($1, u, /[ms]/); split($2, k, /[ms]/); print int(60 * (u[1] + k[1]) + u[2] + k[2])}' "$build/fuzz/times")
}
for target in "$@"; do
  mkdir -p "$corpus/$target"
  log="$build/fuzz/$target.log"
  code=0
  cpu_seconds
  cpu_before=$cpu
  "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 -dict="$inputs/$target.dict" \
    -artifact_prefix="$build/fuzz/$target-" "$corpus/$target" "$inputs/seeds/$target" >"$log" 2>&1 || code=$?
  cpu_seconds
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$target: ${runs:-?} executions in $seconds s ($((cpu - cpu_before)) CPU s), corpus $(find "$corpus/$target" -type f | wc -l), exit code $code"
  [ "$code" -eq 0 ] || { tail -40 "$log"; exit 1; }
done
