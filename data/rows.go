package data

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/vfs"
)

// maxRowLines bounds the lines of a row of an array, whose ends are remembered: they would take eight times the row's
// memory.
const maxRowLines = 1 << 20

// row is a record that has not been decoded yet.
type row struct {
	file    string
	line    int // 0 for a plain file
	data    []byte
	table   bool // line is the number of the row in a Parquet file, from 1
	whole   bool // data is a text of a plain file, or a section of it
	section section
	err     error // what is wrong with the row, with its place, where that was seen before decoding it
}

// section says which part of a document a row is; the zero value is a whole one.
type section struct {
	continues bool // the document began in the row before
	isOpen    bool // and ends in a later one
	lines     int  // of the document before this section
}

// errorf names the place of the row.
func (r row) errorf(format string, args ...any) error {
	where := r.file
	switch {
	case r.table:
		where = fmt.Sprintf("%s: row %d", r.file, r.line)
	case r.line > 0:
		where = fmt.Sprintf("%s:%d", r.file, r.line)
	}
	return fmt.Errorf("%s: %w", where, fmt.Errorf(format, args...))
}

var byteOrderMark = []byte("\uFEFF")

// rowReader reads the rows of a source.
type rowReader struct {
	Source
	limits limits
	asked  int // max_samples of the run file: Source's may be a registry's, which comes from elsewhere
	// cut is a place after from where a text can be cut into sections with the same tokens; 0 if it can be cut nowhere.
	// Nil cuts nothing.
	cut   func(text string, from int) int
	spare *spare // of one reading
}

// newRowReader reads a source from which the run file itself asks for a number of rows, or with 0 for all.
func newRowReader(s Source, l limits, asked int) rowReader {
	r := rowReader{Source: s, limits: l, asked: asked}
	r.spare = r.newSpare()
	return r
}

// readRows calls yield for each row of a file, until it returns false. The row's data belong to yield. Parquet is read
// elsewhere, as it needs random access.
func (s rowReader) readRows(name string, in io.Reader, yield func(row) bool) error {
	packed := &packedBytes{in: in}
	in, done, err := decompress(name, packed)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer done()
	isPacked := unpacked(name) != endings(name)
	if isPacked {
		in = &expansion{out: in, packed: packed, spare: s.spare}
	}
	if isSeparated(name) {
		return s.readSeparated(name, in, yield)
	}
	if !isJSON(name) {
		if s.Lines {
			return s.readTextLines(name, in, yield)
		}
		most := maxTextBytes
		if isPacked {
			most = maxRowBytes
		}
		return s.readPlain(name, in, most, yield)
	}
	r := bufio.NewReaderSize(in, 1<<16)
	if mark, _ := r.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
		r.Discard(len(byteOrderMark))
	}
	// An array and lines are told apart by the first character, as both are called .json.
	line := 1
	for {
		c, err := r.ReadByte()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if c == '\n' {
			line++
		}
		if isJSONSpace(c) {
			continue
		}
		r.UnreadByte()
		if c == '[' {
			return s.readArray(name, r, line, yield)
		}
		return s.readLines(name, r, line, yield)
	}
}

func isJSONSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// readPlain makes a row of a file, which may have most bytes. A long one comes in sections if it can be cut; what
// cannot be is held.
func (s rowReader) readPlain(name string, in io.Reader, most int, yield func(row) bool) error {
	limit := s.limits.rowBytes(most)
	p := section{}
	var held bytes.Buffer
	for total, tried := 0, 0; ; {
		n, err := io.CopyN(&held, in, sectionBytes)
		total += int(n)
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s: %w", name, err)
		}
		if total > most {
			return fmt.Errorf("%s: %w", name, s.limits.tooLarge("the document", most, most))
		}
		if held.Len() > limit {
			return fmt.Errorf("%s: %w", name, s.limits.tooLarge("the document", limit, most))
		}
		at, isEnd := held.Len(), err == io.EOF
		if !isEnd {
			if s.cut == nil || held.Len() < 2*sectionBytes { // the last section is no short one
				continue
			}
			if at = s.cut(string(held.Bytes()[tried:]), 0); at == 0 {
				tried = held.Len() - sectionBytes // what is before has no such place, but near its end
				continue
			}
			at += tried
		}
		data := bytes.Clone(held.Next(at))
		tried = 0
		r := row{file: name, data: data, whole: true, section: p}
		r.section.isOpen = !isEnd
		if !p.continues {
			r.data = bytes.TrimPrefix(data, byteOrderMark)
		}
		if !yield(r) || isEnd {
			return nil
		}
		p.continues = true
		p.lines += bytes.Count(data, []byte("\n"))
	}
}

