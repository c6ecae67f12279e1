//go:build !unix

package surroundings

func closeForChildren() {}

func usualUmask() {}
