package runfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// ResolvedHeader begins a run file that a run has written, with every key.
const ResolvedHeader = "# Written by millrace: the run file of this run, with every key.\n"

// Read reads run.yaml and the key=value settings that follow it, and checks all that can be checked without opening
// another file. With an empty path there are only the settings.
func Read(path string, set []string) (*Config, error) {
	c, err := ReadWithoutData(path, set)
	if err != nil {
		return c, err
	}
	return c, c.Check()
}

// ReadWithoutData is Read for uses that need no data sets, such as a plan.
func ReadWithoutData(path string, set []string) (*Config, error) {
	c, err := read(path, set)
	if err != nil {
		return nil, err
	}
	return c, c.CheckWithoutData()
}

// ReadWithoutModel is ReadWithoutData for a caller that may have the model itself.
func ReadWithoutModel(path string, set []string) (*Config, error) {
	c, err := read(path, set)
	if err != nil {
		return nil, err
	}
	named := *c
	named.Model = cmp.Or(c.Model, "the caller's")
	return c, named.CheckWithoutData()
}

// read is a configuration that has not been checked.
func read(path string, set []string) (*Config, error) {
	c := undecided()
	if path != "" {
		doc, err := ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("run file: %w", err)
		}
		if bytes.HasPrefix(doc, []byte(ResolvedHeader)) {
			c.Overlong = string(data.SplitLong) // which a run file with every key did not name when it was the default
		}
		if err := c.parse(doc); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, s := range set {
		if err := c.set(s); err != nil {
			return nil, err
		}
	}
	c.decide()
	return &c, nil
}

// decide fills in what follows from other keys: the master weights are fp32 where everything is computed in fp32. A
// model that is compared with its beginning moves slowly, and decay would pull it to zero, not to there.
func (c *Config) decide() {
	c.RL.decide(&c.Objective, c.BatchTokens/max(c.SequenceLen, 1))
	c.Objective.decide()
	rate, decay := 1e-5, 0.01
	if c.Objective.compares() {
		rate, decay = 1e-6, 0
	}
	if c.Objective.Scores() { // a new head learns, and half of a text has no score
		if rate = 1e-5; c.Overlong == string(data.AutoLong) {
			c.Overlong = string(data.DropLong)
		}
	}
	if isUndecided(c.LearningRate) {
		c.LearningRate = rate
	}
	if isUndecided(c.WeightDecay) {
		c.WeightDecay = decay
	}
	if c.Precision.Master != "" {
		return
	}
	c.Precision.Master = "split"
	if c.Precision.Compute == "f32" {
		c.Precision.Master = "f32"
	}
}

// ReadToPlan is Read for a plan of a model, without a file and without data sets. A shape's name may take the place
// of the model. With wholeMachine the drive of the machine is part of the plan, unless a setting changes that.
func ReadToPlan(model string, wholeMachine bool, settings []string) (*Config, error) {
	first := []string{Setting("model", model)}
	if wholeMachine {
		first = append(first, "memory.disk=auto")
	}
	return ReadWithoutData("", append(first, settings...))
}

// Setting returns the setting key=text, with the text quoted so that YAML reads it unchanged.
func Setting(key, text string) string {
	quoted, err := json.Marshal(text) // which YAML reads, too
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return key + "=" + string(quoted)
}

// Parse reads a run file from its text, and checks it as [Read] does.
func Parse(doc []byte) (*Config, error) {
	c := undecided()
	if err := c.parse(doc); err != nil {
		return nil, err
	}
	c.decide()
	return &c, c.Check()
}

// ReadFile reads a plain file, or a pipe to its end; no more than a run file can have.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	return doc, err
}