// readTextLines makes a row of each line that is not blank.
func (s rowReader) readTextLines(name string, in io.Reader, yield func(row) bool) error {
	r := bufio.NewReaderSize(in, 1<<16)
	if mark, _ := r.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
		r.Discard(len(byteOrderMark))
	}
	for line := 1; ; line++ {
		data, err := s.readLine(r)
		if err != nil && err != io.EOF {
			return row{file: name, line: line}.errorf("%w", err)
		}
		if len(bytes.TrimSpace(data)) > 0 && !yield(row{file: name, line: line, data: bytes.TrimRight(data, "\r\n"), whole: true}) {
			return nil
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLines reads one object per line. Lines that are blank have none, as for the readers of pyarrow and datasets.
func (s rowReader) readLines(name string, r *bufio.Reader, line int, yield func(row) bool) error {
	for ; ; line++ {
		data, err := s.readLine(r)
		if err != nil && err != io.EOF {
			return row{file: name, line: line}.errorf("%w", err)
		}
		if len(bytes.TrimSpace(data)) > 0 && !yield(row{file: name, line: line, data: data}) || err == io.EOF {
			return nil
		}
	}
}

// readLine returns the next line in memory of its own; io.EOF comes with the last one.
func (s rowReader) readLine(r *bufio.Reader) ([]byte, error) {
	limit := s.limits.rowBytes(maxRowBytes)
	var data []byte
	for {
		part, err := r.ReadSlice('\n')
		data = append(data, part...)
		if len(data) > limit {
			return nil, s.limits.tooLarge("the line", limit, maxRowBytes)
		}
		if err != bufio.ErrBufferFull {
			return data, err
		}
	}
}

// readArray reads one array of objects. r is at its bracket, which stands in the given line.
func (s rowReader) readArray(name string, r io.Reader, line int, yield func(row) bool) error {
	lines := &lineCounter{in: r, line: line, limits: s.limits, most: int64(s.limits.rowBytes(maxRowBytes))}
	d := json.NewDecoder(lines)
	fail := func(err error) error {
		var syntax *json.SyntaxError
		at := d.InputOffset()
		if errors.As(err, &syntax) {
			at = syntax.Offset
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err, at = errors.New("the array does not end"), lines.read
		}
		return row{file: name, line: lines.at(at)}.errorf("%w; correct the file there", explained(err))
	}
	if _, err := d.Token(); err != nil {
		return fail(err)
	}
	for d.More() {
		var data json.RawMessage
		if err := d.Decode(&data); err != nil {
			return fail(err)
		}
		// The offset is after the object, but a reader looks for its first line.
		start := lines.at(d.InputOffset() - int64(len(data)))
		lines.forget(d.InputOffset())
		if !yield(row{file: name, line: start, data: data}) {
			return nil
		}
	}
	if _, err := d.Token(); err != nil {
		return fail(err)
	}
	var syntax *json.SyntaxError
	switch _, err := d.Token(); {
	case err == io.EOF:
		return nil
	case err == nil || errors.As(err, &syntax):
		return fail(errors.New("there is more after the array; where each line is a list of turns, write {\"messages\": [...]} on each"))
	default:
		return fail(err)
	}
}

// lineCounter remembers the ends of the lines that are read through it, so that errors can name lines instead of
// offsets. It also bounds a row, as the decoder that reads from it holds everything read and not yet handed out.
type lineCounter struct {
	in     io.Reader
	limits limits
	read   int64
	from   int64   // what was forgotten is before it
	most   int64   // bytes from there on
	line   int     // of the first remembered offset
	ends   []int64 // offsets after the line breaks that were not forgotten
}

func (l *lineCounter) Read(p []byte) (int, error) {
	const ahead = 1 << 16 // what is read beyond a row at most
	if l.read-l.from > l.most+ahead {
		return 0, l.limits.tooLarge("the row", int(l.most), maxRowBytes)
	}
	if len(l.ends) > maxRowLines {
		return 0, fmt.Errorf("the row has more than %d lines", maxRowLines)
	}
	n, err := l.in.Read(p[:min(len(p), ahead)])
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i)+1)
		}
	}
	l.read += int64(n)
	return n, err
}

