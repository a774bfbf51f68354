"""A page of docs/measurements that a script writes from measurement files."""
import argparse
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/measurements"


def main(name, make):
    """Writes FOLDER/name, the text that make() returns (None: there is no measurement), or with --check compares. Returns the exit code."""
    parser = argparse.ArgumentParser(description=f"Write docs/measurements/{name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not what the measurements say")
    arguments = parser.parse_args()
    text, target = make(), FOLDER / name
    if text is None:
        print(f"{name}: no measurement, nothing to write")
        return 0
    if arguments.check:
        same = target.exists() and target.read_text(encoding="utf-8") == text
        print(f"{name} is current" if same else f"{name} is not what the measurements say: run {parser.prog}")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    print(target)
    return 0
