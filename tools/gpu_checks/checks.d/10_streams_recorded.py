# seconds: 120
"""Does this driver give the recorded graphs the streams that were recorded? Every tenth graph of tests/data/streams."""
import os

import graph_lines as g

# Not recorded: which free belongs to which allocation, the bodies of conditional nodes, the sizes of large memsets (N). The
# bodies of child graphs are, but are not compared here.
graphs = [graph for graph in g.load_packed(10) if not set("FGNILS") & set(graph[1].split()[1])]
if not graphs:
    g.result("skipped", "no recorded graphs in data/streams")
    raise SystemExit
source, target = (os.path.join(os.environ["CGLINT_OUT"], name) for name in ("in.txt", "out.jsonl"))
with open(source, "w", encoding="utf-8") as file:
    file.write("\n".join(line for _, line, _ in graphs) + "\n")
code, message, _ = g.probe("measure", source, target)
if code == 2:
    cannot = "GPU" in message or "cupti" in message.lower()
    g.result("skipped" if cannot else "fail", message)
    raise SystemExit
measured = g.read_lines(target)
equal, alike, per_file, refused = 0, 0, {}, 0
for (name, _, streams), now in zip(graphs, measured):
    counts = per_file.setdefault(name, [0, 0])
    counts[0] += 1
    if "streams" not in now:
        refused += 1
        continue
    equal += streams == now["streams"]
    same = g.same_partition(streams, now["streams"])
    alike += same
    counts[1] += same
complete = len(measured) == len(graphs)
g.result("pass" if complete and alike == len(graphs) else "fail", "" if complete else message, graphs=len(graphs), measured=len(measured),
         refused=refused, same_stream_numbers=equal, same_partition=alike, per_file=per_file)
