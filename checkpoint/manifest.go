package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// FormatVersion is the version of the format that this program writes, and the only one that it reads.
const FormatVersion = 1

// ManifestName is the file that every checkpoint has.
const ManifestName = manifestName

const (
	formatName   = "millrace checkpoint"
	manifestName = "manifest.json"

	// maxManifestBytes is four times what the manifest of 10^12 parameters takes whose state is on disk, with moments
	// in 8 bits: a file for each piece.
	maxManifestBytes = 1 << 30
	// memoryPerByte bounds what a byte of a manifest takes of memory while that is read: see checkValues.
	memoryPerByte = 4
	// maxStateBytes bounds every size in a manifest, so that sums of them stay far from overflowing.
	maxStateBytes = 1 << 56
	// maxStep bounds a step number; a run never gets there.
	maxStep = 1_000_000_000_000
	// maxComputedOn bounds a line that is shown to people.
	maxComputedOn = 500
	// maxAlgorithms bounds how many shapes of matrix products a run may have chosen algorithms for.
	maxAlgorithms = 100_000
)

// ID names an extent by what it is, not by where a program had it.
type ID struct {
	Part string // model.Part.Name, such as "block.11"
	Kind store.Kind
}

func (id ID) String() string { return fmt.Sprintf("%v of %s", id.Kind, id.Part) }

// Spec is an extent that a checkpoint is to hold.
type Spec struct {
	ID
	DType      tensor.DType // of its elements; where they are quantized, of the codes
	Bytes      int64
	PieceBytes int64 // of each piece but the last, which may be shorter
}

// Pieces is the number of pieces.
func (s Spec) Pieces() int { return int((s.Bytes-1)/s.PieceBytes + 1) }

// piece is the place of a piece in its extent.
func (s Spec) piece(i int) (off, n int64) {
	off = int64(i) * s.PieceBytes
	return off, min(s.PieceBytes, s.Bytes-off)
}

func (s Spec) check() error {
	switch {
	case !isPlainName(s.Part):
		return fmt.Errorf("part %s is not a plain name", quote(s.Part))
	case int(s.Kind) >= store.Kinds:
		return fmt.Errorf("kind %d of part %s is unknown", uint8(s.Kind), quote(s.Part))
	case !isPlainName(s.imageName()) || !isPlainName(s.pieceName(maxPieces)):
		return fmt.Errorf("part %s has too long a name", quote(s.Part))
	case s.Bytes <= 0 || s.Bytes > maxStateBytes || s.PieceBytes <= 0 || (s.Bytes-1)/s.PieceBytes >= maxPieces:
		return fmt.Errorf("%v: %d bytes in pieces of %d cannot be", s.ID, s.Bytes, s.PieceBytes)
	}
	if _, err := tensor.ParseDType(s.DType.String()); err != nil {
		return fmt.Errorf("%v: %w", s.ID, err)
	}
	return nil
}

// maxPieces is more pieces than an extent of any part has.
const maxPieces = 1 << 24

// Sum is an xxh3 checksum of 64 bits, written as 16 hexadecimal digits.
type Sum uint64

func (s Sum) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// MarshalText implements encoding.TextMarshaler.
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sum) UnmarshalText(text []byte) error {
	var v uint64
	for _, c := range text {
		digit := bytes.IndexByte([]byte("0123456789abcdef"), c)
		if digit < 0 {
			return fmt.Errorf("%s is not a checksum", quote(string(text)))
		}
		v = v<<4 | uint64(digit)
	}
	if len(text) != 16 {
		return fmt.Errorf("%s is not a checksum", quote(string(text)))
	}
	*s = Sum(v)
	return nil
}

// Piece is the place of a piece of an extent.
type Piece struct {
	File   string `json:"file"`   // in the checkpoint's directory
	Offset int64  `json:"offset"` // in the file
	Bytes  int64  `json:"bytes"`
	Sum    Sum    `json:"xxh3"` // of these bytes
}

