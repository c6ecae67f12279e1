package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rundir"
)

// mostCompared bounds the runs of a comparison: a column is for each.
const mostCompared = 64

type compareCmd struct {
	Runs []string `arg:"" complete:"DIR" name:"RUN" help:"Output directories of two runs or more, or their metrics.jsonl."`
	JSON bool     `help:"Print one object: the numbers of each run, the best ones, and the settings that differ."`
}

func (*compareCmd) Help() string {
	return `Numbers of runs side by side, with the best marked by a star; curves of their losses; and the keys of their run
files that differ. Runs may be in progress.

Examples:

  millrace compare runs/gsm8k runs/gsm8k-lr1e-4
  millrace compare runs/lr/* --json`
}

// Run compares.
func (c *compareCmd) Run(p *program) error {
	if n := len(c.Runs); n < 2 || n > mostCompared {
		return badFlag("compare needs 2 to %d runs, not %d: name their output directories; millrace report shows one run",
			mostCompared, n)
	}
	found, err := readCompared(c.Runs)
	if err != nil {
		return err
	}
	if c.JSON {
		return p.printJSON(found.object())
	}
	_, err = p.stdout.Write([]byte(found.text(terminal.Columns(p.stdout), !terminal.ShowsBlocks())))
	return err
}

// compared has what there is to compare of runs.
type compared struct {
	runs        []report.Run
	summaries   []report.Summary
	rows        []report.Compared
	differences []runfile.FlatDifference // without output_dir
	unknown     bool                     // the settings of a run
	notes       []string
}

// readCompared reads runs by their names.
func readCompared(names []string) (*compared, error) {
	c := &compared{}
	var settings [][]runfile.FlatValue
	var unknown []string
	for _, name := range names {
		r, err := report.ReadBrief(name)
		if err != nil {
			return nil, blame.BadRequest(err)
		}
		c.runs, c.summaries = append(c.runs, r), append(c.summaries, report.Summarize(r))
		values, err := rundir.SettingsIn(dirOf(name))
		if err != nil {
			return nil, blame.BadRequest(err)
		}
		if settings = append(settings, values); values == nil {
			unknown = append(unknown, r.Name)
		}
	}
	var losses lossKeys
	if c.unknown = len(unknown) > 0; c.unknown {
		c.notes = append(c.notes, fmt.Sprintf("the settings of %s are not known: there is no run.yaml that the run wrote",
			strings.Join(unknown, ", ")))
	} else {
		c.differences = slices.DeleteFunc(runfile.FlatDifferences(settings),
			func(d runfile.FlatDifference) bool { return d.Key == "output_dir" })
		losses = lossesOf(c.differences, settings)
		c.notes = append(c.notes, losses.notes()...)
	}
	c.rows = report.Compare(c.summaries, report.CompareOptions{OtherLosses: len(losses.trained) > 0,
		OtherEvals: len(losses.evaluated) > 0})
	return c, nil
}

// lossKeys are keys that differ between runs, and whose values decide which tokens a loss is of.
type lossKeys struct{ trained, evaluated, models []string }

// Keys, and those in their mappings, that decide which tokens a loss counts.
var (
	keysOfTokens = []string{"objective", "tokenizer", "chat_template", "chat_template_kwargs", "train_on_prompt",
		"train_on_last_turn"}
	keysOfTrained = append([]string{"datasets"}, keysOfTokens...)
	keysOfHeld    = append([]string{"eval.datasets", "val_size"}, keysOfTokens...)
)

// lossesOf finds those keys. With val_size the held-out documents are some of datasets, and seed chooses them.
func lossesOf(differences []runfile.FlatDifference, settings [][]runfile.FlatValue) (l lossKeys) {
	ofHeld := keysOfHeld
	if slices.ContainsFunc(settings, func(values []runfile.FlatValue) bool {
		return slices.ContainsFunc(values, func(v runfile.FlatValue) bool { return v.Key == "val_size" && v.Text != "0" })
	}) {
		ofHeld = append([]string{"datasets", "seed"}, keysOfHeld...)
	}
	for _, d := range differences {
		is := func(keys []string) bool {
			return slices.ContainsFunc(keys, func(key string) bool {
				rest, ok := strings.CutPrefix(d.Key, key)
				return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
			})
		}
		if is(keysOfTrained) {
			l.trained = append(l.trained, d.Key)
		}
		if is(ofHeld) {
			l.evaluated = append(l.evaluated, d.Key)
		}
		if d.Key == "model" {
			l.models = append(l.models, d.Key)
		}
	}
	return l
}

