# seconds: 240
"""Do the reference models' variants give the findings, streams and outputs that their manifests state? Every variant with few layers;
the whole measurement is measure_models.py."""
import json
import os
import pathlib
import subprocess
import sys

import graph_lines as g

binaries, out = pathlib.Path(os.environ["CGLINT_BIN"]), pathlib.Path(os.environ["CGLINT_OUT"])
if not (binaries / "cglint-model-runner").exists():
    g.result("skipped", "cglint-model-runner was not built")
    raise SystemExit
script = pathlib.Path(__file__).resolve().parents[1] / "measure_models.py"
done = subprocess.run([sys.executable, str(script), str(binaries), str(out), "--only", "trimmed", "--budget", "220"], capture_output=True, text=True)
runs = [run for path in sorted(out.glob("models-*.json")) for job in json.loads(path.read_text())["jobs"] for run in job["runs"]]
wrong = [f"{run['model']} {run['variant']}: {run.get('error') or '; '.join(run.get('verify', {}).get('differences', [])) or 'wrong output'}"
         for run in runs if run["exit_code"] not in (0, 4)]
numbers = {f"{run['model']} {run['variant']}": [run.get("nodes"), run.get("streams_predicted"), run.get("streams_measured"),
                                                 (run.get("timing") or {}).get("median_us"), run.get("findings")] for run in runs}
good = done.returncode == 0 and runs
g.result("pass" if good else "fail", "; ".join(wrong)[:1000] or ("" if good else (done.stdout + done.stderr).strip()[-300:]),
         columns=["nodes", "streams predicted", "streams measured", "us", "findings"], runs=numbers)