func (l *lineCounter) at(offset int64) int {
	i, _ := slices.BinarySearch(l.ends, offset+1)
	return l.line + i
}

func (l *lineCounter) forget(before int64) {
	i, _ := slices.BinarySearch(l.ends, before)
	l.line += i
	l.from = before
	l.ends = slices.Delete(l.ends, 0, i)
}

// record decodes a row as the source's type says.
func (s Source) record(r row) (Record, error) {
	if i := firstInvalid(r.data); i >= 0 && !r.table {
		r.line = max(r.line, 1) + r.section.lines + bytes.Count(r.data[:i], []byte("\n"))
		return Record{}, r.errorf("byte 0x%02x is not UTF-8: convert the file", r.data[i])
	}
	out, format := Record{Type: s.Type}, s.Type.format()
	if r.whole {
		if !format.isText {
			return Record{}, r.errorf("type %s needs a .json, .jsonl, .csv, .tsv or .parquet file", s.Type)
		}
		out.Text = string(r.data)
		if blank(out.Text) {
			return Record{}, r.errorf("the document is empty")
		}
		return out, nil
	}
	var object map[string]json.RawMessage
	isList := len(bytes.TrimLeft(r.data, " \t\r\n")) > 0 && bytes.TrimLeft(r.data, " \t\r\n")[0] == '['
	if isList && format.isConversation { // a row that is the list of turns alone
		object = map[string]json.RawMessage{s.Messages: r.data}
	} else if err := json.Unmarshal(r.data, &object); isTypeError(err) || err == nil && object == nil {
		return Record{}, r.errorf("the row is not an object")
	} else if err != nil {
		return Record{}, r.errorf("%w", explained(err))
	}
	if len(s.Ignore) > 0 {
		maps.DeleteFunc(object, func(name string, _ json.RawMessage) bool { return s.ignores(name) })
	}
	if why := s.unfit(object); why != "" {
		return Record{}, r.errorf("%s", why)
	}
	if i := firstInvalid(r.data); i >= 0 { // after the checks above, since the bytes of images are in rows of tables
		return Record{}, r.errorf("byte 0x%02x is not UTF-8: convert the file", r.data[i])
	}
	f := fields{row: r, object: object, format: format}
	format.read(&f, s, &out)
	if !format.isText && !format.isTokens && !format.isAsked {
		out.Documents, out.Kwargs = f.documents(), f.kwargs()
	}
	f.checkPlaceholders(&out)
	sides := []*Record{&out}
	if out.Rejected != nil {
		out.Rejected.Documents, out.Rejected.Kwargs = out.Documents, out.Kwargs
		f.checkPlaceholders(out.Rejected)
		sides = append(sides, out.Rejected)
	}
	if (format.isPair || format.isLabeled) && f.err == nil {
		for _, r := range sides {
			if all := r.conversation(); r.promptMessages == 0 {
				r.endPrompt(all[:len(all)-1])
			}
		}
	}
	return out, f.err
}

