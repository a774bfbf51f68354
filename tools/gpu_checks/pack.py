#!/usr/bin/env python3
"""Makes the self-contained folder that run.py runs in, for a machine without this source tree.

usage: pack.py BUILD_BIN OUT_FOLDER [--lib FILE ...]

BUILD_BIN is a build's bin/ folder; the programs that only checks run are taken from gpu_checks/ beside it. Copies run.py, measure_models.py,
checks.d/, the programs, the Python module and the recorded data that the checks read; --lib adds a library (a CUPTI, say) to OUT_FOLDER/lib.
"""
import argparse
import glob
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def main():
    parser = argparse.ArgumentParser(description="Pack the GPU checks.")
    parser.add_argument("build_bin")
    parser.add_argument("out")
    parser.add_argument("--lib", nargs="*", default=[])
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for script in ("run.py", "measure_models.py"):
        shutil.copy2(os.path.join(HERE, script), arguments.out)
    shutil.copytree(os.path.join(HERE, "checks.d"), os.path.join(arguments.out, "checks.d"), dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(arguments.build_bin, os.path.join(arguments.out, "bin"), dirs_exist_ok=True)
    programs = os.path.join(os.path.dirname(os.path.abspath(arguments.build_bin)), "gpu_checks")
    if not os.path.isdir(programs):
        parser.error(f"{programs}: no such folder; does the build have the CUDA parts and the tests?")
    shutil.copytree(programs, os.path.join(arguments.out, "bin"), dirs_exist_ok=True)
    for name in ("dot", "streams"):
        source = os.path.join(ROOT, "tests", "data", name)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(arguments.out, "data", name), dirs_exist_ok=True)
    shutil.copytree(os.path.join(ROOT, "tests", "gpu", "record"), os.path.join(arguments.out, "data", "record_programs"), dirs_exist_ok=True)
    shutil.copytree(os.path.join(ROOT, "tools", "python", "cglint"), os.path.join(arguments.out, "data", "python", "cglint"), dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(os.path.join(ROOT, "reference_models", "fused_moe", "configs"), os.path.join(arguments.out, "data", "moe_configs"), dirs_exist_ok=True)
    for library in arguments.lib:
        os.makedirs(os.path.join(arguments.out, "lib"), exist_ok=True)
        shutil.copy2(library, os.path.join(arguments.out, "lib"))
    size = sum(os.path.getsize(path) for path in glob.glob(os.path.join(arguments.out, "**"), recursive=True) if os.path.isfile(path))
    print(f"{arguments.out}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
