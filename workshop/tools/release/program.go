package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// platform names the system and the processor that a program is built for.
type platform struct {
	os, arch string
	static   bool // without GPU support
}

// String is the platform as file names have it. Only Linux has a choice.
func (p platform) String() string {
	if p.static && p.os == "linux" {
		return p.os + "-" + p.arch + "-static"
	}
	return p.os + "-" + p.arch
}

// program is a binary, and what it says of itself.
type program struct {
	platform platform
	path     string
	data     []byte
	info     *debug.BuildInfo
	modules  string // directory of the modules that it was built from
	source   string // the clone that it was built from
}

// whereModulesAre are the settings that say where modules come from and are kept. They change no byte of a program, as
// go.sum has the modules' checksums.
var whereModulesAre = []string{"GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOMODCACHE"}

// buildEnv is the environment of go build. The user's settings of go build do not count, those of go env -w included: a
// variable that is empty would bring them back.
func buildEnv(p platform) ([]string, error) {
	said, err := exec.Command("go", append([]string{"env", "-json"}, whereModulesAre...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var kept map[string]string
	if err := json.Unmarshal(said, &kept); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := append(os.Environ(), "GOENV=off", "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOFLAGS=",
		"GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off", "GOWORK=off")
	for _, name := range whereModulesAre {
		env = append(env, name+"="+kept[name])
	}
	return env, nil
}

// buildProgram builds the command of a clone.
func buildProgram(source, path string, p platform) (*program, error) {
	args := []string{"build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", path}
	if p.static {
		args = append(args, "-tags=nogpu")
	}
	env, err := buildEnv(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", append(args, "./cmd/millrace")...)
	cmd.Dir, cmd.Env = source, env
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, said)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	b := &program{platform: p, path: path, data: data, info: info, source: source}
	if commit, modified := b.setting("vcs.revision"), b.setting("vcs.modified"); commit == "" || modified != "false" {
		return nil, fmt.Errorf("%s: go build found no commit, or changes: revision %q, modified %q", path, commit, modified)
	}
	modules, err := exec.Command("go", "env", "GOMODCACHE").Output()
	b.modules = strings.TrimSpace(string(modules))
	return b, err
}

func (p *program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// file is a file of a package; its path is relative to a prefix such as /usr.
type file struct {
	path       string
	data       []byte
	executable bool
}

// sharedFiles lists the files that all packages have: completion, man pages and documents. The program itself prints
// the first two.
func sharedFiles(source, work string, p *program) ([]file, error) {
	var files []file
	for shell, path := range map[string]string{
		"bash": "share/bash-completion/completions/millrace",
		"zsh":  "share/zsh/site-functions/_millrace",
		"fish": "share/fish/vendor_completions.d/millrace.fish",
	} {
		script, err := exec.Command(p.path, "completion", shell).Output()
		if err != nil {
			return nil, fmt.Errorf("millrace completion %s: %w", shell, err)
		}
		files = append(files, file{path: path, data: script})
	}
	man := filepath.Join(work, "man1")
	if err := run(work, p.path, "man", man); err != nil {
		return nil, err
	}
	documents := map[string]string{
		filepath.Join(source, "LICENSE"):      "share/doc/millrace/LICENSE",
		filepath.Join(source, "CHANGELOG.md"): "share/doc/millrace/CHANGELOG.md",
	}
	pages, err := os.ReadDir(man)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		documents[filepath.Join(man, page.Name())] = "share/man/man1/" + page.Name()
	}
	for from, to := range documents {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: to, data: data})
	}
	return files, nil
}
