"""Assembles a share of what is in compiled/ and fails if the figures or the code are others than it says.

share.py NUMBER SHARES    the kernels and targets whose names belong to share NUMBER of SHARES

build.py --assemble does all of them, one source after the other.
"""

import sys
import zlib

import build


def main():
    number, shares = int(sys.argv[1]), int(sys.argv[2])
    chosen, stored = [], {}
    for source in build.sources():
        manifest, texts, code = build.read(source)
        kernels = build.declared(source)
        for (name, target), text in texts.items():
            if zlib.crc32(f"{name} {target}".encode()) % shares == number % shares:
                chosen.append((name, text, target, kernels[name].at(target).loop))
                entry = next(k for k in manifest["kernels"] if k["name"] == name)
                stored[name, target] = kernels[name], entry["targets"][target], code
    chosen.sort(key=lambda job: -len(job[1]))  # the longest first, so that no core waits at the end
    for name, target, figures, made in build.in_parallel(build.assemble_job, chosen):
        kernel, said, code = stored[name, target]
        build.check_limits(name, kernel, target, figures)
        if any(said[k] != v for k, v in figures.items()) or any(code[name, a] != c for a, c in made.items()):
            raise SystemExit(f"share.py: {name}: takes {figures} on {target}; compiled/ has other figures or code: run build.py")
    print(f"{len(chosen)} kernels and targets of {shares} times as many assemble to the code that is stored")


if __name__ == "__main__":
    main()
