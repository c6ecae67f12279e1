package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train/export"
)

type pushCmd struct {
	Path     string `arg:"" name:"DIR" complete:"FILE" help:"Model directory, a run's output directory, or one file such as a GGUF file."`
	Repo     string `arg:"" name:"OWNER/NAME" help:"Repository of the hub. It is made if it does not exist."`
	Revision string `complete:"main" placeholder:"BRANCH" help:"Branch to commit to, by default main. It is made if it does not exist."`
	Private  bool   `help:"Make the repository private if it does not exist. One that exists stays as it is."`
	Message  string `placeholder:"TEXT" help:"Message of the commit."`
	All      bool   `help:"Push all files of DIR, also those that do not belong to a model."`
	Yes      bool   `short:"y" help:"Do not ask on a terminal."`
	DryRun   bool   `help:"List the files, and send nothing."`
	JSON     bool   `help:"Print what was pushed as JSON."`
}

func (*pushCmd) Help() string {
	return `Makes one commit of the model in DIR: its configuration, weights, tokenizer, templates, card and license, and
with --all of all other files that are not hidden. Other files of the repository stay. It lists what will be sent and
who can see the repository; on a terminal it asks before it sends. Links out of DIR are refused. Large files are
uploaded first, and only those that the hub lacks, so a push that was interrupted continues with the others. The
commit comes last: it has all files, or does not exist.

HF_TOKEN, or the token of hf auth login, must be one that may write. HF_ENDPOINT names another hub.

Examples:

  millrace push runs/a me/my-model --private
  millrace push a-q4_k_m.gguf me/my-model --message "Q4_K_M for llama.cpp"`
}

// Run pushes.
func (c *pushCmd) Run(p *program) error {
	done, err := export.Push(p.ctx, p.env, export.PushOptions{Path: c.Path, Repo: c.Repo, Revision: c.Revision,
		Private: c.Private, Message: c.Message, DryRun: c.DryRun, All: c.All,
		Confirm: func(r *export.PushReport) error { return c.confirm(p, r) }})
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(done)
	}
	if len(done.Ignored) > 0 {
		fmt.Fprintf(p.stderr, "note: the repository's .gitignore leaves out %d of %d files: %s\n", len(done.Ignored),
			len(done.Named), strings.Join(done.Ignored, ", "))
	}
	if done.DryRun {
		if err := p.printf("%s", c.listing(done)); err != nil {
			return err
		}
		return p.printf("%s for %s, branch %s; nothing was sent\n", spelling.Count(len(done.Named), "file"), done.Repo,
			done.Revision)
	}
	if done.Files == 0 {
		return p.printf("%s: all %d files are there already\n", done.URL, done.Unchanged)
	}
	return p.printf("%s: %d files committed, %d unchanged; %s of large files sent\n", done.URL, done.Files, done.Unchanged,
		plan.FormatBytes(done.SentBytes))
}

// maxLeftOut bounds the names of files that are not pushed.
const maxLeftOut = 10

// listing has a line for each file, and one for what is left out.
func (c *pushCmd) listing(r *export.PushReport) string {
	var b strings.Builder
	for _, f := range r.Named {
		link := ""
		if f.Link != "" {
			link = "  (a link to " + f.Link + ")"
		}
		fmt.Fprintf(&b, "%12s  %s%s\n", plan.FormatBytes(f.Bytes), f.Name, link)
	}
	if n := len(r.LeftOut); n > 0 {
		more := ""
		if n > maxLeftOut {
			more = ", ..."
		}
		fmt.Fprintf(&b, "left out, since a model has no such files (--all pushes them): %s%s\n",
			strings.Join(r.LeftOut[:min(n, maxLeftOut)], ", "), more)
	}
	return b.String()
}

// visibility says who can see what is pushed.
func (c *pushCmd) visibility(v hub.Visibility) string {
	switch {
	case v == hub.Absent && c.Private:
		return "a new private repository"
	case v == hub.Absent:
		return "a new repository, which is public unless its owner's default is private (--private makes it so)"
	case v == hub.Public && c.Private:
		return "a public repository: --private does not change one that exists"
	}
	return "a " + string(v) + " repository"
}

// confirm shows what will be sent, and on a terminal asks. A script is not asked: it cannot answer, and its author has
// named the directory and the repository.
func (c *pushCmd) confirm(p *program, r *export.PushReport) error {
	var bytes int64
	for _, f := range r.Named {
		bytes += f.Bytes
	}
	fmt.Fprintf(p.stderr, "%s", c.listing(r))
	fmt.Fprintf(p.stderr, "%s, %s, for %s, branch %s: %s\n", spelling.Count(len(r.Named), "file"), plan.FormatBytes(bytes),
		r.Repo, r.Revision, c.visibility(r.Visibility))
	if c.Yes || !terminal.Is(p.stdin) {
		return nil
	}
	fmt.Fprint(p.stderr, "Push? [y/N] ")
	answer, err := newMessages(p.stdin).next(p.ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was sent, since the answer was not y; use --yes to push without the question")
}
