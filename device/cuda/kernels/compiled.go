//go:build !nogpu && !kernelfiles

package kernels

import "embed"

//go:embed compiled
var compiled embed.FS
