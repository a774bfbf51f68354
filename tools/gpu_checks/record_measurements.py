#!/usr/bin/env python3
"""Puts the recorder's results of run.py into one measurement file.

usage: record_measurements.py OUT.json RUN.json...

RUN.json: what run.py wrote; of its checks record, record_limits and model_code the parts are taken, a later file's over an earlier one's. A part
that failed stays, with "good": false. Times and counts are copied, not computed.
"""
import json
import sys

CHECKS = ("record", "record_limits", "model_code")
FACTS = ("date", "gpu", "gpu_count", "driver", "commit")


def planted_row(row):
    """Of a program with a planted defect and its twin: what was found, and how its capture failed."""
    short = {"program": row["program"], "code": row["code"], "caught": row["caught"], "twin_findings": len(row["twin_codes"])}
    if row.get("not_checked"):
        short["not_checked"] = True
    if row["bad"].get("failed"):
        short["failed"] = row["bad"]["failed"][0][:3]
    if row["bad"].get("source"):
        short["source"] = row["bad"]["source"][0]
    for variant in ("bad", "good"):
        if row[variant]["exit"] != 0:
            short[f"{variant}_exit"] = row[variant]["exit"]
    return short


def short_part(part):
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if value not in ("", [], {}) or key in ("codes", "losses", "ops")}
    if isinstance(kept.get("table"), list) and kept["table"] and "twin_codes" in kept["table"][0]:
        kept["table"] = [planted_row(row) for row in kept["table"]]
    return kept


def text_of(value, indent):
    """JSON with one line per part, and per row of a table."""
    compact = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(compact) < 480:
        return compact
    pad = " " * indent
    lines = []
    for key, each in value.items():
        if isinstance(each, list) and each and isinstance(each[0], dict):
            rows = f",\n{pad}    ".join(json.dumps(row, ensure_ascii=False) for row in each)
            lines.append(f"{json.dumps(key)}: [\n{pad}    {rows}\n{pad}  ]")
        else:
            lines.append(f"{json.dumps(key)}: {text_of(each, indent + 2)}")
    return "{\n" + ",\n".join(f"{pad}  {line}" for line in lines) + f"\n{pad}}}"


def main():
    if len(sys.argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    result = {"schema": "cglint-record-measurements/1"}
    parts = {}
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
        result.update({key: run[key] for key in FACTS if key in run})
        for check in run["checks"]:
            if check["name"] in CHECKS:
                numbers = {"model_code": dict(check["numbers"], good=check["status"] == "pass")} if check["name"] == "model_code" else check["numbers"]
                parts.update({name: short_part(part) for name, part in numbers.items()})
    result["not_good"] = sorted(name for name, part in parts.items() if not part.get("good", True))
    result["parts"] = parts
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(text_of(result, 0) + "\n")
    return 0


sys.exit(main())