// Extent is an extent that a checkpoint holds.
type Extent struct {
	Spec
	Pieces []Piece // in order; together they are the extent
}

// File is a file of a checkpoint.
type File struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"` // its length, which may be more than its pieces take where a store has padded it
}

// Attachment is a small file that travels with the state, such as the model's config.json.
type Attachment struct {
	File string `json:"file"`
	Sum  Sum    `json:"xxh3"`
}

// Model identifies the model of a state. Two of them are the same model if they are equal.
type Model struct {
	Type         string `json:"type"`          // model_type of config.json
	ConfigSHA256 string `json:"config_sha256"` // of the bytes of config.json
	LayoutSHA256 string `json:"layout_sha256"` // of every part's tensors, shapes and offsets
	// CarriedSHA256 is of the tensors that are in the model's directory alone, from which an export copies them.
	CarriedSHA256 string `json:"carried_sha256,omitempty"`
	// Frozen are the names of the tensors that were not trained, in the order of parts: they have weights and no other
	// state.
	Frozen []string `json:"frozen,omitempty"`
}

// Base identifies the weights that a run began with.
type Base struct {
	Init  string `json:"init"`  // pretrained, or random: then the seed in Mathematics decides them
	Model string `json:"model"` // as the run file named it: a path or a hub id
	// WeightsSHA256 is the fingerprint of pretrained weights (hf.Weights.Fingerprint).
	WeightsSHA256 string `json:"weights_sha256,omitempty"`
}

// Best is the evaluation with the lowest loss so far.
type Best struct {
	Step     int     `json:"step"`
	EvalLoss float64 `json:"eval_loss"`
}

// Plateau counts the evaluations since the loss was last lower.
type Plateau struct {
	Lowest      *float64 `json:"lowest_eval_loss"` // nil: none was finite
	Evaluations int      `json:"evaluations"`      // since then, of which none was lower
}

// Change records that a run continued after a step with another value of a key of the configuration.
type Change struct {
	Step int    `json:"step"` // the last one with the old value
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
}

func (c Change) String() string {
	return fmt.Sprintf("after step %d: %s %s -> %s", c.Step, c.Key, c.From, c.To)
}

// Manifest describes a checkpoint. Commit fills in Run, CopiedFrom, Step, Files, Attachments and Extents.
type Manifest struct {
	Run RunID `json:"run,omitempty"` // that saved it
	// CopiedFrom are the runs whose checkpoints that one takes for its own: see Owner.
	CopiedFrom     []RunID `json:"copied_from,omitempty"`
	Step           int     `json:"step"`            // optimizer steps done: the run continues with Step+1
	Updates        int64   `json:"updates"`         // that were applied: AdamW's t
	SkippedUpdates int64   `json:"skipped_updates"` // whose gradient norm was not finite
	// UntargetedSteps had no token that counts in the loss, and updated nothing. UnhealthySteps are the latest ones in a
	// row that the run would end for if there were more of them.
	UntargetedSteps int64 `json:"untargeted_steps,omitempty"`
	UnhealthySteps  int   `json:"unhealthy_steps,omitempty"`

	Model Model `json:"model"`
	Base  *Base `json:"base,omitempty"` // nil in manifests from before it was noted
	// Numerics are the settings that decide the bits of a run (plan.Numerics). Mathematics are the keys of the
	// configuration that decide its results, by name, as text. A run may continue only if both are the same; see
	// Compare.
	Numerics    json.RawMessage   `json:"numerics"`
	Mathematics map[string]string `json:"mathematics"`
	// ComputedOn names what, besides Numerics, decided the bits of the steps before this one: the kind of device, its
	// kernels and libraries, in a line; empty where it was not noted. A run may continue on another device, and then
	// end with other bits.
	ComputedOn string `json:"computed_on,omitempty"`
	// MomentCodes names how moments are rounded to codes, in a line; empty where they are fp32, and in manifests from
	// before it was noted. A run may continue with another rounding, and then end with other bits.
	MomentCodes string `json:"moment_codes,omitempty"`
	// Algorithms are the device's choices of algorithms for matrix products (device.ProductTuner), where it had a
	// choice. A run that is resumed on the same kind of device makes the same ones, so that its bits are the same.
	Algorithms []string `json:"algorithms,omitempty"`
	// Data is the cursor in the data, and the fingerprint of the data that it belongs to.
	Data json.RawMessage `json:"data"`
	// EvalLoss is of an evaluation at this step, if there was one and its loss was finite.
	EvalLoss *float64 `json:"eval_loss"`
	Best     *Best    `json:"best"`
	// Plateau is of all evaluations up to this step, except that before training; nil without one.
	Plateau *Plateau `json:"plateau,omitempty"`
	// History are the changes of Mathematics that were allowed where the run was resumed, oldest first.
	History []Change `json:"history,omitempty"`

	Files       []File       `json:"files"` // all but the manifest, by name
	Attachments []Attachment `json:"attachments"`
	Extents     []Extent     `json:"extents"`
}

