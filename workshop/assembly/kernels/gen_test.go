package main

import (
	"bytes"
	"os"
	"testing"
)

// TestCurrent fails when the generator changed and its output did not.
func TestCurrent(t *testing.T) {
	source, declarations := generate()
	for name, want := range map[string][]byte{"loops_amd64.s": source, "loops_amd64.go": declarations} {
		got, err := os.ReadFile("../../../device/cpu/kernels/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator writes: run go generate in device/cpu/kernels", name)
		}
	}
}
