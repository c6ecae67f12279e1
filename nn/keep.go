package nn

import (
	"fmt"
	"slices"
)

// Keep says what a block's forward leaves for its backward, so that backward computes less again. Each level includes
// the ones before it. The block's input is always there. Which of its buffers a half keeps at a level is in its table
// of buffers; the names are those of attention and a GLU.
type Keep uint8

const (
	KeepInput     Keep = iota // nothing more: all is computed again
	KeepAttention             // the attention's output and log-sum-exp
	KeepGateUp                // and the gate and up projections
	KeepAll                   // and the other matrix products; what is left to repeat is element-wise
	keeps
)

// Keeps is the number of levels.
const Keeps = int(keeps)

var keepNames = [Keeps]string{"input", "attention", "gate-up", "all"}

// String is the name that plans show: "input", "attention", "gate-up", "all".
func (k Keep) String() string {
	if k >= keeps {
		return fmt.Sprintf("keep(%d)", uint8(k))
	}
	return keepNames[k]
}

// MarshalText is the level's name.
func (k Keep) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a level's name.
func (k *Keep) UnmarshalText(name []byte) error {
	i := slices.Index(keepNames[:], string(name))
	if i < 0 {
		return fmt.Errorf("%q is not one of %v", name, keepNames)
	}
	*k = Keep(i)
	return nil
}
