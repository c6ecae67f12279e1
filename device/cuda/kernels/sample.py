"""Assembles each kernel of compiled/ for one of its architectures: what CI does for every change.

The architecture follows from the PTX itself, so that a kernel which changes may meet another one, and one that does not meets the same.
build.py has assembled everything for all architectures when it compiled, and `build.py --assemble` does so again; this looks whether
what is stored is what came of that.
"""

import concurrent.futures
import sys

import build


def main():
    jobs = []
    for source in build.sources():
        manifest, texts = build.read(source)
        for kernel in manifest["kernels"]:
            for target, stored in kernel["targets"].items():
                ptx = texts[kernel["name"], target]
                choice = build.TARGETS[target]
                jobs.append((kernel["name"], ptx, target, choice[int(build.sha256(ptx)[:8], 16) % len(choice)], stored))
    # assemble() takes all architectures of a target: here, each is a target of its own.
    build.TARGETS = {architecture: (architecture,) for _, _, _, architecture, _ in jobs}

    def check(name, ptx, target, architecture, stored):
        if build.sha256(ptx) != stored["ptx_sha256"]:
            return f"{name}: the PTX for {target} is not that of the manifest"
        for word, figures in build.assemble(name, ptx, architecture).items():
            if stored[word][architecture] != figures[architecture]:
                return f"{name}: {word} on {architecture} are {figures[architecture]}; the manifest says {stored[word][architecture]}"

    with concurrent.futures.ThreadPoolExecutor(build.PROCESSES) as pool:
        wrong = [w for w in pool.map(lambda job: check(*job), jobs) if w]
    for line in wrong:
        print(f"sample.py: {line}", file=sys.stderr)
    if wrong:
        raise SystemExit(1)
    print(f"{len(jobs)} kernels assemble, each for one of {', '.join(sorted(build.TARGETS))}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as e:
        raise SystemExit(f"sample.py: {e}")
