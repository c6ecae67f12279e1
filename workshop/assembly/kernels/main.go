// Command kernels writes the assembly of package device/cpu/kernels: loops_amd64.s and the declarations in
// loops_amd64.go.
//
// A loop is described once, as operations on vectors (loops.go); asm.go turns it into a main loop over whole vectors and,
// for AVX-512, a masked tail. Run it with go generate in device/cpu/kernels.
package main

import (
	"log"
	"os"
)

func main() {
	source, declarations := generate()
	for name, text := range map[string][]byte{"loops_amd64.s": source, "loops_amd64.go": declarations} {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
