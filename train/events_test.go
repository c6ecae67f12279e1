package train

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/session"
)

// heard runs a run and returns the events that a listener hears, by type and step, and the run's lines.
func heard(t *testing.T, c *runfile.Config) (events []string, lines string) {
	t.Helper()
	env := newEnv(t)
	var said, texts strings.Builder
	env.Progress = &said
	env.Events = func(e session.Event) {
		if text := e.String(); text != "" {
			fmt.Fprintln(&texts, text)
		}
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("%T: %v", e, err)
		}
		switch e := e.(type) {
		case StepDone:
			events = append(events, fmt.Sprintf("step %d of %d", e.Step, e.Steps))
		case Evaluated:
			events = append(events, fmt.Sprintf("evaluated %d, late %v", e.Step, e.Late))
		case Saved:
			events = append(events, fmt.Sprintf("saved %d", e.Step))
		case Resumed:
			events = append(events, fmt.Sprintf("resumed %d", e.Step))
		case Stopping:
			events = append(events, fmt.Sprintf("stopping %d of %d", e.Step, e.Steps))
		case RunEnded:
			events = append(events, fmt.Sprintf("ended %d", e.Steps))
		case session.Note, session.Warning:
		default:
			events = append(events, fmt.Sprintf("%T", e))
		}
	}
	_, err := Train(t.Context(), c, Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if said.String() != texts.String() {
		t.Errorf("people read\n%s, and a listener hears\n%s", said.String(), texts.String())
	}
	return events, said.String()
}

// A listener hears what happens in a run, in its order, and the lines for people are those of the events.
func TestEvents(t *testing.T) {
	c := withEval(smallConfig(t))
	c.MaxSteps, c.Eval.Every, c.Save = 3, 2, runfile.Save{Every: 2, Keep: 2, AtEnd: true}
	got, lines := heard(t, c)
	want := []string{"train.RunBegan", "evaluated 0, late false", "step 1 of 3", "evaluated 2, late false", "step 2 of 3",
		"saved 2", "evaluated 3, late false", "step 3 of 3", "saved 3", "train.ModelWritten", "ended 3"}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range []string{"; saves every 2 steps and at the end\n", "eval loss ", "step 3/3  loss "} {
		if !strings.Contains(lines, line) {
			t.Errorf("no %q in\n%s", line, lines)
		}
	}
	c.MaxSteps, c.ResumeWith = 4, []string{"max_steps"}
	got, _ = heard(t, c)
	want = []string{"train.RunBegan", "resumed 3", "evaluated 4, late false", "step 4 of 4", "saved 4", "train.ModelWritten",
		"ended 4"}
	if !slices.Equal(got, want) {
		t.Errorf("a run that continues: events\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A run without a target token, and one that a program ends, say so.
func TestEventsOfUnusualRuns(t *testing.T) {
	for _, of := range []struct {
		event session.Event
		want  string
	}{
		{UpdateSkipped{Step: 3, Untargeted: true},
			"step 3: no token of its documents counts in the loss; it updates nothing"},
		{UpdateSkipped{Step: 4}, "step 4: the gradient norm is not finite; its update is left out"},
		{Stopping{Step: 2, Steps: 9}, "stopping after step 2"},
		{Stopping{Step: 2, Steps: 9, Why: "x"}, "stopping after step 2 of 9: x (stop.patience)"},
		{Stopping{Step: 2, ByProgram: true}, "stopping after step 2, as the program asks"},
		{SetAside{"damaged", 0, "p"},
			"a damaged checkpoint is set aside as p; remove it when you have no use for it"},
		{SetAside{"diverged", 5, "p"},
			"the diverged checkpoint of step 5 is set aside as p; remove it when you have no use for it"},
		{Evaluated{Step: 7, Evaluation: trace.Evaluation{Loss: 0.5}, Late: true},
			"eval loss 0.5000 after step 7, whose evaluation was interrupted"},
		{session.Warning{Text: "no room"}, "warning: no room"},
		{Evaluated{Evaluation: trace.Evaluation{Loss: 0.5,
			Objective: map[string]float64{"rewards/accuracies": 0.75, "rewards/margins": 0.1, "kl": 2}}},
			"eval loss 0.5000  accuracy 0.750  margin 0.100 before training"},
		{Evaluated{Step: 7, Late: true, Evaluation: trace.Evaluation{Loss: 0.5, Objective: map[string]float64{"margin": 1},
			Sets: map[string]trace.Numbers{"task": {"loss": 0.25, "margin": 2}, "default": {"loss": 0.75}}}},
			"eval loss 0.5000 (default 0.7500, task 0.2500)  margin 1.000 after step 7, whose evaluation was interrupted"},
		{StepDone{trace.Metrics{Step: 7, EvalLoss: new(0.5),
			EvalSets: map[string]trace.Numbers{"task": {"loss": 0.25}}}, 9, 0},
			"step 7/9  loss 0.0000  norm 0.000  lr 0.00e+00  0 tokens/s  0.0s left  eval loss 0.5000 (task 0.2500)"},
		{StepDone{trace.Metrics{Step: 7, Objective: map[string]float64{"reward": 0.25, "entropy": 2}}, 9, 0},
			"step 7/9  reward 0.2500  entropy 2.000  norm 0.000  lr 0.00e+00  0 tokens/s  0.0s left"},
	} {
		if got := of.event.String(); got != of.want {
			t.Errorf("%T: %q, want %q", of.event, got, of.want)
		}
	}
}
