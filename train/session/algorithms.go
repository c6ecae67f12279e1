package session

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/vfs"
)

// chosen are the algorithms that a device chose for matrix products (device.ProductTuner). They decide the last bits
// of results, so a checkpoint has those of its run, and the cache directory those of this machine: two runs on one
// machine compute the same bits.
type chosen struct {
	ComputedOn string   `json:"computed_on"` // device.Info.Numerics: the choices mean nothing to another device or library
	Algorithms []string `json:"algorithms"`
}

// algorithmsFile keeps the choices, in the cache directory.
const algorithmsFile = "algorithms.json"

// maxAlgorithmsBytes bounds that file: some thousand shapes. A longer one is not read, and begins again.
const maxAlgorithmsBytes = 4 << 20

// shapeOf is the product that a line chooses an algorithm for, see device.ProductTuner.
func shapeOf(line string) string {
	shape, _, _ := strings.Cut(line, ": ")
	return shape
}

// byShape are lines by the products that they choose for.
func byShape(lines []string) map[string]string {
	all := make(map[string]string, len(lines))
	for _, line := range lines {
		all[shapeOf(line)] = line
	}
	return all
}

// recallAlgorithms has the devices make the choices of the runs before on this machine, and before those the choices of
// the run that this one continues.
func (s *Session) recallAlgorithms() {
	use := func(where string, from *chosen) []string {
		if from == nil || from.ComputedOn != s.Plan.ComputedOn {
			return nil
		}
		for _, tuner := range s.tuners {
			if err := tuner.UseAlgorithms(from.Algorithms); err != nil {
				s.Env.Note("the algorithms of matrix products in %s are not used, and the last bits may differ from "+
					"earlier runs: %v", where, err)
				return nil
			}
		}
		return from.Algorithms
	}
	kept, err := s.Env.readAlgorithms()
	if err != nil {
		s.Env.Note("the algorithms of matrix products are chosen again, and the last bits may differ from earlier runs: %v",
			err)
	}
	s.kept, s.continued = use(algorithmsFile, kept), use("the checkpoint", s.recalled)
}

// rememberAlgorithms keeps the devices' choices for later runs, and says which choices of earlier ones were not
// possible. The file's choice of a shape stays, unless the device has no such algorithm: a run that continues another
// machine's choices changes none of this one's. Choices of a checkpoint are not written: it may come from elsewhere,
// and what it brings ends with the run. Nor are choices that the device neither made nor checked.
func (s *Session) rememberAlgorithms() {
	if s.tuners == nil {
		return
	}
	lines := s.Algorithms()
	made := byShape(lines)
	others := func(recalled []string) (n int) {
		for _, line := range recalled {
			if now, ok := made[shapeOf(line)]; ok && now != line {
				n++
			}
		}
		return n
	}
	continued := byShape(s.continued)
	kept := slices.DeleteFunc(slices.Clone(s.kept), func(line string) bool {
		now, ok := made[shapeOf(line)]
		return ok && now != line && now != continued[shapeOf(line)]
	})
	if n := others(s.continued); n > 0 {
		s.Env.Note("resume: the device does not offer %d of the checkpoint's %d algorithms of matrix products any more: "+
			"the run continues with others, and with other last bits than with those", n, len(s.continued))
	} else if n := len(s.kept) - len(kept); n > 0 {
		s.Env.Note("the device does not offer %d of the %d algorithms of matrix products in %s any more: others are chosen, "+
			"and the last bits may differ from earlier runs", n, len(s.kept), algorithmsFile)
	}
	if s.Env.CacheDir == "" {
		return
	}
	known := byShape(kept)
	var mine []string // of this run's products
	for _, line := range lines {
		if was, ok := known[shapeOf(line)]; ok {
			mine = append(mine, was)
		} else if line != continued[shapeOf(line)] {
			mine, kept = append(mine, line), append(kept, line)
		}
	}
	slices.Sort(kept)
	text, err := s.algorithmsText(kept)
	if err == nil && len(text) > maxAlgorithmsBytes {
		text, err = s.algorithmsText(mine)
	}
	if err == nil {
		err = vfs.ReplaceFile(filepath.Join(s.Env.CacheDir, algorithmsFile), text)
	}
	if err != nil {
		s.Env.Note("the algorithms of matrix products could not be kept; the next run chooses again, and its last bits may "+
			"differ: %v", err)
	}
}

// algorithmsText is the file of choices.
func (s *Session) algorithmsText(lines []string) ([]byte, error) {
	text, err := json.MarshalIndent(chosen{s.Plan.ComputedOn, lines}, "", "  ")
	return append(text, '\n'), err
}

// Algorithms are the devices' choices, for a checkpoint: where several chose, they chose alike.
func (s *Session) Algorithms() (lines []string) {
	for _, tuner := range s.tuners {
		lines = append(lines, tuner.Algorithms()...)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// readAlgorithms returns the choices in the cache directory; none is no error.
func (e *Env) readAlgorithms() (*chosen, error) {
	if e.CacheDir == "" {
		return nil, nil
	}
	text, err := vfs.ReadOwn(filepath.Join(e.CacheDir, algorithmsFile), maxAlgorithmsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	c := &chosen{}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}
