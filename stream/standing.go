package stream

import "fmt"

// Standing says what the engine is at, for hosts that wait for this one, and the host whose message it needs for that:
// this one itself where it needs none, and -1 between two schedules and while results are exchanged. Any goroutine may
// call it.
//
// The first operation of a schedule that is not done waits for none that comes later, and all hosts have the messages
// between them in the same order. So who goes from a host to the one whose message it needs comes to the one that holds
// up all others, and never in a circle.
func (e *Engine) Standing() (at string, host int) {
	r := e.current.Load()
	if r == nil {
		if n := e.latest.Load(); n > 0 {
			return fmt.Sprintf("after the work of step %d", n), -1
		}
		return "before the first step", -1
	}
	of := ""
	if r.stepNo > 0 {
		of = fmt.Sprintf("step %d, ", r.stepNo)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.ops {
		op := &r.ops[i]
		if r.passed[r.indexOf(op)] > i {
			continue
		}
		host := e.Plan.Cluster.Host
		if r.meeting[r.indexOf(op)] == i+1 {
			host = op.Host
		}
		return fmt.Sprintf("at %s%s (%v lane)", of, r.names[i], op.Lane), host
	}
	if !r.over {
		return fmt.Sprintf("at %sthe end of all lanes", of), e.Plan.Cluster.Host
	}
	return fmt.Sprintf("at %sthe exchange of results", of), -1
}
