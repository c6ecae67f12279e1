package plan

// Phase says which schedule of a run is asked for. A step ends when its norm is known; its updates belong to the next
// schedule, where they overlap with the forward pass.
type Phase uint8

// The phases.
const (
	Prologue Phase = iota // a step with no updates pending: the first one, and the one after a flush
	Steady                // the pending updates, then a step
	Flush                 // the pending updates alone
	Forwards              // evaluation: forward and loss, no updates pending
	Logits                // forward and the logits of the wanted rows, no updates pending
	Continue              // forward of positions that follow those in caches, and logits of the wanted rows
	Nothing               // no updates pending and no step: what a saving schedule has left to do
)

// String is the phase's name.
func (p Phase) String() string {
	return [...]string{"prologue", "steady", "flush", "forward", "logits", "continue", "nothing"}[p]
}

// Steps reports whether a schedule of the phase is a step: it computes gradients.
func (p Phase) Steps() bool { return p == Prologue || p == Steady }

// Updates reports whether a schedule of the phase begins with the pending updates.
func (p Phase) Updates() bool { return p == Steady || p == Flush }

// Runs reports whether a schedule of the phase goes through layers.
func (p Phase) Runs() bool { return p != Flush && p != Nothing }

// ForwardOnly reports whether a schedule of the phase runs forward alone: it leaves the state as it is.
func (p Phase) ForwardOnly() bool { return p.Runs() && !p.Steps() }

// WantsLogits reports whether a schedule of the phase computes logits instead of a loss.
func (p Phase) WantsLogits() bool { return p == Logits || p == Continue }

// Mode says which schedule is asked for.
type Mode struct {
	Phase Phase
	// Saves takes the state of every part to a checkpoint, after its update if it has one. The state is then the one
	// after the step before.
	Saves bool
	// Loaded says that a schedule before has brought what lives on the device there; else this one does, if it runs
	// layers.
	Loaded bool
	// WriteBack copies state that is resident on the device to the store, after its update, for who reads it there.
	WriteBack bool
}

// usual is the mode in which a phase comes without a save: state is on the device from the second step on, and a
// flush writes it back.
func usual(phase Phase) Mode {
	return Mode{Phase: phase, Loaded: phase.Updates(), WriteBack: phase == Flush}
}
