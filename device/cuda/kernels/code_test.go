package kernels

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"
)

// Machine code is what the manifest's checksum was taken of, and has the kernel of its name, for its architecture.
func TestCode(t *testing.T) {
	found, err := program.manifests()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{} // by code
	for _, a := range architectures {
		code, err := LoadCode(a.name)
		if err != nil {
			t.Fatal(err)
		}
		set := load(t, a.target)
		if len(code) != len(set.Names()) {
			t.Errorf("%s: code of %d kernels, want %d", a.name, len(code), len(set.Names()))
		}
		for _, m := range found {
			h := sha256.New()
			for _, k := range m.Kernels {
				h.Write(code[k.Name])
			}
			if sum := fmt.Sprintf("%x", h.Sum(nil)); sum != m.CubinSHA256[a.name] {
				t.Errorf("%s: the code of %s is another", a.name, m.Source)
			}
		}
		for _, name := range set.Names() {
			k, _ := set.Find(name)
			// A 64-bit ELF file for the machine EM_CUDA, of which debug/elf refuses the version.
			head, text := []byte("\x7fELF\x02\x01"), []byte(".text."+k.Entry+"\x00")
			if c := code[name]; !bytes.HasPrefix(c, head) || c[18] != 190 || c[19] != 0 || !bytes.Contains(c, text) {
				t.Errorf("%s: the code of %s is not its machine code", a.name, name)
			}
			if c := string(code[name]); seen[c] != "" {
				t.Errorf("%s: the code of %s is that of %s", a.name, name, seen[c])
			} else {
				seen[c] = a.name + " " + name
			}
		}
	}
	if _, err := LoadCode("sm_70"); err == nil {
		t.Error("there is machine code for sm_70")
	}
}

func TestArchitecture(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{{7, 5, ""}, {8, 0, "sm_80"}, {8, 6, "sm_86"}, {8, 7, "sm_86"}, {8, 9, "sm_89"}, {9, 0, "sm_90a"}, {9, 1, ""}, {10, 0, "sm_100"},
		{10, 3, "sm_100"}, {11, 0, ""}, {12, 0, "sm_120"}, {12, 1, "sm_120"}, {13, 0, ""}} {
		if got := Architecture(c.major, c.minor); got != c.want {
			t.Errorf("%d.%d: %q, want %q", c.major, c.minor, got, c.want)
		}
	}
}