// set applies one key=value; a dot goes into a mapping: memory.device=2GiB. Without a value the key has its default
// again.
func (c *Config) set(setting string) error {
	key, value, ok := strings.Cut(setting, "=")
	if !ok || key == "" {
		return fmt.Errorf("%s: write key=value, such as learning_rate=1e-5", setting)
	}
	bad := func(err error) error { return fmt.Errorf("%s: %w", setting, err) }
	if other := strings.IndexFunc(key, func(r rune) bool { return r != '_' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }); other >= 0 {
		return bad(fmt.Errorf("%q is not a key; write one such as memory.device, and a list as a whole, such as adam_betas=[0.9, 0.95]", key))
	}
	if strings.HasPrefix(strings.TrimSpace(value), "#") {
		return bad(errors.New("# begins a comment in YAML; put the value in quotes"))
	}
	var doc strings.Builder
	parts := strings.Split(key, ".")
	for i, p := range parts {
		fmt.Fprintf(&doc, "%s%s:", strings.Repeat("  ", i), p)
		if i < len(parts)-1 {
			doc.WriteString("\n")
		}
	}
	fmt.Fprintf(&doc, " %s\n", value)
	kwargs := c.ChatTemplateKwargs
	err := c.parse([]byte(doc.String()))
	if len(parts) > 1 { // one of a mapping: the others stay, as those of a struct do
		c.ChatTemplateKwargs = c.ChatTemplateKwargs.Over(kwargs)
	}
	if inLines, ok := errors.AsType[lineErrors](err); ok { // of a document that no user wrote
		for i := range inLines {
			inLines[i].line = 0
		}
	}
	if err != nil {
		return bad(err)
	}
	return nil
}

// Bounds of what a run can be asked for: what is beyond them is a slip of the keyboard.
const (
	mostSteps       = 1_000_000_000
	mostEpochs      = 10_000
	mostBatchTokens = 1 << 30
)

// minAdamEps is the least normal number of 32 bits. A smaller adam_eps is denormal there, or 0, and then a gradient
// of 0 is divided by 0.
const minAdamEps = 0x1p-126

// CheckWithoutData is Check for uses that need no data sets.
func (c *Config) CheckWithoutData() error { return c.check(false) }

// Check refuses what no run can do, naming the key.
func (c *Config) Check() error { return c.check(true) }

