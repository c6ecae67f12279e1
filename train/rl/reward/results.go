package reward

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/runfile"
)

// Cause says why an answer has no reward.
type Cause int

// The causes.
const (
	Scored    Cause = iota // it has one
	Null                   // the judge says so
	Lacking                // the row lacks what the answer is compared with
	TimedOut               // the judge did not answer in time
	Exited                 // the process ended
	Malformed              // what it wrote is not what the contract says
	TooLong                // the line that it wrote is too long, or the text for a model that scores it
	Stray                  // it wrote of an answer that it was not asked for, or of one twice
	NotFinite              // the reward is NaN, infinite or beyond 1e12
	Refused                // the server answered with another status than 200, or cannot be reached
	Causes                 // counts them
)

// String names the cause as metrics do.
func (c Cause) String() string {
	return [Causes]string{"scored", "null", "lacking", "timed_out", "exited", "malformed", "too_long", "stray",
		"not_finite", "refused"}[c]
}

// isFault is true of what a judge should not do.
func (c Cause) isFault() bool { return c > Lacking }

// null is a verdict without a reward.
func null(c Cause) verdict { return verdict{isGiven: true, reward: math.NaN(), cause: c} }

// Results holds the rewards of the answers of a step.
type Results struct {
	Scores  []Score // by ID
	Tallies []Tally // in the order of Panel.Names
	WaitSec float64 // of the wait for them
}

// Score has the rewards of an answer.
type Score struct {
	ID      int64
	Rewards []float64 // in the order of Panel.Names; NaN: null
	// Total is the sum of the rewards that are not null, times their weights; NaN where all are null.
	Total float64
}

// Tally has what happened at one judge in a step.
type Tally struct {
	Name      string
	Mean, Std float64            // of rewards that are not null, Std with n-1; NaN of too few
	Metrics   map[string]float64 // that the judge gives, each the mean over the answers that have it
	MetricOf  map[string]int     // how many answers have each of Metrics
	Counts    [Causes]int        // of answers, by Cause
	Restarts  int                // of its processes
	BusySec   float64            // in which it had answers to judge
}

// results sums up a step. The order of the answers, and so each bit, does not depend on when verdicts came.
func (p *Panel) results(sheets []*sheet) *Results {
	r := &Results{Scores: make([]Score, len(sheets)), Tallies: make([]Tally, len(p.specs))}
	for n, s := range sheets {
		score := Score{ID: s.ID, Rewards: make([]float64, len(p.specs)), Total: math.NaN()}
		total, some := 0.0, false
		for i := range p.specs {
			score.Rewards[i] = s.verdicts[i].reward
			if !math.IsNaN(score.Rewards[i]) {
				total, some = total+float64(score.Rewards[i]*p.specs[i].Factor()), true
			}
		}
		if some {
			score.Total = total
		}
		r.Scores[n] = score
	}
	for i := range p.specs {
		b := &p.benches[i]
		r.Tallies[i] = tallyOf(p.specs[i].Name, sheets, i)
		r.Tallies[i].Restarts, r.Tallies[i].BusySec = b.restarts, b.busy.Seconds()
	}
	return r
}

// tallyOf sums up the verdicts of a judge.
func tallyOf(name string, sheets []*sheet, judge int) Tally {
	t := Tally{Name: name}
	sums, counts := map[string]float64{}, map[string]int{}
	sum, n := 0.0, 0.0
	for _, s := range sheets {
		v := &s.verdicts[judge]
		t.Counts[v.cause]++
		if !math.IsNaN(v.reward) {
			sum, n = sum+v.reward, n+1
		}
		for key, x := range v.metrics {
			sums[key], counts[key] = sums[key]+x, counts[key]+1
		}
	}
	t.Mean = sum / n
	squares := 0.0
	for _, s := range sheets {
		if d := s.verdicts[judge].reward - t.Mean; !math.IsNaN(d) {
			squares += float64(d * d)
		}
	}
	t.Std = math.Sqrt(squares / (n - 1))
	if n < 2 {
		t.Std = math.NaN()
	}
	for key, x := range sums {
		if t.Metrics == nil {
			t.Metrics, t.MetricOf = map[string]float64{}, counts
		}
		t.Metrics[key] = x / float64(counts[key])
	}
	return t
}

// lacking is the error of a step in which no row has what a reward compares answers with.
func (r *Results) lacking(specs []runfile.Reward) error {
	for i, t := range r.Tallies {
		if n := len(r.Scores); n > 0 && t.Counts[Lacking] == n {
			what := "text"
			if specs[i].Type == runfile.RewardNumber {
				what = "number"
			}
			return &FailedError{t.Name, fmt.Errorf("the rows of all %d answers of the step have no %s at %q: name the key that "+
				"answers are compared with in column", n, what, specs[i].ComparesWith())}
		}
	}
	return nil
}
