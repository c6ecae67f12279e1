package kernels

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A Candidate is a kernel that could take the place of one that the program has: its arguments are the same, and its
// tiles, warps or stages are others. candidates.py declares them. The program has none; a card chooses among them in
// `make gpu-check`.
type Candidate struct {
	*Kernel        // with the name of the kernel whose place it takes
	Label   string // what is otherwise
	Code    []byte // machine code for sm_90a; nil of targets without
}

// candidateWord is between the name of a kernel and the label of a candidate for its place.
const candidateWord = ".try."

// LoadCandidates reads those for a target from a folder that candidates.py wrote, in its order.
func LoadCandidates(compiled fs.FS, target string) ([]Candidate, error) {
	f := folder{compiled, "."}
	all, err := f.manifests()
	if err != nil {
		return nil, fmt.Errorf("candidates: %w", err)
	}
	var candidates []Candidate
	for _, m := range all {
		texts, err := f.unpack(&m, ".ptx.zst")
		if err != nil {
			return nil, fmt.Errorf("candidates: %w", err)
		}
		codes, err := f.unpack(&m, ".cubin.zst")
		if err != nil {
			return nil, fmt.Errorf("candidates: %w", err)
		}
		for _, e := range m.Kernels {
			var text, code []byte
			text, texts = cut(texts, e.ptxBytes(), target)
			code, codes = cut(codes, e.codeBytes(), "sm_90a")
			if _, ok := e.Targets[target]; !ok {
				continue
			}
			name, label, ok := strings.Cut(e.Name, candidateWord)
			if text == nil || !ok {
				return nil, fmt.Errorf("candidates: %s is not whole", e.Name)
			}
			k, err := m.kernel(&e, target, string(text))
			if err != nil {
				return nil, fmt.Errorf("candidates: %w", err)
			}
			k.Name = name
			candidates = append(candidates, Candidate{k, label, slices.Clone(code)})
		}
		if len(texts)+len(codes) > 0 {
			return nil, fmt.Errorf("candidates: %d bytes belong to none", len(texts)+len(codes))
		}
	}
	return candidates, nil
}