func (c *Config) check(needsData bool) error {
	bad := func(format string, args ...any) error { return fmt.Errorf(format, args...) }
	switch {
	case c.Model == "":
		return bad("model is missing: name a Hugging Face directory, or a hub id")
	case c.Init != "pretrained" && c.Init != "random":
		return bad("init is %q: use pretrained or random", c.Init)
	case needsData && len(c.Datasets) == 0:
		return bad("datasets is missing: name at least one, such as {path: train.jsonl, type: text}")
	case !(c.RouterAuxLossCoef >= 0) || math.IsInf(c.RouterAuxLossCoef, 0):
		return bad("router_aux_loss_coef is %g: use 0 or a positive number, such as 0.001", c.RouterAuxLossCoef)
	case c.ChatTemplate == "":
		return bad("chat_template is empty: use auto, model, conversations, or the path of a Jinja file")
	case c.TrainOnPrompt && c.TrainOnLast:
		return bad("train_on_prompt and train_on_last_turn are both set: choose one")
	case !(c.ValSize >= 0) || c.ValSize >= 1 && c.ValSize != math.Trunc(c.ValSize) || c.ValSize > 1<<31:
		return bad("val_size is %v: it must be a share below 1, or a whole number of documents", c.ValSize)
	case c.ValSize > 0 && len(c.Eval.Datasets) > 0:
		return bad("val_size and eval.datasets are both given: choose one")
	case !slices.Contains(data.LongTreatments, data.LongDocuments(c.Overlong)):
		return bad("overlong is %q: use auto, split, drop or truncate", c.Overlong)
	case c.SequenceLen < 2:
		return bad("sequence_len is %d: it must be at least 2", c.SequenceLen)
	case c.SequenceLen > plan.MaxPositionsPerMicroBatch:
		return bad("sequence_len is %d: it must be at most %d", c.SequenceLen, plan.MaxPositionsPerMicroBatch)
	case c.BatchTokens > mostBatchTokens:
		return bad("batch_tokens is %d: it must be at most %d", c.BatchTokens, mostBatchTokens)
	case c.BatchTokens < c.SequenceLen || c.BatchTokens%c.SequenceLen != 0:
		return bad("batch_tokens is %d: it must be a multiple of sequence_len (%d)", c.BatchTokens, c.SequenceLen)
	case c.Numerics.Groups > 0 && c.BatchTokens/c.SequenceLen%int(c.Numerics.Groups) != 0:
		return bad("numerics.groups is %d: it must divide the %d sequences of a step (batch_tokens / sequence_len)",
			c.Numerics.Groups, c.BatchTokens/c.SequenceLen)
	case c.Numerics.Exchange != "" && c.Numerics.Exchange != ExchangeBF16:
		return bad("numerics.exchange is %q: use f32 or bf16", c.Numerics.Exchange)
	case c.MaxSteps < 0 || c.MaxSteps > mostSteps:
		return bad("max_steps is %d: it must be between 1 and %d", c.MaxSteps, mostSteps)
	case !(c.Epochs >= 0 && c.Epochs <= mostEpochs):
		return bad("epochs is %v: it must be above 0 and at most %d", c.Epochs, mostEpochs)
	case c.MaxSteps > 0 && c.Epochs > 0:
		return bad("max_steps and epochs are both given: choose one")
	case c.WarmupSteps > mostSteps:
		return bad("warmup_steps is %d: it must be at most %d", c.WarmupSteps, mostSteps)
	case c.WarmupSteps > 0 && c.WarmupRatio > 0:
		return bad("warmup_steps and warmup_ratio are both given: choose one")
	case !(c.WarmupRatio >= 0 && c.WarmupRatio <= 1):
		return bad("warmup_ratio is %v: it must be between 0 and 1", c.WarmupRatio)
	case !(c.AdamBetas[0] >= 0 && c.AdamBetas[0] < 1 && c.AdamBetas[1] >= 0 && c.AdamBetas[1] < 1):
		return bad("adam_betas are %v: they must be in [0, 1)", c.AdamBetas)
	case !(c.AdamEps >= minAdamEps && c.AdamEps <= math.MaxFloat32):
		return bad("adam_eps is %v: it must be between %.3g and %.3g, as updates compute in 32 bits; 1e-8 is usual", c.AdamEps, minAdamEps, math.MaxFloat32)
	case !(c.WeightDecay >= 0) || math.IsInf(c.WeightDecay, 0):
		return bad("weight_decay is %v: it must be finite and not negative", c.WeightDecay)
	case !(c.MaxGradNorm >= 0) || math.IsInf(c.MaxGradNorm, 0):
		return bad("max_grad_norm is %v: it must be finite and not negative; 0 turns clipping off", c.MaxGradNorm)
	case c.Eval.Every < 0 || c.Eval.Every > 0 && !c.evaluates():
		return bad("eval.every is %d, with %d eval.datasets: name what to evaluate on, or set val_size", c.Eval.Every, len(c.Eval.Datasets))
	case c.Samples.Every < 0 || c.Samples.Every > 0 && !c.Samples.Asked():
		return bad("samples.every is %d, and there are no prompts: list what the model is to continue in "+
			"samples.prompts", c.Samples.Every)
	case c.Samples.MaxTokens < 1 || c.Samples.MaxTokens > plan.MaxPositionsPerMicroBatch:
		return bad("samples.max_tokens is %d: it must be between 1 and %d", c.Samples.MaxTokens,
			plan.MaxPositionsPerMicroBatch)
	case !(c.Samples.Temperature >= 0 && c.Samples.Temperature <= 100):
		return bad("samples.temperature is %v: it must be between 0 (the most likely token) and 100",
			c.Samples.Temperature)
	case c.Samples.TopK < 0:
		return bad("samples.top_k is %d: it must not be negative; 0 is all", c.Samples.TopK)
	case !(c.Samples.TopP >= 0 && c.Samples.TopP <= 1):
		return bad("samples.top_p is %v: it must be between 0 and 1", c.Samples.TopP)
	case !plan.Gradients(c.Memory.Gradients).Known():
		return bad("memory.gradients is %q: use auto, keep or twice", c.Memory.Gradients)
	case c.Memory.Recompute != "" && c.Memory.Recompute != "auto" && c.Memory.Recompute != "always":
		return bad("memory.recompute is %q: use auto or always", c.Memory.Recompute)
	case c.Save.Every < 0 || c.Save.Keep < 0 || !(c.Save.Minutes >= 0) || math.IsInf(c.Save.Minutes, 0):
		return bad("save: every (%d), keep (%d) and minutes (%v) must not be negative", c.Save.Every, c.Save.Keep, c.Save.Minutes)
	case c.Save.Fallback != "" && Absolute(c.Save.Fallback) == Absolute(c.OutputDir):
		return bad("save.fallback is output_dir: name a directory on another disk")
	case c.Stop.UnhealthySteps < 0 || !(c.Stop.LossAbove >= 0) || math.IsInf(c.Stop.LossAbove, 0):
		return bad("stop: unhealthy_steps (%d) and loss_above (%v) must not be negative", c.Stop.UnhealthySteps, c.Stop.LossAbove)
	case c.Stop.Patience < 0:
		return bad("stop.patience is %d: it must not be negative; 0 never stops early", c.Stop.Patience)
	case c.Stop.Patience > 0 && c.Eval.Every == 0:
		return bad("stop.patience is %d, and the run does not evaluate on its way: set eval.every, with eval.datasets "+
			"or val_size", c.Stop.Patience)
	case c.Save.Best && !c.evaluates():
		return bad("save.best: there are no eval.datasets, and no val_size, to tell what is best")
	case len(c.Memory.Path) > plan.MaxDrives:
		return bad("memory.path lists %d directories: name at most %d, each on a drive of its own", len(c.Memory.Path),
			plan.MaxDrives)
	case slices.Contains(c.Memory.Path, ""):
		return bad("memory.path has an empty path in its list: name a directory, or remove it")
	case c.Memory.MaxWritePerDay.auto:
		return bad("memory.max_write_per_day is auto: give a size, such as 500GB, or none")
	case c.Memory.RatedWrites.auto || c.Memory.RatedWrites.none:
		return bad("memory.rated_writes is no size: give what the drive's maker warrants to be written, such as " +
			"600TB, or leave the key out")
	case c.Resume == "":
		return bad("resume is empty: use auto, never, or the path of a checkpoint")
	case c.OutputDir == "":
		return bad("output_dir is empty: name a directory for the results")
	}
	if err := c.ChatTemplateKwargs.Check(); err != nil {
		return bad("chat_template_kwargs: %w", err)
	}
	if _, err := c.Types(); err != nil {
		return err
	}
	of, err := c.Objective.Open()
	if err != nil {
		return err
	}
	if of != nil && c.Overlong == string(data.SplitLong) {
		switch needs := of.Needs(); {
		case needs.Pairs || needs.Labels:
			return bad("overlong is split, and objective %s compares whole answers: use auto, truncate or drop",
				c.Objective.Type)
		case needs.Rollouts:
			return bad("overlong is split, and half of an answer has no reward: use auto, truncate or drop")
		case needs.TopK > 0:
			return bad("overlong is split, and the teacher of objective %s reads rows from the start of a document: use "+
				"auto, truncate or drop", c.Objective.Type)
		}
	}
	if err := c.checkLoop(of); err != nil {
		return err
	}
	if of != nil && of.Needs().Rollouts && c.evaluates() {
		return bad("objective %s learns from rewards, and has no held-out loss: remove eval.datasets and val_size; rewards "+
			"of new answers tell how it goes", c.Objective.Type)
	}
	if c.Objective.Scores() && c.Samples.Asked() {
		return bad("samples: objective reward makes a model that scores texts and writes none: remove samples")
	}
	if err := c.TensorGroups().Check(); err != nil {
		return err
	}
	if given := func(g optim.Group) bool { return g.LearningRate.Given }; c.LearningRate == 0 {
		if i := slices.IndexFunc(c.Groups, given); i >= 0 {
			return bad("groups[%d].learning_rate is a share of learning_rate, which is 0: set that above 0", i)
		}
	}
	for _, key := range c.ResumeWith {
		if keys := listed(); !slices.Contains(keys, key) {
			return bad("resume_with: %s cannot change when a run is resumed; what can: %s", key, strings.Join(keys, ", "))
		}
	}
	for i := range c.Notify {
		if err := c.Notify[i].Check(); err != nil {
			return bad("notify[%d]: %w", i, err)
		}
	}
	for i, prompt := range c.Samples.Prompts {
		if err := prompt.Check(); err != nil {
			return bad("samples.prompts[%d]: %w", i, err)
		}
	}
	for _, s := range c.Datasets {
		if s.EvalSet != "" {
			return bad("dataset %s: eval_set is %s, and the entry is trained on: only entries of eval.datasets belong to "+
				"evaluation sets; remove it", s.Path, s.EvalSet)
		}
	}
	for _, s := range c.Eval.Datasets {
		if s.Label != "" && s.Type != "" && s.Type != data.Binary {
			return bad("dataset %s: label is the key of a row of type binary: to name the set that an entry of "+
				"eval.datasets belongs to, write eval_set: %s", s.Path, s.Label)
		}
	}
	for _, s := range append(append([]data.Source{}, c.Datasets...), c.Eval.Datasets...) {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	if err := checkTrackers(c.ReportTo); err != nil {
		return err
	}
	if sets := data.SetLabels(c.Eval.Datasets); c.Eval.Best != "" && !slices.Contains(sets, c.Eval.Best) {
		if sets == nil {
			return bad("eval.best is %s, and no entry of eval.datasets has an eval_set: give some entries that one, or leave "+
				"eval.best out", c.Eval.Best)
		}
		return bad("eval.best is %s, which is no eval_set of eval.datasets: use %s, or leave it out", c.Eval.Best,
			spelling.Or(sets))
	}
	if c.LRScheduler == cosineWithMinimum && c.MinRate == 0 {
		return bad("lr_scheduler is %s, and min_learning_rate is missing: set it, such as to a tenth of learning_rate, "+
			"or use cosine", cosineWithMinimum)
	}
	return c.Schedule(1).Check()
}

// cosineWithMinimum is transformers' name for a cosine that falls to min_learning_rate. Every shape can do that here.
const cosineWithMinimum optim.Shape = "cosine_with_min_lr"

// Schedule is the learning rate over a number of steps.
func (c *Config) Schedule(steps int) optim.Schedule {
	s := optim.Schedule{Shape: c.LRScheduler, Peak: c.LearningRate, Floor: c.MinRate, WarmupSteps: c.WarmupSteps,
		Steps: steps}
	if s.Shape == cosineWithMinimum {
		s.Shape = optim.Cosine
	}
	if c.WarmupRatio > 0 {
		s.WarmupSteps = int(math.Ceil(c.WarmupRatio * float64(steps)))
	}
	return s
}

// Asked reports whether the model is to write any.
func (s *Samples) Asked() bool { return len(s.Prompts) > 0 || s.PromptsFile != "" }

// evaluates reports whether there are held-out data.
func (c *Config) evaluates() bool { return len(c.Eval.Datasets) > 0 || c.ValSize > 0 }

// StepNumerics are the numerics of a run, without the sizes that a plan chooses.
func (c *Config) StepNumerics() (plan.Numerics, error) {
	n, err := c.Types()
	n.SequenceLen, n.Cohorts = c.SequenceLen, int(c.Numerics.Groups)
	if c.Numerics.Exchange == ExchangeBF16 {
		n.Exchange = tensor.BF16
	}
	return n, err
}

// StepRows is the number of rows of a step, and how many of each group of micro-batches are not trained, after the
// others: with an objective that needs them, as many as are trained.
func (c *Config) StepRows() (rows, forward int) {
	if rows = c.BatchTokens / c.SequenceLen; c.Objective.Mismatched() {
		return 2 * rows, rows / max(int(c.Numerics.Groups), 1)
	}
	return rows, 0
}

// Experiment says what has not been shown of the precisions that the file asks for, in a line; it is empty where
// nothing is an experiment.
func (c *Config) Experiment() string {
	moments, err := optim.ParseMoments(c.Precision.Moments)
	if err != nil || !moments.IsExperiment() {
		return ""
	}
	line := fmt.Sprintf("precision.moments: %v is an experiment: it was compared with fp32 moments in small models and "+
		"some hundred steps; watch the loss and max_update_over_lr", moments)
	if c.Init == "random" {
		line += "; in training from random weights, as here, 4bit was compared in 600 steps of a model of 1 million " +
			"parameters, and 8+4 was not"
	}
	return line
}

// Types are the numerics that say what is computed and kept in which type.
func (c *Config) Types() (n plan.Numerics, err error) {
	n.Compute, err = tensor.ParseDType(c.Precision.Compute)
	if err != nil || n.Compute != tensor.BF16 && n.Compute != tensor.F32 {
		return n, fmt.Errorf("precision.compute is %q: use bf16 or f32", c.Precision.Compute)
	}
	if n.Master, err = optim.ParseMaster(c.Precision.Master); err != nil {
		return n, fmt.Errorf("precision.%w", err)
	}
	if n.Moments, err = optim.ParseMoments(c.Precision.Moments); err != nil {
		return n, fmt.Errorf("precision.%w", err)
	}
	if (n.Compute == tensor.F32) != (n.Master == optim.F32) {
		return n, fmt.Errorf("precision: compute %v does not go with master %v: leave master out, which then follows "+
			"from compute", n.Compute, n.Master)
	}
	return n, nil
}

// AdamW are AdamW's constants.
func (c *Config) AdamW() optim.AdamW {
	return optim.AdamW{Beta1: c.AdamBetas[0], Beta2: c.AdamBetas[1], Eps: c.AdamEps, WeightDecay: c.WeightDecay}
}

// TensorGroups are the keys groups and train_only.
func (c *Config) TensorGroups() optim.Groups {
	return optim.Groups{All: c.Groups, TrainOnly: c.TrainOnly}
}

// GroupRates are the rates of the groups in a step in which the run's learning rate is lr.
func (c *Config) GroupRates(lr float64) []optim.Rates {
	return c.TensorGroups().Rates(lr, c.LearningRate, c.WeightDecay)
}

// YAML is the configuration as a run file.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }

// Budgets are the budgets, with a place for the disk tier.
func (c *Config) Budgets() Memory {
	m := c.Memory
	if len(m.Path) == 0 {
		m.Path = Paths{filepath.Join(c.OutputDir, "state")}
	}
	return m
}

// Outputs returns the results that the run wants of its plan.
func (c *Config) Outputs() plan.Outputs {
	needs := c.Objective.needs()
	return plan.Outputs{NoClip: c.MaxGradNorm == 0, Objective: !c.Objective.IsNextToken(), Entropies: needs.Entropies,
		LogProbs: !c.Objective.IsNextToken() && c.evaluates(), TopK: needs.TopK}
}

// Absolute is a path from the root of the file system.
func Absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return filepath.Clean(path)
}

// NumericsOf are the types of a compute type, which is def if it is empty: what is computed in bf16 has a split master.
func NumericsOf(compute, def string) (plan.Numerics, error) {
	if compute == "" {
		compute = def
	}
	switch compute {
	case "bf16":
		return plan.Numerics{Compute: tensor.BF16, Master: optim.Split}, nil
	case "f32":
		return plan.Numerics{Compute: tensor.F32, Master: optim.F32}, nil
	}
	return plan.Numerics{}, fmt.Errorf("compute is %q: use bf16 or f32", compute)
}
