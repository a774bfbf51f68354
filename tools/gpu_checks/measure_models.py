#!/usr/bin/env python3
"""Measures the reference models on this machine's GPU, the most important first. Python 3 standard library only.

usage: measure_models.py BIN OUT [--budget SECONDS] [--commit HASH] [--only JOB ...] [--model NAME ...] [--list]
       measure_models.py --relint BIN OUT [--model NAME ...]
       measure_models.py --collect OUT REPOSITORY

BIN has cglint and the programs beside it. OUT is a folder that may hold an earlier, interrupted measurement: what it has is not
measured again. After each job OUT/models-MODEL.json (one document a model: every job's runs), OUT/recordings/MODEL/ (few layers) and
OUT/full/MODEL/ (published depth) are up to date.
--relint takes the findings of these recordings anew, without a GPU: after a rule has changed.
--collect brings them to where the repository keeps them: docs/measurements/models-MODEL-DATE.json, reference_models/MODEL/recordings/.

Exit codes: 0 all jobs done, 1 an output was wrong or a finding not as expected, 2 wrong usage, 3 a run failed, 4 jobs are left (time
or memory was short; run it again).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ORDER = ["deepseek_moe", "k2_full", "mla_two_stream", "nvfp4_preamble", "kimi_linear", "fused_moe", "two_branch"]
OVERLAP = "sequential,side_first,main_first,late_wait,event_early_published,event_early_fixed"
TRIMMED_LAYERS = 8
RECORDED = ("trimmed", "overlap_cost")  # jobs whose recordings go into the repository
TRIMMED_BYTES = 1_000_000  # of one recording in the repository


HERE = pathlib.Path(__file__).resolve().parent
MOE_CONFIGS = next((folder for folder in (HERE / "data/moe_configs", HERE.parents[1] / "reference_models/fused_moe/configs") if folder.exists()), None)


def jobs(models):
    """(job, model, question, arguments of cglint capture), in order of importance. `models`: name -> entry of --list."""
    for job, model, question, arguments in plain_jobs(models):
        if model == "fused_moe" and MOE_CONFIGS:
            arguments = ["--moe-config", str(MOE_CONFIGS), *arguments]
        yield job, model, question, arguments


def plain_jobs(models):
    listed = [name for name in ORDER if name in models] + [name for name in models if name not in ORDER]

    def has(name):
        return name in models

    def presets(name):
        return [preset["name"] for preset in models[name]["presets"]]

    def verify(name):
        return ["--verify"] if models[name]["manifest"] else []

    for name in listed:
        yield "variants", name, "streams, times, memory, outputs and findings of each variant at published depth", verify(name)
    for name in listed:
        yield "trimmed", name, f"each variant with {TRIMMED_LAYERS} layers, as recorded for the repository", ["--layers", str(TRIMMED_LAYERS), "--samples", "50", "--no-check", *verify(name)]
    if has("deepseek_moe"):
        yield "stream_cost", "deepseek_moe", "what a replay, instantiation and memory cost by number of streams and connections", [
            "--variant", "side_first,main_first", "--layers", "8,16,32,61,128", "--connections", "1,8,32", "--no-trace", "--no-check", "--samples", "100"]
    for name in [name for name in ("k2_full", "deepseek_moe") if has(name)]:
        yield "serving", name, "a draft graph and a target-verify graph in one recording", [
            "--serve", "20", "--draft-tokens", "3", "--no-check", "--samples", "50"] + (["--variant", "side_first,main_first"] if name == "deepseek_moe" else [])
    if has("kimi_linear"):
        yield "batches", "kimi_linear", "where overlap pays and where it does not", ["--batch", "8,64,256", "--no-trace", "--no-check", "--samples", "50"]
        yield "large_batches", "kimi_linear", "the same beyond the published threshold, 4 layers, context 128", [
            "--batch", "512,1024,1536,2048,4096", "--layers", "4", "--context", "128", "--no-trace", "--no-check", "--samples", "50"]
        yield "overlap_cost", "kimi_linear", "beyond the threshold, in one recording with the same step on one stream", [
            "--variant", "gated,ungated", "--beside", "sequential", "--batch", "2048", "--layers", "4", "--context", "128", "--replays", "4", *verify("kimi_linear")]
    if has("deepseek_moe"):
        yield "batches", "deepseek_moe", "what each order gives at batch 4 and 8", ["--variant", OVERLAP, "--batch", "4,8", "--samples", "100", *verify("deepseek_moe")]
    for name in listed:
        yield "batches_verified", name, f"findings, streams and outputs at batch 4 and 8, {TRIMMED_LAYERS} layers", [
            "--batch", "4,8", "--layers", str(TRIMMED_LAYERS), "--samples", "0", *verify(name)]
    for name in listed:
        yield "memcheck", name, "compute-sanitizer memcheck of every variant, 3 layers", ["--layers", "3", "--batch", "2", "--context", "130", "--check-only", "--no-check"]
    if has("fused_moe"):
        for preset in presets("fused_moe"):
            yield f"tokens_{preset}", "fused_moe", "default against tuned tiles over the tokens of a step", [
                "--preset", preset, "--batch", "1,2,4,8,16,32,64,128,256", "--no-trace", "--no-check", "--samples", "50"]
            yield f"large_tokens_{preset}", "fused_moe", "the same with many tokens", [
                "--preset", preset, "--batch", "512,1024,2048", "--no-trace", "--no-check", "--samples", "10"]
    if has("nvfp4_preamble"):
        yield "batches", "nvfp4_preamble", "what the elided launches give at batch 8 and 32", ["--batch", "8,32", "--no-trace"]
    for name in listed:
        for preset in presets(name)[1:2]:
            if name not in ("fused_moe", "two_branch"):
                yield f"variants_{preset}", name, "the same variants with other shapes", ["--preset", preset, *verify(name)]


class Measurement:
    def __init__(self, arguments):
        self.bin, self.out = pathlib.Path(arguments.bin).resolve(), pathlib.Path(arguments.out)
        self.commit, self.deadline = arguments.commit, time.monotonic() + arguments.budget
        self.cglint = str(self.bin / "cglint")
        done = subprocess.run([self.cglint, "capture", "--list", "--format", "json"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"measure_models.py: {done.stderr.strip()}")
        help_text = subprocess.run([self.cglint, "lint", "--help"], capture_output=True, text=True).stdout
        if "--moe-config" not in help_text:  # a build without the rule that reads tables
            global MOE_CONFIGS
            MOE_CONFIGS = None
        self.models = {model["name"]: model for model in json.loads(done.stdout)["models"]}
        self.worst = 0

    def left(self):
        return self.deadline - time.monotonic()

    def note(self, code):
        for candidate in (3, 2, 1, 4):
            if candidate in (self.worst, code):
                self.worst = candidate
                return

    def run(self, job, model, arguments):
        """One job."""
        results = self.out / "jobs" / f"{model}.{job}.json"
        results.parent.mkdir(parents=True, exist_ok=True)
        keep = job in RECORDED or job.startswith("variants")
        folder = self.folder(job, model) if keep else self.out / f"scratch-{model}-{job}"
        command = [self.cglint, "capture", model, *arguments, "-o", str(folder), "--results", str(results), "--resume", "-q", "--timeout", "90"]
        if job == "memcheck":
            tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
            if not os.access(tool, os.X_OK):
                print(f"== {model} {job}: no compute-sanitizer here", flush=True)
                self.note(4)
                return None
            if results.exists() and "memcheck_errors" in json.loads(results.read_text()):
                return None  # the runs that it has would be left out, and their errors with them
            # Captures that must fail are API errors: what counts is memory.
            command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--target-processes", "all", *command]
        start = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(self.left(), 1))
            code, output, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            # The runs until then are in the results; cglint capture's children die with it.
            code, output, errors = 4, "", (error.stderr or b"").decode(errors="replace") if isinstance(error.stderr, bytes) else (error.stderr or "")
        print(f"== {model} {job}: exit code {code}, {time.monotonic() - start:.1f} s", flush=True)
        print(output[-12000:] if output else errors[-1500:], flush=True)
        if job == "memcheck" and results.exists():
            counts = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", output + errors)]
            document = json.loads(results.read_text())
            document["memcheck_errors"] = sum(counts) if counts else None
            results.write_text(json.dumps(document, indent=1) + "\n")
            if sum(counts) != 0 or not counts:
                self.note(1)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        self.note(code)
        self.combine(model)
        return None

    def folder(self, job, model):
        return self.out / ("recordings" if job in RECORDED else "full") / model

    def relint(self, only):
        """Findings, predicted streams and the comparison with the manifest of every recorded run, by this build of cglint."""
        for job, model, _, arguments in jobs(self.models):
            results = self.out / "jobs" / f"{model}.{job}.json"
            if not results.exists() or not (job in RECORDED or job.startswith("variants")) or (only and model not in only):
                continue
            document = json.loads(results.read_text())
            by_name = {run["recording"]: run for run in document["runs"] if "recording" in run}
            tables = arguments[:2] if arguments[:1] == ["--moe-config"] else []
            files = [str(self.folder(job, model) / name) for name in by_name]
            done = subprocess.run([self.cglint, "capture", model, *tables, "--format", "json", "--verify-recordings", *files], capture_output=True, text=True)
            if done.returncode not in (0, 1):
                sys.exit(f"measure_models.py: {model} {job}: {done.stderr.strip()}")
            for fresh in json.loads(done.stdout)["runs"]:
                run = by_name[pathlib.Path(fresh["recording"]).name]
                for key in ("findings", "not_checked", "streams_predicted", "expected", "expected_streams", "verify"):
                    run.pop(key, None)
                    if key in fresh:
                        run[key] = fresh[key]
                if run["exit_code"] in (0, 1):
                    outputs = run.get("output", {}).get("equals_eager", True) and run.get("check", {}).get("ok", True) and run.get("same_bits", {}).get("equal", True)
                    run["exit_code"] = 0 if outputs and run["verify"]["ok"] else 1
                if not run["verify"]["ok"]:
                    print(f"{run['recording']}: {'; '.join(run['verify']['differences'])}")
            results.write_text(json.dumps(document, indent=1) + "\n")
            self.note(done.returncode)
            self.combine(model)
        return self.worst

    def combine(self, model):
        """OUT/models-MODEL.json from the results of its jobs."""
        found = {path.name.split(".")[1]: json.loads(path.read_text()) for path in sorted((self.out / "jobs").glob(f"{model}.*.json"))}
        if not found:
            return
        first = next(iter(found.values()))
        target = self.out / f"models-{model}.json"
        earlier = json.loads(target.read_text()) if target.exists() else {}
        document = {"schema": "cglint-models/1", "date": first["date"], "commit": earlier.get("commit", self.commit), "model": model, "gpu": first["gpu"],
                    "driver": earlier.get("driver") or driver(), "jobs": []}
        for job, name, question, arguments in jobs(self.models):
            if name == model and job in found:
                words = ["reference_models/fused_moe/configs" if word == str(MOE_CONFIGS) else word for word in arguments]
                document["jobs"].append({"name": job, "question": question, "command": " ".join(["cglint", "capture", model, *words]), "runs": found[job]["runs"]})
                if "memcheck_errors" in found[job]:
                    document["jobs"][-1]["memcheck_errors"] = found[job]["memcheck_errors"]
        target.write_text(json.dumps(document, indent=1) + "\n")


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def collect(out, repository):
    for path in sorted(out.glob("models-*.json")):
        document = json.loads(path.read_text())
        target = repository / "docs/measurements" / f"models-{document['model']}-{document['date'][:10]}.json"
        # Jobs that were not run this time, or less far, keep their results of the newest file, with the commit of those.
        earlier = sorted(target.parent.glob(f"models-{document['model']}-20*.json"))
        if earlier:
            old = json.loads(earlier[-1].read_text())
            runs = {job["name"]: len(job["runs"]) for job in document["jobs"]}
            kept = [{"commit": old["commit"], "date": old["date"], **job} for job in old["jobs"] if len(job["runs"]) > runs.get(job["name"], 0)]
            document["jobs"] = [job for job in document["jobs"] if job["name"] not in {job["name"] for job in kept}] + kept
        target.write_text(json.dumps(document, indent=1) + "\n")
        print(target)
    for folder in sorted((out / "recordings").glob("*")):
        target = repository / "reference_models" / folder.name / "recordings"
        target.mkdir(exist_ok=True)
        for recording in sorted(folder.glob("*.cgl.jsonl.gz")):
            if recording.stat().st_size > TRIMMED_BYTES:
                print(f"left out, {recording.stat().st_size} bytes: {recording.name}")
                continue
            shutil.copy(recording, target / recording.name.removeprefix(folder.name + "."))
        print(target)
    return 0


def main():
    parser = argparse.ArgumentParser(description="Measure the reference models.")
    parser.add_argument("bin", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--relint", action="store_true")
    parser.add_argument("--collect", nargs=2, metavar=("OUT", "REPOSITORY"))
    parser.add_argument("--budget", type=float, default=480)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--model", nargs="*")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.collect:
        return collect(*map(pathlib.Path, arguments.collect))
    if not arguments.bin or not arguments.out:
        parser.error("BIN and OUT are needed")
    measurement = Measurement(arguments)
    if arguments.relint:
        return measurement.relint(arguments.model)
    skipped = []
    for job, model, _, words in jobs(measurement.models):
        if (arguments.only and job not in arguments.only) or (arguments.model and model not in arguments.model):
            continue
        if arguments.list:
            print(f"{model} {job}: cglint capture {model} {' '.join(words)}")
        elif measurement.left() < 5:
            skipped.append(f"{model} {job}")
        else:
            measurement.run(job, model, words)
    if skipped:
        print(f"left for the next time: {', '.join(skipped)}")
        measurement.note(4)
    return measurement.worst


if __name__ == "__main__":
    sys.exit(main())
