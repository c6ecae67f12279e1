package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// pageTree has the page that the program shows, and the licence of what others wrote of it.
const pageTree = "report/page"

// notices are the licences of Go, of all modules that are linked, and of the page's library, which these ask to
// accompany a program.
func notices(p *program) ([]byte, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := notice(&b, "The Go standard library", strings.TrimSpace(string(root))); err != nil {
		return nil, err
	}
	for _, m := range p.info.Deps {
		path, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		if err := notice(&b, m.Path+" "+m.Version, filepath.Join(p.modules, path+"@"+m.Version)); err != nil {
			return nil, err
		}
	}
	if err := notice(&b, "uPlot, in the page of millrace serve", filepath.Join(p.source, pageTree)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// notice adds the licences in a directory.
func notice(b *bytes.Buffer, title, dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(path string) bool {
		name := strings.ToUpper(filepath.Base(path))
		return !slices.ContainsFunc([]string{"LICENSE", "COPYING", "NOTICE", "PATENTS"}, func(begin string) bool {
			return strings.HasPrefix(name, begin)
		})
	})
	if len(names) == 0 {
		return errors.New(title + ": there is no licence in " + dir)
	}
	for _, path := range names {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "== %s: %s\n\n%s\n\n", title, filepath.Base(path), bytes.TrimSpace(text))
	}
	return nil
}
