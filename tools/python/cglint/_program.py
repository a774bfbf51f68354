"""Where the cglint program and its libraries are."""
import os
import shutil
import subprocess
import sys

from ._report import CglintError

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin")


def folder():
    """The folder with the program: this package's, else $CGLINT_BIN (a folder, or the program itself), else that of `cglint` on PATH.
    CGLINT_BIN comes first where it is set."""
    wanted = os.environ.get("CGLINT_BIN")
    if wanted:
        found = wanted if os.path.isdir(wanted) else os.path.dirname(os.path.abspath(wanted))
        if not os.access(os.path.join(found, "cglint"), os.X_OK):
            raise CglintError("CGLINT_BIN is set to {}, where there is no cglint program".format(wanted))
        return found
    if os.access(os.path.join(_HERE, "cglint"), os.X_OK):
        return _HERE
    found = shutil.which("cglint")
    if found is None:
        raise CglintError("the cglint program is neither in this package nor on PATH: install the wheel, or set CGLINT_BIN to the folder that it is in")
    return os.path.dirname(os.path.realpath(found))


def program():
    """Path of the cglint program."""
    return os.path.join(folder(), "cglint")


def version():
    """Release of the cglint program, "0.1.0"."""
    done = subprocess.run([program(), "--version"], capture_output=True, text=True)
    if done.returncode != 0:
        raise CglintError("cglint --version failed: " + done.stderr.strip())
    return done.stdout.split()[-1]


def main():
    """The `cglint` command of the wheel: becomes the program."""
    try:
        path = program()
    except CglintError as error:
        print("cglint: {}".format(error), file=sys.stderr)
        return 2
    try:
        os.execv(path, [path] + sys.argv[1:])
    except OSError as error:
        print("cglint: cannot start {}: {}".format(path, error.strerror), file=sys.stderr)
        return 3
