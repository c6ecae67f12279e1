package cublaslt

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
)

// names are the library's file names, newest first. A library of a later major version than the driver's does not run.
func names(driverVersion int32) []string {
	var all []string
	for major := driverVersion / 1000; major >= 12; major-- {
		all = append(all, fmt.Sprintf("libcublasLt.so.%d", major))
	}
	return all
}

// places lists where to look, in order: what the dynamic linker finds (LD_LIBRARY_PATH has a say there), then the
// Python environment that is in use, then toolkits, then what pip installs elsewhere. A root that is not absolute is
// left out: whose directory that is depends on where the program was started. getenv, glob and readlink are os.Getenv,
// filepath.Glob and os.Readlink but in tests. No Python is asked: that would run a program of an unknown kind at each
// start, often a script (pyenv's python3 is one), and LD_LIBRARY_PATH is there for what is not found.
func places(driverVersion int32, getenv func(string) string, glob func(string) ([]string, error),
	readlink func(string) (string, error)) []string {
	var dirs []string
	under := func(root string, below ...string) {
		if !filepath.IsAbs(root) {
			return
		}
		for _, b := range below {
			found, err := glob(filepath.Join(root, b))
			if err != nil {
				continue // a root with brackets in its name is no pattern
			}
			slices.SortFunc(found, func(a, b string) int { return -natural(a, b) })
			dirs = append(dirs, found...)
		}
	}
	var wheels []string
	for _, lib := range []string{"lib/python3*", "lib64/python3*"} {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			wheels = append(wheels, filepath.Join(lib, packages, "nvidia/cu1?/lib"), filepath.Join(lib, packages, "nvidia/cublas/lib"))
		}
	}
	under(getenv("VIRTUAL_ENV"), wheels...)
	under(getenv("CONDA_PREFIX"), append([]string{"lib"}, wheels...)...)
	pythons, managed := environments(getenv("PATH"), glob, readlink)
	for _, root := range pythons {
		under(root, append([]string{"lib"}, wheels...)...)
	}
	var versions []string
	for _, w := range wheels {
		versions = append(versions, filepath.Join("versions/*", w))
	}
	under(cmp.Or(getenv("PYENV_ROOT"), managed), versions...)
	toolkit := []string{"lib64", "lib", "targets/*/lib"}
	under(getenv("CUDA_HOME"), toolkit...)
	under(getenv("CUDA_PATH"), toolkit...)
	under("/usr/local/cuda", toolkit...)
	under("/usr/local", "cuda-*/lib64")
	if home := getenv("HOME"); home != "" {
		under(filepath.Join(home, ".pyenv"), versions...)
		under(filepath.Join(home, ".local"), wheels...)
	}
	under("/usr/local", wheels...)
	under("/usr", wheels...)
	under("/opt/conda", append([]string{"lib"}, wheels...)...)

	all := names(driverVersion)
	for _, dir := range dirs {
		for _, name := range names(driverVersion) {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

// maxLinks bounds the links that are followed in a row.
const maxLinks = 16

// environments returns the roots of Python environments that the python3, or else python, may belong to that comes
// first on PATH: of the path itself, and of each link that it leads to. All are needed: the link of a virtual
// environment leads to another Python, which lacks the environment's packages, and a link in /usr/local/bin may lead to
// a virtual environment. managed is pyenv's root, if that Python is one of the scripts with which pyenv finds the
// right one.
func environments(path string, glob func(string) ([]string, error),
	readlink func(string) (string, error)) (roots []string, managed string) {
	for _, name := range []string{"python3", "python"} {
		for _, dir := range filepath.SplitList(path) {
			python := filepath.Join(dir, name)
			if !filepath.IsAbs(python) {
				continue
			}
			if found, err := glob(python); err != nil || len(found) != 1 {
				continue
			}
			for range maxLinks {
				roots = append(roots, filepath.Dir(filepath.Dir(python)))
				if filepath.Base(filepath.Dir(python)) == "shims" {
					managed = filepath.Dir(filepath.Dir(python))
				}
				to, err := readlink(python)
				if err != nil {
					break // it is no link
				}
				if !filepath.IsAbs(to) {
					to = filepath.Join(filepath.Dir(python), to)
				}
				python = filepath.Clean(to)
			}
			return slices.Compact(roots), managed
		}
	}
	return nil, ""
}

// natural compares names so that cuda-12.10 is newer than cuda-12.9.
func natural(a, b string) int {
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		switch {
		case na > 0 && nb > 0 && na != nb:
			return na - nb
		case na > 0 && nb > 0 && a[:na] != b[:nb]:
			if a[:na] < b[:nb] {
				return -1
			}
			return 1
		case a[0] != b[0]:
			return int(a[0]) - int(b[0])
		}
		a, b = a[max(na, 1):], b[max(nb, 1):]
	}
	return len(a) - len(b)
}

// digits is the number of digits that s begins with.
func digits(s string) int {
	for i, c := range []byte(s) {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(s)
}
