#!/usr/bin/env python3
"""clang-tidy over every source of a configured build, one after the other, without building.

usage: run_tidy.py BUILD_DIR [--state FILE] [--clang-tidy PROGRAM] [--list] [SOURCE...]

BUILD_DIR holds a compile_commands.json made with clang (presets tidy, asan-ubsan, fuzz). Sources that passed are remembered in
FILE (default: BUILD_DIR/tidy_passed.json) with a hash of what they are made of: the source, the project's headers that it includes, and
.clang-tidy. They are left out until one of these changes, so a run that was ended goes on where it stopped. SOURCE: only paths that
contain one of these words. --list names what has not passed and runs nothing. Exit code 1 where a source has findings or is left.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Contents:
    """What a source is made of, as far as it belongs to the project."""

    def __init__(self, folders):
        self.folders = folders
        self.includes = {}  # path -> (hash, the project's files that it includes)

    def of(self, path):
        if path not in self.includes:
            text = read(path)
            found = []
            for name in INCLUDE.findall(text):
                for folder in [os.path.dirname(path)] + self.folders:
                    candidate = os.path.normpath(os.path.join(folder, name.decode()))
                    if candidate.startswith(ROOT) and os.path.isfile(candidate):
                        found.append(candidate)
                        break
            self.includes[path] = (hashlib.sha256(text).hexdigest(), found)
        return self.includes[path]

    def key(self, path):
        seen = {}
        left = [path]
        while left:
            one = left.pop()
            if one not in seen:
                seen[one], found = self.of(one)
                left += found
        text = "".join(f"{os.path.relpath(one, ROOT)} {seen[one]}\n" for one in sorted(seen))
        return hashlib.sha256(text.encode() + read(os.path.join(ROOT, ".clang-tidy"))).hexdigest()


def main():
    parser = argparse.ArgumentParser(description="Run clang-tidy over all sources, resumably.")
    parser.add_argument("build")
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--state")
    parser.add_argument("--clang-tidy", default="clang-tidy-16")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    state = arguments.state or os.path.join(build, "tidy_passed.json")
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    sources = sorted({os.path.normpath(os.path.join(command["directory"], command["file"])) for command in commands})
    sources = [path for path in sources if path.startswith(ROOT + "/") and not path.startswith(build + "/") and path.endswith((".cpp", ".c"))]
    folders = sorted({folder for command in commands for folder in re.findall(r"-I(\S+)", command.get("command", ""))})
    contents = Contents(folders)
    passed = json.loads(read(state)) if os.path.isfile(state) else {}
    left = [path for path in sources if passed.get(os.path.relpath(path, ROOT)) != contents.key(path)]
    if arguments.sources:
        left = [path for path in left if any(word in os.path.relpath(path, ROOT) for word in arguments.sources)]
    print(f"{len(sources)} sources, {len(left)} to check", flush=True)
    failed = []
    for path in left:
        name = os.path.relpath(path, ROOT)
        if arguments.list:
            print(name)
            continue
        key = contents.key(path)
        result = subprocess.run([arguments.clang_tidy, "-p", build, "--quiet", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, check=False)
        if result.returncode == 0:
            passed[name] = key
            with open(state + ".new", "w", encoding="ascii") as file:
                json.dump(passed, file, indent=1, sort_keys=True)
            os.replace(state + ".new", state)
            print(f"passed: {name}", flush=True)
        else:
            failed.append(name)
            print(f"{result.stdout}{result.stderr}FAILED: {name}", flush=True)
    print(f"{len(failed)} with findings: {' '.join(failed)}" if failed else ("" if arguments.list else "no findings"))
    return 1 if failed or (arguments.list and left) else 0


if __name__ == "__main__":
    sys.exit(main())
