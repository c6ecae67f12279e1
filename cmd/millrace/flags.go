package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/runfile"
)

// runFile are the flags of verbs that read run.yaml.
type runFile struct {
	File     string   `arg:"" optional:"" complete:"FILE" name:"run.yaml" help:"Run file, by default run.yaml; every key is in docs/run-yaml.md."`
	Settings []string `arg:"" optional:"" name:"KEY=VALUE" help:"Keys to set after the run file, such as learning_rate=1e-5 or memory.device=2GiB."`
	Set      []string `sep:"none" placeholder:"KEY=VALUE" help:"The same as KEY=VALUE alone. May be repeated."`
}

// arguments divides what was asked for into a run file, which may be empty, and the settings that follow it. A file may
// have an equals sign in its name.
func (r *runFile) arguments() (file string, settings []string, err error) {
	settings = slices.Clone(r.Set)
	for _, arg := range slices.Concat([]string{r.File}, r.Settings) {
		_, errStat := os.Stat(arg)
		switch {
		case arg == "":
		case strings.Contains(arg, "=") && errStat != nil:
			settings = append(settings, arg)
		case file != "":
			return "", nil, badFlag("unexpected argument %s: the run file is %s; write settings as key=value", arg, file)
		default:
			file = arg
		}
	}
	return file, settings, nil
}

// read is the configuration that they make.
func (r *runFile) read() (*runfile.Config, error) {
	file, settings, err := r.arguments()
	if err != nil {
		return nil, err
	}
	return readRunFile(cmp.Or(file, defaultRunFile), settings)
}

// defaultRunFile is read where no run file is named.
const defaultRunFile = "run.yaml"

func readRunFile(path string, set []string) (*runfile.Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, badFlag("run file %s: there is no such file; name one, or write it (millrace train --help shows how)", path)
	}
	return readConfig(path, set)
}

// readConfig is the configuration that a run file, if there is one, and the settings after it make.
func readConfig(path string, set []string) (*runfile.Config, error) {
	c, err := runfile.Read(path, set)
	return c, blame.BadRequest(err)
}

// where are the flags of verbs that compute and read no run file.
type where struct {
	Device       string `complete:"auto|cpu|cuda" default:"auto" help:"Device that computes: auto, cpu, cuda or cuda:N."`
	MemoryDevice string `default:"auto" placeholder:"SIZE" help:"Device memory to use at most, such as 2GiB. On the CPU, auto streams nothing."`
	MemoryHost   string `default:"auto" placeholder:"SIZE" help:"Host memory to use at most."`
}

func (w *where) memory() (runfile.Memory, error) {
	var m runfile.Memory
	var err error
	if m.Device, err = runfile.ParseBytes(w.MemoryDevice); err != nil {
		return m, badFlag("--memory-device: %w", err)
	}
	if m.Host, err = runfile.ParseBytes(w.MemoryHost); err != nil {
		return m, badFlag("--memory-host: %w", err)
	}
	return m, nil
}

// printf writes to standard output, where names from files and arguments cannot move the cursor, and a terminal gets
// lines of its width.
func (p *program) printf(format string, args ...any) error {
	_, err := io.WriteString(p.stdout, terminal.Wrap(terminal.Text(fmt.Sprintf(format, args...)),
		terminal.Columns(p.stdout)))
	return err
}

// harmless writes what a program generates to a terminal, which would act on some of it.
type harmless struct{ terminal io.Writer }

func (h harmless) Write(text []byte) (int, error) {
	if _, err := io.WriteString(h.terminal, terminal.Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// badFlag is an error in what was asked for.
func badFlag(format string, args ...any) error { return blame.BadRequest(fmt.Errorf(format, args...)) }
