# seconds: 15
"""A build without kernels for this GPU says so. CUDA_FORCE_PTX_JIT makes the driver pass over machine code, so that a build that has
no PTX is one for another chip."""
import json
import os

import graph_lines as g
from recordings import BIN, run

RUNNER = os.path.join(BIN, "cglint-model-runner")


def main():
    if not os.path.exists(RUNNER):
        g.result("skipped", "cglint-model-runner was not built")
        return
    done = run([RUNNER, "run", "two_branch", "--samples", "0"], 60, env={**os.environ, "CUDA_FORCE_PTX_JIT": "1"})
    errors = [event for event in (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")) if event.get("event") == "error"]
    if done.returncode == 0 and not errors:
        g.result("skipped", "this build has PTX, which runs on any chip")
        return
    told = done.returncode == 4 and len(errors) == 1 and "compiled for other chips" in errors[0].get("message", "")
    g.result("pass" if told else "fail", "" if told else f"exit code {done.returncode}, {errors}", exit_code=done.returncode, errors=errors)


main()
