package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/runfile/convert"
	"github.com/millrace/millrace/vfs"
)

type convertCmd struct {
	File  string `arg:"" complete:"FILE" name:"train.yaml" help:"File of LLaMA-Factory, Axolotl, TRL, verl, or Hugging Face's TrainingArguments; YAML, JSON, or a script that starts TRL or verl."`
	Out   string `arg:"" optional:"" complete:"FILE" name:"run.yaml" help:"Run file to write; by default standard output. An existing file is not overwritten."`
	JSON  bool   `help:"Print settings, keys left out and open decisions as JSON."`
	Force bool   `help:"Write a run file even of what Millrace cannot train, such as adapters (LoRA) or images."`
}

func (*convertCmd) Help() string {
	return `Translates another trainer's file. Comments in the run file give the old name of each key, the way its value
was computed, the keys that were left out and why, and the decisions that are left to you. docs/other-trainers.md has
the list of all keys.

Examples:

  millrace convert examples/train_full/llama3_full_sft.yaml run.yaml
  millrace convert examples/grpo_trainer/run_qwen3-8b.sh run.yaml
  millrace convert axolotl.yml | less`
}

// Run converts.
func (c *convertCmd) Run(p *program) error {
	doc, err := runfile.ReadFile(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return badFlag("%s: there is no such file; name a file of another trainer", c.File)
	}
	if err != nil {
		return blame.BadRequest(err)
	}
	r, err := convert.File(c.File, doc)
	if err != nil {
		return badFlag("%s: %w", c.File, err)
	}
	if len(r.Cannot) > 0 && !c.Force {
		return blame.NotRequest(fmt.Errorf("%s: Millrace cannot train this: %s (--force writes a run file nevertheless)",
			c.File, strings.Join(r.Cannot, "; ")))
	}
	if c.Out != "" {
		write := func(w io.Writer) error { _, err := io.WriteString(w, r.RunFile); return err }
		if err := writeNew(c.Out, write); err != nil {
			return err
		}
	}
	if c.JSON {
		return p.printJSON(r)
	}
	if c.Out == "" {
		// It may be piped to a file, so it is the text as it is; to a terminal, nothing in it acts on that.
		_, err := io.WriteString(p.stdout, r.RunFile)
		return err
	}
	text := fmt.Sprintf("%s: %s from a file of %s\n", c.Out, spelling.Count(len(r.Settings), "setting"), r.Tool)
	for _, part := range []struct {
		title string
		lines []string
	}{{"cannot be trained", r.Cannot}, {"to decide", r.Decide}} {
		if len(part.lines) > 0 {
			text += part.title + ":\n  " + strings.Join(part.lines, "\n  ") + "\n"
		}
	}
	return p.printf("%s", terminal.Text(text))
}

// writeNew writes a file that must not be there, neither before nor after it was written.
func writeNew(name string, write func(io.Writer) error) error {
	isThere := badFlag("%s is there already; name another file, or remove it", name)
	if _, err := os.Lstat(name); err == nil {
		return isThere
	}
	out, err := vfs.CreateOutput(name)
	if err != nil {
		return blame.BadName(err)
	}
	defer out.Abort()
	if err := write(out); err != nil {
		return err
	}
	if err := out.CommitNew(); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return isThere
}
