package objective

// Names of the metrics that every objective has, and training for the next token: TRL's.
const (
	Entropy           = "entropy"
	MeanTokenAccuracy = "mean_token_accuracy"
)

// Weigh has an objective weigh a step, and adds the metrics of all models that end in logits. They are over the
// tokens of completions, without those of mismatched ones and of answers that are masked:
//
//   - entropy is the mean entropy of the model's distribution at them, in nats.
//   - mean_token_accuracy is the share of those that no other token is likelier than, without rejected and undesirable
//     completions.
//
// Source: TRL 1.16, compute_loss of SFTTrainer and DPOTrainer, which take the first of tokens that are equally likely.
// Its KTOTrainer has the entropy alone, and its trainers of CPO and ORPO have neither.
func Weigh(o Objective, s *Step) (Result, error) {
	if o.Needs().Scores {
		return o.Weigh(s)
	}
	entropy, accuracy := Part{Name: Entropy}, Part{Name: MeanTokenAccuracy}
	for i := range s.Sequences {
		s.Sequences[i].measure(&entropy, &accuracy) // before weights change
	}
	res, err := o.Weigh(s)
	// A part of the objective with such a name counts instead.
	res.Parts = append([]Part{entropy, accuracy}, res.Parts...)
	return res, err
}

// measure adds a sequence to both metrics, if it has what they are of.
func (q *Sequence) measure(entropy, accuracy *Part) {
	if q.Side == Mismatched || q.Entropies == nil || q.Hits == nil || q.Rollout != nil && q.Rollout.Masked {
		return
	}
	for t := range q.Targets {
		if !q.isCompletion(t) {
			continue
		}
		entropy.Sum += float64(q.Entropies[t])
		entropy.Of++
		if q.Side != Rejected && q.Side != Undesirable {
			accuracy.Sum += float64(q.Hits[t])
			accuracy.Of++
		}
	}
}
