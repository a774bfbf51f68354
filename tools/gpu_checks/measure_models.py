#!/usr/bin/env python3
"""Measures the reference models on this machine's GPU, the most important first. Python 3 standard library only.

usage: measure_models.py BIN OUT [--budget SECONDS] [--commit HASH] [--only JOB ...] [--model NAME ...]
       measure_models.py --list [BIN] [--only JOB ...] [--model NAME ...]
       measure_models.py --relint BIN OUT [--model NAME ...]
       measure_models.py --collect OUT REPOSITORY

BIN has cglint and the programs beside it. OUT is a folder that may hold an earlier, interrupted measurement: what it has is not
measured again. After each job OUT/models-MODEL.json (one document a model: every job's runs), OUT/recordings/MODEL/ (few layers) and
OUT/full/MODEL/ (published depth) are up to date.
--list names the jobs in their order, each with the seconds that it took in the newest measurement that the repository has. Without BIN
the models are those of the repository.
--relint takes the findings of these recordings anew, without a GPU: after a rule has changed.
--collect brings them to where the repository keeps them: docs/measurements/models-MODEL-DATE.json, reference_models/MODEL/recordings/.
A job that was not run this time keeps its older results if it is still one of the jobs and has the same arguments.

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
TRIMMED_BYTES = 1_000_000  # of one recording in the repository
# Where three layers would have no experts.
MEMCHECK_LAYERS = {"v3-tp8": 4}
CHECKED_TOKENS = "16,32,64,128,256,512,1024,2048"

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
MOE_CONFIGS = next((folder for folder in (HERE / "data/moe_configs", REPOSITORY / "reference_models/fused_moe/configs") if folder.exists()), None)


def is_recorded(job):
    """Whether the job's recordings go into the repository."""
    return job.startswith("trimmed") or job == "overlap_cost"


def is_memcheck(job):
    return job.startswith("memcheck")


def jobs(models):
    """(job, model, question, arguments of cglint capture), in order of importance. `models`: name -> entry of --list."""
    for job, model, question, arguments in plain_jobs(models):
        if model == "fused_moe" and MOE_CONFIGS:
            arguments = ["--moe-config", str(MOE_CONFIGS), *arguments]
        yield job, model, question, arguments


def command_of(model, arguments):
    words = ["reference_models/fused_moe/configs" if word == str(MOE_CONFIGS) else word for word in arguments]
    return " ".join(["cglint", "capture", model, *words])


def repository_models(repository):
    """What jobs() needs of --list, from the manifests."""
    models = {}
    for path in sorted((repository / "reference_models").glob("*/manifest.toml")):
        layers = re.search(r"^layers\s*=\s*\{([^}]*)\}", path.read_text(encoding="utf-8"), re.MULTILINE)
        presets = re.findall(r'"([^"]+)"\s*=', layers[1]) if layers else []
        models[path.parent.name] = {"name": path.parent.name, "presets": [{"name": preset} for preset in presets], "manifest": True}
    return models


