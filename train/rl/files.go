package rl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/vfs"
)

// Dir is the directory of the files of rounds, in that of the run.
const Dir = "rollouts"

// Manifest says what a round's file has. It is written after the file, so that a round is whole where it is there and
// agrees with the file.
type Manifest struct {
	Run      string         `json:"run"`
	Round    int            `json:"round"`
	Step     int            `json:"step"`     // after which the round was sampled
	Settings string         `json:"settings"` // a checksum of all that sets the run's numbers, up to that step
	Sampler  string         `json:"sampler"`
	Params   sampler.Params `json:"params"`
	Begin    data.Cursor    `json:"begin"` // of the prompts
	End      data.Cursor    `json:"end"`
	Answers  int            `json:"answers"`
	Tokens   int            `json:"tokens"` // of the answers
	Bytes    int64          `json:"bytes"`  // of the file
	Sum      string         `json:"xxh3_128"`
	// Figures are what records have of the round, by their names there.
	Figures map[string]float64 `json:"figures"`
}

// maxManifestBytes bounds a manifest that is read.
const maxManifestBytes = 1 << 20

// RowsName, ReferenceName and manifestName are the names of the files of a round. That of the reference has what it
// says of the rows, in the format of package reference, and is made after the manifest: it names all that it depends
// on, and so is whole or made again by itself.
func RowsName(round int) string      { return fmt.Sprintf("%06d.jsonl.zst", round) }
func ReferenceName(round int) string { return fmt.Sprintf("%06d.reference.logprobs", round) }
func manifestName(round int) string  { return fmt.Sprintf("%06d.json", round) }

// answer is a row of a round's file.
type answer struct {
	group   int64
	prompt  []int32
	rewards []float64 // by the names of judges; NaN: null
	total   float64   // NaN: no reward
	sampler.Completion
}

// appendRow writes an answer as a row of type rollouts.
func appendRow(b []byte, a *answer, names []string) []byte {
	list := func(key string, n int, each func(b []byte, i int) []byte) {
		b = append(b, `, "`+key+`": [`...)
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = each(b, i)
		}
		b = append(b, ']')
	}
	number := func(b []byte, x float64, bits int) []byte {
		if math.IsNaN(x) {
			return append(b, "null"...)
		}
		return strconv.AppendFloat(b, x, 'g', -1, bits)
	}
	b = fmt.Appendf(b, `{"group": %d, "sample": %d, "version": %d, "finish": %q, "start": %d`, a.group, a.Sample,
		a.Version, a.Finish, len(a.prompt))
	ids := slices.Concat(a.prompt, a.IDs)
	list("ids", len(ids), func(b []byte, i int) []byte { return strconv.AppendInt(b, int64(ids[i]), 10) })
	list("logprobs", len(a.IDs), func(b []byte, i int) []byte {
		if a.LogProbs == nil {
			return append(b, "null"...)
		}
		return number(b, float64(a.LogProbs[i]), 32)
	})
	b = append(b, `, "rewards": {`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = number(append(strconv.AppendQuote(b, name), ": "...), a.rewards[i], 64)
	}
	return append(b, "}}\n"...)
}

// write writes the files of a round, the manifest last.
func (l *Loop) write(m *Manifest, answers []answer) error {
	rows, sum := l.path(RowsName(m.Round)), xxh3.New128()
	made, err := vfs.MakeDirs(l.FS, l.Dir, 0o777)
	if err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	err = vfs.WriteAtomic(l.FS, rows, func(f vfs.File) error {
		count := &counter{to: io.MultiWriter(f, sum)}
		z, err := zstd.NewWriter(count, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		var row []byte
		for i := range answers {
			row = appendRow(row[:0], &answers[i], l.Panel.Names())
			if _, err := z.Write(row); err != nil {
				return errors.Join(err, z.Close())
			}
		}
		err = z.Close()
		m.Bytes = count.bytes
		return err
	})
	if err != nil {
		vfs.RemoveEmpty(l.FS, made)
		return fmt.Errorf("output_dir: %w", err)
	}
	if err := l.reached("file"); err != nil {
		return err
	}
	m.Sum = fmt.Sprintf("%x", sum.Sum128().Bytes())
	doc, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := vfs.WriteFileAtomic(l.FS, l.path(manifestName(m.Round)), append(doc, '\n')); err != nil {
		return fmt.Errorf("output_dir: %w", err)
	}
	return l.reached("manifest")
}

// counter counts the bytes that it passes on.
type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.bytes += int64(n)
	return n, err
}

func (l *Loop) path(name string) string { return filepath.Join(l.Dir, name) }

// found is the manifest of a round whose file is whole, and of this run; nil if there is no such. why says what is
// wrong with the files that are there instead; empty: there is no manifest.
func (l *Loop) found(p Place, step int) (m *Manifest, why string, err error) {
	name := l.path(manifestName(p.Round))
	doc, err := vfs.ReadFile(l.FS, name, maxManifestBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	m = &Manifest{}
	if err := budget.Unmarshal(doc, m); err != nil {
		return nil, "its manifest is damaged", nil
	}
	switch {
	case !slices.Contains(l.Runs, m.Run):
		return nil, "it is of another run", nil
	case m.Round != p.Round || m.Step != step || m.Begin != p.Begin || m.Settings != l.Settings && p.Taken == 0:
		return nil, "it was made with other settings, or of other weights", nil
	}
	f, err := l.FS.Open(l.path(RowsName(p.Round)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "its rows are not there", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	sum := xxh3.New128()
	n, err := io.Copy(sum, f)
	if err != nil {
		return nil, "", err
	}
	if n != m.Bytes || fmt.Sprintf("%x", sum.Sum128().Bytes()) != m.Sum {
		return nil, "its rows are not those that were written", nil
	}
	return m, "", nil
}

// setAside gives the files of a round other names, so that those that are made now have theirs. Rows are
// first: without their manifest they would be written over, if the run is killed in between.
func (l *Loop) setAside(round int) (to string, err error) {
	free := func(n int) bool {
		_, err := l.FS.Stat(l.path(asideName(round, n, "json")))
		return errors.Is(err, fs.ErrNotExist)
	}
	n := 1
	for !free(n) {
		n++
	}
	to = l.path(asideName(round, n, "json"))
	err = l.FS.Rename(l.path(RowsName(round)), l.path(asideName(round, n, "jsonl.zst")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return to, err
	}
	if err := l.FS.Rename(l.path(manifestName(round)), to); err != nil {
		return to, err
	}
	return to, l.FS.SyncDir(l.Dir)
}

func asideName(round, n int, ending string) string {
	return fmt.Sprintf("%06d.aside-%d.%s", round, n, ending)
}
