package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// mostWorkers bounds the workers of a process: each takes memory, and the budget has room for this many.
const mostWorkers = 4

// A call is the program in a process of its own.
type call struct {
	args []string
	// line gets each line of standard error; a true answer kills the process.
	line func(text string) (kill bool)
	json any // gets the result; may be nil
}

// call runs the program in the demo's directory. Killed reports whether a line had it killed. The error of a process
// that fails is its last line.
func (d *demo) call(ctx context.Context, c call) (killed bool, err error) {
	if d.out.err != nil {
		return false, d.out.err
	}
	cmd := d.o.Program(ctx, c.args...)
	cmd.Dir = d.dir
	workers := min(runtime.GOMAXPROCS(0), mostWorkers)
	cmd.Env = append(cmd.Environ(), "MILLRACE_CACHE="+filepath.Join(d.dir, "cache"), fmt.Sprintf("GOMAXPROCS=%d", workers))
	if lock, ok := d.held.(*os.File); ok {
		cmd.ExtraFiles = []*os.File{lock} // so that it holds the directory, too, if this process is killed
	}
	var result bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader(""), &result // without one, exec opens /dev/null, which a bare root lacks
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("the program cannot be started again: %w", err)
	}
	last := ""
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		last = lines.Text()
		if !killed && c.line != nil && c.line(last) {
			killed = true
			_ = cmd.Process.Kill() // it may have ended by itself, which Wait tells
		}
	}
	err = cmd.Wait()
	d.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case killed:
		return !cmd.ProcessState.Success(), nil // it may have been done before the signal came
	case err != nil:
		return false, fmt.Errorf("millrace %s: %s", c.args[0], strings.TrimPrefix(last, "millrace: "))
	case c.json == nil:
		return false, nil
	}
	return false, json.Unmarshal(result.Bytes(), c.json)
}

// must is call for a process that is not killed.
func (d *demo) must(ctx context.Context, c call) error {
	_, err := d.call(ctx, c)
	return err
}
