"""Compiles the kernels of this folder to PTX and to machine code, without a GPU.

    build.py [SOURCE.py]...               compiles what changed, and assembles it
    build.py --check [SOURCE.py]...       compiles all of it and fails if compiled/ says otherwise
    build.py --assemble [SOURCE.py]...    assembles what is in compiled/ and fails if the figures are others than it says
    build.py --ptxas PATH [SOURCE.py]...  assembles what is in compiled/ with another release's ptxas, and fails if it cannot or if
                                          registers or spills are over the limits
    build.py --try PATTERN [SOURCE.py]... compiles the kernels whose names match and prints their figures; writes nothing
                                          (with --keep FOLDER: their PTX)

For each source compiled/ has NAME.json, the manifest, NAME.ptx.zst, which is all its PTX texts in the order of the
manifest, those of a kernel in the order of the targets' names, and NAME.cubin.zst, which is its machine code for the
architectures of registry.MACHINE_CODE in the same order. One file has them all because those of a kernel are much
alike. The manifest has what ptxas and the machine code say of a kernel beside its limits; over one of them, the build
fails. A source is compiled again when its text, that of registry.py or of this file, or the compiler's version is
another. PTX is made for sm_80, which newer GPUs load too, and for sm_90a. It claims PTX_VERSION, so that drivers from
that one on take it.

Assembling is what a driver does when it loads PTX, for over a minute where all kernels are new to it: machine code saves that. A GPU of
another architecture takes the PTX.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # paths and lines do not belong in the program
os.environ.pop("TRITON_INTERPRET", None)

import zstandard

from registry import LOOPS, MACHINE_CODE, SCALARS, TARGETS

HERE = pathlib.Path(__file__).resolve().parent
COMPILED = HERE / "compiled"
PTX_VERSION = 84  # of CUDA 12.4, March 2024: drivers from 550 on
TRAILING_POINTERS = 2  # Triton's scratch memory, which none of these kernels uses
# The most that a block has on all GPUs of a target, less what the system takes.
SHARED_LIMIT = {"sm80": 99 * 1024, "sm90a": 227 * 1024}
PROCESSES = 2


class Stale(Exception):
    pass


def sources():
    """The files that declare kernels."""
    return sorted(p.name for p in HERE.glob("*.py") if re.search(r"^KERNELS\b", p.read_text(), re.MULTILINE))


def declared(source):
    kernels = importlib.import_module(pathlib.Path(source).stem).KERNELS
    names = [k.name for k in kernels]
    if len(set(names)) != len(names):
        raise SystemExit(f"{source}: declares a name twice")
    return {k.name: k for k in kernels}


def sha256(text):
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def compile_one(source, name, target):
    """The PTX of a kernel, and what launching it needs."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton._C.libtriton import ir, nvidia

    kernel = declared(source)[name].at(target)
    function, constants = kernel.function, kernel.constants
    typed = dict(kernel.typed())
    given = [a for a in function.arg_names if a not in constants]
    if given != list(typed) or set(constants) - set(function.arg_names):
        raise ValueError(f"{name}: the function takes {function.arg_names}, declared are {list(typed)} and {list(constants)}")
    signature = {a: typed.get(a, "constexpr") for a in function.arg_names}
    attributes = {(function.arg_names.index(a),): [["tt.divisibility", 16]] for a in kernel.aligned.split()}
    text = ASTSource(function, signature, constants, attributes)

    gpu = GPUTarget("cuda", int(re.sub(r"\D", "", target)), 32)
    backend = make_backend(gpu)
    options = backend.parse_options(dict(num_warps=kernel.warps, num_stages=kernel.stages, ptx_version=PTX_VERSION,
                                         enable_fp_fusion=not kernel.exact,
                                         maxnreg=kernel.registers if kernel.held else None))
    stages, metadata = {}, {}
    backend.add_stages(stages, options, text.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    code = text.make_ir(gpu, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    flush = nvidia.set_nvvm_reflect_ftz
    if kernel.exact:
        nvidia.set_nvvm_reflect_ftz = lambda module: None  # what has functions of libdevice flush denormals
    try:
        for stage in ("ttir", "ttgir", "llir", "ptx"):
            code = stages[stage](code, metadata)
    finally:
        nvidia.set_nvvm_reflect_ftz = flush
    context.disable_multithreading()  # its threads do not outlive it

    if metadata["global_scratch_size"] or metadata["profile_scratch_size"]:
        raise ValueError(f"{name}: wants scratch memory, which no launch gives it")
    if metadata["shared"] > SHARED_LIMIT[target]:
        raise ValueError(f"{name}: {metadata['shared']} bytes of shared memory on {target}, more than {SHARED_LIMIT[target]}")
    entry = name.replace(".", "_")
    return tidy(code, metadata["name"], entry), dict(warps=metadata.get("num_warps", kernel.warps), stages=kernel.stages,
                                                    shared_bytes=metadata["shared"], constants={k: int(v) for k, v in {**constants, **kernel.numbers}.items()})


def tidy(ptx, function, entry):
    """PTX without comments, and with an entry whose name says which kernel it is."""
    lines = [re.sub(r"\s*//.*", "", line).rstrip() for line in ptx.splitlines()]
    text = "\n".join(line for line in lines if line) + "\n"
    for unused in re.findall(r"^\.global .* (_\$_str\w*)\[", text, re.MULTILINE):  # names of flags that libdevice asked for
        if text.count(unused) == 1:
            text = re.sub(rf"^.*{re.escape(unused)}\[.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"\.entry {function}\(", f".entry {entry}(", text)
    return re.sub(rf"\b{function}_param_", f"{entry}_param_", text)


def tool(name):
    """A program of NVIDIA's that Triton carries: ptxas or nvdisasm."""
    import triton

    return pathlib.Path(triton.__file__).parent / "backends/nvidia/bin" / name


def assembler_version():
    said = subprocess.run([tool("ptxas"), "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V([\d.]+)", said)[1]


def hot_loop(sass):
    """What the loop of a listing of nvdisasm's consists of in which the time is spent: of the innermost loops with the most matrix products,
    or the most fused products where there are none of matrices, the shortest. A longer one with the same products masks them.
    """
    labels, instructions, loops = {}, [], []
    for line in sass.splitlines():
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)[^`;]*(?:`\((\.L\w+)\))?", line):
            instructions.append(found[1])
            if found[1] == "BRA" and found[2] in labels:  # backwards
                loops.append((labels[found[2]], len(instructions)))
    counts = [collections.Counter(instructions[a:b]) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    products = lambda c: (sum(n for op, n in c.items() if op in ("HMMA", "HGMMA")), c["FFMA"])
    hot = max(counts, key=lambda c: (products(c), -c.total()))
    return dict(instructions=hot.total(), products=products(hot)[0] or products(hot)[1], global_loads=hot["LDG"],
                local=hot["LDL"] + hot["STL"])


def assemble(name, ptx, target, loop, ptxas=None):
    """Registers and spilled bytes of a thread for each architecture, the hot loop if asked for, and the machine code for those
    architectures whose GPUs run this target."""
    registers, spilled, code = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "kernel.ptx").write_text(ptx)
        for architecture in TARGETS[target]:
            run = subprocess.run([ptxas or tool("ptxas"), "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", "kernel.cubin"], capture_output=True,
                                 text=True, cwd=folder)
            if run.returncode:
                raise ValueError(f"{name}: ptxas for {architecture}: {run.stderr.strip()}")
            registers[architecture] = int(re.search(r"Used (\d+) registers", run.stderr)[1])
            stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr).groups()
            spilled[architecture] = max(int(stores), int(loads))
            if MACHINE_CODE.get(architecture) == target:
                code[architecture] = (folder / "kernel.cubin").read_bytes()
        figures = dict(registers=registers, spill_bytes=spilled)
        if loop and not ptxas:  # another release's code may be in a format that this nvdisasm does not read
            (folder / "kernel.cubin").write_bytes(code[LOOPS[target]])
            figures["loop"] = hot_loop(subprocess.run([tool("nvdisasm"), "-c", folder / "kernel.cubin"], capture_output=True, text=True,
                                                      check=True).stdout)
    sizes = {architecture: len(c) for architecture, c in code.items()}
    return dict(**figures, cubin_bytes=sizes), code


def limits(kernel):
    """The most that a kernel, as it is on a target, may have of what the manifest counts."""
    loop = dict(zip(("instructions", "global_loads", "local"), kernel.loop))
    return dict(registers=kernel.registers, spill_bytes=kernel.spill, **({"loop": loop} if loop else {}))


def check_limits(name, kernel, target, figures):
    most = limits(kernel.at(target))
    over = [f"{what} {n} on {a}, its limit is {most[what]}" for what in ("registers", "spill_bytes")
            for a, n in figures[what].items() if n > most[what]]
    if "loop" in figures:
        over += [f"{what} {figures['loop'][what]} in its hot loop on {LOOPS[target]}, its limit is {n}"
                 for what, n in most["loop"].items() if figures["loop"][what] > n]
    if over:
        raise ValueError(f"{name}: {'; '.join(over)}")


def job(source, name, target, known):
    """One kernel for one target. known has figures and code of earlier PTX, by that text's sum and whether they have the loop."""
    ptx, launch = compile_one(source, name, target)
    loop = declared(source)[name].at(target).loop
    figures, code = known.get((sha256(ptx), bool(loop))) or assemble(name, ptx, target, loop)
    return name, target, ptx, launch, figures, code


def assemble_job(name, ptx, target, loop, ptxas=None):
    return name, target, *assemble(name, ptx, target, loop, ptxas)


def in_parallel(function, jobs):
    """The results of function(*job), in the order of jobs. The first failure is raised, after the names of all are printed."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        futures = [pool.submit(function, *j) for j in jobs]
        failed = [f.exception() for f in futures if f.exception()]
        for e in failed:
            print(f"build.py: {e}", file=sys.stderr)
        if failed:
            raise SystemExit(1)
        return [f.result() for f in futures]


def with_imports(source):
    """A source, and below it the files that it imports from here, but the registry."""
    text = (HERE / source).read_bytes()
    names = re.findall(rb"^from (\w+) import", text, re.MULTILINE)
    return text + b"".join((HERE / f"{n.decode()}.py").read_bytes() for n in names if n != b"registry")


def inputs(source):
    """What compiled files are made from, but the compiler's version, as sums."""
    return {"source_sha256": sha256(with_imports(source)),
            **{f"{word}_sha256": sha256((HERE / f"{word}.py").read_bytes()) for word in ("registry", "build")}}


def header(source):
    import triton

    return {"source": source, **inputs(source), "triton": triton.__version__, "ptxas": assembler_version(),
            "ptx_version": f"{PTX_VERSION // 10}.{PTX_VERSION % 10}", "trailing_pointers": TRAILING_POINTERS}


def manifest_path(source):
    return COMPILED / (pathlib.Path(source).stem + ".json")


def ptx_path(source):
    return COMPILED / (pathlib.Path(source).stem + ".ptx.zst")


def code_path(source):
    return COMPILED / (pathlib.Path(source).stem + ".cubin.zst")


def pack(parts):
    return zstandard.ZstdCompressor(level=19).compress(b"".join(parts))


def unpack(path, sizes):
    """The parts of a file, by the keys of sizes, which are in the file's order."""
    data, parts = zstandard.ZstdDecompressor().decompress(path.read_bytes()), {}
    for key, size in sizes.items():
        parts[key], data = data[:size], data[size:]
    return parts


def ptx_order(kernels):
    return [(k["name"], target) for k in kernels for target in sorted(TARGETS)]


def code_order(kernels):
    return [(k["name"], architecture) for k in kernels for architecture in sorted(MACHINE_CODE)]


def read(source):
    """The manifest of a source, its PTX by (name, target) and its machine code by (name, architecture); nothing where there are none."""
    try:
        manifest = json.loads(manifest_path(source).read_text())
        targets = {k["name"]: k["targets"] for k in manifest["kernels"]}
        ptx_bytes = {(n, t): targets[n][t]["ptx_bytes"] for n, t in ptx_order(manifest["kernels"])}
        code_bytes = {(n, a): targets[n][MACHINE_CODE[a]]["cubin_bytes"][a] for n, a in code_order(manifest["kernels"])}
        texts, code = unpack(ptx_path(source), ptx_bytes), unpack(code_path(source), code_bytes)
        return manifest, {key: text.decode() for key, text in texts.items()}, code
    except (FileNotFoundError, KeyError):
        return {"kernels": []}, {}, {}


def entry(name, kernel, results):
    """A kernel in the manifest. results are (ptx, launch, figures) by target."""
    targets = {}
    for target, (ptx, launch, figures) in results.items():
        targets[target] = {"ptx_bytes": len(ptx), "ptx_sha256": sha256(ptx), **launch, **figures, "limits": limits(kernel.at(target))}
    args = [{"name": a, "type": "ptr" if t.startswith("*") else SCALARS[t]} for a, t in kernel.typed()]
    return {"name": name, "entry": name.replace(".", "_"), "args": args, "aligned": kernel.aligned.split(), "most": kernel.most,
            "exact": kernel.exact, "grid": list(kernel.grid), "targets": targets}


def text_of(manifest):
    """JSON with a line for each kernel, so that a change reads as one."""
    head = {k: v for k, v in manifest.items() if k != "kernels"}
    lines = [json.dumps(k) for k in manifest["kernels"]]
    return json.dumps(head)[:-1] + ', "kernels": [\n' + ",\n".join(lines) + "\n]}\n"


def code_sums(kernels, code):
    """The sum of the machine code of all kernels, one after the other, by architecture."""
    return {a: sha256(b"".join(code[k["name"], a] for k in kernels)) for a in MACHINE_CODE}


def compiled(source, known):
    """The manifest of a source, its PTX by (name, target) and its machine code by (name, architecture)."""
    head = header(source)  # of what is compiled now, not of what somebody saves meanwhile
    kernels = declared(source)
    jobs = [(source, name, target, known) for name in kernels for target in TARGETS]
    results = {(name, target): rest for name, target, *rest in in_parallel(job, jobs)}
    entries = []
    for name, kernel in kernels.items():
        by_target = {target: results[name, target][:3] for target in TARGETS}
        for target, (_, _, figures) in by_target.items():
            check_limits(name, kernel, target, figures)
        entries.append(entry(name, kernel, by_target))
    code = {(name, a): c for (name, _), (*_, by) in results.items() for a, c in by.items()}
    return {**head, "cubin_sha256": code_sums(entries, code), "kernels": entries}, {key: r[0] for key, r in results.items()}, code


def known_figures(manifest, code):
    """Figures and machine code that need no assembler, by the sum of their PTX and whether they have the loop, if they are this
    assembler's."""
    if manifest.get("ptxas") != assembler_version():
        return {}
    figures = ("registers", "spill_bytes", "loop", "cubin_bytes")
    return {(t["ptx_sha256"], "loop" in t): ({f: t[f] for f in figures if f in t}, {a: code[k["name"], a] for a in t["cubin_bytes"]})
            for k in manifest["kernels"] for t in k["targets"].values()}


def write(path, data):
    """All of a file or nothing of it."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


def build(source):
    manifest, texts, code = read(source)
    if all(manifest.get(k) == v for k, v in header(source).items()):
        return
    new, new_texts, new_code = compiled(source, known_figures(manifest, code))
    COMPILED.mkdir(exist_ok=True)
    write(ptx_path(source), pack(new_texts[key].encode() for key in ptx_order(new["kernels"])))
    write(code_path(source), pack(new_code[key] for key in code_order(new["kernels"])))
    write(manifest_path(source), text_of(new).encode())
    print(f"{source}: {len(new['kernels'])} kernels")


def check(source):
    manifest, texts, code = read(source)
    new, new_texts, new_code = compiled(source, known_figures(manifest, code))
    if text_of(new) != text_of(manifest) or new_texts != texts or new_code != code:
        raise Stale(f"{source}: compiled/ is not what it compiles to: run build.py {source}")
    print(f"{source}: {len(new['kernels'])} kernels compile to what is stored")


def reassemble(source):
    manifest, texts, code = read(source)
    kernels = declared(source)
    for name, target, figures, made in in_parallel(assemble_job, [(n, text, t, kernels[n].at(t).loop) for (n, t), text in texts.items()]):
        check_limits(name, kernels[name], target, figures)
        stored = next(k for k in manifest["kernels"] if k["name"] == name)["targets"][target]
        if any(stored[k] != v for k, v in figures.items()) or any(code[name, a] != c for a, c in made.items()):
            raise Stale(f"{name}: takes {figures} on {target}; compiled/ has other figures or code: run build.py {source}")
    architectures = sorted({a for t in TARGETS.values() for a in t})
    print(f"{source}: {len(manifest['kernels'])} kernels assemble for {', '.join(architectures)} to the code that is stored")


def assemble_by(source, ptxas):
    """Another release's figures beside those that are stored."""
    manifest, texts, _ = read(source)
    kernels = declared(source)
    counts = dict(same=0, fewer=0, more=0)
    for name, target, figures, _ in in_parallel(assemble_job, [(n, text, t, (), ptxas) for (n, t), text in texts.items()]):
        check_limits(name, kernels[name], target, figures)
        stored = next(k for k in manifest["kernels"] if k["name"] == name)["targets"][target]["spill_bytes"]
        for a, spilled in figures["spill_bytes"].items():
            counts["same" if spilled == stored[a] else "fewer" if spilled < stored[a] else "more"] += 1
            if spilled > stored[a]:
                print(f"{name} for {a} from {target}: {stored[a]} -> {spilled} bytes spilled")
    print(f"{source}: {sum(counts.values())} assembled; spilled bytes: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


def attempt(source, pattern, keep):
    names = [n for n in declared(source) if fnmatch.fnmatch(n, pattern)]
    for name, target, ptx, launch, figures, _ in in_parallel(job, [(source, n, t, {}) for n in names for t in TARGETS]):
        per = [f"{a} {figures['registers'][a]} registers" + (f" {s} B SPILLED" if s else "") for a, s in figures["spill_bytes"].items()]
        print(f"{name} {target}: {len(ptx)} B PTX, {launch['warps']} warps, {launch['shared_bytes']} B shared; {', '.join(per)}"
              + (f"; hot loop {figures['loop']}" if "loop" in figures else ""))
        if keep:
            (keep / f"{name}-{target}.ptx").write_text(ptx)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE.py")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--assemble", action="store_true")
    parser.add_argument("--ptxas")
    parser.add_argument("--try", dest="pattern")
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()
    sys.path.insert(0, str(HERE))
    try:
        for source in [pathlib.Path(s).name for s in args.sources] or sources():
            if args.ptxas:
                assemble_by(source, args.ptxas)
                continue
            if args.pattern:
                attempt(source, args.pattern, args.keep)
                continue
            if args.check:
                check(source)
            if args.assemble:
                reassemble(source)
            if not args.check and not args.assemble:
                build(source)
        made = {f.name for s in sources() for f in (manifest_path(s), ptx_path(s), code_path(s))}
        gone = sorted({p.name for p in COMPILED.glob("*")} - made)
        if gone and not args.pattern and not args.ptxas and not args.sources:
            raise Stale(f"compiled/ has {gone}, which no source makes: remove them")
    except (Stale, ValueError) as e:
        raise SystemExit(f"build.py: {e}")


if __name__ == "__main__":
    main()