// pair reads a question and an answer, and what comes before them.
func (f *fields) pair(s Source, out *Record) {
	out.Prompt, out.Response = f.text(s.Prompt), f.text(s.Response)
	out.System, out.History = f.optional(s.System), f.history(s.History)
	out.Tools = f.tools(s)
}

// documents reads what an answer rests on, for templates that write it.
func (f *fields) documents() (all []template.Value) {
	v, _ := f.value(documentsKey)
	items, err := listOf(v)
	if err != nil {
		f.fail("field %q is not a list of documents: it %w", documentsKey, err)
	}
	for i, item := range items {
		d, err := objectOf(item)
		if err != nil || d == nil {
			f.fail("field %q is not a list of documents: number %d is %s, not an object such as {\"title\": ..., \"text\": ...}", documentsKey, i, kindOf(item))
			return nil
		}
		all = append(all, d)
	}
	return all
}

// kwargs reads the variables of the chat template that a row has. Null is no value, as tables have it in rows without
// the variable.
func (f *fields) kwargs() *template.Dict {
	v, _ := f.value(kwargsKey)
	d, err := objectOf(v)
	if err != nil {
		f.fail("field %q %w", kwargsKey, err)
	}
	if d == nil {
		return nil
	}
	all := template.NewDict(d.Len())
	for k, key := range d.Keys() {
		if _, isNull := d.At(k).(template.None); !isNull {
			all.Set(string(key.(template.String)), d.At(k))
		}
	}
	if all.Len() == 0 {
		return nil
	}
	return all
}

// explained says what Python writes where the parser finds a letter that begins no value.
func explained(err error) error {
	if err.Error() == "unexpected end of JSON input" {
		return fmt.Errorf("%w: each line must be one object, or the file one array of objects; put a list that is "+
			"in an object into a file of its own", err)
	}
	for _, found := range []string{"'N' looking for", "'I' looking for", "'I' in numeric literal"} {
		if strings.Contains(err.Error(), "character "+found) {
			return fmt.Errorf("%w: NaN, Infinity and None are not JSON: write null instead", err)
		}
	}
	return err
}

// fields reads the strings of an object and keeps the first error.
type fields struct {
	row    row
	object map[string]json.RawMessage
	format *format
	system string // of a key of its own, in a conversation
	// inPrompt is set while the messages of a prompt are read, of which no answer counts.
	inPrompt bool
	err      error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = f.row.errorf(format, args...)
	}
}

// errIsOfType is in errors of rows that have the usual keys of another type than the source's, or other names of them.
var errIsOfType = errors.New("such rows are of type")

// missing says that a key is not there, which are, and what type of rows has these.
func (f *fields) missing(name string) {
	has := someOf(nearestFirst(name, slices.Sorted(maps.Keys(f.object))))
	if isTurn(f.object) {
		f.fail("field %q is missing: the row is one turn of a conversation; write each conversation as one row, such as {%q: [...]}", name, name)
		return
	}
	if likely := typeOf(f.object); likely != "" {
		f.fail("field %q is missing: the row has %s; %w %s; set that", name, has, errIsOfType, likely)
		return
	}
	f.fail("field %q is missing: the row has %s; name the one to take", name, has)
}

// isTurn reports whether a row looks like a turn: a file whose only row is a list reads as one of turns.
func isTurn(object map[string]json.RawMessage) bool {
	_, hasFrom := object["from"]
	_, hasValue := object["value"]
	_, hasRole := object["role"]
	_, hasContent := object["content"]
	return hasFrom && hasValue || hasRole && hasContent
}

// text returns a string that must not be blank.
func (f *fields) text(name string) string {
	s := f.maybe(name)
	if blank(s) {
		f.fail("field %q is empty", name)
	}
	return s
}

