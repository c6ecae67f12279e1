package reward

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/millrace/millrace/runfile"
)

// window bounds the questions that a process has at once. A process that reads several may answer them in any order.
const window = 16

// command is a judge that asks processes.
type command struct {
	panel   *Panel
	judge   int
	program program
	queue   *queue
}

// program says how a process is started.
type program struct {
	args, env []string
	dir       string
}

func newCommand(p *Panel, i int) (judge, error) {
	s := &p.specs[i]
	path, err := exec.LookPath(s.Command[0])
	if err != nil {
		return nil, fmt.Errorf("there is no program %s that can be started: name one, with its path", s.Command[0])
	}
	c := &command{panel: p, judge: i, queue: newQueue(s.Instances(), window),
		program: program{args: append([]string{path}, s.Command[1:]...), dir: p.options.Dir}}
	if c.program.env, err = environment(s); err != nil {
		return nil, err
	}
	p.working.Go(func() { c.queue.deal(p.ctx) })
	for n := range s.Instances() {
		w := &worker{command: c, number: n, alarm: p.options.after(s.Patience())}
		p.working.Go(func() { w.work(p.ctx) })
	}
	return c, nil
}

// environment has PATH, HOME, and what the reward names besides.
func environment(s *runfile.Reward) (env []string, err error) {
	for _, name := range []string{"PATH", "HOME"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range s.Env {
		value, ok := os.LookupEnv(name)
		if !ok {
			return nil, fmt.Errorf("env lists %s, and the environment has no such variable: set it, or remove it", name)
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

func (c *command) ask(q *question) { c.queue.add(q) }
func (c *command) close()          {}

// child is a process that a worker has started.
type child interface {
	// give has the process read a line, at some time. It waits for nothing while fewer than window lines are unanswered.
	give(line []byte)
	// wrote are the lines that the process has written. An entry with an error is the last one.
	wrote() <-chan written
	// said is the end of its standard error.
	said() string
	// end ends the process with all that it has started in its group.
	end()
}

// written is a line that a process wrote, or why there are no more.
type written struct {
	line  []byte
	cause Cause
	err   error
}

// starter starts processes.
type starter func(program) (child, error)

// worker has one process at a time, and starts it again when it has ended.
type worker struct {
	*command
	number  int
	alarm   alarm
	child   child       // nil: there is no process
	given   int         // questions that the process was given
	asked   []*question // that it has not answered, the oldest first
	suspect []*question // that failed together: each is asked for by itself
	starts  int
}

// work asks questions until ctx ends.
func (w *worker) work(ctx context.Context) {
	defer w.drop()
	w.begin()
	for {
		next := w.queue.next[w.number]
		switch isAlone := len(w.asked) > 0 && w.asked[0].failed; {
		case len(w.suspect) > 0 && len(w.asked) == 0:
			q := w.suspect[0]
			w.suspect = w.suspect[1:]
			w.put(q)
			continue
		case len(w.suspect) > 0 || isAlone:
			next = nil
		}
		var wrote <-chan written
		if w.child != nil {
			wrote = w.child.wrote()
		}
		select {
		case <-ctx.Done():
			return
		case q := <-next:
			w.put(q)
		case line := <-wrote:
			w.read(line)
		case <-w.alarm.rings():
			w.fail(TimedOut, fmt.Errorf("nothing was heard in %v", w.panel.specs[w.judge].Patience()))
		}
	}
}

// begin starts the process.
func (w *worker) begin() error {
	if w.starts++; w.starts > 1 {
		w.panel.restarted(w.judge)
	}
	child, err := w.panel.options.start(w.program)
	if err == nil {
		w.child, w.given = child, 0
	}
	return err
}

// put gives a question to the process.
func (w *worker) put(q *question) {
	if w.child == nil {
		if err := w.begin(); err != nil {
			w.settle(q, null(Exited), func() string { return fmt.Sprintf("the program does not start: %v", err) })
			return
		}
	}
	w.asked = append(w.asked, q)
	if w.given++; len(w.asked) == 1 {
		w.alarm.start()
	}
	w.child.give(q.line())
}

// read takes what the process wrote.
func (w *worker) read(of written) {
	if of.err != nil {
		w.fail(of.cause, of.err)
		return
	}
	s, err := parseLine(of.line)
	if err != nil {
		w.fail(Malformed, err)
		return
	}
	i := slices.IndexFunc(w.asked, func(q *question) bool { return q.sheet.ID == s.id })
	if i < 0 {
		w.fail(Stray, fmt.Errorf("it answers id %d, which it was not asked for or has answered already", s.id))
		return
	}
	q := w.asked[i]
	w.asked = slices.Delete(w.asked, i, i+1)
	if w.alarm.stop(); len(w.asked) > 0 {
		w.alarm.start()
	}
	w.settle(q, s.verdict, func() string { return s.detail + w.child.said() })
}

// fail ends a process that did what it should not. If it had one question, and nothing before that can be the reason,
// there is no reward for that one. Else each question that it had is asked for again, by itself.
func (w *worker) fail(cause Cause, err error) {
	child := w.child
	w.drop()
	if len(w.asked) == 1 && (w.given == 1 || cause == TimedOut) {
		q := w.asked[0]
		w.asked = nil
		w.settle(q, null(cause), func() string { return err.Error() + child.said() })
		return
	}
	for _, q := range w.asked {
		q.failed = true
	}
	w.suspect, w.asked = append(w.asked, w.suspect...), nil
}

// settle gives a verdict.
func (w *worker) settle(q *question, v verdict, detail func() string) {
	w.queue.done(w.number)
	w.panel.settle(q, v, detail)
}

// drop ends the process.
func (w *worker) drop() {
	w.alarm.stop()
	if w.child != nil {
		w.child.end()
		w.child = nil
	}
}
