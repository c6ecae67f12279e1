package main

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train"
)

type pushCmd struct {
	Path     string `arg:"" name:"DIR" complete:"FILE" help:"Model directory, or one file such as a GGUF file."`
	Repo     string `arg:"" name:"OWNER/NAME" help:"Repository of the hub. It is made if it does not exist."`
	Revision string `complete:"main" placeholder:"BRANCH" help:"Branch to commit to, by default main. It is made if it does not exist."`
	Private  bool   `help:"Make the repository private if it does not exist. One that exists stays as it is."`
	Message  string `placeholder:"TEXT" help:"Message of the commit."`
	DryRun   bool   `help:"List the files, and send nothing."`
	JSON     bool   `help:"Print what was pushed as JSON."`
}

func (*pushCmd) Help() string {
	return `Makes one commit of all files in DIR, hidden ones left out. Other files of the repository stay. Large files
are uploaded first, and only those that the hub lacks, so a push that was interrupted continues with the others. The
commit comes last: it has all files, or does not exist.

HF_TOKEN, or the token of hf auth login, must be one that may write. HF_ENDPOINT names another hub.

Examples:

  millrace push runs/a/model me/my-model --private
  millrace push a-q4_k_m.gguf me/my-model --message "Q4_K_M for llama.cpp"`
}

// Run pushes.
func (c *pushCmd) Run(p *program) error {
	done, err := train.Push(p.ctx, p.env, train.PushOptions{Path: c.Path, Repo: c.Repo, Revision: c.Revision,
		Private: c.Private, Message: c.Message, DryRun: c.DryRun})
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
		for _, f := range done.Named {
			if err := p.printf("%12s  %s\n", plan.FormatBytes(f.Bytes), f.Name); err != nil {
				return err
			}
		}
		return p.printf("%d files for %s, branch %s; nothing was sent\n", len(done.Named), done.Repo, done.Revision)
	}
	if done.Files == 0 {
		return p.printf("%s: all %d files are there already\n", done.URL, done.Unchanged)
	}
	return p.printf("%s: %d files committed, %d unchanged; %s of large files sent\n", done.URL, done.Files, done.Unchanged,
		plan.FormatBytes(done.SentBytes))
}
