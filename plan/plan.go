package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// Request has all that a plan is made from.
type Request struct {
	Model    *model.Model
	Numerics Numerics // of the whole step, of which each host of the cluster has a share
	Cluster  Cluster
	Device   device.Info
	Machine  Machine
	Outputs  Outputs

	// Devices is the number of devices of that kind which the visits are dealt to; 0 is one.
	Devices int
	// Budgets in bytes. That of each device includes what its driver takes for itself (device.Info.OverheadBytes); on a
	// unified device, where the host's budget has that, 0 means that nothing is streamed: weights are bound where they
	// are.
	DeviceBytes, HostBytes int64
	// RecomputeAll keeps nothing from the forward to the backward pass but the layers' inputs, however much memory there
	// is: for comparing placements on the same arithmetic.
	RecomputeAll bool
	// StreamAll gives no decoder block a weight slot of its own: each is fetched for every visit, except the blocks
	// that are still in the ring where forward turns into backward. It is for measuring what streaming costs, and has
	// no meaning where weights are bound.
	StreamAll bool
	// HostUpdates leaves all updates to the host, where blocks then are alike in what is kept of them there.
	HostUpdates bool
	// DiskBytes bounds the state on disk; 0: nothing may be there.
	DiskBytes int64
	// Drives are those that the state on disk is dealt to; nil: there is one.
	Drives []Drive
	// Overlap leaves out placements with one weight slot where there are others.
	Overlap bool
	// DataBytes is what was reserved for the documents' index and order when the data were read, and TokenBytes for the
	// tokens that no cache has; 0 where they were not read.
	DataBytes, TokenBytes int64
	// ProgramBytes is reserved for the memory of the process that is not planned: see [ProgramBytes].
	ProgramBytes int64
	// Gradients says whether steps keep their gradients until the norm is known. Auto lets the prediction decide where the
	// disk has a part in a step.
	Gradients Gradients
	// Begun is that of a run that continues: a refusal advises budgets alone, since nothing else may change.
	Begun bool
	// Over is the plan of the steps between which passes continue texts (sampler.go): they run in its memory of the
	// device, over the weights in its store. Nil: the plan has both for itself.
	Over *Plan
	// SamplerBytes is reserved in host memory for a plan that is made over this one.
	SamplerBytes int64
	// Guest is that of a model in memory besides a run: the key of the run file with its budget, such as
	// rl.reference_memory, which has host and device alone. A refusal advises nothing else. Empty: memory, the run's.
	Guest string
}

// budget is the key of a budget: of host, device or disk.
func (r *Request) budget(of string) string { return cmp.Or(r.Guest, "memory") + "." + of }

// shapes reports whether a refusal may advise other keys than those of budgets.
func (r *Request) shapes() bool { return !r.Begun && r.Guest == "" }

// Outputs say what a run computes besides or instead of training steps. A model that is frozen as a whole
// (model.Frozen) can be evaluated and asked for logits only, and takes no memory for gradients.
type Outputs struct {
	LogitRows int  `json:"logit_rows,omitempty"` // rows of each micro-batch whose logits can be asked for at once
	LogProbs  bool `json:"log_probs,omitempty"`  // the log-probability of each target can be asked for
	// Draws says that these rows draw a token each on the device, so that no logits go to the host: see nn.Head.Draws. It
	// is for plans with Caches.
	Draws bool `json:"draws,omitempty"`
	// Caches are kept from pass to pass, so that a pass computes new positions alone (Continue). A pass has
	// Numerics.Positions rows at most. Of a model that is frozen as a whole that is all that Numerics.SequenceLen says:
	// documents are as long as caches. A model that is trained has passes between steps, each of one micro-batch.
	Caches    nn.Caches `json:"caches,omitzero"`
	NoUpdates bool      `json:"no_updates,omitempty"` // gradients are wanted, updates are not: no moments are kept
	// Gradients says that gradients can be read after a step: they wait in the store, where the next step's updates read
	// them.
	Gradients bool `json:"gradients,omitempty"`
	// NoClip says that gradients are not clipped, so that no update need wait for their norm. Where weights are streamed
	// each part is then updated as soon as its gradient is in host memory, and gradients have no place of their own
	// there: see sharedGrads.
	NoClip bool `json:"no_clip,omitempty"`
	// Objective says that an objective gives positions the weights of their losses, from the losses of a step: the head
	// stops for it (nn.Head.Stops).
	Objective bool `json:"objective,omitempty"`
	// Entropies says that this objective also moves with the entropies of positions (nn.Head.Entropies).
	Entropies bool `json:"entropies,omitempty"`
	// TopK is the number of a teacher's likeliest tokens of each position whose logits an objective reads (nn.Head.Picks);
	// 0: none.
	TopK int `json:"top_k,omitempty"`
}

