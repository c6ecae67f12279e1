package train

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/trace"
)

// What hosts tell each other after each step. A process that is alone tells nothing.

// awaited are peers that count how long this host has waited in exchanges for slower ones. One goroutine exchanges. An
// engine that gives nothing still works: it does not wait.
type awaited struct {
	stream.Peers
	waited time.Duration
}

func (a *awaited) Exchange(b []byte) ([][]byte, error) {
	begin := time.Now()
	all, err := a.Peers.Exchange(b)
	if len(b) > 0 {
		a.waited += time.Since(begin)
	}
	return all, err
}

// take returns the time since the last call.
func (a *awaited) take() time.Duration {
	d := a.waited
	a.waited = 0
	return d
}

// anywhere reports whether any host calls it with true. All hosts call it.
func (c *Cluster) anywhere(is bool) (bool, error) {
	if c == nil {
		return is, nil
	}
	all, err := exchange(c, is)
	return slices.Contains(all, true), err
}

// stopsAnywhere reports whether any host has been asked to end. All hosts call it. The context of one that ends before
// it has a step to finish asks all of them; a process that is alone finds that out by itself.
func (e *Env) stopsAnywhere(ctx context.Context) (bool, error) {
	return e.Cluster.anywhere(e.stopped() || e.Cluster != nil && ctx.Err() != nil)
}

// pace tells the other hosts what a step was on a host, and what the host wants next.
type pace struct {
	Sec     float64     `json:"sec"` // of the step, without what it waited for others
	Lanes   trace.Lanes `json:"lanes"`
	Peak    int64       `json:"peak"`
	Read    int64       `json:"read"`
	Written int64       `json:"written"`
	Save    bool        `json:"save"`     // the state is due to be saved
	WaitSec float64     `json:"wait_sec"` // for memory.max_write_per_day
}

// pace has all hosts do the same after a step: they save when host 0 finds that due, and wait as long as the one that
// waits longest.
func (t *trainer) pace(m *trace.Metrics, wait time.Duration) (save bool, _ time.Duration, _ error) {
	c, save := t.env.Cluster, t.saves.isDue(t.steps)
	if c == nil {
		return save, wait, nil
	}
	all, err := exchange(c, pace{m.StepSec - t.session.peers.take().Seconds(), m.Lanes, m.HostPeakBytes,
		m.DiskReadBytes, m.DiskWrittenBytes, save, wait.Seconds()})
	if err != nil {
		return false, 0, err
	}
	of := &trace.Hosts{}
	m.Hosts = of
	longest, slowest := 0.0, 0
	for host, p := range all {
		of.StepSec, of.Lanes = append(of.StepSec, p.Sec), append(of.Lanes, p.Lanes)
		of.PeakBytes = append(of.PeakBytes, p.Peak)
		of.DiskReadBytes = append(of.DiskReadBytes, p.Read)
		of.DiskWrittenBytes = append(of.DiskWrittenBytes, p.Written)
		longest = max(longest, p.WaitSec)
		if p.Sec > all[slowest].Sec {
			slowest = host
		}
	}
	of.Slowest = c.Name(slowest)
	t.waitForSteps(all[slowest].Sec)
	if longest > 0 {
		m.WriteWaitSec = &longest
	}
	return all[0].Save, time.Duration(longest * float64(time.Second)), nil
}

// stepEnd tells the other hosts how a step has ended.
type stepEnd struct {
	Stop bool `json:"stop"` // it was asked to end
	told
}

// stepAlike is step on all hosts. They agree on its error, and on whether the run is to end after it since any of them
// was asked to.
func (t *trainer) stepAlike(ctx context.Context, step int) (stop bool, err error) {
	err = t.step(ctx, step)
	c := t.env.Cluster
	if c == nil || isAlone(err) {
		return t.env.stopped(), err
	}
	all, errPeers := exchange(c, stepEnd{t.env.stopped(), toldOf(err)})
	if errPeers != nil {
		return false, errPeers
	}
	tells := make([]told, len(all))
	for host, end := range all {
		stop, tells[host] = stop || end.Stop, end.told
	}
	return stop, c.first(err, tells)
}

// endAlike gives everything back, such as files of state, whose removal may take longer than hosts wait, and returns
// the error that all hosts end with.
func (t *trainer) endAlike(err error) error {
	if isAlone(err) {
		t.giveBack(err)
		return err // which the others learn by this one's end
	}
	hosts := (*HostsError)(nil)
	isKnown := errors.As(err, &hosts)
	agreed := t.env.together(context.Background(), func(context.Context) error {
		t.giveBack(err)
		if isKnown {
			return nil
		}
		return err
	})
	if isKnown {
		return err
	}
	return agreed
}

// pauseAlike is pause on all hosts, which ends when any of them is asked to end.
func (t *trainer) pauseAlike(ctx context.Context, wait time.Duration) error {
	if t.env.Cluster == nil {
		return t.pause(ctx, wait)
	}
	for stop := false; wait > 0 && !stop; wait -= beat {
		err := t.pause(ctx, min(wait, beat))
		if err == nil {
			stop, err = t.env.stopsAnywhere(ctx)
		}
		if err != nil {
			return t.env.Cluster.alone(err)
		}
	}
	return nil
}
