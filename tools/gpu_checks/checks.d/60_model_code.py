# seconds: 200
"""Public model code recorded and linted: transformers decoders, the dual-stream stack in eager mode and under torch.compile.

The dual-stream stack has known answers; of the transformers models every finding is listed, to be judged by a reader.
CGLINT_RECORD_KEEP=FOLDER keeps the recordings.
"""
import concurrent.futures
import json
import os
import shutil

import graph_lines as g
from recordings import BIN, CGLINT, OUT, PROGRAMS, PYTHON, files_of, record, run

KEPT = os.environ.get("CGLINT_RECORD_KEEP")

# name -> (program, arguments, codes that must be found, codes that must not). torch.compile may put the work of all user streams on one
# (PyTorch 2.11 does): a recording whose captures use one stream has no fork, so nothing about streams may be found in it. Where it keeps
# the streams, the answers are those of the eager program.
STREAM_CODES = {"CG101", "CG102"}
CASES = {
    "eager_side_first": ("torch_moe.py", ["side_first", "6"], {"CG102"}, set()),
    "eager_main_first": ("torch_moe.py", ["main_first", "6"], set(), STREAM_CODES | {"CG301"}),
    "compiled_side_first": ("compiled_moe.py", ["side_first", "6"], {"CG102"}, set()),
    "compiled_main_first": ("compiled_moe.py", ["main_first", "6"], set(), STREAM_CODES | {"CG301"}),
    **{f"transformers_{name}": ("hf_decode.py", [name], set(), STREAM_CODES | {"CG301"}) for name in ("deepseek_v3", "glm4_moe", "qwen3_moe", "kimi_linear")},
}


def source_of(finding):
    for source in finding.get("sources", []):
        return f"{os.path.basename(source.get('file', '?'))}:{source.get('line', 0)} ({source.get('function', '')})"
    return ""


def capture_streams(files):
    """The most streams that the nodes of one captured graph were recorded on; 0 where none has nodes."""
    most = 0
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith('{"type":"graph",'):
                    graph = json.loads(line)
                    if graph["info"].get("role") == "captured":
                        most = max(most, len({node["stream"] for node in graph.get("nodes", []) if "stream" in node}))
    return most


def case(name):
    program, arguments, wanted, unwanted = CASES[name]
    folder = os.path.join(OUT, "model_code", name)
    done = record(folder, [PYTHON, os.path.join(PROGRAMS, program), *arguments], "--replays", "2")
    if done.returncode == 5:
        return {"skipped": done.stdout.strip()[-300:]}
    files = files_of(folder)
    if done.returncode != 0 or not files:
        return {"good": False, "error": f"exit code {done.returncode}, {len(files)} files: {done.stderr.strip()[-600:]}"}
    lint = run([CGLINT, "lint", "--format", "json", *files])
    try:
        report = json.loads(lint.stdout)
    except ValueError:
        return {"good": False, "error": f"lint: exit code {lint.returncode}: {lint.stderr.strip()[-300:]}"}
    findings = [{"code": finding["code"], "message": finding["message"], "confidence": finding.get("confidence"), "source": source_of(finding)}
                for finding in report["findings"]]
    codes = {finding["code"] for finding in findings}
    streams = capture_streams(files)
    if program == "compiled_moe.py" and streams == 1:
        wanted, unwanted = wanted - STREAM_CODES, unwanted | STREAM_CODES
    inspect = run([CGLINT, "inspect", *files])
    if KEPT:
        os.makedirs(os.path.join(KEPT, name), exist_ok=True)
        for path in files:
            shutil.copy(path, os.path.join(KEPT, name))
    good = streams > 0 and wanted <= codes and not unwanted & codes
    return {"good": good, "capture_streams": streams, "codes": sorted(codes), "findings": findings, "not_checked": sorted({entry["code"] for entry in report.get("not_checked", [])}),
            "lint_exit": lint.returncode, "inspect": [line.strip() for line in inspect.stdout.splitlines() if "streams" in line or "nodes" in line][:12]}


def main():
    if not os.path.exists(os.path.join(BIN, "libcglint_record.so")):
        g.result("skipped", "the recorder was not built")
        return
    if run([PYTHON, "-c", "import torch"]).returncode != 0:
        g.result("skipped", "no PyTorch here")
        return
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        rows = dict(zip(CASES, pool.map(case, CASES)))
    failed = [name for name, row in rows.items() if not row.get("good", True)]
    g.result("fail" if failed else "pass", "not as known: " + ", ".join(failed) if failed else "", cases=rows)


main()
