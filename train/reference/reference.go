// Package reference has the log-probabilities of a reference model: the model that an objective compares the trained
// one with, or the teacher that it learns from. That is one evaluation of the data before the first step, and no memory
// afterwards: they are read from a file, by document, when a step needs them.
//
// A file has those of all documents of one source, cut to the length of a row, and is named by all that they depend on:
// the reference's weights and config.json, the tokens, the length, the type that is computed in and the device's
// instructions. So runs share it, and a run that is started again has it.
//
// A document's log-probabilities depend on its tokens alone, to the bit, and not on its neighbours in a row (package
// attention says why). So the evaluation packs documents as it likes, and a policy that is the reference has the same
// numbers in its first step.
//
// [Rounds] does that with the answers of each round of a loop, in a file next to theirs. [Scorers] evaluate reward
// models in the same way, with answers that a run has sampled: they are read again for each step, and nothing is kept.
package reference

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/vfs"
)

// Options say of which model the log-probabilities are, and how they are computed.
type Options struct {
	Model *source.Source
	// Weights identify the model's weights: the fingerprint of their files. With Init random they follow from Seed.
	Weights string
	Init    string
	Seed    uint64
	// TopK is the number of likeliest tokens that are wanted at each place, of a teacher; 0: the log-probability of the
	// token that is there.
	TopK int
	// Temperature divides the logits of a teacher before log-probabilities are taken of them; 0: 1.
	Temperature float64

	Numerics plan.Numerics // types, and the length of a row
	Memory   runfile.Memory

	// Session is that of a run whose model is evaluated as it is now; nil: Open brings the model into memory and gives
	// that back. Weights then name the run and the step. The files are in Dir, empty: temporary ones, and are not made
	// again once the run has Begun to change the model.
	Session *session.Session
	Dir     string
	Begun   bool

	inRun      bool // a run that has begun waits for it, so that a stop ends it
	logitBytes int  // tests change it
}

// width is the numbers that a token has in files.
func (o Options) width() int { return max(2*o.TopK, 1) }

func (o Options) temperature() float64 { return cmp.Or(o.Temperature, 1) }

// what names the model in lines for people.
func (o Options) what() string {
	switch {
	case o.TopK > 0:
		return "teacher"
	case o.Session != nil:
		return "model before its first update"
	}
	return "reference"
}

// Set has the log-probabilities for the sources of a run.
type Set struct{ files []*file }

// Open finds the log-probabilities for parts of data sets, and computes those that are not there, on the first device:
// it brings the model into memory and gives that back. A part may be there more than once. Of several hosts each does
// that by itself.
func Open(ctx context.Context, e *session.Env, dev *session.Devices, o Options, parts []data.Part) (s *Set, err error) {
	s, e = &Set{}, e.Alone()
	defer func() {
		if err != nil {
			_ = s.Close() // err is the one to report
			s = nil
		}
	}()
	dir := o.Dir
	if e.CacheDir != "" && o.Session == nil {
		dir = filepath.Join(e.CacheDir, "reference")
		if err := data.CheckCache(e.CacheDir, dir); err != nil {
			return s, err
		}
	}
	first := &session.Devices{Computes: dev.Computes[:1], Host: dev.Host}
	var lacking []*file
	for _, p := range parts {
		f := &file{part: p, rowLen: o.Numerics.SequenceLen, width: o.width(), key: o.key(p, first.Info().Numerics)}
		if i := slices.IndexFunc(s.files, func(other *file) bool { return other.key == f.key }); i >= 0 {
			s.files = append(s.files, s.files[i])
			continue
		}
		s.files = append(s.files, f)
		if err := f.open(dir); err != nil {
			return s, o.notThere(err)
		}
		if !f.isWhole() {
			lacking = append(lacking, f)
		}
	}
	switch {
	case len(lacking) == 0:
		return s, nil
	case o.Begun:
		return s, blame.BadRequest(fmt.Errorf("%s has no log-probabilities of the model before its first update with these "+
			"answers, and the run has made updates since: bring the directory back, or begin a run with these answers",
			cmp.Or(dir, "the run")))
	}
	if err := o.checkSpace(e, lacking); err != nil {
		return s, err
	}
	return s, o.evaluate(ctx, e, first, lacking)
}