// notes says why losses are not compared, or how far they can be.
func (l lossKeys) notes() (notes []string) {
	const most = 3
	first := func(keys []string) string {
		if len(keys) > most {
			keys = append(slices.Clone(keys[:most]), "...")
		}
		return strings.Join(keys, ", ")
	}
	if len(l.trained) > 0 {
		notes = append(notes, fmt.Sprintf("training losses are of other tokens (%s), so none is marked as the best",
			first(l.trained)))
	}
	if len(l.evaluated) > 0 {
		notes = append(notes, fmt.Sprintf("losses of evaluations are of other tokens (%s), so none is marked as the best",
			first(l.evaluated)))
	}
	if len(l.models) > 0 {
		notes = append(notes, "the models differ: losses of a token can be compared where their tokenizers are the same")
	}
	return notes
}

// text is the comparison for people.
func (c *compared) text(width int, ascii bool) string {
	var b strings.Builder
	names := make([]string, len(c.runs))
	for i, r := range c.runs {
		names[i] = r.Name
	}
	names, within := shortNames(names)
	head := append([]string{"run"}, names...)
	if within != "" {
		fmt.Fprintf(&b, "in %s\n\n", within)
	}
	var rows [][]string
	for _, r := range c.rows {
		cells := []string{r.Name}
		for i, text := range r.Cells {
			if r.Best[i] {
				text += " *"
			}
			cells = append(cells, text)
		}
		rows = append(rows, cells)
	}
	b.WriteString(columns(head, rows, width))
	if slices.ContainsFunc(c.rows, func(r report.Compared) bool { return slices.Contains(r.Best, true) }) {
		b.WriteString("* the best\n")
	}
	c.writeCurves(&b, names, width, ascii)
	switch {
	case c.unknown:
	case len(c.differences) == 0:
		b.WriteString("\nall settings are the same\n")
	default:
		head[0], rows = "settings that differ", nil
		for _, d := range c.differences {
			cells := []string{d.Key}
			for _, text := range d.Texts {
				if text == nil {
					cells = append(cells, "-")
				} else {
					cells = append(cells, cellOf(*text))
				}
			}
			rows = append(rows, cells)
		}
		b.WriteString("\n" + columns(head, rows, width))
	}
	for _, note := range c.notes {
		b.WriteString("\n" + terminal.Wrap(note+"\n", width))
	}
	return terminal.Text(b.String())
}

// Cells of a sparkline, and its least width on a narrow terminal.
const (
	sparkCells      = 60
	leastSparkCells = 8
)

// writeCurves draws the losses, a line for each run.
func (c *compared) writeCurves(b *strings.Builder, names []string, width int, ascii bool) {
	label, last := 0, int64(0)
	for i, name := range names {
		label, last = max(label, len([]rune(name))), max(last, c.summaries[i].LastStep)
	}
	cells := sparkCells
	if width > 0 {
		cells = max(min(sparkCells, width-label-4), leastSparkCells)
	}
	for _, curve := range []struct {
		name string
		of   report.Curve
	}{{"loss", report.LossCurve}, {"eval loss", report.EvalCurve}} {
		lines, ok := report.Sparks(c.runs, curve.of, cells, ascii)
		if !ok {
			continue
		}
		fmt.Fprintf(b, "\n%s, steps 1 to %d\n", curve.name, last)
		for i, line := range lines {
			b.WriteString(strings.TrimRight("  "+padded(names[i], label)+"  "+line, " ") + "\n")
		}
	}
}

// comparedObject is the comparison for programs.
type comparedObject struct {
	Runs []report.Summary `json:"runs"`
	// Best has, by the name of a number, the runs that have the best one, from 0.
	Best     map[string][]int `json:"best"`
	Settings []differentKey   `json:"settings"` // null: those of a run are not known
	Notes    []string         `json:"notes,omitempty"`
}

type differentKey struct {
	Key    string    `json:"key"`
	Values []*string `json:"values"` // by run; null: its run file does not have the key
}

func (c *compared) object() comparedObject {
	o := comparedObject{Runs: c.summaries, Best: map[string][]int{}, Notes: c.notes}
	if !c.unknown {
		o.Settings = []differentKey{}
	}
	for _, r := range c.rows {
		for i, best := range r.Best {
			if best {
				o.Best[r.Field] = append(o.Best[r.Field], i)
			}
		}
	}
	for _, d := range c.differences {
		o.Settings = append(o.Settings, differentKey{d.Key, d.Texts})
	}
	return o
}