// Picks is the number of tokens of each position whose logits go to the host: the teacher's and the target.
func (o Outputs) Picks() int {
	if o.TopK == 0 {
		return 0
	}
	return o.TopK + 1
}

// keepGradients reports whether the store has all gradients at the end of a step.
func (o Outputs) keepGradients() bool { return o.NoUpdates || o.Gradients }

// FormatVersion is the version of a plan as JSON. Since 2 the placement is a table of places.
const FormatVersion = 2

// Plan has a place and a size for everything, and the predicted time of a step. It is a contract: the engine reserves
// these bytes before the first step and no others after.
type Plan struct {
	Version int          `json:"version"` // of this form as JSON: FormatVersion
	Model   *model.Model `json:"-"`
	// Whole has the numerics of a step, on which the bits of the run depend. Numerics has those of what this host
	// computes of it: buffers, visits and schedules follow from them. Both are the same where one host is alone.
	Whole    Numerics `json:"numerics"`
	Numerics Numerics `json:"host_numerics"`
	Cluster  Cluster  `json:"cluster,omitzero"`
	// ComputedOn names the instructions that, with Numerics, decide the bits of results (device.Info.Numerics).
	ComputedOn string `json:"computed_on,omitempty"`
	// Warning is why the device is slower than it could be (device.Info.Warning).
	Warning   string    `json:"warning,omitempty"`
	Placement Placement `json:"placement"`
	Outputs   Outputs   `json:"outputs,omitzero"`

	Device      []Bytes `json:"device"` // one allocation
	DeviceBytes int64   `json:"device_bytes"`
	// ByDevice is the same by rank, where there are several; Device and DeviceBytes are of the one that has most.
	ByDevice []int64 `json:"bytes_by_device,omitempty"`
	// DeviceDriverBytes is the device memory that the driver takes for itself, outside of that allocation and within
	// the budget; 0 on a unified device, where Host has it.
	DeviceDriverBytes int64 `json:"device_driver_bytes,omitempty"`
	// PinnedBytes is the host memory that is registered with the device. PageTableBytes is the device memory that the
	// driver takes for that, within the budget; 0 on a unified device. Host has the driver's share of host memory.
	PinnedBytes    int64 `json:"pinned_bytes,omitempty"`
	PageTableBytes int64 `json:"page_table_bytes,omitempty"`

	State     []Bytes `json:"state"` // the extents of the store, in host memory
	Host      []Bytes `json:"host"`  // other host memory, the driver's own and the program's included
	HostBytes int64   `json:"host_bytes"`
	// ManifestBytes is the part of Host that the Go heap has for the manifest of a checkpoint that is read or written.
	ManifestBytes int64 `json:"manifest_bytes,omitempty"`

	Disk      []Bytes `json:"disk,omitempty"` // the other extents of the store, with their spare files
	DiskBytes int64   `json:"disk_bytes,omitempty"`
	// ByDrive is DiskBytes by drive, where there are several.
	ByDrive []int64 `json:"bytes_by_drive,omitempty"`
	Space   *Space  `json:"space,omitempty"` // of what a run saves; nil: it is not planned
	Wear    *Wear   `json:"wear,omitempty"`  // of what a run writes; nil: it is not planned
	// Sampler is the plan of passes that continue texts between the steps, in the same memory of the device and over the
	// same weights (sampler.go); nil: passes follow this plan, if it has caches.
	Sampler *Plan `json:"sampler,omitempty"`
	// Round is what the plan means for a round of reinforcement learning; nil: the run has no loop.
	Round *RoundForecast `json:"round,omitempty"`

	Unified      bool       `json:"unified"`
	DeviceBudget int64      `json:"device_budget_bytes"`
	HostBudget   int64      `json:"host_budget_bytes"`
	DiskBudget   int64      `json:"disk_budget_bytes,omitempty"`
	Predicted    Prediction `json:"predicted"`

	// OtherStepSeconds is the step of the plan that treats gradients the other way: keeps them, or computes them twice; 0
	// without one.
	OtherStepSeconds float64 `json:"other_gradients_step_sec,omitempty"`

	asked    *Request // what it was made from, for Why
	owners   []int    // by part: see Owner
	accounts *accounts
	over     *Plan // Request.Over

	fasterAlone bool // than plans for all devices that there are
}

// DeviceTotalBytes is the memory that the run takes of the device, which the budget bounds. Not in it is what no
// program is told, such as the context and the code of a GPU's driver.
func (p *Plan) DeviceTotalBytes() int64 {
	return p.DeviceBytes + p.DeviceDriverBytes + p.PageTableBytes
}

// ProcessBytes is the host memory that the process should be seen to take: on a unified device what the device holds as
// well.
func (p *Plan) ProcessBytes() int64 {
	if p.Unified {
		bytes := p.HostBytes
		for rank := range p.Ranks() {
			bytes += p.RankBytes(rank)
		}
		return bytes
	}
	return p.HostBytes
}

