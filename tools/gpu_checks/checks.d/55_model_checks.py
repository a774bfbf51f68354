# seconds: 200
"""Can the reference models' checks fail? Each model's step is spoiled deliberately (cglint-model-runner --fault), with few layers and at
published depth: its check must notice, and must pass the step that is not spoiled."""
import json
import os

import graph_lines as g
from recordings import BIN, run

RUNNER = os.path.join(BIN, "cglint-model-runner")
# A context of 100: the newest token of attention has some weight.
FEW = 6  # three of deepseek_moe's weight sets, one of kimi_linear's latent attention layers
# mla_two_stream and k2_full are deepseek_moe's layers in other orders.
SKIPPED = {"mla_two_stream", "k2_full"}


def check_of(model, layers, fault=None):
    """The runner's check event, or why there is none."""
    command = [RUNNER, "run", model, "--samples", "0", "--context", "100"] + (["--layers", str(layers)] if layers else []) + (["--fault", fault] if fault else [])
    done = run(command, 60)
    for line in done.stdout.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "check":
            return {key: event[key] for key in ("ok", "error", "tolerance", "rms_error", "rms_tolerance", "stack_error", "stack_tolerance", "detail", "seconds") if key in event}
        if event.get("event") == "error":
            return {"problem": event.get("message", "an error")}
    return {"problem": f"exit code {done.returncode}"}


def main():
    if not os.path.exists(RUNNER):
        g.result("skipped", "cglint-model-runner was not built")
        return
    rows, wrong = [], []
    for model in json.loads(run([RUNNER, "list"]).stdout)["models"]:
        if model["name"] in SKIPPED:
            continue
        for layers in (FEW, None):
            for fault in (None, *model["faults"]):
                check = check_of(model["name"], layers, fault)
                rows.append({"model": model["name"], "layers": layers or model["presets"][0]["layers"], "fault": fault, **check})
                if check.get("ok") is not (fault is None):
                    wrong.append(f"{model['name']} {rows[-1]['layers']} layers, fault {fault}: {check.get('problem') or check}")
    g.result("fail" if wrong else "pass", "; ".join(wrong)[:1500], runs=rows)


main()
