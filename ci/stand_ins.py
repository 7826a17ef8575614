"""Make stand-ins for the NVIDIA libraries that a CUDA build of torch is linked to.

python ci/stand_ins.py SITE_PACKAGES

torch 2.9 comes from the package index as a CUDA build only, and its libraries name a dozen others, three gigabytes of wheels. A machine
without a GPU calls none of them, but the loader wants each name and each symbol before torch starts. So every symbol becomes a function
that says "error" (1), in a library that gcc makes in a moment, beside torch's own. Those for the runtime and for profiling stay real:
they answer that there is no GPU. Needs gcc, nm and readelf.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

REAL = {"libcudart.so.12", "libcupti.so.12"}
OURS = re.compile(r"lib(cu(?!da\.)|nccl|nvshmem)")
BY_BEGINNING = {
    "cuFile": "libcufile.so.0",
    "cusparseLt": "libcusparseLt.so.0",
    "nccl": "libnccl.so.2",
    "pnccl": "libnccl.so.2",
    "nvshmem": "libnvshmem_host.so.3",
}
"""Libraries whose symbols do not say by a version where they belong."""
REQUIREMENT = re.compile(r"Requires-Dist: (nvidia-(?!cuda-(runtime|cupti)-)|triton)")


def output_of(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def missing_libraries(libraries: list[Path]) -> set[str]:
    """NVIDIA libraries that torch's own name, and that are not beside them."""
    named = {name for one in libraries for name in re.findall(r"NEEDED.*\[(.*)]", output_of("readelf", "-d", str(one)))}
    there = REAL | {path.name for path in libraries[0].parent.glob("*.so*")}
    return {name for name in named - there if OURS.match(name)}


def wanted_symbols(libraries: list[Path], missing: set[str]) -> dict[str, dict[str, set[str]]]:
    """Library -> version -> symbols that torch takes from it."""
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    listing = output_of("nm", "-D", "--undefined-only", "--with-symbol-versions", *map(str, libraries))
    for line in listing.splitlines():
        symbol, _, version = line.split()[-1].partition("@") if line.strip() else ("", "", "")
        named = [library for beginning, library in BY_BEGINNING.items() if symbol.startswith(beginning)]
        owner = version if version in missing else next(iter(named), "")
        if owner in missing and not line.endswith(":"):
            wanted[owner][version].add(symbol)
    return wanted


def make(path: Path, symbols: dict[str, set[str]]) -> None:
    """Compile a library in which each symbol says "error"."""
    every = sorted({name for names in symbols.values() for name in names})
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in every) or "int nothing;\n"
    versions = [
        f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in symbols.items() if version
    ]
    script = path.with_suffix(".map")
    script.write_text("\n".join(versions))
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-w",
        "-fno-builtin",
        "-x",
        "c",
        "-",
        "-o",
        str(path),
        f"-Wl,-soname,{path.name}",
    ]
    subprocess.run(
        [*command, *([f"-Wl,--version-script={script}"] if versions else [])], input=source, text=True, check=True
    )
    script.unlink()


def forget_requirements(site: Path) -> None:
    """Let torch ask for the wheels no more, so that pip does not fetch them with the next package."""
    for metadata in site.glob("torch-*.dist-info/METADATA"):
        lines = metadata.read_text(encoding="utf-8").splitlines(keepends=True)
        metadata.write_text("".join(line for line in lines if not REQUIREMENT.match(line)), encoding="utf-8")


def main() -> None:
    """Make all that are missing."""
    site = Path(sys.argv[1])
    libraries = sorted((site / "torch/lib").glob("*.so"))
    for name, symbols in wanted_symbols(libraries, missing_libraries(libraries)).items():
        make(site / "torch/lib" / name, symbols)
    forget_requirements(site)


main()
