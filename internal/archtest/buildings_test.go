package archtest

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestBuildings(t *testing.T) {
	found, err := Buildings(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range found {
		t.Error(line)
	}
}

func TestCheckBuildings(t *testing.T) {
	tree := fstest.MapFS{"go.mod": {Data: []byte("module m\n")},
		"cmd/millrace/a.go":           {Data: []byte("package main\nimport _ \"m/internal/rng\"\n")},
		"internal/rng/a.go":           {Data: []byte("package rng\n")},
		"internal/surroundings/a.go":  {Data: []byte("package surroundings\n")},
		"internal/cudatest/a.go":      {Data: []byte("package cudatest\n")},
		"internal/cudatest/a_test.go": {Data: []byte("package cudatest\n")},
		"workshop/gpucheck/a.go":      {Data: []byte("package main\n")},
	}
	found, err := Buildings(tree)
	if d := cmp.Diff([]string{"internal/cudatest: the program does not link it: it belongs to workshop/"},
		found); err != nil || d != "" {
		t.Error(err, d)
	}
}
