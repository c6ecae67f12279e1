//go:build kernelfiles

package kernels

import (
	"io/fs"
	"os"
	"path/filepath"
)

// compiled has the kernels next to the program, where this tree has them: several programs that travel together
// share them.
var compiled = func() fs.FS {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return os.DirFS(filepath.Join(filepath.Dir(program), "device/cuda/kernels"))
}()