// Bytes is the state that the checkpoint holds.
func (m *Manifest) Bytes() int64 {
	var sum int64
	for _, e := range m.Extents {
		sum += e.Bytes
	}
	return sum
}

// dropPieces forgets the files and the places of pieces in them.
func (m *Manifest) dropPieces() {
	m.Files = nil
	for i := range m.Extents {
		m.Extents[i].Pieces = nil
	}
}

// extentJSON is an Extent in a manifest.
type extentJSON struct {
	Part       string  `json:"part"`
	Kind       string  `json:"kind"`
	DType      string  `json:"dtype"`
	Bytes      int64   `json:"bytes"`
	PieceBytes int64   `json:"piece_bytes"`
	Pieces     []Piece `json:"pieces"`
}

// MarshalJSON implements json.Marshaler.
func (e Extent) MarshalJSON() ([]byte, error) {
	return json.Marshal(extentJSON{e.Part, e.Kind.String(), e.DType.String(), e.Bytes, e.PieceBytes, e.Pieces})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Extent) UnmarshalJSON(text []byte) error {
	var j extentJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	dtype, err := tensor.ParseDType(j.DType)
	if err != nil {
		return err
	}
	for kind := range store.Kind(store.Kinds) {
		if kind.String() == j.Kind {
			*e = Extent{Spec{ID{j.Part, kind}, dtype, j.Bytes, j.PieceBytes}, j.Pieces}
			return nil
		}
	}
	return fmt.Errorf("unknown kind of extent %s", quote(j.Kind))
}

// The manifest's file is a JSON object of four members, always in this order and without a space. The checksum is
// over the bytes of the last one, up to the brace and newline that end the file.
const (
	envelopeStart   = `{"format":"` + formatName + `","version":`
	envelopeSum     = `,"xxh3":"`
	envelopeContent = `","manifest":`
	envelopeEnd     = "}\n"
)

func seal(body []byte) []byte { return append(append(sealOf(body), body...), envelopeEnd...) }

// sealOf is the part of the file before its body.
func sealOf(body []byte) []byte {
	return fmt.Appendf(nil, "%s%d%s%v%s", envelopeStart, FormatVersion, envelopeSum, Sum(xxh3.Hash(body)), envelopeContent)
}

// Bytes of a body for each of its objects, for each text with a key, and for each comma: no less in a body that Commit
// writes, where a piece has a checksum of 16 digits. So values take a few times the bytes of the body in memory, and not
// ten times, as a list of {} would.
const (
	objectBytes = 16
	keyedBytes  = 16
	commaBytes  = 8
	freeBytes   = 1 << 16 // of which no count is taken
)

// checkValues refuses a body with more values than one of its length has.
func checkValues(body []byte) error {
	for _, v := range []struct {
		mark  string
		bytes int
	}{{"{", objectBytes}, {`":"`, keyedBytes}, {",", commaBytes}} {
		if n := bytes.Count(body, []byte(v.mark)); n > (len(body)+freeBytes)/v.bytes {
			return fmt.Errorf("it has about %d values in %d bytes, more than a checkpoint has", n, len(body))
		}
	}
	return nil
}

