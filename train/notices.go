package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/notify"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
)

// Bounds of time: of the wait for notices at the end of a run, and between two looks at its space.
const (
	noticePatience = 20 * time.Second
	lookForSpace   = time.Minute
)

// notices tells people of what happens in a run, as the key notify asks: it listens to the events of the run, and sends
// some of them. It changes nothing of the run, which never waits for it before its end. Of several hosts host 0 has it.
// A nil one has nothing to tell.
type notices struct {
	run    *trainer
	sender *notify.Sender
	heard  func(session.Event) // that listened before; nil: nothing did

	last  StepDone
	eval  *float64 // loss of the latest evaluation
	speed slowdowns

	nextLook time.Time
	shorts   int // looks in a row that found too little space, which a look alone changes
	looks    atomic.Bool
	looking  fault.Group
}

// openNotices begins to listen. It fails where the environment lacks something that a notice names.
func (t *trainer) openNotices() error {
	sender, err := notify.Open(t.config.Notify, notify.Usual)
	if err != nil || sender == nil {
		return err
	}
	n := &notices{run: t, sender: sender, heard: t.env.Events}
	t.notices, t.env.Events = n, n.hear
	return nil
}

// hear listens to an event of the run.
func (n *notices) hear(event session.Event) {
	if n.heard != nil {
		n.heard(event)
	}
	switch e := event.(type) {
	case Evaluated:
		n.eval = &e.Loss
	case StepDone:
		if n.last = e; e.EvalLoss != nil {
			n.eval = e.EvalLoss
		}
		if e.TargetTokens > 0 {
			if before, now, became := n.speed.note(e.StepSec, int(e.Tokens)); became {
				n.send(runfile.EventSlow, "step %d of %d: a step takes %.3g s, the median of %d; it took %.3g s before", e.Step,
					e.Steps, now, slowWindow, before)
			}
		}
		n.lookForSpace()
		for _, trouble := range n.sender.Troubles() {
			n.run.env.Warn("%s", trouble)
		}
	case session.DriveHot:
		n.send(runfile.EventHotDrive, "%s", strings.TrimPrefix(e.String(), "warning: "))
	case SaveFailed:
		n.send(runfile.EventSaveFailed, "%s", strings.TrimPrefix(e.String(), "warning: "))
	}
}

// event has the numbers of the run at the moment, with a text.
func (n *notices) event(name, format string, args ...any) notify.Event {
	m := &n.last
	e := notify.Event{Event: name, Run: n.run.config.OutputDir, Step: n.run.steps, Steps: n.run.rates.Steps,
		EvalLoss: n.eval, Time: time.Now().UTC().Format(time.RFC3339)}
	e.Machine, _ = os.Hostname() // which may have no name
	e.Text = console.OneLine(errors.New(e.Run + ": " + fmt.Sprintf(format, args...)))
	if m.Step > 0 {
		e.Loss, e.TokensPerSec, e.LeftSec = finite(m.Loss), m.TokensPerSec, m.LeftSec
	}
	if e.EvalLoss != nil {
		e.EvalLoss = finite(*e.EvalLoss)
	}
	return e
}

func (n *notices) send(name, format string, args ...any) {
	n.sender.Send(n.event(name, format, args...))
}

// lookForSpace looks whether there is room for what the run will write, in the background: a file system may take long
// to answer. It tells of it where two looks in a row, and so not one in the middle of a save, find too little; and
// again after there was enough.
func (n *notices) lookForSpace() {
	now := n.run.env.Time().Now()
	if !n.sender.Hears(runfile.EventLittleSpace) || now.Before(n.nextLook) || n.run.saves.writer != nil ||
		!n.looks.CompareAndSwap(false, true) {
		return
	}
	n.nextLook = now.Add(lookForSpace)
	needs, fsys, dir := n.run.needs, n.run.env.Files(), n.run.config.OutputDir
	e := n.event(runfile.EventLittleSpace, "")
	n.looking.Go(func() {
		defer n.looks.Store(false)
		free, err := session.FreeBytes(fsys, dir)
		if err != nil {
			return // not known
		}
		saved := 0
		entries, _ := fsys.ReadDir(filepath.Join(dir, rundir.CheckpointsName))
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "step-") {
				saved++
			}
		}
		need := needs.after(saved)
		if free >= need {
			n.shorts = 0
			return
		}
		if n.shorts++; n.shorts == 2 {
			e.Text += fmt.Sprintf("%s are free in output_dir, and the next checkpoint and the model need %s: free some",
				plan.FormatBytes(free), plan.FormatBytes(need))
			n.sender.Send(e)
		}
	})
}

// end tells how the run has ended, and waits for what is not delivered yet.
func (n *notices) end(ctx context.Context, s *Summary, err error) {
	if n == nil {
		return
	}
	diverged := (*divergedError)(nil)
	switch {
	case errors.As(err, &diverged):
		n.send(runfile.EventDiverged, "%v", err)
	case errors.Is(err, ErrInterrupted):
		if n.run.started {
			n.send(runfile.EventStopped, "%v", err)
		}
	case err != nil && n.run.home.Dir == nil: // another process has the directory, or it is no place for a run
	case err != nil:
		n.send(runfile.EventFailed, "it has failed: %v", err)
	case n.run.started:
		n.send(runfile.EventEnded, "%s", endedText(s))
	}
	for _, trouble := range n.sender.Close(ctx, noticePatience) {
		n.run.env.Warn("%s", trouble)
	}
	n.run.env.Events = n.heard
}

// endedText says what a run that has ended well came to.
func endedText(s *Summary) string {
	text := fmt.Sprintf("it has ended after step %d: loss %.4f", s.Steps, s.LastLoss)
	if s.EvalAfter != nil {
		text += fmt.Sprintf(", eval loss %.4f", *s.EvalAfter)
		if s.EvalBefore != nil {
			text += fmt.Sprintf(" (%.4f before training)", *s.EvalBefore)
		}
	}
	return text + "; the model is in " + s.Model
}

// spaceNeeds is the room in the output directory that a run takes at most, without what it has saved.
type spaceNeeds struct {
	peak, checkpoint, models int64 // bytes, of them those of a checkpoint and of the models
	most                     int   // checkpoints at once; 0: all stay
}

// after is the room that a run needs which has saved a number of checkpoints.
func (s spaceNeeds) after(saved int) int64 {
	if s.most == 0 {
		return s.checkpoint + s.models
	}
	return max(s.peak-int64(min(saved, s.most))*s.checkpoint, s.models)
}
