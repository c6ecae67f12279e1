package objective

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/millrace/millrace/internal/fault"
)

// ofTeacher is distill: a model learns the distribution of a teacher, of which the K likeliest tokens of each position
// are known (offline distillation; Hinton et al., arXiv:1503.02531). Tokens outside of these are one bucket, the tail.
//
// With P the teacher's probabilities and q the model's, S the sum of each over the K tokens and T = 1-S:
//
//	KL = sum over K of P_j (log P_j - log q_j) + T_P (log T_P - log T_q)
//	dKL/d(logit j) = q_j - P_j of a token of the K, and q_j (1 - T_P/T_q) of any other
//
// So a position's gradient is a multiple of its softmax, except at K tokens and the target: [Top] has room for these.
// The loss of a step is the mean over its targets of share*KL - (1-share)*log p(target).
//
// With a temperature both distributions are those of logits that are divided by it, and KL counts its square in the
// loss: the gradient by the logits before the division is then of the size that it has without one. Slopes are by the
// logits after it.
type ofTeacher struct {
	settings Settings // resolved
}

// leastTail is the least probability of the model's tail that is told from 0: 1-S_q is a difference of sums of
// probabilities that fp32 log-probabilities have to some 1e-6. Of a smaller tail the loss takes this one.
const leastTail = 0x1p-20

// Top has the likeliest tokens of each position by a teacher, for objectives that compare whole distributions.
type Top struct {
	K int
	// IDs has K+1 tokens for each position: the teacher's, each once, and then the target, if it is not one of them.
	// Negative: none.
	IDs []int32
	// Teacher has K log-probabilities for each position, in nats. One at a negative id is not read.
	Teacher []float32
	// Student has the model's for the first K of each K+1 of IDs; what is last or at a negative id is not read.
	Student []float32
	// Slopes has room for K+1 for each position. Weigh sets them: the derivative of what the position adds to the loss
	// of the step, times [Counts.Targets], by the logits of IDs. That by the logit of any other token is the position's
	// weight times the model's probability. It may be the memory of Student; nil: nothing is trained.
	Slopes []float32
}

func (o *ofTeacher) Name() string { return o.settings.Type }
func (o *ofTeacher) Needs() Needs {
	return Needs{TopK: o.settings.TopK, Temperature: *o.settings.Temperature}
}

// divergence is the factor of KL in the loss.
func (o *ofTeacher) divergence() float64 {
	t := *o.settings.Temperature
	return float64(*o.settings.Share*t) * t
}

// Weigh sets weights and slopes. Positions are independent of each other, so several cores share the sequences: 64
// tokens of a teacher take some 128 exponentials a position. Sums are in the order of positions.
func (o *ofTeacher) Weigh(step *Step) (Result, error) {
	if err := step.checkWhole(); err != nil {
		return Result{}, err
	}
	for i := range step.Sequences {
		q := &step.Sequences[i]
		if q.Side != Alone {
			return Result{}, fmt.Errorf("%s is of no use: distill needs documents that are compared with none", q.name())
		}
		if err := q.check(false); err != nil {
			return Result{}, err
		}
		if err := q.checkTop(o.settings.TopK); err != nil {
			return Result{}, err
		}
	}
	all := make([][]taught, len(step.Sequences))
	_ = fault.Share(context.Background(), len(all), runtime.GOMAXPROCS(0), func(i int) error { // which never fails
		all[i] = step.Sequences[i].teach(o.divergence(), 1-*o.settings.Share)
		return nil
	})
	var sum, kls total
	nll := Part{Name: nllLoss}
	for i := range all {
		q := &step.Sequences[i]
		for t, v := range all[i] {
			if q.Weights != nil {
				if !isFinite(v.loss + v.weight) {
					return Result{}, errNotFinite(q, score{logp: float64(q.LogProbs[t])}, v.loss)
				}
				q.Weights[t] = float32(v.weight)
			}
			if v.counts {
				sum.add(v.loss)
				kls.add(v.kl)
				nll.Sum -= float64(q.LogProbs[t])
				nll.Of++
			}
		}
	}
	if step.Whole.Targets > 0 {
		sum = sum.times(1, float64(step.Whole.Targets))
	}
	kl, _ := kls.rounded()
	return result(sum, Part{Name: klName, Sum: kl, Of: nll.Of}, nll), nil
}

