package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/vfs"
)

// Options say how [Prepare] turns rows into tokens.
type Options struct {
	Tokenizer     tokenizer.Tokenizer
	Renderer      Renderer          // nil is Plain
	Vocab         int               // ids that rows of tokens may have: those below; fewer than the tokenizer has: its own
	TrainOnPrompt bool              // prompts count in the loss too
	InTwos        bool              // answers with a label belong together in twos, for LoaderOptions.Mismatched
	CacheDir      string            // of tokens; empty: none are kept
	Hub           *hub.Hub          // where data sets come from that are no paths; nil: nowhere
	Note          func(string)      // told in a line which files of the hub are read, and what the cache cannot do; may be nil
	Workers       int               // goroutines that tokenize; 0 is GOMAXPROCS
	Progress      func(Progress)    // may be nil; never called concurrently
	Accounts      *hostmem.Accounts // count the memory of documents; nil: not counted
	// Check is told the types of all sources before their rows are read, and may refuse them; nil: any are read.
	Check func([]Type) error
	// MemoryBytes is about what text may take of memory on its way to tokens, and tokens that the cache cannot take; 0 is
	// no limit. It bounds rows, which are held as a whole.
	MemoryBytes int64

	cacheFile func(dir, pattern string) (*os.File, error) // makes files of the cache in tests; nil: os.CreateTemp
	freeBytes func(dir string) (int64, error)             // of the cache's disk in tests; nil: the system's
}

func (o Options) vocab() int { return max(o.Vocab, o.Tokenizer.VocabSize()) }

// Progress tells how much of one source Prepare has done.
type Progress struct {
	Source     string // its path
	Documents  int
	Tokens     int64
	Skipped    int // bad rows that were left out
	ReadBytes  int64
	TotalBytes int64
	Cached     bool // the tokens came from the cache
	Done       bool // this is the last call for the source
}

