package stream

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
)

// Two engines may take turns in one allocation of each device, and over one store: one takes steps, and the other one
// writes texts between them (plan/sampler.go). Each call of an engine begins with its turn. The engine before gives
// the device up: its pending update is carried out, and state that lives there is written back, as for a checkpoint.
// Then the memory is as a new engine's: zeros, with tables and constants. All else comes with the next schedule.
// Neither of them sees anything else of the other.

// turn says which of two engines has the devices.
type turn struct {
	of *Engine
}

// arena is the memory of a rank's device: its own, or that of the engine that it takes turns with.
func (e *Engine) arena(rank int) (device.Mem, error) {
	bytes := e.Plan.RankBytes(rank)
	if e.Over != nil {
		all := e.Over.ranks[rank].arena
		if all.Len < bytes {
			return device.Mem{}, fmt.Errorf("an engine needs %d bytes on device %d, and takes turns with one that has %d "+
				"there; plan it over the other one's plan, and that one with it", bytes, rank, all.Len)
		}
		return all.Slice(0, bytes), nil
	}
	buf, err := e.Devices[rank].Alloc("arena", bytes)
	if err != nil {
		return device.Mem{}, err
	}
	e.closers = append(e.closers, buf.Close)
	return device.Whole(buf), nil
}

// shareStore knows the regions of the store as the other engine does, which has registered them.
func (e *Engine) shareStore() {
	for _, r := range e.Store.Regions() {
		if mem, ok := e.Over.onHost[r]; ok {
			e.onHost[r] = mem
		}
		for i := range e.ranks {
			if mem, ok := e.Over.ranks[i].registered[r]; ok {
				e.ranks[i].registered[r] = mem
			}
		}
	}
}

// beginTurns gives the first of two engines the devices, and has the second one wait for its turn.
func (e *Engine) beginTurns() error {
	if e.Over != nil {
		e.turn = e.Over.turn
		return nil
	}
	e.turn = &turn{of: e}
	return e.loadFixed()
}

// loadFixed brings to the devices what nothing changes.
func (e *Engine) loadFixed() error {
	for i := range e.ranks {
		if err := e.loadTables(i); err != nil {
			return err
		}
		if err := e.loadConstants(i); err != nil {
			return err
		}
	}
	return nil
}

// takeTurn has the devices hold what is this engine's.
func (e *Engine) takeTurn(ctx context.Context) error {
	if e.broken != nil || e.turn.of == e {
		return e.broken
	}
	if err := ctx.Err(); err != nil {
		return err // nothing has been touched
	}
	if err := e.turn.of.finish(ctx, true); err != nil {
		return err
	}
	e.turn.of = e
	e.reload()
	clear(e.reached)
	if err := e.renew(); err != nil {
		e.broken = fmt.Errorf("the engine stopped: %w", err)
	}
	return e.broken
}

// renew has the devices hold what they do after New: zeros, since rows that nothing has written are computed with
// others, and what nothing changes.
func (e *Engine) renew() error {
	for i := range e.ranks {
		s := e.workers[e.crew.Index(plan.LaneFetch.Of(i))].stream
		s.Zero(e.ranks[i].arena)
		if err := s.Sync(); err != nil {
			return err
		}
	}
	return e.loadFixed()
}
