//go:build !linux || !amd64

package isa

// tilesAllowed says that tiles are for Linux: other systems have other ways to ask for them.
func tilesAllowed() bool { return false }
