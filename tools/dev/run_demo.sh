#!/usr/bin/env bash
# Lints the recordings in this repository with the given cglint binary and checks the answers that are known.
# usage: run_demo.sh path/to/cglint
set -euo pipefail
cglint=$1
cd "$(dirname "$0")/../.."
data=tests/data/torch
run() {
  local expected=$1 code=0
  shift
  printf '\n$ cglint %s\n' "$*"
  "$cglint" "$@" || code=$?
  [ "$code" -eq "$expected" ] || { echo "run_demo.sh: expected exit code $expected, got $code" >&2; exit 1; }
}
echo "A 16-layer dual-stream MoE decode stack, captured by PyTorch on an H200 with the side branch recorded first:"
run 1 lint "$data/kineto_alt_first.json.gz" --max-streams 3
echo
echo "The graph alone, without any GPU trace: the streams are predicted, with the order that mends them:"
run 1 lint "$data/torch_alt_first.dot.gz"
echo
echo "The graph and its trace together: the cause explains what was measured:"
run 1 lint "$data/torch_alt_first.dot.gz" "$data/kineto_alt_first.json.gz"
echo
echo "The same stack with the main branch recorded first:"
run 0 lint "$data/kineto_main_first.json.gz" --max-streams 3
run 0 lint "$data/torch_main_first.dot.gz" --max-streams 3
run 0 inspect "$data/kineto_main_first.json.gz"
echo
echo "A decode step of Kimi K2's shape in the order that an engine recorded it, with arguments and times, and in a better one:"
models=reference_models/deepseek_moe/recordings
run 1 lint "$models/side_first.k2-tp8.b1.l8.cgl.jsonl.gz"
run 0 lint "$models/main_first.k2-tp8.b1.l8.cgl.jsonl.gz"
echo
echo "All recordings of the reference models, each against what its model's manifest says must be found in it:"
for model in reference_models/*/recordings; do
  run 0 capture "$(basename "$(dirname "$model")")" --verify-recordings "$model"/*.gz
done
if [ -x "$(dirname "$cglint")/cglint-model-runner" ] && nvidia-smi -L >/dev/null 2>&1; then
  echo
  echo "The same on this GPU:"
  live=$(mktemp -d)
  trap 'rm -rf "$live"' EXIT
  run 0 capture deepseek_moe --variant side_first,main_first --layers 8 --verify -o "$live"
fi