// unseal undoes seal, and compares the checksum.
func unseal(doc []byte) (body []byte, err error) {
	rest, ok := bytes.CutPrefix(doc, []byte(envelopeStart))
	if !ok {
		return nil, errors.New("it does not begin like one of a " + formatName)
	}
	version, rest, _ := bytes.Cut(rest, []byte(","))
	if v := strconv.Itoa(FormatVersion); string(version) != v {
		return nil, fmt.Errorf("it has version %s of the format, and this program reads version %s", quote(string(version)), v)
	}
	body, ok = bytes.CutSuffix(rest, []byte(envelopeEnd))
	start := len(envelopeSum) - 1 + len(Sum(0).String()) + len(envelopeContent) // the comma is cut off
	if !ok || len(body) < start {
		return nil, errors.New("it is cut off")
	}
	body = body[start:]
	if !bytes.HasPrefix(doc, sealOf(body)) {
		return nil, errors.New("it was changed: its checksum does not match")
	}
	return body, nil
}

// encode is the manifest's file.
func (m *Manifest) encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := checkValues(body); err != nil {
		return nil, fmt.Errorf("the manifest could not be read again: %w: report this", err)
	}
	doc := seal(body)
	if len(doc) > maxManifestBytes {
		return nil, fmt.Errorf("the manifest would have %d bytes, and %d can be read: report this", len(doc),
			maxManifestBytes)
	}
	return doc, nil
}

// Sum is the checksum of the manifest, with which its file is sealed. It has the checksums of all pieces and files, so
// that checkpoints with the same one have the same state.
func (m *Manifest) Sum() (Sum, error) {
	body, err := json.Marshal(m)
	return Sum(xxh3.Hash(body)), err
}

// decode reads what encode wrote, and nothing else: the same manifest in other bytes (another order of keys, a key
// twice, a key that this program does not know) is refused as well.
func decode(doc []byte) (*Manifest, error) {
	body, err := unseal(doc)
	if err != nil {
		return nil, err
	}
	if err := checkValues(body); err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	again, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, body) {
		return nil, errors.New("it was not written by this program")
	}
	return m, nil
}

// check refuses a manifest that cannot be of a checkpoint: sizes that are absurd or do not add up, names that are not
// plain file names, pieces that overlap, files that nothing needs.
func (m *Manifest) check() error {
	if m.Step < 0 || m.Step > maxStep || m.Updates < 0 || m.SkippedUpdates < 0 || m.UntargetedSteps < 0 || m.UnhealthySteps < 0 {
		return fmt.Errorf("step %d with %d updates and %d skipped cannot be", m.Step, m.Updates, m.SkippedUpdates)
	}
	for _, run := range append([]RunID{m.Run}, m.CopiedFrom...) {
		if err := run.Check(); err != nil {
			return err
		}
	}
	for _, c := range m.History {
		if c.Step < 0 || c.Step > m.Step || strings.ContainsFunc(c.Key+c.From+c.To, unicode.IsControl) {
			return fmt.Errorf("a change after step %d of %s cannot be", c.Step, quote(c.Key))
		}
	}
	for name, line := range map[string]string{"computed_on": m.ComputedOn, "moment_codes": m.MomentCodes} {
		if len(line) > maxComputedOn || strings.ContainsFunc(line, unicode.IsControl) {
			return fmt.Errorf("%s %s is not a line of text", name, quote(line))
		}
	}
	if len(m.Algorithms) > maxAlgorithms {
		return fmt.Errorf("%d algorithms of matrix products cannot be", len(m.Algorithms))
	}
	for _, line := range m.Algorithms {
		if len(line) > maxComputedOn || strings.ContainsFunc(line, unicode.IsControl) {
			return fmt.Errorf("the algorithm %.100q is not a line of text", line)
		}
	}
	if m.Plateau != nil && m.Plateau.Evaluations < 0 {
		return fmt.Errorf("%d evaluations cannot be", m.Plateau.Evaluations)
	}
	for _, loss := range []*float64{m.EvalLoss, m.Best.loss(), m.Plateau.lowest()} {
		if loss != nil && (math.IsNaN(*loss) || math.IsInf(*loss, 0)) {
			return fmt.Errorf("evaluation loss %v is not finite", *loss)
		}
	}
	lengths := make(map[string]int64, len(m.Files))
	for i, f := range m.Files {
		switch {
		case !isPlainName(f.Name) || f.Name == manifestName:
			return fmt.Errorf("%s cannot be the name of a file", quote(f.Name))
		case i > 0 && m.Files[i-1].Name >= f.Name:
			return fmt.Errorf("file %s is out of order, or twice", quote(f.Name))
		case f.Bytes < 0 || f.Bytes > maxStateBytes:
			return fmt.Errorf("file %s cannot have %d bytes", quote(f.Name), f.Bytes)
		}
		lengths[f.Name] = f.Bytes
	}
	used, err := m.ranges(lengths)
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := checkApart(f.Name, used[f.Name]); err != nil {
			return err
		}
	}
	return nil
}

