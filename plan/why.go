package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Why tells how a plan was found: what was tried, where it stopped, and what more memory would buy.
type Why struct {
	Trials []Trial `json:"trials"` // fastest first
	Gains  []Gain  `json:"gains"`  // of budgets that bound the plan
}

// Trial is a placement that a search simulated, at the end of a stage of a route.
type Trial struct {
	Rings  Rings        `json:"rings"`
	Stages []StageTaken `json:"stages"`
	// StoppedBy is the budget that had no room for the next move; empty where the route continued, or had ended.
	StoppedBy string `json:"stopped_by,omitempty"`
	// StepSeconds is 0 for a step that was seen to be slower than the best one so far, and not simulated to its end.
	StepSeconds float64 `json:"step_sec"`
}

// StageTaken says how far a route went in a stage.
type StageTaken struct {
	What  string `json:"what"`
	Moves int    `json:"moves"`
	Of    int    `json:"of"`
}

// Gain says what another gigabyte of a budget buys.
type Gain struct {
	Key          string  `json:"key"`
	MoreBytes    int64   `json:"more_bytes"`
	SavedSeconds float64 `json:"saved_sec"` // of a step
}

// moreBytes is the further memory that Why asks about.
const moreBytes = 1 << 30

// Why searches again, with notes. It takes about as long as New, and once more for each budget.
func (p *Plan) Why(ctx context.Context) (*Why, error) {
	if p.asked == nil {
		return nil, fmt.Errorf("this plan was not made from a request")
	}
	why := &Why{}
	c := &chooser{Request: *p.asked, ctx: ctx, note: func(t Trial) { why.Trials = append(why.Trials, t) }}
	if _, err := c.choose(true); err != nil {
		return nil, err
	}
	slices.SortStableFunc(why.Trials, func(a, b Trial) int { return cmp.Compare(a.rank(), b.rank()) })
	for key, budget := range map[string]func(*Request) *int64{
		"memory.device": func(r *Request) *int64 { return &r.DeviceBytes },
		"memory.host":   func(r *Request) *int64 { return &r.HostBytes },
		"memory.disk":   func(r *Request) *int64 { return &r.DiskBytes },
	} {
		more := *p.asked
		if *budget(&more) == 0 {
			continue // no limit, or no disk at all
		}
		*budget(&more) += moreBytes
		q, err := New(ctx, more)
		if err != nil {
			return nil, err
		}
		why.Gains = append(why.Gains, Gain{key, moreBytes, p.Predicted.StepSeconds - q.Predicted.StepSeconds})
	}
	slices.SortFunc(why.Gains, func(a, b Gain) int {
		return cmp.Or(cmp.Compare(b.SavedSeconds, a.SavedSeconds), cmp.Compare(a.Key, b.Key))
	})
	return why, nil
}

func (t *Trial) rank() float64 {
	if t.StepSeconds == 0 {
		return math.Inf(1)
	}
	return t.StepSeconds
}

// shownTrials bounds the trials that are printed.
const shownTrials = 12

// String is the notes for people.
func (w *Why) String() string {
	var b strings.Builder
	slower := 0
	for _, t := range w.Trials {
		if t.StepSeconds == 0 {
			slower++
		}
	}
	fmt.Fprintf(&b, "tried %s; of %d the step was seen to be slower before its end. The fastest:\n", count(len(w.Trials), "placement"), slower)
	for _, t := range w.Trials[:min(shownTrials, len(w.Trials)-slower)] {
		var taken []string
		for _, s := range t.Stages {
			text := s.What
			if s.Of > 1 {
				text = fmt.Sprintf("%s %d of %d", s.What, s.Moves, s.Of)
			}
			taken = append(taken, text)
		}
		if len(taken) == 0 {
			taken = []string{"the start"}
		}
		fmt.Fprintf(&b, "  %9s  %s; %s", FormatSeconds(t.StepSeconds), count(t.Rings.Weights, "weight slot"), strings.Join(taken, ", then "))
		if t.StoppedBy != "" {
			fmt.Fprintf(&b, "; no room in %s for more", t.StoppedBy)
		}
		b.WriteString("\n")
	}
	for _, g := range w.Gains {
		fmt.Fprintf(&b, "%s more of %s: a step takes %s", FormatBytes(g.MoreBytes), g.Key, gained(g.SavedSeconds))
	}
	return b.String()
}

// gained says how much shorter a step becomes.
func gained(seconds float64) string {
	if seconds < 1e-3 {
		return "as long as now\n"
	}
	return FormatSeconds(seconds) + " less\n"
}

// String names a stage by its first move.
func (s Stage) String() string {
	if len(s) == 0 {
		return "nothing"
	}
	switch m := s[0]; m.What {
	case MoveInput:
		return "saved inputs on the device"
	case MoveActivations:
		last := s[len(s)-1].Level
		if m.Level != last {
			return fmt.Sprintf("activations up to %v on the %v", last, m.To)
		}
		return fmt.Sprintf("activations (%v) on the %v", m.Level, m.To)
	case MoveCache:
		return "caches of blocks on the device"
	case MoveWeights:
		return "weights of blocks on the device"
	case MoveState:
		return "state of blocks on the device"
	case MovePassing:
		return fmt.Sprintf("state of %d blocks passes", m.Count)
	case MoveHeadState:
		return "state of the head on the device"
	}
	return "head at once"
}
