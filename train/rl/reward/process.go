package reward

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/outside"
)

// afterEnd bounds the waits for what a process that has ended, or is ended, leaves: its status, and lines in pipes that
// other processes hold.
const afterEnd = time.Second

// process is a child that runs.
type process struct {
	cmd              *exec.Cmd
	in, out, errors  *os.File
	lines            chan []byte
	got              chan written
	quit             chan struct{} // closed by end
	exited           chan struct{} // closed when the process has ended, and then status is known
	status           string
	hasSaid, hasRead chan struct{} // closed when its standard error, and its output, are read to the end
	tail             outside.Tail
	once             sync.Once
}

// startProcess starts a process in a group of its own.
func startProcess(of program) (child, error) {
	p := &process{lines: make(chan []byte, window), got: make(chan written), quit: make(chan struct{}),
		exited: make(chan struct{}), hasSaid: make(chan struct{}), hasRead: make(chan struct{})}
	var files []*os.File // the child's ends, then ours
	var ours [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(files, ours[:]...))
			return nil, err
		}
		if i == 0 {
			r, w = w, r
		}
		ours[i], files = r, append(files, w)
	}
	p.in, p.out, p.errors = ours[0], ours[1], ours[2]
	p.cmd = &exec.Cmd{Path: of.args[0], Args: of.args, Env: of.env, Dir: of.dir, Stdin: files[0], Stdout: files[1],
		Stderr: files[2]}
	outside.InOwnGroup(p.cmd)
	p.cmd.Cancel = nil // there is no context
	err := p.cmd.Start()
	closeAll(files)
	if err != nil {
		closeAll(ours[:])
		return nil, err
	}
	fault.Go(p.wait)
	fault.Go(p.write)
	fault.Go(p.read)
	fault.Go(func() { _, _ = io.Copy(&p.tail, p.errors); close(p.hasSaid) })
	return p, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// wait learns how the process ends, and ends what it has left running, which may hold its pipes.
func (p *process) wait() {
	p.status = "the process ended well, and it is to read lines until its input ends"
	if err := p.cmd.Wait(); err != nil {
		p.status = fmt.Sprintf("the process ended: %v", err)
	}
	_ = outside.EndGroup(p.cmd.Process)
	late := time.Now().Add(afterEnd)
	_ = p.out.SetReadDeadline(late)
	_ = p.errors.SetReadDeadline(late)
	close(p.exited)
}

func (p *process) write() {
	for {
		select {
		case line := <-p.lines:
			if _, err := p.in.Write(line); err != nil {
				return // it reads no more: its end says so, or the lack of an answer
			}
		case <-p.quit:
			return
		}
	}
}

func (p *process) read() {
	defer close(p.hasRead)
	s := bufio.NewScanner(p.out)
	s.Buffer(nil, mostLineBytes)
	for s.Scan() {
		if line := bytes.TrimSpace(s.Bytes()); len(line) > 0 && !p.tell(written{line: bytes.Clone(line)}) {
			return
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		p.tell(written{cause: TooLong, err: fmt.Errorf("it wrote a line of more than %d MiB", mostLineBytes>>20)})
		return
	}
	ended := written{cause: Exited, err: errors.New("the process closed its standard output")}
	timer := time.NewTimer(afterEnd)
	defer timer.Stop()
	select {
	case <-p.exited:
		ended.err = errors.New(p.status)
		waitFor(p.hasSaid, timer)
	case <-p.quit:
	case <-timer.C:
	}
	p.tell(ended)
}

// tell hands over what was read, unless the process is ended.
func (p *process) tell(w written) bool {
	select {
	case p.got <- w:
		return true
	case <-p.quit:
		return false
	}
}

// waitFor waits for an event until a timer ends.
func waitFor(event <-chan struct{}, timer *time.Timer) {
	select {
	case <-event:
	case <-timer.C:
	}
}

func (p *process) give(line []byte)      { p.lines <- line }
func (p *process) wrote() <-chan written { return p.got }
func (p *process) said() string          { return p.tail.String() }

func (p *process) end() {
	p.once.Do(func() {
		close(p.quit)
		select {
		case <-p.exited: // its group has ended with it, and another one may have its number
		default:
			_ = outside.EndGroup(p.cmd.Process)
		}
		p.in.Close()
		timer := time.NewTimer(afterEnd) // a process that the system cannot end now is left to it
		defer timer.Stop()
		waitFor(p.exited, timer)
		waitFor(p.hasSaid, timer)
		p.out.Close()
		p.errors.Close()
	})
}
