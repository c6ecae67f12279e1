package train

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/trace"
)

// RunBegan says that a run has its plan, and is about to take its directory and its memory.
type RunBegan struct {
	Headline string // the plan in a line
	Saves    string // when the run saves
}

func (e RunBegan) String() string { return e.Headline + "; " + e.Saves }

// Resumed says that a run continues from a checkpoint.
type Resumed struct {
	Step int    // after which it continues
	From string // path of the checkpoint
}

func (e Resumed) String() string {
	return fmt.Sprintf("resuming after step %d from %s", e.Step, e.From)
}

// StepDone has the numbers of a step.
type StepDone struct {
	trace.Metrics
	Steps   int     // of the whole run
	LeftSec float64 // that the other steps take, if they are like those so far
}

func (e StepDone) String() string {
	more := ""
	if e.EvalLoss != nil {
		more = fmt.Sprintf("  eval loss %.4f%s%s", *e.EvalLoss, setLosses(e.EvalSets),
			rewards(e.Metrics.Objective, trace.EvalPrefix))
	}
	if e.WriteWaitSec != nil {
		more += "  waits " + console.Seconds(*e.WriteWaitSec) + " (max_write_per_day)"
	}
	if h := e.Hosts; h != nil && slices.Max(h.StepSec) > muchSlower*slices.Min(h.StepSec)+leastLateSec {
		more += "  slowest: " + h.Slowest
	}
	return fmt.Sprintf("step %*d/%d  %s  norm %.3f  lr %.2e  %.0f tokens/s  %s left%s", digits(e.Steps), e.Step,
		e.Steps, e.goal(), e.GradNorm, e.LearningRate, e.TokensPerSec, console.Seconds(e.LeftSec), more)
}

// meanReward is the name of the mean reward of a policy's answers in a record.
const meanReward = "reward"

// goal says what the step came to: the loss, or of a policy, whose loss is near 0 whatever it learns, the reward.
func (e StepDone) goal() string {
	if reward, ok := e.Metrics.Objective[meanReward]; ok {
		return fmt.Sprintf("reward %.4f  entropy %.3f", reward, e.Metrics.Objective["entropy"])
	}
	return fmt.Sprintf("loss %.4f%s", e.Loss, rewards(e.Metrics.Objective, ""))
}

// The line of a step names the slowest host where that takes more than so much longer than the fastest one.
const (
	muchSlower   = 1.25
	leastLateSec = 0.1
)

// rewards are the numbers of an objective that a line has: how often the better completion has the larger reward, and
// by how much it is larger. Before their names is prefix.
func rewards(all map[string]float64, prefix string) (text string) {
	for _, of := range []struct{ name, as string }{{"rewards/accuracies", "accuracy"}, {"accuracy", "accuracy"},
		{"rewards/margins", "margin"}, {"margin", "margin"}} {
		if x, ok := all[prefix+of.name]; ok {
			text += fmt.Sprintf("  %s %.3f", of.as, x)
		}
	}
	return text
}

// setLosses are the losses of evaluation sets by their labels, empty where the run has one without a label.
func setLosses(sets map[string]trace.Numbers) string {
	var all []string
	for _, label := range slices.Sorted(maps.Keys(sets)) {
		all = append(all, fmt.Sprintf("%s %.4f", label, sets[label][trace.SetLoss]))
	}
	if all == nil {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func digits(n int) int { return len(fmt.Sprint(n)) }

// UpdateSkipped says that a step changes no weights.
type UpdateSkipped struct {
	Step       int
	Untargeted bool // no token counts in the loss; else the gradient norm is not finite
}

func (e UpdateSkipped) String() string {
	if e.Untargeted {
		return fmt.Sprintf("step %d: no token of its documents counts in the loss; it updates nothing", e.Step)
	}
	return fmt.Sprintf("step %d: the gradient norm is not finite; its update is left out", e.Step)
}

// Evaluated has the loss over the held-out data after a step; step 0 is the model before training. The line of an
// evaluation that belongs to a step is that of StepDone.
type Evaluated struct {
	Step int
	trace.Evaluation
	// Late says that the run was stopped in the evaluation, and makes up for it as it continues.
	Late bool
}

func (e Evaluated) String() string {
	switch {
	case e.Step == 0:
		return fmt.Sprintf("eval loss %.4f%s%s before training", e.Loss, setLosses(e.Sets), rewards(e.Objective, ""))
	case e.Late:
		return fmt.Sprintf("eval loss %.4f%s%s after step %d, whose evaluation was interrupted", e.Loss, setLosses(e.Sets),
			rewards(e.Objective, ""), e.Step)
	}
	return ""
}

// Sampled has a text that the model wrote after a step; step 0 is the model before training.
type Sampled struct{ Sample }

func (e Sampled) String() string {
	return fmt.Sprintf("sample %d %s: %s -> %s (%s, %s)", e.Number, when(int(e.Step)), excerpt(lastOf(e.Prompt)),
		excerpt(e.Text), e.Finish, spelling.Count(len(e.Tokens), "token"))
}

// when says after which step something was.
func when(step int) string {
	if step == 0 {
		return "before training"
	}
	return fmt.Sprintf("after step %d", step)
}

// excerpt is a text for a line: quoted, and of a long one its beginning.
func excerpt(text string) string {
	const most = 60 // characters
	if short := []rune(text); len(short) > most {
		return strconv.Quote(string(short[:most])) + "..."
	}
	return strconv.Quote(text)
}

// lastOf returns the last text of a prompt.
func lastOf(p data.Prompt) string {
	if n := len(p.Messages); n > 0 {
		return p.Messages[n-1].Content
	}
	return p.Text
}

// Saved says that a checkpoint is complete.
type Saved struct {
	Step int
	Path string
}

func (Saved) String() string { return "" }

// SaveFailed says that a checkpoint could not be written. The run continues.
type SaveFailed struct {
	Why string
	// NextStep is the step after which the run tries again; 0: it tries at once.
	NextStep int
}

func (e SaveFailed) String() string {
	if e.NextStep == 0 {
		return fmt.Sprintf("warning: %s; trying again", e.Why)
	}
	return fmt.Sprintf("warning: %s; the run continues, and tries to save again after step %d", e.Why, e.NextStep)
}

// SetAside says that a checkpoint which must not be continued from has another name now.
type SetAside struct {
	Why  string // damaged or diverged
	Step int    // 0: not known
	Path string // its new name
}

func (e SetAside) String() string {
	if e.Step == 0 {
		return fmt.Sprintf("a %s checkpoint is set aside as %s; remove it when you have no use for it", e.Why, e.Path)
	}
	return fmt.Sprintf("the %s checkpoint of step %d is set aside as %s; remove it when you have no use for it", e.Why, e.Step, e.Path)
}

// Stopping says that a run takes no further step, before its last one.
type Stopping struct {
	Step, Steps int
	ByProgram   bool   // OnStep returned ErrStop
	Why         string // by stop.patience; empty: the user has asked
}

func (e Stopping) String() string {
	switch {
	case e.ByProgram:
		return fmt.Sprintf("stopping after step %d, as the program asks", e.Step)
	case e.Why != "":
		return fmt.Sprintf("stopping after step %d of %d: %s (stop.patience)", e.Step, e.Steps, e.Why)
	}
	return fmt.Sprintf("stopping after step %d", e.Step)
}

// ModelWritten says that a model is in its directory.
type ModelWritten struct{ Dir string }

func (ModelWritten) String() string { return "" }

// RunEnded says that a run ended well, or was interrupted and can continue.
type RunEnded struct{ Summary }

func (RunEnded) String() string { return "" }
