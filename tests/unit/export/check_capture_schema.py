#!/usr/bin/env python3
"""Validates every line that our writer writes against the published schema, with unknown properties forbidden, and that
the schema refuses what it should. Usage: check_capture_schema.py SCHEMA PROGRAM [ARGUMENT...]"""
import json
import subprocess
import sys

import jsonschema

REFUSED = [
    "{}", "[]", '{"type":"weather"}', '{"type":"header","format":"other","version":"1.0"}',
    '{"type":"header","format":"cglint-capture","version":"2.0"}', '{"type":"process"}', '{"type":"process","process":-1}',
    '{"type":"graph","graph":0,"nodes":[]}', '{"type":"graph","graph":0,"facts":["telepathy"],"nodes":[]}',
    '{"type":"graph","graph":0,"facts":[],"nodes":[{}]}', '{"type":"graph","graph":0,"facts":[],"nodes":[{"kind":"kernel","args":["1"]}]}',
    '{"type":"graph","graph":0,"facts":[],"nodes":[],"edges":[[0]]}', '{"type":"graph","graph":4294967295,"facts":[],"nodes":[]}',
    '{"type":"replays","graph":0,"replays":[{}]}', '{"type":"replays","graph":0,"base_ns":"1e9","replays":[]}',
    '{"type":"timing","graph":0,"samples":1}', '{"type":"access","graph":0,"accesses":[[0,"0x1","0x2","x"]]}',
    '{"type":"allocations","allocations":[{"id":1}]}', '{"type":"loss","severity":"sad","what":""}', '{"type":"end"}',
]
# Unknown properties are allowed by the published schema (readers count and ignore them).
ACCEPTED = ['{"type":"end","records":1,"mood":"good"}', '{"type":"graph","graph":0,"facts":[],"nodes":[{"kind":"empty","x":1}]}']


# A recording states these in a line of their own, a converted file in the graph's line.
RECORDERS_ONLY = {"exec"}


def forbid_unknown(schema):
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        for value in schema.values():
            forbid_unknown(value)
    elif isinstance(schema, list):
        for value in schema:
            forbid_unknown(value)


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    published = jsonschema.Draft202012Validator(schema)
    bad = [f"accepted: {line}" for line in REFUSED if published.is_valid(json.loads(line))]
    bad += [f"refused: {line}" for line in ACCEPTED if not published.is_valid(json.loads(line))]
    strict_schema = json.loads(json.dumps(schema))
    forbid_unknown(strict_schema["$defs"])
    strict = jsonschema.Draft202012Validator(strict_schema)
    output = subprocess.run(sys.argv[2:], check=True, stdout=subprocess.PIPE).stdout
    seen = {}
    for number, line in enumerate(output.decode("utf-8").rstrip("\n").split("\n"), 1):
        record = json.loads(line)
        seen[record["type"]] = seen.get(record["type"], 0) + 1
        error = next(strict.iter_errors(record), None)
        if error is not None:
            error = jsonschema.exceptions.best_match([error])
            bad.append(f"line {number} ({record['type']}): {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}")
    missing = set(schema["properties"]["type"]["enum"]) - set(seen) - RECORDERS_ONLY
    if missing:
        bad.append(f"no record of type {', '.join(sorted(missing))} was written")
    print("\n".join(bad[:20]) if bad else f"{sum(seen.values())} records of {len(seen)} types are valid")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