def plain_jobs(models):
    # Times are of 200 samples, as cglint capture has them, unless a job says otherwise.
    listed = [name for name in ORDER if name in models] + [name for name in models if name not in ORDER]

    def has(name):
        return name in models

    def presets(name):
        return [preset["name"] for preset in models[name]["presets"]]

    def other_presets(name):
        return [] if name == "two_branch" else presets(name)[1:2]

    def verify(name):
        return ["--verify"] if models[name]["manifest"] else []

    trimmed = ["--layers", str(TRIMMED_LAYERS)]
    for name in listed:
        yield "variants", name, "streams, times, memory, outputs and findings of each variant at published depth", verify(name)
    for name in listed:
        yield "trimmed", name, f"each variant with {TRIMMED_LAYERS} layers, as recorded for the repository", [*trimmed, "--no-check", *verify(name)]
    if has("mla_two_stream"):  # in place of what `trimmed` recorded of it
        yield "trimmed_measured", "mla_two_stream", "what the kernels of the missing join read and write, measured", [
            "--variant", "join_missing", *trimmed, "--no-check", "--measure-access", *verify("mla_two_stream")]
    if has("fused_moe"):
        for preset in other_presets("fused_moe"):
            yield f"trimmed_{preset}", "fused_moe", f"the other shard with {TRIMMED_LAYERS} layers, as recorded for the repository", [
                "--preset", preset, *trimmed, "--no-check", *verify("fused_moe")]
    if has("deepseek_moe"):
        yield "stream_cost", "deepseek_moe", "what a replay, instantiation, upload, a launch and memory cost by number of streams and connections", [
            "--variant", "side_first,main_first", "--layers", "8,16,32,61,128", "--connections", "1,8,32", "--no-trace", "--no-check"]
        yield "streams_traced", "deepseek_moe", "streams as measured, by layers and connections", [
            "--variant", "side_first,main_first", "--layers", "16,32,128", "--connections", "1,8,32", "--samples", "0", "--no-check", *verify("deepseek_moe")]
    for name in [name for name in ("k2_full", "deepseek_moe") if has(name)]:
        yield "serving", name, "a draft graph and a target-verify graph in one recording", [
            "--serve", "20", "--draft-tokens", "3", "--no-check"] + (["--variant", "side_first,main_first"] if name == "deepseek_moe" else [])
    if has("deepseek_moe"):
        yield "serving_draft_4", "deepseek_moe", "the same with a draft graph of 4 layers", [
            "--serve", "20", "--draft-tokens", "3", "--draft-layers", "4", "--no-check", "--variant", "side_first,main_first"]
    if has("kimi_linear"):
        yield "batches", "kimi_linear", "where overlap pays and where it does not", ["--batch", "8,64,256", "--no-trace", "--no-check"]
        yield "large_batches", "kimi_linear", "the same beyond the published threshold, 4 layers, context 128", [
            "--batch", "512,1024,1536,2048,4096", "--layers", "4", "--context", "128", "--no-trace", "--no-check"]
        yield "overlap_cost", "kimi_linear", "beyond the threshold, in one recording with the same step on one stream", [
            "--variant", "gated,ungated", "--beside", "sequential", "--batch", "2048", "--layers", "4", "--context", "128", "--replays", "4", *verify("kimi_linear")]
        # 16 replays: each fork is judged by itself, and three give no steady median.
        gains = ["--variant", "dual_stream,gated", "--beside", "sequential", "--batch", "1", "--replays", "16"]
        yield "overlap_gain", "kimi_linear", "where the overlap pays, in one recording with the same step on one stream", [*gains, *verify("kimi_linear")]
        yield "trimmed_overlap_gain", "kimi_linear", f"the same with {TRIMMED_LAYERS} layers, as recorded for the repository", [*gains, *trimmed, *verify("kimi_linear")]
    if has("deepseek_moe"):
        yield "batches", "deepseek_moe", "what each order gives at batch 4 and 8", ["--variant", OVERLAP, "--batch", "4,8", *verify("deepseek_moe")]
    for name in listed:
        yield "batches_verified", name, f"findings, streams and outputs at batch 4 and 8, {TRIMMED_LAYERS} layers", ["--batch", "4,8", *trimmed, "--samples", "0", *verify(name)]
    if has("fused_moe"):
        for preset in other_presets("fused_moe"):
            yield f"batches_verified_{preset}", "fused_moe", "the same of the other shard", ["--preset", preset, "--batch", "4,8", *trimmed, "--samples", "0", *verify("fused_moe")]
    for name in listed:
        for preset in other_presets(name):
            yield f"variants_{preset}", name, "the same variants with other shapes", ["--preset", preset, *verify(name)]
    small = ["--batch", "2", "--context", "130", "--check-only", "--no-check"]
    for name in listed:
        yield "memcheck", name, "compute-sanitizer memcheck of every variant that is replayed, 3 layers", ["--layers", "3", *small]
    for name in listed:
        for preset in other_presets(name):
            layers = MEMCHECK_LAYERS.get(preset, 3)
            yield f"memcheck_{preset}", name, f"compute-sanitizer memcheck of every variant that is replayed with other shapes, {layers} layers", ["--preset", preset, "--layers", str(layers), *small]
    if has("mla_two_stream"):
        for preset in presets("mla_two_stream")[:2]:
            yield f"memcheck_pages_{preset}", "mla_two_stream", "compute-sanitizer memcheck where attention takes the kernels for pages", [
                "--preset", preset, "--variant", "one_stream,two_stream_main_first", "--layers", "2", "--batch", "4", "--context", "4096", "--check-only", "--no-check"]
    # Kernels and tiles that two tokens do not take; which stream they are on makes no difference to them.
    sanitized = ["--check-only", "--no-check"]
    if has("fused_moe"):
        for preset in presets("fused_moe"):
            yield f"memcheck_tokens_{preset}", "fused_moe", "compute-sanitizer memcheck of default and tuned tiles with more tokens, 2 layers", [
                "--preset", preset, "--layers", "2", "--batch", "8,64,1024", "--context", "130", *sanitized]
    if has("kimi_linear"):
        # The fourth layer is the first with latent attention; a library has the projections from 17 tokens on, and 65 take a second absorption.
        yield "memcheck_tokens", "kimi_linear", "compute-sanitizer memcheck with more tokens, 4 layers", [
            "--variant", "gated", "--layers", "4", "--batch", "17,65", "--context", "130", *sanitized]
    if has("deepseek_moe"):
        yield "memcheck_context", "deepseek_moe", "compute-sanitizer memcheck of one token with a published context, 2 layers", [
            "--variant", "main_first", "--layers", "2", "--batch", "1", "--context", "4096", *sanitized]
    if has("fused_moe"):
        for preset in presets("fused_moe"):
            yield f"tokens_{preset}", "fused_moe", "default against tuned tiles over the tokens of a step, published depth", [
                "--preset", preset, "--batch", "1,2,4,8,16,32", "--no-trace", "--no-check"]
            yield f"large_tokens_{preset}", "fused_moe", f"the same with many tokens, {TRIMMED_LAYERS} layers", [
                "--preset", preset, "--batch", "64,128,256,512,1024,2048", *trimmed, "--no-trace", "--no-check"]
            yield f"tokens_checked_{preset}", "fused_moe", "findings, streams and outputs over the tokens of a step, 2 layers", [
                "--preset", preset, "--batch", CHECKED_TOKENS, "--layers", "2", "--samples", "0", *verify("fused_moe")]
    if has("kimi_linear"):
        # The reference runs on the CPU: short contexts. More than 8 layers: each half is checked, once.
        yield "batches_checked", "kimi_linear", "outputs of many tokens, 9 layers, context 1,024", [
            "--variant", "sequential,gated", "--batch", "64,256", "--layers", "9", "--context", "1024", "--samples", "0", "--no-trace"]
        yield "large_batches_checked", "kimi_linear", "outputs beyond the published threshold, 9 layers, context 128", [
            "--variant", "gated", "--batch", "1536", "--layers", "9", "--context", "128", "--samples", "0", "--no-trace"]
    if has("nvfp4_preamble"):
        yield "batches", "nvfp4_preamble", "what the elided launches give at batch 8 and 32, 16 layers", ["--batch", "8,32", "--layers", "16", "--no-trace"]


