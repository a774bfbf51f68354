#!/usr/bin/env python3
"""Makes a wheel of the program, its libraries and the Python module from a build's bin folder. Standard library only; no network.

usage: build_wheel.py build/release/bin -o DIST [--no-cuda]

The platform tag is computed from what the binaries need of glibc, and the wheel is refused if they need a library that is neither in
it nor on every Linux that the tag names. The same input gives the same bytes.
"""
import argparse
import base64
import csv
import hashlib
import io
import pathlib
import re
import struct
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ["cglint"]
CUDA_PARTS = ["cglint-record", "libcglint_record.so", "libcglint_capture.so", "cglint_python_helper/sitecustomize.py"]
CUDA_TARGETS = ["cglint-record", "cglint_capture_api"]  # what builds them
OPTIONAL = ["cglint-selftest-streams"]
# What a manylinux tag promises beside glibc (PEP 600), as far as it concerns us; the newest symbols of libstdc++ and libgcc that came with
# the glibc of manylinux_2_34.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
NEWEST = {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0)}
# Debian packages whose code is in the binaries; their licences come along where the build machine has them.
LIBRARIES = ["libcli11-dev", "libfmt-dev", "libre2-dev", "libsimdjson-dev", "libsqlite3-dev", "libtomlplusplus-dev", "libxxhash-dev", "libzstd-dev",
             "nlohmann-json3-dev", "zlib1g-dev"]


class Refused(Exception):
    pass


def needs(data, name):
    """What an x86-64 ELF file needs: the names of libraries, and {"GLIBC": newest version, ...}."""
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != 62:
        raise Refused(f"{name} is not a program for x86-64")
    offset, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]

    def text(table, at):
        begin = sections[table][4] + at
        return data[begin:data.index(b"\0", begin)].decode()

    libraries, newest = [], {}
    for _, kind, _, _, begin, length, link, info, _, _ in sections:
        if kind == 6:  # dynamic
            for at in range(begin, begin + length, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == 0:
                    break
                if tag == 1:
                    libraries.append(text(link, value))
        elif kind == 0x6FFFFFFE:  # versions needed
            at = begin
            for _ in range(info):
                _, entries, _, aux, following = struct.unpack_from("<HHIII", data, at)
                entry = at + aux
                for _ in range(entries):
                    _, _, _, label, skip = struct.unpack_from("<IHHII", data, entry)
                    found = re.fullmatch(r"([A-Z]+)_([0-9.]+)", text(link, label))
                    if found:
                        version = tuple(int(part) for part in found[2].split("."))
                        newest[found[1]] = max(newest.get(found[1], ()), version)
                    entry += skip
                at += following
    return libraries, newest


def platform_tag(binaries):
    glibc = (2, 17)
    for name, data in binaries.items():
        libraries, newest = needs(data, name)
        own = {pathlib.PurePosixPath(other).name for other in binaries}
        strange = sorted(set(libraries) - SYSTEM - own)
        if strange:
            raise Refused(f"{name} needs {', '.join(strange)}, which is neither in the wheel nor everywhere")
        for family, limit in NEWEST.items():
            if newest.get(family, ()) > limit:
                raise Refused(f"{name} needs {family}_{'.'.join(map(str, newest[family]))}, newer than what the tag promises")
        glibc = max(glibc, newest.get("GLIBC", ())[:2])
    return f"manylinux_{glibc[0]}_{glibc[1]}_x86_64"


def collect(folder, cuda):
    """Contents by name in the wheel's bin folder."""
    names = PROGRAMS + (CUDA_PARTS if cuda else [])
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        targets = [*PROGRAMS, *(CUDA_TARGETS if cuda else [])]
        raise Refused(f"{folder} lacks {', '.join(missing)}: 'cmake --build BUILD --target {' '.join(targets)}' builds what a wheel holds" +
                      ("; without a CUDA toolkit, --no-cuda makes a wheel that lints only" if cuda else ""))
    if cuda:
        names += [name for name in OPTIONAL if (folder / name).is_file()]
    names += sorted(path.name for path in folder.glob("libsimdjson.so*"))
    return {name: (folder / name).read_bytes() for name in names}


def licences():
    found, missing = {"LICENSE": (ROOT / "LICENSE").read_bytes()}, []
    for package in LIBRARIES:
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        if path.is_file():
            found[f"third_party/{package}.txt"] = path.read_bytes()
        else:
            missing.append(package)
    if missing:
        print(f"note: no licence text on this machine for {', '.join(missing)}", file=sys.stderr)
    return found


METADATA = """Metadata-Version: 2.1
Name: cglint
Version: {version}
Summary: A linter for CUDA graphs
License: MIT
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Description-Content-Type: text/markdown

{description}"""
ENTRY_POINTS = """[console_scripts]
cglint = cglint._program:main

[pytest11]
cglint = cglint.pytest_plugin
"""


def build(folder, out, cuda):
    version = subprocess.run([folder / "cglint", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    binaries = collect(folder, cuda)
    tag = "py3-none-" + platform_tag({name: data for name, data in binaries.items() if data[:4] == b"\x7fELF"})
    info = f"cglint-{version}.dist-info"
    files = {f"cglint/bin/{name}": data for name, data in binaries.items()}
    files.update({f"cglint/{path.name}": path.read_bytes() for path in (ROOT / "tools/python/cglint").glob("*.py")})
    files["cglint/include/cglint/capture.h"] = (ROOT / "lib/include/cglint/capture.h").read_bytes()
    files.update({f"{info}/licenses/{name}": data for name, data in licences().items()})
    files[f"{info}/METADATA"] = METADATA.format(version=version, description=(ROOT / "docs/python.md").read_text(encoding="utf-8")).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: cglint build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    record = io.StringIO()
    writer = csv.writer(record, lineterminator="\n")
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(data)])
    writer.writerow([f"{info}/RECORD", "", ""])
    # The record comes last, as the format asks.
    rows = sorted(files.items()) + [(f"{info}/RECORD", record.getvalue().encode())]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"cglint-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in rows:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            runs = name.startswith("cglint/bin/") and data[:4] == b"\x7fELF"
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return path


def main():
    parser = argparse.ArgumentParser(description="Makes a wheel from a build's bin folder.")
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("-o", "--out", type=pathlib.Path, default=pathlib.Path("dist"))
    parser.add_argument("--no-cuda", action="store_true", help="without recorder and capture library: the wheel lints only")
    options = parser.parse_args()
    try:
        print(build(options.bin.resolve(), options.out, not options.no_cuda))
    except (Refused, OSError, subprocess.CalledProcessError) as error:
        print(f"build_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
