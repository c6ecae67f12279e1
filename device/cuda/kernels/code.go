package kernels

import (
	"fmt"
	"slices"
)

// architecture is an architecture whose machine code the program carries, and the target that the code was assembled
// from.
type architecture struct {
	name         string
	major, minor int
	target       string
}

// architectures has the entries of registry.py's MACHINE_CODE, the newest of a major version first.
var architectures = []architecture{
	{"sm_89", 8, 9, "sm80"}, {"sm_86", 8, 6, "sm80"}, {"sm_80", 8, 0, "sm80"}, {"sm_90a", 9, 0, "sm90a"}, {"sm_100", 10, 0, "sm80"},
	{"sm_120", 12, 0, "sm80"},
}

// Architecture names the machine code for GPUs of a compute capability. It is empty if the program carries no such
// code; these GPUs take the PTX. Machine code runs on GPUs of its major version that have its minor version or a later
// one (CUDA C++ Programming Guide, "Binary Compatibility"), except sm_90a, which is for 9.0 alone.
func Architecture(major, minor int) string {
	i := slices.IndexFunc(architectures, func(a architecture) bool {
		return a.major == major && a.minor <= minor && (a.name != "sm_90a" || a.minor == minor)
	})
	if i < 0 {
		return ""
	}
	return architectures[i].name
}

// LoadCode unpacks the machine code of all kernels for an architecture, by name. It unpacks that of the others, too,
// which takes about a tenth of a second.
func LoadCode(name string) (map[string][]byte, error) {
	i := slices.IndexFunc(architectures, func(a architecture) bool { return a.name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no machine code for %q", name)
	}
	all, err := program.manifests()
	if err != nil {
		return nil, fmt.Errorf("compiled kernels: %w", err)
	}
	code := map[string][]byte{}
	for _, m := range all {
		unpacked, err := program.unpack(&m, ".cubin.zst")
		if err != nil {
			return nil, fmt.Errorf("compiled kernels of %s: %w", m.Source, err)
		}
		for _, k := range m.Kernels {
			var part []byte
			part, unpacked = cut(unpacked, k.codeBytes(), name)
			if part == nil || k.Targets[architectures[i].target].CubinBytes[name] != len(part) {
				return nil, fmt.Errorf("compiled kernels of %s: %s has no machine code for %s", m.Source, k.Name, name)
			}
			code[k.Name] = slices.Clone(part) // at an address that the driver likes
		}
		if len(unpacked) > 0 {
			return nil, fmt.Errorf("compiled kernels of %s: %d bytes of machine code belong to no kernel", m.Source,
				len(unpacked))
		}
	}
	return code, nil
}
