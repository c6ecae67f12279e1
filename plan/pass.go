package plan

// Pass says which schedule of a run is asked for: what it begins with, and how far it goes through the layers. A step
// ends when its norm is known; its updates belong to the next schedule, where they overlap with the way up.
type Pass struct {
	Updates   bool  // it begins with the pending updates
	To        Point // how far it goes through layers
	Continues bool  // with positions that follow those in caches
	Half      Half  // of a step that computes its gradients twice
}

// Half says which half of a step a pass is, where gradients are computed twice (Placement.Twice).
type Half uint8

// The halves.
const (
	Whole      Half = iota // the step is one pass
	ForNorm                // up and down: of each gradient the sum of squares is kept
	ForUpdates             // down again: each gradient updates its part as soon as it is there
)

// Point says how far a pass goes.
type Point uint8

// The points.
const (
	ToNone      Point = iota // no layer is visited
	ToLosses                 // up, and the losses
	ToLogits                 // up, and the logits of the wanted rows
	ToGradients              // up to the losses, and down to the lowest layer that is trained
)

// The passes of runs.
var (
	Prologue   = Pass{To: ToGradients}                // no updates are pending: the first step, and one after a flush
	Steady     = Pass{Updates: true, To: ToGradients} // the pending updates, then a step
	FirstHalf  = Pass{To: ToGradients, Half: ForNorm} // of a step that computes its gradients twice
	SecondHalf = Pass{Updates: true, To: ToGradients, Half: ForUpdates}
	Flush      = Pass{Updates: true}                 // the pending updates alone
	Forwards   = Pass{To: ToLosses}                  // evaluation, no updates pending
	Logits     = Pass{To: ToLogits}                  // no updates pending
	Continue   = Pass{To: ToLogits, Continues: true} // positions that follow those in caches
	Nothing    = Pass{}                              // what a saving schedule has left to do
)

// String is the pass's name.
func (p Pass) String() string {
	switch {
	case p == Prologue:
		return "prologue"
	case p == Steady:
		return "steady"
	case p.Half != Whole:
		return [...]string{ForNorm: "first half", ForUpdates: "second half"}[p.Half]
	case p.Continues:
		return "continue"
	case p.Updates:
		return "flush"
	}
	return [...]string{"nothing", "forward", "logits", "prologue"}[p.To]
}

// Steps reports whether a schedule of the pass is a step: it computes gradients.
func (p Pass) Steps() bool { return p.To == ToGradients }

// Runs reports whether a schedule of the pass goes through layers.
func (p Pass) Runs() bool { return p.To != ToNone }

// ForwardOnly reports whether a schedule of the pass goes up alone: it leaves the state as it is.
func (p Pass) ForwardOnly() bool { return p.Runs() && !p.Steps() }

// Mode says which schedule is asked for.
type Mode struct {
	Pass Pass
	// Saves takes the state of every part to a checkpoint, after its update if it has one. The state is then the one
	// after the step before.
	Saves bool
	// Loaded says that a schedule before has brought what lives on the device there; else this one does, if it runs
	// layers.
	Loaded bool
	// Again says that the schedule before was of this pass, too, which continues texts: weights that live on the device
	// are there as the store has them. A step or a flush between them changes these.
	Again bool
	// WriteBack copies state that is resident on the device to the store, after its update, for who reads it there.
	WriteBack bool
}

// usual is the mode in which a pass comes without a save: state is on the device from the second step on, and a
// flush writes it back.
func usual(pass Pass) Mode {
	return Mode{Pass: pass, Loaded: pass.Updates, WriteBack: pass == Flush}
}