// taught holds what a position adds.
type taught struct {
	counts           bool // it has a target of the completion
	loss, kl, weight float64
}

// teach returns what each position adds, and sets slopes if the sequence is trained: the loss is share of the
// divergence, and rest of the negative log-likelihood.
func (q *Sequence) teach(share, rest float64) []taught {
	all, probabilities := make([]taught, len(q.Targets)), make([][2]float64, q.Top.K)
	for t := range all {
		all[t] = q.teachAt(t, share, rest, probabilities)
	}
	return all
}

// teachAt does so for position t. It overwrites probabilities: the teacher's and the model's of each token.
func (q *Sequence) teachAt(t int, share, rest float64, probabilities [][2]float64) (v taught) {
	top, wide := q.Top, q.Top.K+1
	ids := top.IDs[t*wide:][:wide]
	var slopes []float32
	if q.Weights != nil {
		slopes = top.Slopes[t*wide:][:wide]
	}
	if !q.isCompletion(t) {
		clear(slopes)
		return v
	}
	student, teacher := top.Student[t*wide:][:top.K], top.Teacher[t*top.K:][:top.K]
	tailP, tailQ := 1.0, 1.0
	for j, id := range ids[:top.K] {
		if id < 0 {
			continue
		}
		logP, logQ := float64(teacher[j]), float64(student[j])
		p, own := math.Exp(logP), math.Exp(logQ)
		if p > 0 { // 0 log 0 is 0
			v.kl += float64(p * (logP - logQ))
		}
		tailP, tailQ = tailP-p, tailQ-own
		probabilities[j] = [2]float64{p, own}
	}
	tailP, tailQ = max(tailP, 0), max(tailQ, leastTail)
	if tailP > 0 {
		v.kl += float64(tailP * math.Log(tailP/tailQ))
	}
	v.counts = true
	logp := float64(q.LogProbs[t])
	v.loss = float64(share*v.kl) - float64(rest*logp)
	v.weight = float64(share*(1-tailP/tailQ)) + rest
	for j := range slopes {
		slope := 0.0
		switch id := ids[j]; {
		case id < 0:
		case j == top.K: // the target
			slope = float64(v.weight*math.Exp(logp)) - rest
		default:
			p, own := probabilities[j][0], probabilities[j][1]
			slope = float64(share * (own - p))
			if id == q.Targets[t] {
				own--
			}
			slope += float64(rest * own)
		}
		slopes[j] = float32(slope)
	}
	return v
}

// checkTop refuses a sequence that lacks what a teacher says of it.
func (q *Sequence) checkTop(k int) error {
	n := len(q.Targets)
	if q.Top == nil || q.Top.K != k {
		return fmt.Errorf("%s has no list of the teacher's %d likeliest tokens by position", q.name(), k)
	}
	top := q.Top
	lengths := []struct {
		what       string
		has, needs int
	}{{"tokens of the teacher", len(top.IDs), n * (k + 1)}, {"log-probabilities of the teacher", len(top.Teacher), n * k},
		{"log-probabilities of these tokens", len(top.Student), n * (k + 1)}, {"slopes", len(top.Slopes), n * (k + 1)}}
	if q.Weights == nil {
		lengths = lengths[:3]
	}
	for _, l := range lengths {
		if l.has != l.needs {
			return fmt.Errorf("%s has %d %s and %d positions: it needs %d", q.name(), l.has, l.what, n, l.needs)
		}
	}
	return nil
}
