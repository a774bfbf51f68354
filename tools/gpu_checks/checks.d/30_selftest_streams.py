# seconds: 90
"""Does the stream model hold for this driver? `cglint selftest-streams`."""
import json
import os
import subprocess

import graph_lines as g

program = os.path.join(os.environ["CGLINT_BIN"], "cglint-selftest-streams")
if not os.path.exists(program):
    g.result("skipped", "cglint-selftest-streams was not built")
    raise SystemExit
done = subprocess.run([program, "--format", "json", "--show", "0"], capture_output=True, text=True)
if done.returncode not in (0, 1):
    g.result("skipped" if done.returncode == 4 else "fail", done.stderr.strip()[:300])
    raise SystemExit
report = json.loads(done.stdout)
kinds = {k["kind"]: [k["measured"], k["covered"], k["agree"], k["known_gaps"], k["new_mismatches"]] for k in report["kinds"]}
g.result("pass" if done.returncode == 0 and report["holds"] else "fail", "" if report["holds"] else "the model does not hold",
         graphs=report["graphs"], measured=report["measured"], refused=report["refused_count"],
         columns=["measured", "covered", "agree", "known gaps", "new mismatches"], kinds=kinds)
