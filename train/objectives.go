package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/reference"
	"github.com/millrace/millrace/train/source"
)

// aim has the objective of a run that trains for more than the next token, and the numbers that the objective is given
// with the data.
type aim struct {
	objective objective.Objective // nil: the next token
	reference *reference.Set      // nil: the objective compares with no reference
	old       *reference.Set      // by the model before its first update with the data; nil: the objective reads none
	region    *hostmem.Region     // what the reference or the teacher says of a step, by position
	read      []byte              // the same of a document as its file has it
	documents []stream.Document   // of the latest batch
	// held and mismatched are the numbers in the reference of the first part of the held-out data, and of the first part
	// of mismatched documents.
	held, mismatched int
	rollouts         []objective.Rollout // of the latest batch
	figures          map[string]float64  // of its rewards and lengths; nil: the data have none
	other            string              // identifies the reference or teacher, if that is another model
}

// setAim opens the objective of the configuration, or takes the caller's.
func (r *Run) setAim(of objective.Objective) (err error) {
	own, err := r.config.Objective.Open()
	if err == nil && of != nil && own != nil {
		err = errors.New("the options have an Objective, and the configuration has another one: leave the key objective out")
	}
	if err == nil && of != nil && of.Needs().Mismatched {
		err = errors.New("the Objective of the options needs mismatched documents, which only the key objective can ask for")
	}
	if r.aim.objective = of; of == nil {
		r.aim.objective = own
	}
	return err
}

// loading are the options of the loader of steps.
func (r *Run) loading(epochs int) data.LoaderOptions {
	c := r.config
	o := data.LoaderOptions{SequenceLen: c.SequenceLen, BatchTokens: c.BatchTokens, Seed: c.Seed, Epochs: epochs,
		LongDocuments: data.LongDocuments(c.Overlong), Accounts: r.env.Accounts, ScoreAt: r.scoreAt()}
	if of := r.aim.objective; of != nil {
		o.Cohorts = max(int(c.Numerics.Groups), 1)
		o.GroupsPerStep = max(c.Objective.PairsPerStep, c.Objective.GroupsPerStep)
		o.PromptTargets, o.Mismatched = of.Needs().Prompts, of.Needs().Mismatched
		if of.Needs().TopK > 0 {
			o.LongDocuments = wholes(o.LongDocuments)
		}
	}
	return o
}

// wholes is the treatment of long documents of which a teacher reads the first row.
func wholes(long data.LongDocuments) data.LongDocuments {
	if long == data.AutoLong {
		return data.TruncateLong
	}
	return long
}

// evaluating are the options of the loader of held-out data.
func (r *Run) evaluating() data.EvalOptions {
	o := data.EvalOptions{SequenceLen: r.config.SequenceLen, Accounts: r.env.Accounts, ScoreAt: r.scoreAt()}
	if of := r.aim.objective; of != nil {
		o.LongDocuments, o.Cohorts = data.LongDocuments(r.config.Overlong), max(int(r.config.Numerics.Groups), 1)
		o.PromptTargets, o.Mismatched = of.Needs().Prompts, of.Needs().Mismatched
		if o.Wholes = of.Needs().TopK > 0; o.Wholes {
			o.LongDocuments = wholes(o.LongDocuments)
		}
	}
	return o
}

// scoreAt finds the positions of scores; nil: the run has none.
func (r *Run) scoreAt() data.ScoreAt {
	if !r.src.Model.Scores() {
		return nil
	}
	return r.src.Model.Scoring.Position
}