// notThere is the error of a place that takes no files.
func (o Options) notThere(err error) error {
	return blame.NotRequest(fmt.Errorf("the %s's log-probabilities: %w; make room, or set MILLRACE_CACHE to a "+
		"directory that has some", o.what(), err))
}

// checkSpace refuses to begin what has no room, and says what a teacher takes.
func (o Options) checkSpace(e *session.Env, files []*file) error {
	need := int64(0)
	for _, f := range files {
		need += f.bytes()
	}
	if o.TopK > 0 {
		e.Note("the teacher is evaluated once: its %d likeliest tokens at each place take %s in %s", o.TopK,
			plan.FormatBytes(need), filepath.Dir(files[0].f.Name()))
	}
	dir := filepath.Dir(files[0].f.Name())
	if free, err := (vfs.OS{}).FreeBytes(dir); err == nil && free < need {
		return o.notThere(fmt.Errorf("they take %s, and %s has %s free", plan.FormatBytes(need), dir, plan.FormatBytes(free)))
	}
	return nil
}

// key hashes all that the log-probabilities of a part depend on.
func (o Options) key(p data.Part, computedOn string) xxh3.Uint128 {
	weights := []any{o.Weights}
	if o.Init == "random" {
		weights = []any{o.Init, o.Seed}
	}
	of := []any{string(fileMagic), weights, xxh3.Hash(o.Model.Config.Raw()), p.Sum(), o.Numerics.SequenceLen,
		o.Numerics.Compute, computedOn}
	if o.TopK > 0 {
		of = append(of, "top", o.TopK)
		if t := o.temperature(); t != 1 {
			of = append(of, "temperature", t)
		}
	}
	spec, _ := json.Marshal(of) // it cannot fail
	return xxh3.Hash128(spec)
}

// Name identifies the log-probabilities of the set: they are the same where it is.
func (s *Set) Name() string {
	h := xxh3.New128()
	for _, f := range s.files {
		key := f.key.Bytes()
		h.Write(key[:]) // a hash does not fail
	}
	return fmt.Sprintf("%x", h.Sum128().Bytes())
}

// Read reads the log-probabilities of a document's tokens after the first: 4 bytes each, float32, or of a teacher
// 8*TopK bytes: as many tokens and their log-probabilities. Part is the number that Open was given it with.
func (s *Set) Read(dst []byte, part, document int) error { return s.files[part].read(dst, document) }

// Files are the paths of files that stay.
func (s *Set) Files() (names []string) {
	for _, f := range s.files {
		if f.path != "" {
			names = append(names, f.path)
		}
	}
	return names
}

// Close closes the files.
func (s *Set) Close() (err error) {
	for i, f := range s.files {
		if slices.Index(s.files, f) == i {
			err = cmp.Or(err, f.close())
		}
	}
	s.files = nil
	return err
}

// evaluate computes what files lack.
func (o Options) evaluate(ctx context.Context, e *session.Env, dev *session.Devices, files []*file) error {
	if o.Session != nil {
		return o.evaluateBy(ctx, e, o.Session, files)
	}
	if o.Init != "random" {
		if err := o.Model.CheckWeights(ctx); err != nil {
			return fmt.Errorf("%s: %w", o.what(), err)
		}
	}
	rows := int64(0)
	for _, f := range files {
		rows += f.bytes() / 4 / int64(f.width*f.rowLen)
	}
	p, err := o.plan(ctx, e, dev, int(min(rows+1, 1<<20)))
	if err != nil {
		return fmt.Errorf("%s: %w", o.what(), err)
	}
	return o.evaluatePlanned(ctx, e, dev, p, files)
}