// New makes a plan, or says in one line why no plan fits and which number to change. It ends soon after the context
// does, with the context's error.
func New(ctx context.Context, r Request) (*Plan, error) { return r.choose(ctx, true, 0) }

// Estimate is New in a fraction of its time: a plan that fits if there is one, but only its rings are chosen. It
// serves to compare requests.
func Estimate(ctx context.Context, r Request) (*Plan, error) { return r.choose(ctx, false, 0) }

// Fits says in one line why the request has no plan, if it has none. It simulates nothing.
func (r Request) Fits(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	_, err := (&chooser{Request: r, ctx: ctx}).feasible()
	if err != nil && r.mayChoose() { // which needs less
		return r.with(GradientsTwice).Fits(ctx)
	}
	return err
}

// choose makes a plan. Steps that take longer than most seconds may be predicted to take forever; 0 is no limit.
func (r Request) choose(ctx context.Context, thorough bool, most float64) (*Plan, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := r.Machine.Check(); err != nil { // a simulation without rates would not end
		return nil, fmt.Errorf("%w: plan for a machine of plan.Machines, or for the one that package probe measured", err)
	}
	return r.chooseGradients(ctx, thorough, most)
}

// check refuses numerics that cannot be, and a model that the device cannot compute.
func (r Request) check() error {
	if err := cmp.Or(r.Numerics.Check(), r.checkCluster(), r.checkObjective(), r.checkGradients()); err != nil {
		return err
	}
	switch n := r.Outputs.longest(r.Numerics, trains(r.Model)); {
	case n <= r.Model.MaxPositions:
	case r.Model.LearnsPositions():
		return fmt.Errorf("sequence_len %d is more than the %d positions that the model has weights for; lower "+
			"sequence_len", n, r.Model.MaxPositions)
	default:
		return fmt.Errorf("sequence_len %d is more than the %d positions that the model was made for; lower sequence_len, or raise max_position_embeddings in its config.json",
			n, r.Model.MaxPositions)
	}
	if r.Outputs.Continues() {
		if err := checkCaches(r.Outputs.Caches); err != nil {
			return err
		}
		if n := r.Numerics.MicroBatches; n != 1 && !trains(r.Model) {
			return fmt.Errorf("caches: a step has %d micro-batches, and a pass that continues sequences is one; "+
				"give them a larger micro-batch", n)
		}
		if !CanContinue(r.Model) {
			return errors.New("caches: the model has blocks that keep nothing from pass to pass")
		}
	}
	if o := r.Outputs; o.Draws && (!o.Continues() || o.LogitRows == 0 || r.Model.Vocab > device.MaxDrawVocab) {
		return fmt.Errorf("draws: they are of rows that continue sequences, and of a vocabulary of at most %d; the plan "+
			"has %d such rows, and the model a vocabulary of %d", device.MaxDrawVocab, o.LogitRows, r.Model.Vocab)
	}
	if err := r.checkCohorts(); err != nil {
		return err
	}
	for layer, d := range r.Model.Blocks {
		if err := r.checkHeads(layer, d); err != nil {
			return err
		}
	}
	if err := r.checkDelta(); err != nil {
		return err
	}
	if most := r.Device.MaxExperts; most > 0 {
		for layer, d := range r.Model.Blocks {
			if n := d.Loads(); n > most {
				return fmt.Errorf("num_experts: layer %d has %d experts, and a token on %s can choose from %d; "+
					"set device to cpu", layer, n, r.Device.Name, most)
			}
		}
	}
	return nil
}

// checkCaches refuses caches whose rows have no numbers, or that have no room for a sequence of all its positions.
func checkCaches(c nn.Caches) error {
	const most = MaxPositionsPerMicroBatch
	switch {
	case c.Positions < 1 || c.BlockRows < 0 || c.BlockRows > most:
		return fmt.Errorf("caches of %d sequences of %d positions, in blocks of %d: each is positive", c.Sequences,
			c.Positions, c.BlockRows)
	case c.BlockRows == 0 && c.Sequences > most/c.Positions, c.BlockRows > 0 && c.Blocks > most/c.BlockRows:
		return fmt.Errorf("caches of %d sequences of %d positions: they may have %d rows together", c.Sequences,
			c.Positions, most)
	case c.BlockRows > 0 && c.Blocks < c.BlocksEach():
		return fmt.Errorf("caches of %d blocks of %d positions: a sequence of %d positions takes %d", c.Blocks,
			c.BlockRows, c.Positions, c.BlocksEach())
	case c.Sequences > math.MaxInt32/2/c.Each():
		return fmt.Errorf("caches of %d sequences of %d positions: these have no numbers of 32 bits", c.Sequences,
			c.Positions)
	}
	return nil
}