// checkTypes refuses data that the objective cannot use.
func (r *Run) checkTypes(types []data.Type) error {
	of, needs := r.aim.objective, r.aim.objective.Needs()
	if err := data.CheckObjective(types, of.Name(), needs); err != nil || needs.TopK == 0 {
		return err
	}
	for _, kind := range types {
		switch taught := kind == data.Distill; {
		case taught && !r.readsTeacher():
			return fmt.Errorf("objective.teacher is %q, and the data are of type %s, which have what a teacher says: "+
				"set teacher to %s, or take data without it", r.config.Objective.Teacher, kind, runfile.TeacherNone)
		case !taught && r.readsTeacher():
			return fmt.Errorf("objective.teacher is %s, and the data are of type %s, which do not have what a teacher says: "+
				"name the teacher's model, or take data of type %s", runfile.TeacherNone, kind, data.Distill)
		case taught && needs.IsTempered():
			return fmt.Errorf("the Objective of the options has the temperature %v, and data of type %s have what a teacher "+
				"says at 1: take one without a temperature, or a loop that gives documents what a teacher says at it",
				needs.Temperature, kind)
		}
	}
	return nil
}

// readsTeacher reports whether the data have what a teacher says.
func (r *Run) readsTeacher() bool {
	name := r.config.Objective.Teacher
	return name == runfile.TeacherNone || name == "" // of an objective of the program
}

// checkTaught refuses data with more tokens of a teacher at a place than the objective compares.
func (r *Run) checkTaught() error {
	for _, d := range []*data.Dataset{r.data, r.held} {
		if d != nil && d.TopK() > r.aim.objective.Needs().TopK {
			return fmt.Errorf("objective.top_k is %d, and the data have %d tokens of the teacher at each place: set it to that",
				r.aim.objective.Needs().TopK, d.TopK())
		}
	}
	return nil
}

// openReference finds what the reference, or the teacher, says of the data, or computes it, before the run has its own
// memory.
func (r *Run) openReference(ctx context.Context) (err error) {
	c := r.config
	if r.aim.objective == nil || r.data == nil {
		return nil
	}
	needs := r.aim.objective.Needs()
	if !needs.Reference && needs.TopK == 0 && !needs.Rollouts {
		return nil
	}
	if err := cmp.Or(r.checkTaught(), r.checkRollouts(r.data)); err != nil {
		return err
	}
	rows, _ := c.StepRows()
	each := 4 * int64(max(2*needs.TopK, 1))
	if needs.Rollouts {
		each *= rolloutNumbers
	}
	if r.aim.region, err = r.env.Accounts.Reserve(data.OrderPurpose, each*int64(rows*c.SequenceLen)); err != nil {
		return err
	}
	isNone := needs.Reference && (c.Objective.Reference == runfile.ReferenceNone || r.readsReference()) ||
		needs.TopK > 0 && r.readsTeacher() || !needs.Reference && needs.TopK == 0
	if err := r.aim.region.Populate(); err != nil || isNone {
		return err
	}
	o := reference.Options{Model: r.src, Weights: r.src.Base.WeightsSHA256, Init: c.Init, Seed: c.Seed,
		TopK: needs.TopK, Temperature: needs.Temperature, Memory: c.Budgets()}
	if r.rounds != nil {
		o.Memory = c.RL.ReferenceMemory.Budgets()
	}
	key, name := "reference", c.Objective.Reference
	if needs.TopK > 0 {
		key, name = "teacher", c.Objective.Teacher
	}
	if name != runfile.ReferenceStart && name != "" {
		if o, err = r.otherReference(ctx, name, o); err != nil {
			return fmt.Errorf("objective.%s: %w", key, err)
		}
		r.aim.other = fmt.Sprintf("%.16s %016x", o.Weights, xxh3.Hash(o.Model.Config.Raw()))
		if err := r.checkOtherModel(key); err != nil {
			return err
		}
	}
	if o.Numerics, err = c.Types(); err != nil {
		return err
	}
	o.Numerics.SequenceLen = c.SequenceLen
	if r.rounds != nil { // whose answers are not there yet
		r.rounds.reference, err = reference.OpenRounds(ctx, r.env, r.dev, o, c.RL.PromptsPerStep*c.RL.Samples)
		return err
	}
	parts := r.data.Parts()
	r.aim.held = len(parts)
	if r.held != nil {
		parts = append(parts, r.held.Parts()...)
	}
	if r.aim.mismatched = len(parts); r.aim.objective.Needs().Mismatched {
		for _, p := range parts[:len(parts):len(parts)] {
			parts = append(parts, p.Mismatched())
		}
	}
	r.aim.reference, err = reference.Open(ctx, r.env, r.dev, o, parts)
	return err
}

