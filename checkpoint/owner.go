package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
)

// RunID names a run, wherever its files are: 128 random bits as 32 hexadecimal digits, made when the run first starts.
// Checkpoints from before there were ids have an empty one.
type RunID string

// NewRunID makes the id of a run that has none.
func NewRunID() RunID {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // it never fails
	return RunID(hex.EncodeToString(bits[:]))
}

// Short returns the digits of the id that names of directories and files contain.
func (id RunID) Short() string { return string(id[:min(len(id), shortDigits)]) }

const (
	idDigits    = 32
	shortDigits = 8
)

// Check refuses what NewRunID does not make. The empty id is one.
func (id RunID) Check() error {
	if id == "" || len(id) == idDigits && isHex(string(id)) {
		return nil
	}
	return fmt.Errorf("%s is not the id of a run", quote(string(id)))
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if !('0' <= c && c <= '9') && !('a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// Owner is the run that a directory of checkpoints belongs to. The rule of this package: what has another id is not
// adopted, not counted, not replaced and not removed, wherever it is.
type Owner struct {
	Run RunID
	// Earlier are the runs whose checkpoints came into the directory with it, as it is a copy of theirs.
	Earlier []RunID
}

// Has reports whether a checkpoint with this id is the owner's.
func (o Owner) Has(id RunID) bool { return id == o.Run || slices.Contains(o.Earlier, id) }
