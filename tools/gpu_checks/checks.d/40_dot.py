# seconds: 60
"""Does this driver write the recorded DOT files (addresses aside)?"""
import os
import re
import subprocess

import graph_lines as g

out = os.environ["CGLINT_OUT"]
done = subprocess.run([os.path.join(os.environ["CGLINT_BIN"], "dot_fixtures"), out], capture_output=True, text=True)
if done.returncode == 2:
    g.result("skipped", done.stdout.strip().splitlines()[-1] if done.stdout else "dot_fixtures cannot run")
    raise SystemExit


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = re.sub(r"0x[0-9A-F]{16}", "0xADDRESS", file.read())
    # Graphs are numbered per process: number them from 1 in the order in which they appear.
    seen = {}
    return re.sub(r"(?<=\bgraph_)\d+|(?<=\bcluster_)\d+", lambda m: str(seen.setdefault(m.group(), len(seen) + 1)), text)


recorded = os.path.join(os.environ["CGLINT_DATA"], "dot")
same, different = 0, []
for name in sorted(os.listdir(recorded)):
    match = re.match(r"(\w+)\.([0-9a-f]{5})\.dot$", name)
    if not match:
        continue
    fresh = os.path.join(out, f"{match.group(1)}.flags_{match.group(2)}.dot")
    if not os.path.exists(fresh):
        continue  # a group this machine could not make; counted below
    if text_of(fresh) == text_of(os.path.join(recorded, name)):
        same += 1
    else:
        different.append(name)
g.result("pass" if same > 0 and not different and done.returncode == 0 else "fail", "", same=same, different=different,
         refused=[line for line in done.stdout.splitlines() if line.startswith("refused") or line.startswith("external")])