// otherReference opens a reference that is not the model which the run begins from.
func (r *Run) otherReference(ctx context.Context, name string, o reference.Options) (reference.Options, error) {
	src, err := source.OpenModel(ctx, r.env, name)
	if err != nil {
		return o, err
	}
	if err := cmp.Or(src.CheckWrites(), src.CheckSameTokens(r.src, r.config.Tokenizer)); err != nil {
		return o, err
	}
	o.Model, o.Init = src, "pretrained"
	o.Weights, err = src.Fingerprint(ctx)
	return o, err
}

// compared are the documents of a batch as the objective sees them. They are good until the next call.
func (r *Run) compared(placed []data.Placed, d *data.Dataset, firstPart int) (_ []stream.Document, err error) {
	r.aim.documents = r.aim.documents[:0]
	var room []byte
	if r.aim.region != nil {
		room = r.aim.region.Bytes()
		clear(room)
	}
	for _, p := range placed {
		of := stream.Document{Micro: p.Micro, First: p.First, Length: p.Length, Group: p.Group, Side: p.Side,
			Margin: d.Margin(p.Document)}
		switch needs := r.aim.objective.Needs(); {
		case needs.TopK > 0:
			if room, err = r.taught(&of, room, p, d, firstPart); err != nil {
				return nil, blame.NotRequest(err)
			}
		case needs.Reference && room != nil:
			own := room[: 4*p.Length : 4*p.Length]
			room = room[len(own):]
			if of.Reference = hostmem.F32(own); r.readsReference() {
				err = d.Following(p.Document, data.TokenReferences, of.Reference[:p.Length-1])
				if err != nil {
					return nil, blame.NotRequest(err)
				}
			} else if r.aim.reference != nil {
				part, document := d.Origin(p.Document)
				if part += firstPart; p.Side == objective.Mismatched {
					part += r.aim.mismatched
				}
				if err := r.aim.reference.Read(own[:4*(p.Length-1)], part, document); err != nil {
					return nil, blame.NotRequest(err)
				}
			}
		}
		r.aim.documents = append(r.aim.documents, of)
	}
	if r.aim.objective.Needs().Rollouts {
		if err := r.rolled(placed, d, room); err != nil {
			return nil, err
		}
	}
	return r.aim.documents, nil
}

// taught gives a document what the teacher says of it, in the first part of room, and returns the rest.
func (r *Run) taught(of *stream.Document, room []byte, p data.Placed, d *data.Dataset, firstPart int) ([]byte, error) {
	k := r.aim.objective.Needs().TopK
	half := 4 * k * p.Length
	of.TopIDs, of.TopLogProbs = hostmem.I32(room[:half:half]), hostmem.F32(room[half:2*half:2*half])
	told := k * (p.Length - 1) // of each token after the first
	for i := range k {
		of.TopIDs[told+i] = -1
	}
	if r.aim.reference == nil {
		return room[2*half:], d.Top(p.Document, k, of.TopIDs[:told], of.TopLogProbs[:told])
	}
	part, document := d.Origin(p.Document)
	r.aim.read = slices.Grow(r.aim.read[:0], 8*told)[:8*told]
	if err := r.aim.reference.Read(r.aim.read, firstPart+part, document); err != nil {
		return nil, err
	}
	data.SpreadTop(r.aim.read, k, k, of.TopIDs[:told], of.TopLogProbs[:told])
	return room[2*half:], nil
}

