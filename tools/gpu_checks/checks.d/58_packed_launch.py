# seconds: 60
"""A kernel whose arguments come packed (`extra`) is recorded with the parameters of one whose arguments come one by one: outside capture, in a
capture, in a graph that is built."""
import os

import graph_lines as g
from recordings import BIN, OUT, files_of, lines_of, record


def arguments(graph):
    """Per kernel of `note`: where its words lie, and their values."""
    names = [function["name"] for function in graph["functions"]]
    rows = []
    for node in (node for node in graph["nodes"] if node["kind"] == "kernel"):
        launch = graph["launches"][node["launch"]]
        if "note" in names[launch["function"]]:
            rows.append((launch.get("layout"), node.get("args"), node.get("launches", 1)))
    return rows


def main():
    if not os.path.exists(os.path.join(BIN, "libcglint_record.so")):
        return g.result("skipped", "the recorder was not built")
    folder = os.path.join(OUT, "packed")
    done = record(folder, [os.path.join(BIN, "record_packed_launch")])
    if done.returncode != 0 or not files_of(folder):
        return g.result("fail", f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or done.stdout.splitlines() or [''])[-1][:200]}")
    records, whole = lines_of(files_of(folder)[0])
    graphs = [entry for entry in records if entry["type"] == "graph"]
    bad, rows = [] if whole else ["the file is torn"], {}
    for role in ("eager", "captured", "built"):
        of_role = [graph for graph in graphs if graph["info"]["role"] == role]
        found = [row for graph in of_role for row in arguments(graph)]
        rows[role] = [args for _, args, _ in found]
        launches = sum(count for _, _, count in found)
        if launches != 2:
            bad.append(f"{role}: {launches} launches")
        elif any(row[:2] != found[0][:2] for row in found) or not found[0][1] or len({slot for slot, _, _ in found[0][0]}) != 5:
            bad.append(f"{role}: {[row[:2] for row in found]}")
        if any("kernel_params" not in graph["facts"] or any(each["fact"] == "kernel_params" for each in graph.get("spoiled", [])) for graph in of_role):
            bad.append(f"{role}: parameters are missing")
    told = [line for line in done.stderr.splitlines() if "packed arguments" in line]
    return g.result("fail" if bad else "pass", "; ".join(bad)[:600], arguments=rows, driver=told)


main()