// evaluatePlanned brings the model into memory by a plan, computes what files lack, and gives the memory back.
func (o Options) evaluatePlanned(ctx context.Context, e *session.Env, dev *session.Devices, p *plan.Plan,
	files []*file) (err error) {
	s, err := e.OpenSession(ctx, p, dev, session.SessionOptions{StateDirs: o.Memory.Path,
		Fill: func(ctx context.Context, s *session.Session) error {
			return source.Fill(ctx, s, o.Model, o.Init, o.Seed)
		}})
	if err != nil {
		return fmt.Errorf("%s: %w", o.what(), err)
	}
	defer func() { err = cmp.Or(err, s.Close()) }()
	return o.evaluateBy(ctx, e, s, files)
}

// evaluateBy computes what files lack with the model that a session has.
func (o Options) evaluateBy(ctx context.Context, e *session.Env, s *session.Session, files []*file) error {
	total := int64(0)
	for _, f := range files {
		total += int64(len(f.chunks))
	}
	bar := e.Bar("evaluating the " + o.what())
	defer bar.End()
	done := int64(0)
	for _, f := range files {
		done += int64(f.whole)
		for !f.isWhole() {
			bar.Set(done, total)
			values, err := o.evaluateChunk(ctx, s, f, f.chunks[f.whole])
			if err != nil {
				return fmt.Errorf("%s: %w", o.what(), err)
			}
			if e.Tests.Reached != nil {
				if err := e.Tests.Reached("reference"); err != nil {
					return err
				}
			}
			if err := f.append(values); err != nil {
				return o.notThere(err)
			}
			done++
		}
		if err := f.finish(); err != nil {
			return o.notThere(err)
		}
	}
	bar.Set(done, total)
	return nil
}

// placed says where a document of a chunk is computed.
type placed struct {
	document, length int
	values           []byte // where its log-probabilities go
	micro, at        int
}

// evaluateChunk computes the log-probabilities of a chunk's documents, in their order.
func (o Options) evaluateChunk(ctx context.Context, s *session.Session, f *file, c chunk) ([]byte, error) {
	values := make([]byte, 4*c.values)
	var left []placed
	at, each := 0, 4*f.width
	for d := c.first; d < c.first+c.count; d++ {
		n := min(f.part.Length(d), f.rowLen)
		if n > 1 {
			left = append(left, placed{document: d, length: n, values: values[at : at+(n-1)*each]})
		}
		at += (n - 1) * each
	}
	slices.SortStableFunc(left, func(a, b placed) int { return b.length - a.length })
	tokens := make([]int32, f.rowLen)
	for len(left) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if (o.Session != nil || o.inRun) && s.Env.Stopped() { // the run has a state to save, and passes come to their end
			return nil, hosts.ErrInterrupted
		}
		var now []placed
		now, left = fit(left, s.Rows)
		for _, p := range now {
			if err := f.part.Tokens(tokens[:p.length], p.document); err != nil {
				return nil, err
			}
			micro := s.Rows[p.micro]
			micro.SetDocument(p.at, tokens[:p.length])
			copy(micro.Targets[p.at:], tokens[1:p.length])
		}
		b := session.BatchOf(s.Rows)
		b.Targets = 1 // log-probabilities are no mean
		if o.TopK > 0 {
			if err := o.top(ctx, s, b, now); err != nil {
				return nil, err
			}
			continue
		}
		all, err := s.Engine.LogProbs(ctx, b)
		if err != nil {
			return nil, err
		}
		for _, p := range now {
			copy(hostmem.F32(p.values), all[p.micro][p.at:])
		}
	}
	return values, nil
}

// fit places the documents that the rows of a pass have room for, the longest first, and returns the others.
func fit(all []placed, rows []data.MicroBatch) (now, left []placed) {
	var room [][]int // by micro-batch and row
	for _, m := range rows {
		m.Micro.Clear()
		room = append(room, slices.Repeat([]int{m.SequenceLen}, m.Sequences))
	}
	for _, p := range all {
		isIn := false
		for m := 0; m < len(room) && !isIn; m++ {
			for row, free := range room[m] {
				if isIn = free >= p.length; isIn {
					p.micro, p.at = m, (row+1)*rows[m].SequenceLen-free
					room[m][row] -= p.length
					now = append(now, p)
					break
				}
			}
		}
		if !isIn {
			left = append(left, p)
		}
	}
	return now, left
}