// checkHeads refuses a layer with wider heads of attention than the device takes, before anything is computed.
func (r Request) checkHeads(layer int, d *nn.Block) error {
	columns, capped := d.AttentionHead()
	limits, compute := r.Device.MaxHeadDim, r.Numerics.Compute
	most := limits.Of(compute, capped)
	if most == 0 || columns <= most {
		return nil
	}
	remedy := "set device to cpu"
	switch {
	case columns <= limits.Of(tensor.BF16, capped):
		remedy = "set precision: {compute: bf16}, or device: cpu"
	case r.Device.Unified:
		remedy = "choose a model with narrower ones"
	}
	return fmt.Errorf("head_dim: layer %d has heads of %d columns, and on %s they can have %d in %v; %s", layer,
		columns, cmp.Or(r.Device.Name, "this device"), most, compute, remedy)
}

// checkDelta refuses gated delta nets with wider heads, or more of them, than the device has scratch for.
func (r Request) checkDelta() error {
	columns, heads := r.Device.MaxDeltaDim, r.Device.MaxDeltaHeads
	if columns == 0 && heads == 0 {
		return nil
	}
	blocks, _ := r.Model.ForwardAccount([]int{1})
	name := cmp.Or(r.Device.Name, "this device")
	if columns > 0 && blocks.DeltaDim > columns {
		return fmt.Errorf("linear_key_head_dim, linear_value_head_dim: the model has heads of %d columns in gated "+
			"delta nets, and on %s they can have %d; choose a model with narrower ones", blocks.DeltaDim, name, columns)
	}
	if heads > 0 && blocks.DeltaHeads > heads {
		return fmt.Errorf("linear_num_value_heads: the model has gated delta nets of %d heads, and on %s they can "+
			"have %d; set device to cpu", blocks.DeltaHeads, name, heads)
	}
	return nil
}

// CanContinue reports whether passes over a model can continue those before them: whether it has one chain, all blocks
// of which keep what that takes.
func CanContinue(m *model.Model) bool {
	return len(m.Chains) == 1 && !slices.ContainsFunc(m.Blocks, func(d *nn.Block) bool { return !d.CanContinue() })
}

// Continues reports whether passes continue sequences.
func (o Outputs) Continues() bool { return o.Caches.Sequences > 0 }

// longest is the length of the longest document, of a model that is trained or not.
func (o Outputs) longest(n Numerics, trains bool) int {
	switch {
	case !o.Continues():
		return n.SequenceLen
	case trains:
		return max(n.SequenceLen, o.Caches.Positions)
	}
	return o.Caches.Positions
}

// LongestDocument is the number of positions that the longest document can have.
func (p *Plan) LongestDocument() int { return p.Outputs.longest(p.Numerics, p.Trains()) }

// Schedule is the step that the engine walks in a pass, as it usually comes: see Mode.
func (p *Plan) Schedule(pass Pass) *Schedule { return p.ScheduleOf(usual(pass)) }

// RankBytes is the memory that a rank's buffers take.
func (p *Plan) RankBytes(rank int) int64 {
	if len(p.ByDevice) == 0 {
		return p.DeviceBytes
	}
	return p.ByDevice[rank]
}

// Extents lists what the store has to keep of the parameters.
func (p *Plan) Extents() []store.Spec { return p.extentsIn(nil) }

// extentsIn is Extents in memory that they overwrite, if it has room.
func (p *Plan) extentsIn(specs []store.Spec) []store.Spec {
	specs = slices.Grow(specs[:0], len(p.Model.Parts)*store.Kinds)
	forms := p.forms()
	for i := range p.Model.Parts {
		specs = p.extents(specs, i, forms)
	}
	return specs
}

// Pinned reports whether host memory of a purpose, one of State or Host, is registered with the device: all that it
// copies. State that it does not update stays the host's alone.
func (p *Plan) Pinned(purpose string) bool {
	switch purpose {
	case TokensPurpose, ResultsPurpose, InputsPurpose, SidesPurpose, HeldPurpose, KeptPurpose,
		OutcomesPurpose, CachesPurpose, LogitsPurpose, EmbeddingSumPurpose, SumsPurpose, stagingPurpose,
		store.Weights.String():
		return true
	case store.Grad.String():
		return !p.Cluster.Several()
	}
	for _, kind := range p.stateKinds() {
		if purpose == kind.String() {
			return p.Unified || p.AnyStateResident() || p.anyStatePasses()
		}
	}
	return false
}

// With is the same plan with another placement: for tests of the law that a placement changes no bit.
func (p *Plan) With(place Placement) *Plan {
	c := &chooser{Request: Request{Model: p.Model, Numerics: p.Whole, Cluster: p.Cluster, Outputs: p.Outputs,
		Device: device.Info{Unified: p.Unified}, Over: p.over}}
	return c.measure(place)
}