// Prepare finds the sources, fetching what the hub has, then reads and tokenizes them, one after the other, into one
// dataset. The result does not depend on the number of workers or on the cache. Errors name the file and, for rows, the
// line; of several bad rows it is the first.
func Prepare(ctx context.Context, sources []Source, o Options) (_ *Dataset, err error) {
	if len(sources) == 0 {
		return nil, errors.New("datasets is empty: name at least one")
	}
	if o.Renderer == nil {
		o.Renderer = Plain
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	if o.cacheFile == nil {
		o.cacheFile = os.CreateTemp
	}
	if o.freeBytes == nil {
		o.freeBytes = vfs.OS{}.FreeBytes
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.Accounts == nil {
		o.Accounts = hostmem.New()
	}
	if o.CacheDir != "" {
		if err := CheckCache(o.CacheDir); err != nil {
			return nil, err
		}
	}
	var all []found
	d := &Dataset{accounts: o.Accounts, stops: stopsOf(o)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, s := range sources {
		if err := s.Validate(); err != nil {
			return nil, err
		}
		f, err := s.find(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		if f.Tools == DropTools {
			o.Note(fmt.Sprintf("dataset %s: its rows are rendered without their tools (tools: drop)", s.Path))
		}
		if f.Opening == DropOpening {
			o.Note(fmt.Sprintf("dataset %s: turns before the first question are left out (opening: drop)", s.Path))
		}
		if len(f.Ignore) > 0 {
			o.Note(fmt.Sprintf("dataset %s: these keys of its rows are passed over: %s (ignore)", s.Path, someOf(f.Ignore)))
		}
		if f.commit != "" && s.Type != "" {
			repo, _ := hub.Parse(hub.Dataset, s.Path)
			s.Path, s.Revision = repo.ID, f.commit
		}
		d.entries = append(d.entries, s)
	}
	if err := usable(all, o); err != nil {
		return nil, err
	}
	for _, f := range all {
		s := newRowReader(f.Source.withDefaults(), limits{o.MemoryBytes}, f.asked)
		s.cut = s.cutter(ctx, o)
		p, err := prepareSource(ctx, s, f.files, o)
		if err != nil {
			return nil, err
		}
		d.add(p, s.Type, s.Weight)
		if len(p.run.lengths) == 0 && p.equal > 0 {
			return nil, fmt.Errorf("dataset %s: %s: nothing is left to compare", s.Path, equalLine(p.equal))
		}
		if len(p.run.lengths) == 0 {
			return nil, fmt.Errorf("dataset %s: all %d rows are bad; the first: %s", s.Path, p.skipped, p.firstBad)
		}
		if d.documents > maxDocuments {
			return nil, fmt.Errorf("the datasets have more than %d documents", maxDocuments)
		}
	}
	d.spellsStops = d.EndedTurns() > 0 || spells(o.Tokenizer, d.stops)
	if o.InTwos && d.HasLabels() {
		n, err := d.inTwos()
		if err != nil {
			return nil, err
		}
		if n > 0 {
			o.Note(fmt.Sprintf("%s left out, the last of a source with an odd number: answers are compared in twos",
				spelling.Count(n, "answer")))
		}
	}
	if all[0].Type.format().isSampled {
		if err := d.inRolloutGroups(); err != nil {
			return nil, err
		}
	}
	if err := d.seal(); err != nil {
		return nil, err
	}
	return d, nil
}

// CheckCache refuses a directory for tokens, and those inside that are given, if another user can have written there:
// tokens would not be those of the data. What else is wrong with it is noted when it is used.
func CheckCache(dir string, inside ...string) error {
	var notOwn *vfs.NotOwnError
	if errors.As(vfs.CheckDir(vfs.OS{}, dir, inside...), &notOwn) {
		return fmt.Errorf("the token cache %w, or set MILLRACE_CACHE: tokens there may not be those of the data", notOwn)
	}
	return nil
}

// found is an entry with the files that it names, directly or through a registry.
type found struct {
	Source
	files  []string // in the order in which they are read
	commit string   // of a data set of the hub; "" if the hub has converted it
	asked  int      // max_samples of the entry itself
}

// find looks for what a source names. A data set of the hub is downloaded.
func (s Source) find(ctx context.Context, o Options) (f found, err error) {
	folder, asked := "", s
	f.asked = s.MaxSamples
	if s.local() || o.Hub == nil {
		if s, folder, err = s.fromRegistry(); err != nil {
			return f, err
		}
	}
	f.Source = s
	if !s.local() && o.Hub != nil {
		f.files, f.commit, err = s.fetch(ctx, folder, o)
		return f, err
	}
	if err := s.checkLocal(); err != nil {
		return f, err
	}
	if f.files, err = s.files(); err != nil {
		return f, err
	}
	if asked.Name != "" { // and so s is a registry's
		if err := asked.checkRegistered(f.files); err != nil {
			return f, err
		}
	}
	if err := checkEndings(f.files); err != nil {
		return f, fmt.Errorf("dataset %w", err)
	}
	if note := s.outside(f.files); note != "" && o.Note != nil {
		o.Note(note)
	}
	return f, nil
}

func prepareSource(ctx context.Context, s rowReader, files []string, o Options) (*part, error) {
	p := Progress{Source: s.Path}
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			p.TotalBytes += info.Size()
		}
	}
	inMemory := func() (*part, error) {
		b := newBuilder()
		b.most = s.limits.tokenBytes()
		if err := tokenize(ctx, s, files, io.Discard, o, p, b); err != nil {
			return nil, err
		}
		return b.finishInMemory(o.Accounts)
	}
	if o.CacheDir == "" || s.Type.format().isAsked { // rows of prompts are kept as well, which the cache does not have
		return inMemory()
	}
	content := xxh3.New128()
	if err := s.openRows(ctx, files, content, nil); err != nil {
		return nil, err
	}
	key := s.cacheKey(content.Sum128(), o)
	vocab := o.vocab()
	d, err := readCache(ctx, o.CacheDir, key, vocab, o.Accounts)
	if err == nil {
		p.Documents, p.Tokens, p.Skipped = len(d.run.lengths), d.run.size, d.skipped
		p.ReadBytes, p.Cached, p.Done = p.TotalBytes, true, true
		o.Progress(p)
		return d, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		o.Note(fmt.Sprintf("token cache: %s is written again: %v", cachePath(o.CacheDir, key), err))
	}
	notKept := func(err error) (*part, error) {
		o.Note(fmt.Sprintf("token cache: the tokens of %s are not kept, and the next start makes them again: %v", s.Path, err))
		return inMemory()
	}
	w, err := createCache(o.CacheDir, key, o)
	if err != nil {
		return notKept(err)
	}
	again := xxh3.New128()
	err = tokenize(ctx, s, files, again, o, p, w.builder)
	if err == nil && again.Sum128() != content.Sum128() {
		err = fmt.Errorf("dataset %s: a file changed while it was read: start again", s.Path)
	}
	if err != nil {
		w.abandon()
		if most := s.limits.tokenBytes(); w.failed != nil && most > 0 && w.bytes() > most {
			// Another reading would be in vain.
			return nil, fmt.Errorf("dataset %s: %w; the cache: %w", s.Path, tooManyTokens(most), w.failed)
		}
		if w.failed != nil { // the cache, as on a full disk, and not the data
			return notKept(w.failed)
		}
		return nil, err
	}
	if d, err = w.finish(ctx, vocab, o.Accounts); err != nil && ctx.Err() == nil {
		return notKept(err)
	}
	return d, err
}

// rowsVersion changes with what the keys of a row mean.
const rowsVersion = "rows-2"

// cacheKey hashes everything that the tokens of a source depend on, except that files may move.
func (s Source) cacheKey(content xxh3.Uint128, o Options) xxh3.Uint128 {
	s.Path, s.Glob, s.Name, s.Split, s.Revision = "", "", "", "", ""
	b := content.Bytes()
	spec, _ := json.Marshal([]any{ // strings, numbers and a bool: it cannot fail
		string(cacheMagic), rowsVersion, s, fmt.Sprintf("%x", b), o.Tokenizer.Hash(), o.Renderer.Version(), o.TrainOnPrompt,
	})
	return xxh3.Hash128(spec)
}

// batchBytes and batchRows bound the text that a worker gets at a time. Rows that cannot be read have none.
const (
	batchBytes = 256 << 10
	batchRows  = 1 << 14
)

// job is a run of rows on its way through a worker; done closes when what comes of it is set.
type job struct {
	rows      []row
	bytes     int
	units     int // of what may be ahead
	documents []document
	skipped   int
	firstBad  error // of the skipped rows
	equal     int   // pairs that are left out
	turns     TurnCounts
	err       error
	done      chan struct{}
}

// tokenize reads the files into jobs, lets workers do them, and collects them in order. Every byte of a file also goes
// to seen.
func tokenize(asked context.Context, s rowReader, files []string, seen io.Writer,
	o Options, p Progress, b *builder) error {
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	work := make(chan *job)
	ordered := make(chan *job, 2*o.Workers) // bounds what is read ahead
	room := newAhead(o.Workers, s.limits)
	var readErr error
	var wg fault.Group
	wg.Go(func() {
		defer close(ordered)
		defer close(work)
		j := &job{done: make(chan struct{})}
		send := func() bool {
			if len(j.rows) == 0 {
				return true
			}
			var ok bool
			if j.units, ok = room.take(ctx, j.bytes); !ok {
				return false
			}
			select {
			case ordered <- j:
			case <-ctx.Done():
				return false
			}
			select {
			case work <- j:
			case <-ctx.Done():
				return false
			}
			j = &job{done: make(chan struct{})}
			return true
		}
		readErr = s.openRows(ctx, files, seen, func(r row) bool {
			j.rows = append(j.rows, r)
			j.bytes += len(r.data)
			return j.bytes < batchBytes && len(j.rows) < batchRows || send()
		})
		send()
	})
	for range o.Workers {
		wg.Go(func() {
			for j := range work {
				j.err = s.examples(ctx, j, o)
				close(j.done)
			}
		})
	}
	err := collect(ctx, b, ordered, room, o.Progress, &p)
	cancel()
	if asked.Err() != nil {
		return asked.Err() // and not when the workers are done with their rows, each of which may be a book
	}
	wg.Wait()
	switch {
	case err != nil:
		return err
	case readErr != nil:
		return readErr
	}
	p.ReadBytes, p.Done = p.TotalBytes, true
	o.Progress(p)
	return nil
}

// collect appends the documents of all jobs in order and stops at the first error.
func collect(ctx context.Context, b *builder, ordered <-chan *job, room ahead, progress func(Progress), p *Progress) error {
	for j := range ordered {
		select {
		case <-j.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, e := range j.documents {
			if err := b.appendDocument(e); err != nil {
				return fmt.Errorf("dataset %s: %w", p.Source, err)
			}
		}
		if j.err != nil {
			return j.err
		}
		j.documents, j.rows = nil, nil
		room.give(j.units)
		b.skipped += j.skipped
		b.equal += j.equal
		b.turns.add(j.turns)
		if b.firstBad == "" && j.firstBad != nil {
			b.firstBad = j.firstBad.Error()
		}
		if b.documents > maxDocuments {
			return fmt.Errorf("dataset %s has more than %d documents", p.Source, maxDocuments)
		}
		p.Documents, p.Tokens, p.Skipped = b.documents, b.n, b.skipped
		p.ReadBytes = min(p.ReadBytes+int64(j.bytes), p.TotalBytes)
		progress(*p)
	}
	return ctx.Err()
}

// examples tokenizes the rows of a job up to the first bad one, or leaves bad ones out.
func (s rowReader) examples(ctx context.Context, j *job, o Options) error {
	j.documents = make([]document, 0, len(j.rows))
	for _, r := range j.rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		documents, turns, err := s.documents(ctx, r, o)
		switch {
		case err == nil:
			j.documents = append(j.documents, documents...)
			j.turns.add(turns)
			if len(documents) == 0 {
				j.equal++
			}
		case errors.Is(err, errNoEOS) || errors.Is(err, errNoTemplate) || isOfTemplate(err) || ctx.Err() != nil,
			s.BadRows != SkipBadRows && errors.Is(err, errIsOfType): // the entry is wrong, not the row
			return err
		case s.BadRows != SkipBadRows:
			return fmt.Errorf("%w; correct it, or set bad_rows: skip", err)
		default:
			j.skipped++
			if j.firstBad == nil {
				j.firstBad = err
			}
		}
	}
	return nil
}

// documents tokenizes a row, and counts its turns. A pair whose sides are equal becomes none.
func (s rowReader) documents(ctx context.Context, r row, o Options) (all []document, counts TurnCounts, err error) {
	if r.err != nil {
		return nil, counts, r.err
	}
	record, err := s.record(r)
	if err != nil {
		return nil, counts, err
	}
	if record.tokens != nil {
		d, err := record.tokens.document(o.vocab())
		if err != nil {
			return nil, counts, r.errorf("%w", err)
		}
		return []document{d}, counts, nil
	}
	if record.asked != nil {
		d, err := record.asked.document(ctx, o)
		if err != nil {
			return nil, counts, r.errorf("%w", err)
		}
		return []document{d}, counts, nil
	}
	e, counts, err := s.example(ctx, r, record, o)
	if err != nil {
		return nil, counts, err
	}
	d := document{Example: e, section: r.section}
	if record.isLabeled {
		d.has = documentNumbers
		if record.IsWanted {
			d.number = 1
		}
	}
	if record.Rejected == nil {
		return []document{d}, counts, nil
	}
	rejected, more, err := s.example(ctx, r, *record.Rejected, o)
	if err != nil {
		return nil, counts, err
	}
	if slices.Equal(e.InputIDs, rejected.InputIDs) {
		return nil, TurnCounts{}, nil
	}
	counts.add(more)
	d.has, d.number = documentNumbers, record.Margin
	other := d
	other.Example = rejected
	return []document{d, other}, counts, nil
}

// example tokenizes a record of a row, and counts its turns.
func (s rowReader) example(ctx context.Context, r row, record Record, o Options) (e Example, counts TurnCounts,
	err error) {
	if record.isMarked && o.TrainOnPrompt {
		return Example{}, counts, r.errorf("a message is marked as one that does not count, and train_on_prompt counts all: remove the mark, or train_on_prompt")
	}
	rendered, err := o.Renderer.Render(ctx, record)
	if errors.Is(err, errNoTemplate) || isOfTemplate(err) {
		return Example{}, counts, fmt.Errorf("dataset %s: %w", s.Path, err)
	}
	if err != nil {
		return Example{}, counts, r.errorf("%w", err)
	}
	if r.section != (section{}) {
		rendered.Begin, rendered.End = rendered.Begin && !r.section.continues, rendered.End && !r.section.isOpen
	}
	if t, ok := o.Tokenizer.(interface{ Exceeds(string, int) bool }); ok {
		most := max(s.limits.rowBytes(maxTextBytes), len(r.data))
		for _, segment := range rendered.Segments {
			if t.Exceeds(segment.Text, most) {
				return Example{}, counts, r.errorf("the tokenizer's normalizer makes more than %d MiB of it: split it", most>>20)
			}
		}
	}
	e, turns, err := tokenizeTurns(o.Tokenizer, rendered, o.TrainOnPrompt)
	if errors.Is(err, errNoEOS) {
		return Example{}, counts, err
	}
	if err != nil {
		return Example{}, counts, r.errorf("%w", err)
	}
	if len(e.InputIDs) == 0 && !r.section.isOpen {
		return Example{}, counts, r.errorf("there are no tokens")
	}
	return e, countTurns(o.Tokenizer, stopsOf(o), rendered, e, turns), nil
}
