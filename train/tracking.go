package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/trackers"
)

// openTrackers opens what the run reports to besides its records, which are begun.
func (t *trainer) openTrackers() {
	first := int64(0)
	if t.begun > 0 {
		first = int64(t.begun) + 1
	}
	settings, err := json.Marshal(t.mathematics())
	if err != nil {
		panic(err) // a map of texts
	}
	t.trackers = trackers.Open(trackers.About{Files: t.env.Runs(), Config: t.config, Run: string(t.home.ID.Run),
		Name: t.home.ID.Name, First: first, Mathematics: sumOf(settings)})
}

// track tells the trackers of an event that they show.
func (t *trainer) track(event session.Event) {
	switch e := event.(type) {
	case StepDone:
		t.trackers.Step(&e.Metrics)
	case Evaluated:
		if e.Step == 0 || e.Late { // others are in the record of their step
			t.trackers.Evaluation(int64(e.Step), e.Evaluation)
		}
	case Sampled:
		t.trackers.Text(e.Sample.Step, fmt.Sprintf("samples/%d", e.Number), e.markdown())
	}
}

// markdown is a sample as a page: the prompt and the text, to the letter.
func (s *Sample) markdown() string {
	quoted := func(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
	var all []string
	for _, m := range s.Prompt.Messages {
		all = append(all, m.Role+":\n\n"+quoted(m.Content))
	}
	if s.Prompt.Messages == nil {
		all = append(all, quoted(s.Prompt.Text))
	}
	return strings.Join(append(all, "->", quoted(s.Text)), "\n\n")
}

// endTrackers tells them how the run ends.
func (t *trainer) endTrackers(err error) {
	switch {
	case err == nil:
		t.trackers.End(trackers.Done)
	case errors.Is(err, ErrInterrupted):
		t.trackers.End(trackers.Stopped)
	default:
		t.trackers.End(trackers.Failed)
	}
}
