// Command goproxy writes a version of a module as a tree of files that GOPROXY=file://DIR serves, so that "go install
// MODULE/...@VERSION" can be tried before the version is public: goproxy DIR SOURCE VERSION.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: goproxy DIR SOURCE VERSION")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "goproxy:", err)
		os.Exit(1)
	}
}

func write(dir, source, version string) error {
	mod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return err
	}
	path := modfile.ModulePath(mod)
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	versions := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o777); err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".mod":  mod,
		version + ".info": fmt.Appendf(nil, `{"Version": %q}`, version),
	} {
		if err := os.WriteFile(filepath.Join(versions, name), text, 0o664); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(versions, version+".zip"))
	if err != nil {
		return err
	}
	defer f.Close()
	// As the go command does: from the commit, without nested modules.
	if err := zip.CreateFromVCS(f, module.Version{Path: path, Version: version}, source, "HEAD", ""); err != nil {
		return err
	}
	return f.Close()
}
