package export

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/vfs"
)

// card has the contents of a trained model's README.md: for people, and in its head for the hub. The same run writes
// the same card, wherever and however often it was resumed, so it has no times and no memory in it.
type card struct {
	Trained
	name     string
	model    string // model_type
	params   int64
	frozen   int64        // of them, not trained
	frozenIn tensor.DType // what they were rounded to; Invalid: they are those of base
	as       Format
	base     string           // model that the run started from: a path or a hub id
	baseID   string           // the same, if it is known to be of the hub
	isRandom bool             // the run started from random weights
	config   *runfile.Config  // nil where the run's directory is gone
	scores   bool             // it is a reward model
	hands    *source.Handover // nil: what goes with the weights is not known to be the run's
	metrics  []trace.Metrics  // up to step; nil without a metrics.jsonl
}

// Trained is a model that a run has trained, as its card has it besides what the run's directory says.
type Trained struct {
	RunDir    string
	Step      int               // that the weights are of
	Unhealthy int               // steps up to it, whose gradient norm or loss was not finite or too high
	Settings  map[string]string // of a checkpoint
	Base      *checkpoint.Base
	Plateau   *checkpoint.Plateau
}

// cardOf collects what the directory of a run has for the card of its model. Missing files are left out, and so are
// files that cannot be read: a card is no reason to lose a model. It is nil for no run.
func cardOf(e *session.Env, src *source.Source, as Format, of *Trained) *card {
	if of == nil {
		return nil
	}
	params, trained := src.Model.Params()
	c := &card{Trained: *of, name: modelName(of.RunDir), model: src.Config.Reader().StringOr("model_type", ""),
		params: params, frozen: params - trained, as: as, base: src.Dir, baseID: src.ID, hands: src.Hands,
		scores: src.Model.Scores()}
	var err error
	if c.config, err = e.Runs().ReadResolved(c.RunDir); err != nil {
		e.Warn("the model card lacks data and settings: %s", console.OneLine(err))
	}
	if c.config != nil {
		c.base, c.isRandom = c.config.Model, c.config.Init == "random"
	}
	if base := c.Base; base != nil {
		c.base, c.isRandom = base.Model, base.Init == "random"
	}
	if c.config != nil || c.Base != nil {
		// An export may name another copy of the base model than the run has.
		if repo, ok := hub.Parse(hub.Model, c.base); !ok || repo.ID != src.ID {
			c.baseID = ""
		}
	}
	f, err := vfs.OpenBelow(e.Files(), c.RunDir, rundir.MetricsName)
	if err == nil {
		defer f.Close()
		c.metrics, err = trace.ReadMetrics(f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.Warn("the model card lacks losses: %s", console.OneLine(err))
	}
	c.metrics = slices.DeleteFunc(c.metrics, func(m trace.Metrics) bool { return m.Step > int64(c.Step) })
	return c
}

// hubID is the id of a data set of the hub; "" for files of a machine.
func (c *card) hubID(s data.Source) string {
	s.Path = rundir.WhereRunStarted(c.RunDir, c.config, s.Path)
	return s.HubID()
}

// portable is a path without its directories if these are of one machine, since a card is published.
func portable(path string) string {
	if filepath.IsAbs(path) || strings.HasPrefix(path, "~") || strings.HasPrefix(filepath.Clean(path), "..") {
		return filepath.Base(path)
	}
	return path
}

// textFor is the card of a model that is written from a directory: without a card of its own it has the directory's, or
// nil if the directory has no card.
func (c *card) textFor(dir string) ([]byte, error) {
	if c == nil {
		return hf.ReadCard(dir)
	}
	return c.text(), nil
}

// text is the card.
func (c *card) text() []byte {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("---\n%s", hf.CardMark)
	line("%s%d", rundir.StepKey, c.Step)
	if c.baseID != "" {
		line("base_model: %s", c.baseID)
	}
	if c.config != nil {
		var ids []string
		for _, s := range c.config.Datasets {
			if id := c.hubID(s); id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 {
			line("datasets: [%s]", strings.Join(ids, ", "))
		}
	}
	task := "text-generation"
	if c.scores {
		task = "text-classification"
	}
	line("library_name: transformers\npipeline_tag: %s\ntags: [millrace]\n---\n", task)
	line("# %s\n", markdown(c.name))
	how := "trained further from " + cmp.Or(c.baseID, codeSpan(portable(c.base)))
	if c.isRandom {
		how = "trained from random weights"
	}
	precision := "at full precision"
	if slices.Contains(strings.Fields(c.Settings["precision"]), optim.Split24.String()) {
		precision = "with master weights of 24 bits"
	}
	which := "all parameters " + precision
	switch {
	case c.frozen > 0 && c.frozenIn != tensor.Invalid:
		which = fmt.Sprintf("%s of its parameters %s, and the others frozen and rounded to %v",
			gguf.SizeLabel(c.params-c.frozen), precision, c.frozenIn)
	case c.frozen > 0:
		which = gguf.SizeLabel(c.params-c.frozen) + " of its parameters, the others frozen, " + precision
	}
	line("A %s model of %s parameters in %s, %s for %s with [Millrace](https://github.com/millrace/millrace), "+
		"%s.",
		markdown(c.model), gguf.SizeLabel(c.params), c.as, how, spelling.Count(c.Step, "step"), which)
	if c.scores {
		line("\nIt gives a text a score: `AutoModelForSequenceClassification` opens it.")
	}
	if c.Unhealthy > 0 {
		line("\n**Do not use this model without a look at its losses: the last %s.** The gradient norm or the loss was not "+
			"finite, or the loss too high.", UnhealthySteps(c.Unhealthy))
	}
	c.writeEarlyEnd(line)
	c.writeUse(line)
	c.writeData(line)
	c.writeLosses(line)
	c.writeSettings(line)
	return b.Bytes()
}

// writeEarlyEnd says where the run has ended before the last of its steps.
func (c *card) writeEarlyEnd(line func(string, ...any)) {
	steps, err := strconv.Atoi(c.Settings["steps"])
	if err == nil && c.Step < steps && c.config != nil && c.Plateau.Exhausts(c.config.Stop.Patience) {
		line("\nThe run was of %s at most, and ended here: %s.", spelling.Count(steps, "step"), c.Plateau.NotLower())
	}
}

// writeUse says what other programs find in the directory besides the weights.
func (c *card) writeUse(line func(string, ...any)) {
	if c.hands == nil {
		return
	}
	var said []string
	switch c.hands.Tokenizer {
	case "":
	case "bytes":
		said = append(said, "Each byte is a token.")
	default:
		said = append(said, "The tokenizer is that of "+codeSpan(portable(c.hands.Tokenizer))+".")
	}
	if c.hands.Templates != nil {
		said = append(said, "The chat template is the one that the run used.")
		if c.config != nil && len(c.config.ChatTemplateKwargs) > 0 {
			said = append(said, "It sets "+codeSpan(c.config.ChatTemplateKwargs.String())+", as the run did, where the caller "+
				"sets nothing else.")
		}
	}
	if names := c.hands.Named(c.hands.Ends); len(names) > 0 {
		for i := range names {
			names[i] = codeSpan(names[i])
		}
		said = append(said, "Texts end with "+strings.Join(names, " and ")+".")
	}
	if len(said) > 0 {
		line("\n%s", strings.Join(said, " "))
	}
}

// writeData lists what the run has read.
func (c *card) writeData(line func(string, ...any)) {
	if c.config == nil {
		return
	}
	line("\n## Data\n\n| data | type | used for |\n|---|---|---|")
	for use, sets := range [][]data.Source{c.config.Datasets, c.config.Eval.Datasets} {
		for _, s := range sets {
			name := codeCell(portable(s.Path))
			if id := c.hubID(s); id != "" {
				name = id
			}
			for _, more := range []string{s.Name, s.Split} {
				if more != "" {
					name += ", " + markdown(more)
				}
			}
			line("| %s | %s | %s |", name, markdown(string(s.Type)), [...]string{"training", "evaluation"}[use])
		}
	}
	if c.config.ValSize > 0 {
		line("\nOf the training data %v of the documents were kept for evaluation.", c.config.ValSize)
	}
}

// lossRows is about how many steps the table of losses has.
const lossRows = 10

// writeLosses has a table of about lossRows steps, the first and the last among them.
func (c *card) writeLosses(line func(string, ...any)) {
	if len(c.metrics) == 0 {
		return
	}
	var tokens, targets int64
	lastEval := -1
	for i, m := range c.metrics {
		tokens, targets = tokens+m.Tokens, targets+m.TargetTokens
		if m.EvalLoss != nil {
			lastEval = i
		}
	}
	rows := map[int]bool{len(c.metrics) - 1: true, min(1, len(c.metrics)-1): c.metrics[0].Step == 0}
	for i := range lossRows {
		rows[i*(len(c.metrics)-1)/(lossRows-1)] = true
	}
	if lastEval >= 0 {
		rows[lastEval] = true
	}
	unit := fmt.Sprintf("Nats per token that counts: %s of %s tokens.", plan.FormatCount(targets),
		plan.FormatCount(tokens))
	if c.scores {
		unit = "Nats per pair: minus the logarithm of the chance that the model gives to the choice."
	}
	line("\n## Losses\n\n%s%s\n\n| step | training | evaluation |\n|---|---|---|", unit, c.evaluated(lastEval))
	number := func(x float64) string {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return ""
		}
		return fmt.Sprintf("%.4f", x)
	}
	for i := range c.metrics {
		if !rows[i] {
			continue
		}
		m, eval := c.metrics[i], ""
		if m.EvalLoss != nil {
			eval = number(*m.EvalLoss)
		}
		line("| %d | %s | %s |", m.Step, number(m.Loss), eval)
	}
}

// evaluated is a sentence about the evaluations before training and after a step, the number of its record; empty where
// one of them is missing.
func (c *card) evaluated(last int) string {
	first := c.metrics[0]
	if first.Step != 0 || first.EvalLoss == nil || last < 1 {
		return ""
	}
	at := c.metrics[last]
	return fmt.Sprintf(" On the evaluation data: %.4f before training, %.4f after step %d.", *first.EvalLoss, *at.EvalLoss,
		at.Step)
}

// writeSettings has the run file, or where that is gone the settings of the checkpoint, and the command.
func (c *card) writeSettings(line func(string, ...any)) {
	if c.config == nil {
		line("\n## Settings\n\n| setting | value |\n|---|---|")
		for _, key := range slices.Sorted(maps.Keys(c.Settings)) {
			if key != "data" { // a fingerprint
				line("| %s | %s |", codeCell(key), codeCell(c.Settings[key]))
			}
		}
		return
	}
	r := *c.config
	// What changes no number: defaults, which the file then leaves out where it can. stop says where training ends.
	d := runfile.Defaults()
	r.Memory, r.Device, r.Save, r.Resume, r.ResumeWith = d.Memory, d.Device, d.Save, d.Resume, nil
	r.Notify = nil // a file that the user has put there may have it
	r.OutputDir, r.Model, r.Tokenizer, r.ChatTemplate = "runs/"+c.name, portable(r.Model), portable(r.Tokenizer),
		portable(r.ChatTemplate)
	r.Datasets, r.Eval.Datasets = portableSources(r.Datasets), portableSources(r.Eval.Datasets)
	r.ReportTo = nil // servers of the owner
	doc, err := r.YAML()
	if err != nil {
		return // it was read as YAML
	}
	line("\n## Settings\n\nThe run file. Keys that change no number have their defaults, and paths of one machine are "+
		"cut short:\n\n%syaml\n%s%[1]s\n\n"+
		"## Command\n\n```\nmillrace train run.yaml\n```", fence("```", string(doc)), doc)
}

// A card shows texts of files from elsewhere: names, and the settings of a checkpoint. They must stay texts, so the
// functions below make a part of a line of them, without Markdown or HTML.

// markdown escapes a text.
func markdown(text string) string {
	var b strings.Builder
	for _, r := range oneLine(text) {
		if strings.ContainsRune("\\`*_{}[]<>#|~&!$", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// codeSpan shows a text as it is.
func codeSpan(text string) string {
	if text = oneLine(text); text == "" {
		return ""
	}
	ticks := fence("`", text)
	if len(ticks) > 1 {
		text = " " + text + " " // there may be a backtick at an end
	}
	return ticks + text + ticks
}

// codeCell is a codeSpan in a table.
func codeCell(text string) string { return strings.ReplaceAll(codeSpan(text), "|", `\|`) }

// fence is a run of backticks that a text has not, at least as long as least.
func fence(least, text string) string {
	for strings.Contains(text, least) {
		least += "`"
	}
	return least
}

// oneLine is a text without line breaks and other characters that are not shown.
func oneLine(text string) string {
	return terminal.Text(strings.Join(strings.Fields(text), " "))
}

func portableSources(sets []data.Source) []data.Source {
	sets = slices.Clone(sets)
	for i := range sets {
		sets[i].Path = portable(sets[i].Path)
	}
	return sets
}

// UnhealthySteps says how many of the latest steps were unhealthy.
func UnhealthySteps(n int) string {
	if n == 1 {
		return "step was unhealthy"
	}
	return fmt.Sprintf("%d steps were unhealthy", n)
}
