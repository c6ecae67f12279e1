// Package objective turns the log-probabilities of a step into weights of its positions: what a model is trained for,
// apart from the next token.
//
// A loss L that reads the model through log-probabilities of chosen tokens alone has the gradient sum_t k_t * grad log
// p_t, where k_t = dL/d(log p_t). The engine's gradient is (1/Targets) * sum_t w_t * grad(-log p_t), so a position has
// the weight w_t = -k_t * Targets. All of it is computed in float64, and the weight is rounded to fp32 once. A loss
// that also reads the entropies of whole distributions has slopes by them as well.
//
// The functions here know no model, no engine and no clock. The same step has the same bits, wherever its documents
// are.
package objective

// Side says what a document is to its objective.
type Side uint8

// The sides of documents.
const (
	Alone       Side = iota // a document that is compared with none
	Chosen                  // the preferred completion of a pair
	Rejected                // the other one
	Desirable               // a completion by itself that is wanted
	Undesirable             // one that is not
	Mismatched              // a completion after the prompt of another document, whose likelihood alone counts
)

// Sequence is a document of a step: a prompt and a completion. Its slices have an entry for each of its positions,
// whose target is the token after it.
type Sequence struct {
	Group int // number of its pair in the step, or of itself
	Side  Side
	// Margin is by how much the chosen completion of a pair is the better one, for objectives that use it.
	Margin float64
	// Targets are negative where a position has none. LogProbs are the model's, in nats, and 0 where there is no
	// target. Of a model that ends in scores they are these, and only those at targets mean something.
	Targets  []int32
	LogProbs []float32
	// Entropies are those of the model's distributions over the vocabulary, in nats, and Hits are 1 where no token is
	// likelier than the target; nil: not known. Hits are for metrics alone: see Weigh.
	Entropies, Hits []float32
	// EntropySlopes are set by Weigh of an objective that needs entropies: how the loss of the step moves with each of
	// them, times the targets of the step. Nil: nothing is trained.
	EntropySlopes []float32
	// Reference are those of the model that the objective compares with; nil: it needs none.
	Reference []float32
	// Weights are at first 1 where the target is of the completion, and 0 where it is of the prompt. Weigh sets all of
	// them. Nil: nothing is trained, as in an evaluation, and all targets are of the completion.
	Weights []float32
	// Values are what a critic says of the positions, and Weigh sets ValueSlopes: how the loss of the step moves with each
	// of them, times the targets of the step. Nil: the objective needs no critic, or nothing is trained.
	Values, ValueSlopes []float32
	// Top has the likeliest tokens by a teacher; nil: no teacher is needed.
	Top *Top
	// Rollout is for answers that a policy has sampled; nil: the document was not sampled.
	Rollout *Rollout
}

// Counts are of a whole step, of which a [Step] may be a part.
type Counts struct {
	Groups      int // pairs, or documents that are compared with none
	Targets     int // positions that have one: the number that the engine divides by
	Masked      int // those of answers of which no token counts
	Chosen      int // target tokens of chosen and desirable completions
	ChosenAll   int // the same with the targets of their prompts
	Desirable   int // documents
	Undesirable int // documents
}

// Step has the sequences of a group of micro-batches, which an objective sees at once. They are in the order of the
// data, with the sides of a pair next to each other, the chosen one first.
type Step struct {
	Sequences []Sequence
	Whole     Counts
}

// Objective gives the positions of a step their weights. It keeps nothing from call to call.
type Objective interface {
	// Name is the word in run files.
	Name() string
	Needs() Needs
	// Weigh sets the weights of all sequences. The results of the parts of a step, merged in their order, are those of
	// the step.
	Weigh(*Step) (Result, error)
}

// Needs says what an objective has to be given.
type Needs struct {
	Reference  bool // log-probabilities of a reference model
	Pairs      bool // the sequences of a step are pairs
	Labels     bool // they are desirable or not
	Mismatched bool // half of them are completions after prompts of others
	Prompts    bool // prompts have targets, too
	Scores     bool // the model ends in scores of texts: a sequence has one target, where LogProbs has its score
	Rollouts   bool // they are answers that were sampled, with rewards: see [Rewarded]
	Rewards    bool // and learns from the rewards: without, they may have none
	Sampler    bool // and these have log-probabilities of their sampler
	Old        bool // and those from before the first update
	OldOfStart bool // which the run itself finds, before its first update with the answers
	Endings    bool // and these say how they end
	Values     bool // the model has a critic: [Sequence.Values]
	OldValues  bool // and answers have its values from before the first update
	Entropies  bool // the loss moves with the entropies of positions: [Sequence.EntropySlopes]
	TopK       int  // a teacher's likeliest tokens of each position: how many of them
	// Temperature divides the logits of the model and of the teacher before log-probabilities are taken of them, and
	// entropies; 0: 1. It is read with TopK alone.
	Temperature float64
}

// IsTempered reports whether logits are divided by a temperature.
func (n Needs) IsTempered() bool { return n.Temperature != 0 && n.Temperature != 1 }

// Result has the loss and the metrics of a step, or of a part of it.
type Result struct {
	Loss  float64 // of the step in nats, or the part's addend to it
	Rest  float64 // what rounding has left of the loss, far below its last bit: Merge carries it
	Parts []Part  // metrics, by TRL's names, always in the same order
}

// Part is a metric.
type Part struct {
	Name    string
	Sum, Of float64 // its mean is Sum/Of
	Extreme Extreme
}

// Extreme says that a part is no mean: Sum is a number of the step, and Of is 1, or 0 for none.
type Extreme uint8

// The extremes.
const (
	NoExtreme Extreme = iota
	Least
	Greatest
)
