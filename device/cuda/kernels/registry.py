"""What a source says of the kernels that are compiled from it: its list KERNELS.

A Kernel is one @triton.jit function with types, constants and promises filled in. build.py turns it into PTX, and the launch code
finds it by its name, OP.TYPE[.VARIANT]. Nothing here needs Triton.
"""

import dataclasses

# The targets, and the architectures for which each one's PTX is assembled to see that it can be.
TARGETS = {"sm80": ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"), "sm90a": ("sm_90a",)}

# The architectures whose machine code travels beside the PTX, and the target that a GPU of each one runs.
MACHINE_CODE = {"sm_80": "sm80", "sm_86": "sm80", "sm_89": "sm80", "sm_90a": "sm90a", "sm_100": "sm80", "sm_120": "sm80"}

# The architecture of each target whose loops are counted.
LOOPS = {"sm80": "sm_80", "sm90a": "sm_90a"}

# What Triton calls the types of arguments, and what the manifest does.
SCALARS = {"i32": "i32", "i64": "i64", "fp32": "f32", "fp64": "f64"}

BF16_OR_F32 = (("f32", "fp32"), ("bf16", "bf16"))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One compiled kernel.

    name       as the launch code asks for it
    function   the @triton.jit function
    arguments  "y:*bf16 x:*fp32 rows:i32 eps:fp32": the function's arguments that are no constants, in its order, in Triton's types
    grid       programs in x, y, z, as the grammar of kernels.go has them: "ceil(rows/BLOCK_ROWS)*heads"
    constants  of the function
    numbers    more constants, for the grid
    warps      32 threads each
    stages     how many loads of a loop are under way (only for loops with tl.dot)
    aligned    "y x sy": the arguments that are multiples of 16: addresses in bytes, numbers as they are
    most       {"d": 256}: the greatest values of arguments that the function can take
    exact      IEEE's bits: a*b+c is not fused, and denormals are not taken for zero by functions such as tl.div_rn
    registers  how many registers a thread may have; more fails the build
    held       ptxas gives a thread no more than registers, and spills the rest: so more programs share a multiprocessor
    spill      how many bytes a thread may spill; more fails the build
    loop       how many instructions the hot loop may have, how many of them load from global memory (copies to shared memory aside), and
               how many go to local memory, where spilled registers are; more fails the build. Empty: it is not looked at
    on         {"sm90a": dict(constants=..., warps=..., stages=..., ...)}: what is otherwise on a target; constants are merged
    """

    name: str
    function: object
    arguments: str
    grid: tuple
    constants: dict = dataclasses.field(default_factory=dict)
    numbers: dict = dataclasses.field(default_factory=dict)
    warps: int = 4
    stages: int = 2
    aligned: str = ""
    most: dict = dataclasses.field(default_factory=dict)
    exact: bool = False
    registers: int = 128
    held: bool = False
    spill: int = 0
    loop: tuple = ()
    on: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        names = [name for name, _ in self.typed()]
        unknown = (set(self.aligned.split()) | set(self.most)) - set(names)
        if unknown:
            raise ValueError(f"{self.name}: {unknown} are no arguments")
        if set(self.on) - set(TARGETS):
            raise ValueError(f"{self.name}: no such target in {set(self.on)}")

    def typed(self):
        """Pairs of an argument's name and its type in Triton's words."""
        return [tuple(a.split(":")) for a in self.arguments.split()]

    def at(self, target):
        """This kernel as it is on a target."""
        change = dict(self.on.get(target, {}))
        change["constants"] = {**self.constants, **change.get("constants", {})}
        return dataclasses.replace(self, on={}, **change)