def models_of(cglint):
    """Name -> entry of --list."""
    done = subprocess.run([cglint, "capture", "--list", "--format", "json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"measure_models.py: {done.stderr.strip()}")
    return {model["name"]: model for model in json.loads(done.stdout)["models"]}


class Measurement:
    def __init__(self, arguments):
        self.bin, self.out = pathlib.Path(arguments.bin).resolve(), pathlib.Path(arguments.out)
        self.commit, self.deadline = arguments.commit, time.monotonic() + arguments.budget
        self.cglint = str(self.bin / "cglint")
        self.models = models_of(self.cglint)
        help_text = subprocess.run([self.cglint, "lint", "--help"], capture_output=True, text=True).stdout
        if "--moe-config" not in help_text:  # a build without the rule that reads tables
            global MOE_CONFIGS
            MOE_CONFIGS = None
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
        keep = is_recorded(job) or job.startswith("variants")
        folder = self.folder(job, model) if keep else self.out / f"scratch-{model}-{job}"
        command = [self.cglint, "capture", model, *arguments, "-o", str(folder), "--results", str(results), "--resume", "-q", "--timeout", "90"]
        if is_memcheck(job):
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
        if is_memcheck(job) and results.exists():
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
        return self.out / ("recordings" if is_recorded(job) else "full") / model

    def relint(self, only):
        """Findings, predicted streams and the comparison with the manifest of every recorded run, by this build of cglint."""
        for job, model, _, arguments in jobs(self.models):
            results = self.out / "jobs" / f"{model}.{job}.json"
            if not results.exists() or not (is_recorded(job) or job.startswith("variants")) or (only and model not in only):
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
                document["jobs"].append({"name": job, "question": question, "command": command_of(model, arguments), "runs": found[job]["runs"]})
                if "memcheck_errors" in found[job]:
                    document["jobs"][-1]["memcheck_errors"] = found[job]["memcheck_errors"]
        target.write_text(json.dumps(document, indent=1) + "\n")


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def newest_document(repository, model):
    earlier = sorted((repository / "docs/measurements").glob(f"models-{model}-20*.json"))
    return json.loads(earlier[-1].read_text()) if earlier else None


def seconds_of(document, job, command):
    """What the job took, or None where it was not run with these arguments."""
    for found in document["jobs"] if document else []:
        if found["name"] == job and found["command"] == command:
            return sum(run.get("seconds", 0) for run in found["runs"])
    return None


def collect(out, repository):
    commands = {}
    for job, model, _, arguments in jobs(repository_models(repository)):
        commands.setdefault(model, {})[job] = command_of(model, arguments)
    for path in sorted(out.glob("models-*.json")):
        document = json.loads(path.read_text())
        model, now = document["model"], {job["name"]: job for job in document["jobs"]}
        known = commands.get(model, {})
        target = repository / "docs/measurements" / f"models-{model}-{document['date'][:10]}.json"
        # Jobs that were not run this time, or less far, keep their results of the newest file, with the commit of those: those that
        # are still to be run, and in the same way.
        old = newest_document(repository, model)
        for job in old["jobs"] if old else []:
            name = job["name"]
            if known.get(name) != job["command"]:
                if name not in now:
                    print(f"dropped: {model} {name}, " + ("whose arguments are others now" if name in known else "no job any more"))
            elif name not in now or len(now[name]["runs"]) < len(job["runs"]):
                now[name] = {"commit": old["commit"], "date": old["date"], **job}
        order = list(known)
        document["jobs"] = sorted(now.values(), key=lambda job: order.index(job["name"]) if job["name"] in order else len(order))
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


def chosen_jobs(models, arguments):
    for job in jobs(models):
        if (not arguments.only or job[0] in arguments.only) and (not arguments.model or job[1] in arguments.model):
            yield job


def list_jobs(arguments):
    models = models_of(str(pathlib.Path(arguments.bin).resolve() / "cglint")) if arguments.bin else repository_models(REPOSITORY)
    if not models:
        sys.exit("measure_models.py: no models here: name BIN")
    known = unknown = total = 0
    for job, model, _, words in chosen_jobs(models, arguments):
        command = command_of(model, words)
        seconds = seconds_of(newest_document(REPOSITORY, model), job, command)
        if seconds is None:
            unknown += 1
        else:
            known, total = known + 1, total + seconds
        print(f"{'   ?' if seconds is None else f'{seconds:4.0f}'} s  {model} {job}: {command}")
    print(f"{total:4.0f} s  in {known} jobs" + (f"; {unknown} not measured with these arguments" if unknown else ""))
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
    if arguments.list:
        return list_jobs(arguments)
    if not arguments.bin or not arguments.out:
        parser.error("BIN and OUT are needed")
    measurement = Measurement(arguments)
    if arguments.relint:
        return measurement.relint(arguments.model)
    skipped = []
    for job, model, _, words in chosen_jobs(measurement.models, arguments):
        if measurement.left() < 5:
            skipped.append(f"{model} {job}")
        else:
            measurement.run(job, model, words)
    if skipped:
        print(f"left for the next time: {', '.join(skipped)}")
        measurement.note(4)
    return measurement.worst


if __name__ == "__main__":
    sys.exit(main())