func (b *Best) loss() *float64 {
	if b == nil {
		return nil
	}
	return &b.EvalLoss
}

func (p *Plateau) lowest() *float64 {
	if p == nil {
		return nil
	}
	return p.Lowest
}

// ranges checks extents and attachments against the lengths of the files, and returns what is used of each file.
func (m *Manifest) ranges(lengths map[string]int64) (map[string][][2]int64, error) {
	used := make(map[string][][2]int64, len(lengths))
	use := func(file string, off, n int64) error {
		length, ok := lengths[file]
		switch {
		case !ok:
			return fmt.Errorf("file %s is used and not listed", quote(file))
		case off < 0 || off > length-n:
			return fmt.Errorf("file %s has %d bytes, and %d at %d are used", quote(file), length, n, off)
		}
		used[file] = append(used[file], [2]int64{off, off + n})
		return nil
	}
	for i, a := range m.Attachments {
		if i > 0 && m.Attachments[i-1].File >= a.File {
			return nil, fmt.Errorf("attachment %s is out of order, or twice", quote(a.File))
		}
		if err := use(a.File, 0, lengths[a.File]); err != nil {
			return nil, err
		}
	}
	seen := make(map[ID]bool, len(m.Extents))
	var total int64
	for _, e := range m.Extents {
		if err := e.check(); err != nil {
			return nil, err
		}
		if seen[e.ID] {
			return nil, fmt.Errorf("%v are there twice", e.ID)
		}
		seen[e.ID] = true
		if total += e.Bytes; total > maxStateBytes {
			return nil, fmt.Errorf("the extents are larger than any disk")
		}
		if e.Spec.Pieces() != len(e.Pieces) {
			return nil, fmt.Errorf("%v: %d pieces, %d expected", e.ID, len(e.Pieces), e.Spec.Pieces())
		}
		for i, p := range e.Pieces {
			if _, n := e.piece(i); p.Bytes != n {
				return nil, fmt.Errorf("%v: piece %d has %d bytes, %d expected", e.ID, i, p.Bytes, n)
			}
			if err := use(p.File, p.Offset, p.Bytes); err != nil {
				return nil, fmt.Errorf("%v: %w", e.ID, err)
			}
		}
	}
	return used, nil
}

// checkApart refuses a file that nothing uses or that two pieces share bytes of.
func checkApart(file string, used [][2]int64) error {
	if len(used) == 0 {
		return fmt.Errorf("file %s is listed and not used", quote(file))
	}
	slices.SortFunc(used, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	for i := 1; i < len(used); i++ {
		if used[i][0] < used[i-1][1] {
			return fmt.Errorf("file %s: two pieces overlap at byte %d", quote(file), used[i][0])
		}
	}
	return nil
}