// maybe returns a string that may be blank.
func (f *fields) maybe(name string) (s string) {
	raw, ok := f.object[name]
	switch {
	case !ok:
		f.missing(name)
	case raw[0] != '"':
		f.fail("field %q is not a string, but %s: write it as a text", name, kindOfJSON(raw))
	case loneSurrogate(raw):
		f.fail(`field %q has half of a surrogate pair (\ud800 to \udfff), which is no character`, name)
	default:
		if err := json.Unmarshal(raw, &s); err != nil {
			f.fail("field %q: %w", name, err)
		}
	}
	return s
}

// optional returns a string that may be missing, null or blank.
func (f *fields) optional(name string) string {
	if raw, ok := f.object[name]; !ok || string(raw) == "null" || raw[0] == '[' && blank(string(raw[1:len(raw)-1])) {
		return ""
	}
	return f.maybe(name)
}

// kindOfJSON names the kind of a value.
func kindOfJSON(raw json.RawMessage) string {
	v, err := template.ParseJSON(raw)
	if err != nil {
		return "a value"
	}
	return kindOf(v)
}

func blank(s string) bool { return strings.TrimSpace(s) == "" }

func isTypeError(err error) bool {
	var t *json.UnmarshalTypeError
	return errors.As(err, &t)
}

func firstInvalid(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		c, n := utf8.DecodeRune(b[i:])
		if c == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return -1
}

// loneSurrogate reports whether a JSON string escapes a surrogate without its other half, for which the decoder would
// silently put U+FFFD.
func loneSurrogate(raw []byte) bool {
	unit := func(i int) (uint32, bool) { // the value of \uXXXX at raw[i]
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0, false
		}
		var v uint32
		for _, c := range raw[i+2 : i+6] {
			d := uint32(c) & 15
			if c >= 'A' {
				d += 9
			}
			v = v<<4 | d
		}
		return v, true
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		switch v, ok := unit(i); {
		case !ok:
			i++
		case v >= 0xD800 && v < 0xDC00:
			if low, ok := unit(i + 6); !ok || low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		case v >= 0xDC00 && v <= 0xDFFF:
			return true
		default:
			i += 5
		}
	}
	return false
}

// openRows reads all files of a source in order, some of which may be empty. To seen goes every byte of them, and
// after each file its ending and length, so that what seen got identifies the contents. Without yield it reads for
// seen only.
func (s rowReader) openRows(ctx context.Context, files []string, seen io.Writer, yield func(row) bool) error {
	s.spare = s.newSpare()
	rows := 0
	more := yield != nil
	counted := func(r row) bool {
		if !r.section.continues {
			rows++
		}
		more = yield(r) && (r.section.isOpen || rows != s.MaxSamples)
		return more
	}
	for _, name := range files {
		if err := s.openFile(ctx, name, seen, &more, counted); err != nil {
			return err
		}
	}
	switch {
	case rows > 0 || yield == nil:
		return nil
	case len(files) == 1:
		return fmt.Errorf("%s: the file has no rows", files[0])
	}
	return fmt.Errorf("dataset %s: none of its %d files has a row", s.Path, len(files))
}

func (s rowReader) openFile(ctx context.Context, name string, seen io.Writer, more *bool, yield func(row) bool) error {
	f, err := vfs.OpenRegular(name)
	if err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	defer f.Close()
	in := &countedReader{ctx: ctx, in: io.TeeReader(f, seen)}
	if *more {
		if isParquet(name) {
			err = s.readParquet(ctx, name, f, yield)
		} else {
			err = s.readRows(name, in, yield)
		}
	}
	// What no row needs is read all the same: seen must know the whole file.
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(seen, "\x00%s %d\n", endings(name), in.bytes) // a hash does not fail
	return nil
}

// countedReader counts what is read, and stops when its context is done.
type countedReader struct {
	ctx   context.Context
	in    io.Reader
	bytes int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.in.Read(p)
	c.bytes += int64(n)
	return n, err
}
