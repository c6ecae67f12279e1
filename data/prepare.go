package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data/tokenizer"
)

// Options say how [Prepare] turns rows into tokens.
type Options struct {
	Tokenizer     tokenizer.Tokenizer
	Renderer      Renderer       // nil is Plain
	TrainOnPrompt bool           // prompts count in the loss too
	CacheDir      string         // "" keeps nothing; see DefaultCacheDir
	Workers       int            // goroutines that tokenize; 0 is GOMAXPROCS
	Progress      func(Progress) // may be nil; never called concurrently
	Log           *slog.Logger   // told about faults of the cache, which are no errors; nil is silence
}

// Progress is how far Prepare is with one source.
type Progress struct {
	Source     string // its path
	Documents  int
	Tokens     int64
	ReadBytes  int64
	TotalBytes int64
	Cached     bool // the tokens came from the cache
	Done       bool // this is the last call for the source
}

// Prepare reads and tokenizes the sources, one after the other, into one dataset. The result does not depend on the
// number of workers or on the cache. Errors name the file and, for rows, the line; of several bad rows it is the first.
func Prepare(ctx context.Context, sources []Source, o Options) (*Dataset, error) {
	if len(sources) == 0 {
		return nil, errors.New("datasets is empty: name at least one")
	}
	if o.Renderer == nil {
		o.Renderer = Plain
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	for _, s := range sources {
		if err := s.Validate(); err != nil {
			return nil, err
		}
	}
	var all *Dataset
	for _, s := range sources {
		d, err := prepareSource(ctx, s.withDefaults(), o)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = d
		} else {
			all.concat(d)
		}
		if len(all.ends) > maxDocuments {
			return nil, fmt.Errorf("the datasets have more than %d documents", maxDocuments)
		}
	}
	all.seal()
	return all, nil
}

func prepareSource(ctx context.Context, s Source, o Options) (*Dataset, error) {
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	p := Progress{Source: s.Path}
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			p.TotalBytes += info.Size()
		}
	}
	if o.CacheDir == "" {
		return tokenize(ctx, s, files, io.Discard, o, p)
	}
	content := xxh3.New128()
	if err := s.openRows(ctx, files, content, func(row) bool { return false }); err != nil {
		return nil, err
	}
	key := s.cacheKey(content.Sum128(), o)
	d, err := readCache(o.CacheDir, key, o.Tokenizer.VocabSize())
	if err == nil {
		p.Documents, p.Tokens, p.ReadBytes, p.Cached, p.Done = d.Len(), d.Tokens(), p.TotalBytes, true, true
		o.Progress(p)
		return d, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		o.Log.Warn("token cache: file is made anew", "path", cachePath(o.CacheDir, key), "error", err)
	}
	again := xxh3.New128()
	d, err = tokenize(ctx, s, files, again, o, p)
	if err != nil {
		return nil, err
	}
	if again.Sum128() != content.Sum128() {
		return nil, fmt.Errorf("dataset %s: a file changed while it was read: start again", s.Path)
	}
	if err := writeCache(o.CacheDir, key, d); err != nil {
		o.Log.Warn("token cache: tokens are not kept", "path", o.CacheDir, "error", err)
	}
	return d, nil
}

// cacheKey hashes everything that the tokens of a source depend on, except that files may move.
func (s Source) cacheKey(content xxh3.Uint128, o Options) xxh3.Uint128 {
	s.Path, s.Glob = "", ""
	b := content.Bytes()
	spec, _ := json.Marshal([]any{ // strings, numbers and a bool: it cannot fail
		string(cacheMagic), s, fmt.Sprintf("%x", b), o.Tokenizer.Hash(), o.Renderer.Version(), o.TrainOnPrompt,
	})
	return xxh3.Hash128(spec)
}

// batchBytes is how much text a worker gets at a time.
const batchBytes = 256 << 10

// job is a run of rows on its way through a worker; done closes when examples or err is set.
type job struct {
	rows     []row
	bytes    int
	examples []Example
	err      error
	done     chan struct{}
}

// tokenize reads the files into jobs, lets workers do them, and collects them in order. Every byte also goes to seen.
func tokenize(ctx context.Context, s Source, files []string, seen io.Writer, o Options, p Progress) (*Dataset, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := make(chan *job)
	ordered := make(chan *job, 2*o.Workers) // bounds what is read ahead
	var readErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ordered)
		defer close(work)
		j := &job{done: make(chan struct{})}
		send := func() bool {
			if len(j.rows) == 0 {
				return true
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
			return j.bytes < batchBytes || send()
		})
		send()
	})
	for range o.Workers {
		wg.Go(func() {
			for j := range work {
				j.examples, j.err = s.examples(ctx, j.rows, o)
				close(j.done)
			}
		})
	}
	d := &Dataset{}
	err := collect(ctx, d, ordered, o.Progress, &p)
	cancel()
	wg.Wait()
	switch {
	case err != nil:
		return nil, err
	case readErr != nil:
		return nil, readErr
	}
	p.ReadBytes, p.Done = p.TotalBytes, true
	o.Progress(p)
	return d, nil
}

// collect appends the examples of all jobs in order and stops at the first error.
func collect(ctx context.Context, d *Dataset, ordered <-chan *job, progress func(Progress), p *Progress) error {
	for j := range ordered {
		select {
		case <-j.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for _, e := range j.examples {
			if err := d.append(e); err != nil {
				return err
			}
		}
		if j.err != nil {
			return j.err
		}
		if d.Len() > maxDocuments {
			return fmt.Errorf("dataset %s has more than %d documents", p.Source, maxDocuments)
		}
		p.Documents, p.Tokens = d.Len(), d.Tokens()
		p.ReadBytes = min(p.ReadBytes+int64(j.bytes), p.TotalBytes)
		progress(*p)
	}
	return ctx.Err()
}

// examples tokenizes rows up to the first bad one.
func (s Source) examples(ctx context.Context, rows []row, o Options) ([]Example, error) {
	examples := make([]Example, 0, len(rows))
	for _, r := range rows {
		if err := ctx.Err(); err != nil {
			return examples, err
		}
		record, err := s.record(r)
		if err != nil {
			return examples, err
		}
		rendered, err := o.Renderer.Render(record)
		if err != nil {
			return examples, r.errorf("%w", err)
		}
		e, err := Tokenize(o.Tokenizer, rendered, o.TrainOnPrompt)
		if errors.Is(err, errNoEOS) {
			return examples, err
		}
		if err != nil {
			return examples, r.errorf("%w", err)
		}
		examples = append(examples, e)
	}
	return examples, nil
}
