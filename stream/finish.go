package stream

import (
	"time"

	"github.com/millrace/millrace/internal/fault"
)

// At the end of a schedule hosts wait for each other's results. A schedule that saves ends when the state has been
// handed over. That takes hours where a host copies it to a slow drive, while another one links it at once, and no
// message may take so long. So a host whose lanes still work tells the others every beat that it has no results yet, by
// empty ones. It does not where no operation has ended since the last time: a drive that hangs stays a wait that is too
// long.

// beat is the time between two of these.
const beat = 2 * time.Second

// finish returns when all lanes have done their work. The error is that of peers meanwhile.
func (r *execution) finish(saves bool) error {
	if !saves || r.Plan.Cluster.Count() == 1 {
		r.group.Wait()
		return nil
	}
	ended := make(chan struct{})
	fault.Go(func() {
		r.group.Wait()
		close(ended)
	})
	due := time.NewTicker(beat)
	defer due.Stop()
	for told := 0; ; {
		select {
		case <-ended:
			return nil
		case <-due.C:
		}
		now := r.done()
		if now == told {
			continue
		}
		told = now
		if _, err := r.Peers.Exchange(nil); err != nil {
			r.giveUp()
			<-ended
			return err
		}
	}
}

// done grows with every operation that ends.
func (r *execution) done() (sum int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, passed := range r.passed {
		sum += passed
	}
	return sum
}
