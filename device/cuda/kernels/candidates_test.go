package kernels

import (
	"os"
	"reflect"
	"testing"
)

// Candidates were compiled from what candidates.py and the sources declare now, and each can take its kernel's place.
func TestCandidates(t *testing.T) {
	f := folder{os.DirFS("candidates"), "."}
	found, err := f.manifests()
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].SourceSHA256 != sum(withImports(t, "candidates.py")) ||
		found[0].RegistrySHA256 != sum(read(t, "registry.py")) || found[0].BuildSHA256 != sum(read(t, "build.py")) {
		t.Error("the candidates or their sources have changed since they were compiled: run candidates.py")
	}
	for _, target := range Targets {
		candidates, err := LoadCandidates(os.DirFS("candidates"), target)
		if err != nil || len(candidates) == 0 {
			t.Fatalf("%d candidates for %s: %v", len(candidates), target, err)
		}
		set := load(t, target)
		for _, c := range candidates {
			k, ok := set.Find(c.Name)
			if !ok || c.Label == "" || !reflect.DeepEqual(c.Args, k.Args) || !reflect.DeepEqual(c.Aligned, k.Aligned) ||
				!reflect.DeepEqual(c.Most, k.Most) || c.Exact != k.Exact || c.PTX == k.PTX {
				t.Errorf("%s, %q: it cannot take the place of %v", c.Name, c.Label, k)
			}
			if (len(c.Code) > 0) != (target == "sm90a") {
				t.Errorf("%s, %s: %d bytes of machine code", c.Name, c.Label, len(c.Code))
			}
		}
	}
}