// closeAim gives back what the objective was given.
func (r *Run) closeAim() (err error) {
	for _, of := range []*reference.Set{r.aim.reference, r.aim.old} {
		if of != nil {
			err = errors.Join(err, of.Close())
		}
	}
	if r.aim.region != nil {
		err = errors.Join(err, r.aim.region.Close())
	}
	r.aim = aim{objective: r.aim.objective}
	return err
}

// documentsOf are the documents of examples, one in each row.
func (r *Run) documentsOf(examples []data.Example) (all []stream.Document, err error) {
	if r.aim.objective == nil {
		return nil, nil
	}
	n, needs := r.plan.Whole, r.aim.objective.Needs()
	if needs.Pairs && len(examples)%2 != 0 {
		return nil, fmt.Errorf("%d examples: %s compares pairs; give the chosen and the rejected completion of each, in turn",
			len(examples), r.aim.objective.Name())
	}
	for i, e := range examples {
		d := stream.Document{Micro: i / n.MicroBatch, First: i % n.MicroBatch * n.SequenceLen, Length: len(e.InputIDs),
			Group: i}
		if needs.Pairs {
			d.Group, d.Side = i/2, objective.Chosen+objective.Side(i%2)
		}
		all = append(all, d)
	}
	return all, nil
}

// openReferenceInTurn opens the reference on the host that leads, and then on the others: those that share its cache
// find it there.
func (t *trainer) openReferenceInTurn(ctx context.Context) error {
	for _, leads := range []bool{true, false} {
		err := t.env.Together(ctx, func(ctx context.Context) error {
			if t.env.Cluster.Leads() != leads {
				return nil
			}
			return blame.OfStart(ctx, t.openReference(ctx))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// objectiveOf are the numbers of what the run trains for in a record that are of its step.
func (t *trainer) objectiveOf(m *trace.Metrics) map[string]float64 {
	own := map[string]float64{}
	for name, x := range m.Objective {
		if !strings.HasPrefix(name, trace.EvalPrefix) && !strings.HasPrefix(name, trace.LayersPrefix) && finite(x) != nil {
			own[name] = x
		}
	}
	return own
}

// fastRate is a learning rate above which models that learn from comparisons are known to fall apart, as a rule.
const fastRate = 5e-6

// noteObjective says what the run trains for, and warns of a rate that is known to fail.
func (t *trainer) noteObjective() {
	c := t.config
	if t.aim.objective == nil {
		return
	}
	if t.options.Objective != nil {
		t.env.Note("the run trains for %s, an objective of the program", t.aim.objective.Name())
		return
	}
	text := strings.Trim(c.Objective.String(), "{}")
	t.env.Note("the run trains for an objective: %s", text)
	needs := t.aim.objective.Needs()
	if needs.Rollouts && c.Epochs > 1 && !needs.Old && !needs.Sampler {
		t.env.Warn("epochs is %v, and answers are taken for the model's own of this step (objective.old: now): from the "+
			"second epoch on they are not; set objective.old to start, or to sampler", c.Epochs)
	}
	if needs.Scores {
		t.noteScores()
	} else if (needs.Pairs || needs.Labels) && c.LearningRate > fastRate && t.from == nil {
		t.env.Warn("learning_rate is %v: models that learn from comparisons are usually trained with 5e-7 to 5e-6, and lose "+
			"their language above that; watch the held-out loss, or lower it", c.LearningRate)
	}
}

// noteScores says where texts are read, if that is not at their end.
func (t *trainer) noteScores() {
	e, err := t.data.Example(0)
	n := len(e.InputIDs)
	if at := t.src.Model.Scoring.Position; err == nil && n > 0 && at(e.InputIDs) < n-1 {
		t.env.Warn("texts end with token %d, which they are also padded with (pad_token_id): the score of a text is that of "+
			"the token before it, here and in transformers; give the tokenizer a pad_token of its own to have the end read",
			e.InputIDs[n-1])
	}
}
