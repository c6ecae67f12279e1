package train

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/vfs"
)

// chosen are the algorithms that a device chose for matrix products (device.ProductTuner). They decide the last bits
// of results, so a checkpoint has those of its run, and the cache directory those of this machine: two runs on one
// machine compute the same bits.
type chosen struct {
	ComputedOn string   `json:"computed_on"` // device.Info.Numerics: the choices mean nothing to another device or library
	Algorithms []string `json:"algorithms"`
}

// algorithmsFile is where choices are kept, in the cache directory.
const algorithmsFile = "algorithms.json"

// recallAlgorithms has the device make the choices of the run that this one continues, or else of the runs before on
// this machine.
func (s *Session) recallAlgorithms() {
	from, where := s.recalled, "the checkpoint"
	if from == nil {
		var err error
		if from, err = s.env.readAlgorithms(); err != nil {
			s.env.say("the algorithms of matrix products are chosen again, and the last bits may differ from earlier runs: %v", err)
			return
		}
		where = algorithmsFile
	}
	if from.ComputedOn != s.plan.ComputedOn {
		return
	}
	if err := s.tuner.UseAlgorithms(from.Algorithms); err != nil {
		s.env.say("the algorithms of matrix products in %s are not used, and the last bits may differ from earlier runs: %v", where, err)
	}
}

// rememberAlgorithms keeps the device's choices for later runs.
func (s *Session) rememberAlgorithms() {
	if s.tuner == nil || s.env.CacheDir == "" {
		return
	}
	text, err := json.MarshalIndent(chosen{s.plan.ComputedOn, s.tuner.Algorithms()}, "", "  ")
	if err == nil {
		err = vfs.ReplaceFile(filepath.Join(s.env.CacheDir, algorithmsFile), append(text, '\n'))
	}
	if err != nil {
		s.env.say("the algorithms of matrix products could not be kept; the next run chooses again, and its last bits may differ: %v", err)
	}
}

// Algorithms are the device's choices, for a checkpoint.
func (s *Session) Algorithms() []string {
	if s.tuner == nil {
		return nil
	}
	return s.tuner.Algorithms()
}

// readAlgorithms is what the cache directory has; nothing is no error.
func (e *Env) readAlgorithms() (*chosen, error) {
	c := &chosen{}
	if e.CacheDir == "" {
		return c, nil
	}
	path := filepath.Join(e.CacheDir, algorithmsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	return c, err
}
