//go:build nogpu && !kernelfiles

package kernels

import "embed"

// compiled is empty: a program that cannot open NVIDIA's driver has no use for 8 MB of kernels. Tests of GPU code
// need a build without the tag.
var compiled embed.FS
