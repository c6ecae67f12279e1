package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/serve"
	"github.com/millrace/millrace/train"
)

type serveCmd struct {
	Dirs      []string `arg:"" optional:"" complete:"DIR" name:"DIR" help:"Output directories of runs, or folders of them; by default runs."`
	Address   string   `complete:"127.0.0.1:7077" default:"127.0.0.1:7077" placeholder:"HOST:PORT" help:"Address to listen on. One that other machines reach needs the token that is printed."`
	TokenFile string   `complete:"FILE" placeholder:"FILE" help:"File with the token to use, of 16 characters or more; by default a new one at each start."`
}

func (*serveCmd) Help() string {
	return `Shows runs on a page: curves as they grow, several runs in one chart, memory and lanes next to the plan,
samples, and the differences of settings. The page is part of the program and loads nothing from elsewhere. It only
reads. To ask a run for something, start it with train --serve.

Examples, the second of which shows on a laptop what runs on another machine, HOST:

  millrace serve runs
  ssh -L 7077:127.0.0.1:7077 HOST millrace serve runs

Metrics for Prometheus are at /metrics. An interrupt (Ctrl-C) ends it.`
}

// defaultRuns is the folder of runs whose run file has no output_dir.
const defaultRuns = "runs"

// Run serves until the user ends it.
func (c *serveCmd) Run(p *program) error {
	dirs := c.Dirs
	if len(dirs) == 0 {
		dirs = []string{defaultRuns}
	}
	for _, dir := range dirs {
		if err := checkDir(dir); err != nil {
			return blame.BadRequest(err)
		}
	}
	token, err := readToken(c.TokenFile)
	if err != nil {
		return err
	}
	s := serve.New(serve.Options{Dirs: dirs, Version: thisBuild().Version, Token: token, Warn: p.warnOfPage})
	if err := s.Listen(c.Address); err != nil {
		return badFlag("--address: %w", err)
	}
	s.Start()
	defer s.Close()
	if err := p.printf("%s at %s\n", spelling.Count(s.Runs(), "run"), s.URL()); err != nil {
		return err
	}
	<-p.ctx.Done()
	return nil
}

// checkDir refuses a name that is no directory.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist; name the output_dir of a run, or a folder of runs", dir)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory; name the output_dir of a run, or a folder of runs", dir)
	}
	return nil
}

// warnOfPage tells of a fault of the server.
func (p *program) warnOfPage(text string) { p.stderr.line("millrace: warning: %s", text) }

// Bounds of a token.
const (
	leastTokenBytes = 16
	maxTokenBytes   = 1024
)

// readToken is the token in a file; empty without a file.
func readToken(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	doc, err := below.ReadFile(name, maxTokenBytes)
	if err != nil {
		return "", badFlag("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(doc))
	if len(token) < leastTokenBytes || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", badFlag("--token-file: %s must have one token of %d characters or more without spaces; write one with "+
			"`openssl rand -hex 16`", name, leastTokenBytes)
	}
	return token, nil
}

// serveFlag is --serve, or --serve=ADDRESS.
type serveFlag struct {
	isGiven bool
	address string
}

// Decode reads the address, if there is one.
func (f *serveFlag) Decode(c *kong.DecodeContext) error {
	f.isGiven, f.address = true, serve.DefaultAddress
	if c.Scan.Peek().Type == kong.FlagValueToken {
		f.address = fmt.Sprint(c.Scan.Pop().Value)
	}
	return nil
}

// IsBool says that the flag needs no value.
func (*serveFlag) IsBool() bool { return true }

// ownRun is the run of this process, for the page.
type ownRun struct {
	*train.Controls
	stop func()
}

// Stop asks the run to end after its step, as an interrupt does.
func (r ownRun) Stop() error {
	r.stop()
	return nil
}

// ownPageBytes is the memory that the numbers of the run may take, which the plan of the run does not count.
const ownPageBytes = 64 << 20

// start serves the run that is about to start, and says where. The server is nil where none is asked for.
func (f *serveFlag) start(p *program, config *runfile.Config, controls *train.Controls) (*serve.Server, error) {
	if !f.isGiven || !p.env.Cluster.Leads() {
		return nil, nil
	}
	s := serve.New(serve.Options{Dirs: []string{config.OutputDir}, Version: thisBuild().Version, LimitBytes: ownPageBytes,
		Own: ownRun{controls, p.askToStop}, Warn: p.warnOfPage})
	if err := s.Listen(f.address); err != nil {
		return nil, badFlag("--serve: %w", err)
	}
	s.Start()
	p.note("the run is shown at " + s.URL())
	return s, nil
}
