//go:build !nogpu

package kernels

import "embed"

//go:embed compiled
var compiled embed.FS
