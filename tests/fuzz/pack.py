#!/usr/bin/env python3
"""Packs the fuzz targets of a build (preset fuzz) with seeds and dictionaries into a folder that campaign.py runs in, elsewhere.

usage: pack.py BUILD_DIR OUT_FOLDER [--corpus FOLDER]

Targets that are not built are left out. --corpus adds FOLDER/TARGET/* (or FOLDER/TARGET.tar.gz, as campaign.py writes them) to the seeds.
"""
import argparse
import glob
import hashlib
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import inputs  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description="Pack the fuzz targets.")
    parser.add_argument("build")
    parser.add_argument("out")
    parser.add_argument("--corpus")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    shutil.copy2(os.path.join(HERE, "campaign.py"), arguments.out)
    packed = io.BytesIO()
    names = []
    with tempfile.TemporaryDirectory() as work, tarfile.open(fileobj=packed, mode="w") as archive:
        for target in inputs.TARGETS:
            binary = os.path.join(arguments.build, "fuzz", "fuzz_" + target)
            if os.path.isfile(binary):
                stripped = os.path.join(work, "fuzz_" + target)
                subprocess.run(["strip", "-s", "-o", stripped, binary], check=True)
                archive.add(stripped, "fuzz_" + target)
                names.append(target)
        for library in glob.glob(os.path.join(arguments.build, "bin", "libsimdjson.so*")):
            archive.add(library, os.path.basename(library))
    # The targets share most of their code: a window that spans them all.
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 256 << 20}]
    with open(os.path.join(arguments.out, "binaries.tar.xz"), "wb") as file:
        file.write(lzma.compress(packed.getbuffer(), format=lzma.FORMAT_XZ, filters=filters))
    for target in names:
        seeds = list(inputs.seeds(target))
        if arguments.corpus:
            for path in glob.glob(os.path.join(arguments.corpus, target, "*")):
                seeds.append(inputs.read(path))
            path = os.path.join(arguments.corpus, target + ".tar.gz")
            if os.path.isfile(path):
                with tarfile.open(path) as archive:
                    seeds += [archive.extractfile(member).read() for member in archive if member.isfile()]
        with tarfile.open(os.path.join(arguments.out, target + ".seeds.tar.xz"), "w:xz") as archive:
            for seed in seeds:
                info = tarfile.TarInfo(hashlib.sha1(seed).hexdigest())
                info.size = len(seed)
                archive.addfile(info, io.BytesIO(seed))
        with open(os.path.join(arguments.out, target + ".dict"), "w", encoding="ascii") as file:
            file.write(inputs.dictionary(target))
    size = sum(os.path.getsize(path) for path in glob.glob(os.path.join(arguments.out, "*")))
    print("%s: %s, %.1f MB" % (arguments.out, " ".join(names), size / 1e6))


if __name__ == "__main__":
    main()
