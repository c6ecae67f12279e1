package session

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/drive"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
)

// cooling slows a drive of the disk tier down while it is nearly as hot as it warns of. A drive that gets hotter slows
// itself down by far more, or fails. A directory may be on an array of drives, which are watched together.
//
// Each worker of the drive asks it how long to rest when it has read or written a piece. The first one that asks in ten
// seconds reads the thermometers.
type cooling struct {
	thermometers []thermometer
	now          func() time.Time

	mu     sync.Mutex
	next   time.Time // when they are read again
	hot    string    // the drive that is hot; empty: none is
	rest   float64   // of a worker, as a multiple of the time that it was busy
	untold []Event   // see Session.TellOfDrives
}

// thermometer reads the heat of a drive.
type thermometer struct {
	name string
	read func() (drive.Reading, error)
}

// Temperatures are in degrees Celsius. The rest takes half of the drive's work from it, and from its warning on three
// quarters.
const (
	hotBelowWarning  = 5  // a drive is hot from so much below its warning on
	coolBelowWarning = 12 // and until it is so much below

	restOfHot     = 1
	restOfWarning = 3

	readEach    = 10 * time.Second
	longestRest = 5 * time.Second
)

// coolDrives are the drives of the session's disk tier, each of which is watched and rests alone. Directories with the
// same thermometers have one watch.
func (s *Session) coolDrives() (drives []store.Drive) {
	for _, dir := range s.stateDirs {
		at := store.Drive{Dir: dir}
		if c := s.Env.coolingFor(s.Plan, dir); c != nil {
			if i := slices.IndexFunc(s.cooling, c.isAlike); i >= 0 {
				c = s.cooling[i]
			} else {
				s.cooling = append(s.cooling, c)
			}
			at.Rest = c.restAfter
		}
		drives = append(drives, at)
	}
	return drives
}

// isAlike reports whether two read the same thermometers.
func (c *cooling) isAlike(other *cooling) bool {
	return slices.EqualFunc(c.thermometers, other.thermometers, func(a, b thermometer) bool { return a.name == b.name })
}

// coolingFor returns the cooling of the drives with a directory that has the state of a plan; nil where the plan has no
// state on disk, and where no thermometer of the drives is known.
func (e *Env) coolingFor(p *plan.Plan, dir string) *cooling {
	if p.DiskBytes == 0 {
		return nil
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) { // it may not be there yet
		if _, err := os.Stat(dir); err == nil {
			break
		}
	}
	c := &cooling{now: e.Time().Now}
	for _, s := range drive.Sensors(cmp.Or(e.Tests.SysFS, drive.SysFS), dir) {
		if _, err := s.Read(); err == nil {
			c.thermometers = append(c.thermometers, thermometer{s.Name, s.Read})
		}
	}
	if c.thermometers == nil {
		return nil
	}
	return c
}

// DriveHot warns that a drive with the state of the run is nearly as hot as it warns of.
type DriveHot struct {
	Drive                string
	Celsius, WarnCelsius float64
}

func (e DriveHot) String() string {
	return fmt.Sprintf("warning: drive %s is at %.0f degrees Celsius and warns from %.0f on: state on disk is read and "+
		"written more slowly until it has cooled", e.Drive, e.Celsius, e.WarnCelsius)
}

// TellOfDrives tells what the session has found of the heat of its drives since the latest call: workers of the disk
// tier find it, and lines come from the run alone.
func (s *Session) TellOfDrives() {
	for _, c := range s.cooling {
		c.mu.Lock()
		events := c.untold
		c.untold = nil
		c.mu.Unlock()
		for _, event := range events {
			s.Env.Tell(event)
		}
	}
}

// restAfter returns how long a worker of the disk tier rests that was busy for a time.
func (c *cooling) restAfter(busy time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); !now.Before(c.next) {
		c.next = now.Add(readEach)
		c.look()
	}
	return min(time.Duration(c.rest*float64(busy)), longestRest)
}

// look reads the thermometers, and notes where a drive has become hot, or is no longer. One that cannot be read is
// passed over; where none can be, all stays as it was.
func (c *cooling) look() {
	const cold = -1000
	nearest, at, name := float64(cold), drive.Reading{}, "" // the drive that is nearest to its warning
	for _, t := range c.thermometers {
		if r, err := t.read(); err == nil && r.Celsius-r.WarnCelsius > nearest {
			nearest, at, name = r.Celsius-r.WarnCelsius, r, t.name
		}
	}
	was := c.hot
	switch {
	case name == "": // none has answered
	case nearest >= 0:
		c.hot, c.rest = name, restOfWarning
	case nearest >= -hotBelowWarning:
		c.hot, c.rest = name, restOfHot
	case nearest < -coolBelowWarning:
		c.hot, c.rest = "", 0
	case was != "":
		c.rest = restOfHot
	}
	switch {
	case was == "" && c.hot != "":
		c.untold = append(c.untold, DriveHot{name, at.Celsius, at.WarnCelsius})
	case was != "" && c.hot == "":
		c.untold = append(c.untold, Note{fmt.Sprintf("drive %s has cooled: state on disk is read and written at full "+
			"speed again", was)})
	}
}
