#!/usr/bin/env python3
"""Checks that includes follow the arrows of docs/architecture.md. Exit 1 and one line per violation."""
import pathlib
import re
import sys

ALLOWED = {
    "lib/base": {"base"},
    "lib/tables": {"base", "tables"},
    "lib/ir": {"base", "ir"},
    "lib/import": {"base", "ir", "import"},
    "lib/analysis": {"base", "ir", "analysis"},
    "lib/join": {"base", "ir", "analysis", "join"},
    "lib/engine": {"base", "tables", "ir", "analysis", "engine"},
    "lib/report": {"base", "ir", "analysis", "engine", "report"},
    "lib/export": {"base", "ir", "analysis", "export"},
    "lib/cuda": {"base", "ir", "cuda"},
    "lib/capture": {"base", "ir", "cuda", "capture", "export"},
    "rules": {"base", "tables", "ir", "analysis", "engine", "rules"},
}
CUDA_HEADERS = re.compile(r"^(cuda|cupti|nvtx|nccl|cublas|generated_cuda)")
CUDA_FOLDERS = ("lib/cuda/", "lib/capture/", "tools/cglint_gpu/", "tools/cglint_capture/", "tools/cglint_record/", "reference_models/", "tests/gpu/")


def main() -> int:
    root = pathlib.Path(__file__).resolve().parents[2]
    bad = []
    files = [f for top in ("lib", "rules", "tools") for f in (root / top).rglob("*") if f.suffix in {".h", ".cpp", ".cc", ".cu", ".cuh"}]
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        layer = next((l for l in ALLOWED if name.startswith(l + "/")), None)
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if not match:
                continue
            target = match.group(2)
            if CUDA_HEADERS.match(target) and not name.startswith(CUDA_FOLDERS):
                bad.append(f"{name}:{number}: CUDA header {target} outside the CUDA folders")
            if layer is None or match.group(1) == "<":
                continue
            top = target.split("/")[0]
            if "/" in target and top not in ALLOWED[layer] and (root / "lib" / top).is_dir() | (top == "rules"):
                bad.append(f"{name}:{number}: {layer} must not include {target}")
    print("\n".join(bad) if bad else f"{len(files)} files: includes follow the architecture")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
