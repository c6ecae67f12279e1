package objective

import (
	"fmt"
	"math"
)

// A sequence is read in two ways. Its score is the sum of log-probabilities over its completion, in the order of
// positions, which losses of pairs and of single documents read; its likelihood is the negative sum over the tokens
// that a negative log-likelihood is of, which are those of the prompt, too, where a setting says so.

// score is a completion as a loss reads it.
type score struct {
	logp, ref float64 // sums in nats; ref is 0 without a reference
	tokens    int
}

// ratio is by how much the model gives the completion a higher log-probability than the reference. Infinite ones become
// NaN, so that no loss takes them for a pair that is learned.
func (s score) ratio() float64 {
	if u := s.logp - s.ref; !math.IsInf(u, 0) {
		return u
	}
	return math.NaN()
}

// slopes are derivatives of the loss of a step by log-probabilities of a sequence's tokens.
type slopes struct {
	score      float64 // of the first shared tokens of the completion; of those after them, times tail
	tail       float64
	shared     int
	likelihood float64 // of the completion, in addition
	prompt     float64
}

// isCompletion says whether position t has a target, and one of the completion.
func (q *Sequence) isCompletion(t int) bool {
	return q.Targets[t] >= 0 && (q.Weights == nil || q.Weights[t] != 0)
}

// completion counts the tokens of the completion.
func (q *Sequence) completion() (n int) {
	for t := range q.Targets {
		if q.isCompletion(t) {
			n++
		}
	}
	return n
}

// scoreOf sums log-probabilities over the completion, and those of the reference if the loss reads them. Tokens after
// the first shared ones count tail.
func (q *Sequence) scoreOf(reference bool, shared int, tail float64) (s score) {
	for t := range q.Targets {
		if !q.isCompletion(t) {
			continue
		}
		share := 1.0
		if s.tokens >= shared {
			share = tail
		}
		s.logp += float64(share * float64(q.LogProbs[t]))
		if reference {
			s.ref += float64(share * float64(q.Reference[t]))
		}
		s.tokens++
	}
	return s
}

// likelihood is the negative log-likelihood of the completion, or of all targets, and their number.
func (q *Sequence) likelihood(prompt bool) (sum float64, tokens int) {
	for t, target := range q.Targets {
		if prompt && target >= 0 || q.isCompletion(t) {
			sum -= float64(q.LogProbs[t])
			tokens++
		}
	}
	return sum, tokens
}

// weigh sets the weights of a sequence of a step with that many targets. It reports whether all are finite in fp32.
// For a sequence without weights there is nothing to set.
func (q *Sequence) weigh(k slopes, targets int) (finite bool) {
	at, finite := 0, true
	for t := range q.Weights {
		slope := 0.0
		switch {
		case q.isCompletion(t):
			slope = k.score
			if at >= k.shared {
				slope *= k.tail
			}
			slope += k.likelihood
			at++
		case q.Targets[t] >= 0:
			slope = k.prompt
		}
		w := float32(-slope * float64(targets))
		finite = finite && isFinite(float64(w))
		q.Weights[t] = w
	}
	return finite
}

// whole is the share of a completion whose tokens all count.
const whole = math.MaxInt

// sides are the words of errors.
var sides = [...]string{"document", "chosen completion", "rejected completion", "desirable completion",
	"undesirable completion", "mismatched completion"}

// name is a sequence in errors.
func (q *Sequence) name() string {
	side := "sequence"
	if int(q.Side) < len(sides) {
		side = sides[q.Side]
	}
	if q.Side == Chosen || q.Side == Rejected {
		return fmt.Sprintf("the %s of pair %d", side, q.Group)
	}
	return fmt.Sprintf("the %s %d", side, q.Group)
}

// check refuses a sequence that has not what a loss reads.
func (q *Sequence) check(reference bool) error {
	n := len(q.Targets)
	switch {
	case len(q.LogProbs) != n:
		return fmt.Errorf("%s has %d log-probabilities and %d positions: it needs one for each", q.name(), len(q.LogProbs), n)
	case reference && len(q.Reference) != n:
		return fmt.Errorf("%s has %d log-probabilities of the reference and %d positions: it needs one for each",
			q.name(), len(q.Reference), n)
	case q.Weights != nil && len(q.Weights) != n:
		return fmt.Errorf("%s has %d weights and %d positions: it needs one for each, or none at all", q.name(),
			len(q.Weights), n)
	}
	return nil
}

// checkScore refuses a completion without a token, whose mean does not exist.
func (q *Sequence) checkScore(s score) error {
	if s.tokens == 0 {
		return fmt.Errorf("%s has no token that is a target: leave it out, or raise sequence_len if its prompt fills the row",
			q.name())
	}
	return nil
}

// errNotFinite is the error of weights that are infinite or NaN.
func errNotFinite(q *Sequence, s score, loss float64) error {
	return fmt.Errorf("%s has a weight that is infinite or NaN, at a log-probability of %v and a loss of %v: "+
		"lower the learning rate, or beta if it is large", q.name(), s.logp, loss)
}

// checkWhole refuses counts of the whole step that are less than those of a part, which would divide by too little.
func (s *Step) checkWhole() error {
	part := Count(s.Sequences)
	for _, n := range []struct {
		what        string
		part, whole int
	}{
		{"groups", part.Groups, s.Whole.Groups}, {"targets", part.Targets, s.Whole.Targets},
		{"targets of masked answers", part.Masked, s.Whole.Masked},
		{"targets of chosen completions", part.Chosen, s.Whole.Chosen},
		{"targets of chosen completions and their prompts", part.ChosenAll, s.Whole.ChosenAll},
		{"desirable documents", part.Desirable, s.Whole.Desirable},
		{"undesirable documents", part.Undesirable, s.Whole.Undesirable},
	} {
		if n.whole < n.part {
			return fmt.Errorf("the whole step counts %d %s, and a part of it has %d: count the sequences of all parts",
				n.whole, n.what, n.part)
		}
	}
	return nil
}
